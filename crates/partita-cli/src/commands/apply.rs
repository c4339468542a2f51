//! `partita apply`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use partita::apply::{self, Action, Consent, Plan, Wanted};
use partita::detached::{self, Begun, Records};
use partita::install::{Install, OWN_ERROR};
use partita::kill::{self, GRACE_DEFAULT};
use partita::limits::{Given, LIMITS};
use partita::process::user_name;
use partita::registry::Registry;
use partita::set::{self, SetRequest, Whose};
use partita::{queue, system};
use partita_console::{Failure, print, print_json, tell};
use serde::Serialize;

use crate::args::Apply;

/// How often a start looks whether it waits.
const LOOK: Duration = Duration::from_millis(20);

/// One action in the answer.
#[derive(Debug, Serialize)]
struct Row<'a> {
    tenant: &'a str,
    /// `start`, `change`, `restart` or `end`.
    action: &'static str,
    /// The commands that do it.
    commands: Vec<String>,
    /// Whether it is done; `null` in a dry run.
    done: Option<bool>,
    /// The option that allows it, if it is not given.
    needs: Option<&'static str>,
}

struct Context {
    install: Install,
    registry: Registry,
    records: Records,
    file: PathBuf,
}

/// Makes the tenants as the file describes them.
pub fn apply(arguments: &Apply) -> Result<ExitCode, Failure> {
    let shown = arguments.file.display().to_string();
    let unreadable =
        |error| Failure::Told(format!("{shown}: {error}; name a file of TOML, as in `partita apply --help`"));
    let file = arguments.file.canonicalize().map_err(unreadable)?;
    let text = std::fs::read_to_string(&file).map_err(unreadable)?;
    let wanted = apply::read(&shown, &text)?;
    let context = Context {
        install: Install::of_this_program()?,
        registry: Registry::open()?,
        records: Records::open()?,
        file,
    };
    let current = apply::current(&context.registry, &context.records)?;
    let consent = Consent { restart: arguments.restart, prune: arguments.prune };
    let plan = apply::plan(&context.file, &wanted, &current, consent)?;
    apply::check_names(&context.registry, &wanted, &current)?;
    let mut done = BTreeMap::new();
    if !arguments.dry_run {
        context.carry_out(&plan, |action, is_done| {
            done.insert(action.name().to_owned(), is_done);
            match is_done && !arguments.json {
                true => print(&format!("{}: {}\n", action.name(), past(action))),
                false => Ok(()),
            }
        })?;
    }
    let rows = rows(&plan, arguments.dry_run, &done);
    if arguments.json {
        print_json(&rows)?;
    } else if arguments.dry_run {
        let commands = rows.iter().filter(|row| row.needs.is_none()).flat_map(|row| &row.commands);
        print(&commands.map(|command| format!("{command}\n")).collect::<String>())?;
    }
    for name in &plan.waits {
        tell(&format!("{name}: waits for room already"));
    }
    for action in &plan.left {
        tell(&left_text(action));
    }
    // A tenant that the file does not name is as the file says.
    let is_left = plan.left.iter().any(|action| matches!(action, Action::Restart { .. }));
    let is_failed = is_left || done.values().any(|is_done| !is_done);
    Ok(if is_failed { ExitCode::from(OWN_ERROR) } else { ExitCode::SUCCESS })
}

impl Context {
    /// Carries the actions out, also those after one that failed. `noted` is called after each,
    /// with whether it is done.
    fn carry_out(
        &self,
        plan: &Plan,
        mut noted: impl FnMut(&Action, bool) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (changes, others): (Vec<&Action>, Vec<&Action>) =
            plan.actions.iter().partition(|action| matches!(action, Action::Change { .. }));
        let (ends, starts): (Vec<&Action>, Vec<&Action>) =
            others.into_iter().partition(|action| matches!(action, Action::End { .. }));
        for action in ends {
            noted(action, self.reported(action))?;
        }
        // A tenant may grow only after another one has shrunk. A refused change has no effect.
        let mut changes = changes;
        loop {
            let before = changes.len();
            let mut refused = Vec::new();
            for action in changes {
                match self.carry_one_out(action) {
                    Ok(()) => noted(action, true)?,
                    Err(failure) => refused.push((action, failure)),
                }
            }
            if refused.is_empty() {
                break;
            }
            if refused.len() == before {
                for (action, failure) in refused {
                    let _ = failure.report();
                    noted(action, false)?;
                }
                break;
            }
            changes = refused.into_iter().map(|(action, _)| action).collect();
        }
        let (waiting, others): (Vec<&Action>, Vec<&Action>) =
            starts.into_iter().partition(|action| waits(action));
        others.into_iter().try_for_each(|action| noted(action, self.reported(action)))?;
        self.start_in_turn(&waiting, noted)
    }

    /// Starts tenants that wait for room, all at once: one that waits keeps none from starting on
    /// another GPU. They come to the queue in the order of the file.
    fn start_in_turn(
        &self,
        waiting: &[&Action],
        mut noted: impl FnMut(&Action, bool) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (sender, ended) = channel();
        thread::scope(|scope| {
            let mut done = Vec::new();
            for action in waiting {
                let sender = sender.clone();
                scope.spawn(move || sender.send((*action, self.carry_one_out(action))));
                let is_done = |done: &[(&Action, Result<(), Failure>)]| {
                    done.iter().any(|(other, _)| other.name() == action.name())
                };
                while !is_done(&done) && !self.is_queued(action.name()) {
                    done.extend(ended.recv_timeout(LOOK));
                }
            }
            drop(sender);
            for (action, result) in done.into_iter().chain(&ended) {
                noted(action, result.map_err(Failure::report).is_ok())?;
            }
            Ok(())
        })
    }

    /// Whether a program of this user waits under this name.
    fn is_queued(&self, name: &str) -> bool {
        let user = user_name(rustix::process::geteuid().as_raw());
        let is_it = |row: &queue::WaitingRow| row.name == name && row.user == user;
        queue::waiting(&self.registry).is_ok_and(|rows| rows.iter().any(is_it))
    }

    fn reported(&self, action: &Action) -> bool {
        let done = self.carry_one_out(action);
        done.map_err(Failure::report).is_ok()
    }

    fn carry_one_out(&self, action: &Action) -> Result<(), Failure> {
        match action {
            Action::End { name } => self.end(name),
            Action::Change { wanted, options } => {
                self.change(&wanted.name, options)?;
                Ok(apply::note(&self.registry, &self.records, &self.file, wanted)?)
            }
            Action::Restart { wanted, .. } => {
                self.end(&wanted.name)?;
                self.start(wanted)
            }
            Action::Start { wanted } => self.start(wanted),
        }
    }

    fn start(&self, wanted: &Wanted) -> Result<(), Failure> {
        let words = wanted.arguments().map(Into::into);
        if wanted.waits() {
            apply::note_waiting(&self.records, &self.file, wanted)?;
        }
        let begun = detached::start(&self.install, words, self.file.parent());
        if wanted.waits() && !matches!(begun, Ok(Begun::Runs(_))) {
            self.records.forget_waiting(&wanted.name);
        }
        match begun? {
            Begun::Runs(_) => Ok(apply::note(&self.registry, &self.records, &self.file, wanted)?),
            // The reason is on stderr.
            Begun::Failed(code) => {
                Err(Failure::Told(format!("{}: not started (exit code {code})", wanted.name)))
            }
        }
    }

    fn change(&self, name: &str, options: &BTreeMap<String, String>) -> Result<(), Failure> {
        if self.registry.is_client() {
            // Its output is not for the user.
            let refused = system::command(&self.registry, set_words(name, options))?.failure();
            return refused.map_or(Ok(()), |reason| Err(Failure::Told(reason)));
        }
        let mut given = Given::default();
        for limit in LIMITS {
            options.get(limit.name).into_iter().for_each(|value| given.add(limit, value.clone()));
        }
        let limits = given.read().map_err(|refused| Failure::Told(format!("{name}: {refused}")))?;
        let request = SetRequest { limits, ..SetRequest::new(Whose::Name(name.to_owned())) };
        Ok(set::set(&self.registry, &request).map(drop)?)
    }

    fn end(&self, name: &str) -> Result<(), Failure> {
        let ended = kill::kill(&self.install, &self.registry, name, GRACE_DEFAULT)?;
        ended.notices.iter().for_each(|notice| tell(notice));
        Ok(())
    }
}

/// Whether an action starts a tenant that waits for room.
fn waits(action: &Action) -> bool {
    match action {
        Action::Restart { wanted, .. } | Action::Start { wanted } => wanted.waits(),
        Action::End { .. } | Action::Change { .. } => false,
    }
}

fn rows<'a>(plan: &'a Plan, is_dry: bool, done: &BTreeMap<String, bool>) -> Vec<Row<'a>> {
    let row = |action: &'a Action, needs| Row {
        tenant: action.name(),
        action: match action {
            Action::End { .. } => "end",
            Action::Change { .. } => "change",
            Action::Restart { .. } => "restart",
            Action::Start { .. } => "start",
        },
        commands: commands(action),
        done: (!is_dry).then(|| done.get(action.name()).copied().unwrap_or(false)),
        needs,
    };
    let needs = |action: &Action| if matches!(action, Action::End { .. }) { "--prune" } else { "--restart" };
    let left = plan.left.iter().map(|action| row(action, Some(needs(action))));
    plan.actions.iter().map(|action| row(action, None)).chain(left).collect()
}

/// The commands that do an action, as a shell takes them.
fn commands(action: &Action) -> Vec<String> {
    let kill = |name: &str| format!("partita kill {name}");
    let run = |wanted: &Wanted| {
        let words = wanted.arguments().map(|word| quoted(&word));
        format!("partita run --detach {}", words.collect::<Vec<_>>().join(" "))
    };
    match action {
        Action::End { name } => vec![kill(name)],
        Action::Change { wanted, options } => {
            let words = set_words(&wanted.name, options);
            vec![format!("partita {}", words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "))]
        }
        Action::Restart { wanted, .. } => vec![kill(&wanted.name), run(wanted)],
        Action::Start { wanted } => vec![run(wanted)],
    }
}

fn set_words(name: &str, options: &BTreeMap<String, String>) -> Vec<String> {
    let options = options.iter().flat_map(|(key, value)| [format!("--{key}"), value.clone()]);
    ["set".to_owned(), name.to_owned()].into_iter().chain(options).collect()
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "%+,-./:=@_".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn past(action: &Action) -> String {
    match action {
        Action::End { .. } => "ended".to_owned(),
        Action::Change { options, .. } => {
            let options: Vec<String> =
                options.iter().map(|(key, value)| format!("--{key} {value}")).collect();
            format!("changed to {}", options.join(" "))
        }
        Action::Restart { keys, .. } => format!("restarted for {}", keys.join(", ")),
        Action::Start { .. } => "started".to_owned(),
    }
}

fn left_text(action: &Action) -> String {
    match action {
        Action::Restart { wanted, keys } => format!(
            "{}: {} cannot change while it runs; --restart ends it and starts it again",
            wanted.name,
            keys.join(", ")
        ),
        other => format!("{}: the file no longer names it; --prune ends it", other.name()),
    }
}
