//! `partita policy`.

use std::fmt::Display;
use std::process::ExitCode;

use partita::Error;
use partita::policy::{self, Hours, Policy, Programs, Who};
use partita::registry::Registry;
use partita::system;
use partita_console::{Failure, print, tell};

use crate::args::PolicyVerb;

/// Checks or prints the policy of the site.
pub fn policy(verb: &PolicyVerb) -> Result<ExitCode, Failure> {
    match verb {
        PolicyVerb::Check(arguments) => {
            let path = arguments.file.clone().unwrap_or_else(policy::path);
            if !path.exists() {
                if arguments.file.is_some() {
                    return Err(Failure::Told(format!("{}: there is no such file", path.display())));
                }
                let said = format!("there is no {}: no policy holds\n", path.display());
                return print(&said).map(|()| ExitCode::SUCCESS);
            }
            let (policy, _) = policy::load(&path).map_err(|error| match error {
                // Without the advice to check it.
                Error::Policy { path, reason } => Failure::Told(format!("{}: {reason}", path.display())),
                error => error.into(),
            })?;
            let unknown = policy::unknown_names(&policy);
            unknown.iter().for_each(|line| tell(&format!("{}: {line}", path.display())));
            if !unknown.is_empty() {
                return Ok(ExitCode::FAILURE);
            }
            print(&format!(
                "{}: {} and {}, without mistakes\n",
                path.display(),
                count(policy.rules.len(), "rule"),
                count(policy.reservations.len(), "reservation")
            ))?;
        }
        PolicyVerb::Show => {
            // Without a registry there is no partitad, and the file holds.
            let client = Registry::open().ok().filter(Registry::is_client);
            let (path, policy, holder) = match &client {
                Some(registry) => {
                    let (path, policy) = system::policy(registry)?;
                    (path, policy, ", as partitad holds it")
                }
                None => {
                    let path = policy::path();
                    let (policy, _) = policy::load(&path)?;
                    let policy = path.exists().then_some(policy);
                    (path, policy, "")
                }
            };
            let no = if policy.is_some() { "" } else { "no " };
            let (source, policy) = (format!("{no}{}{holder}", path.display()), policy.unwrap_or_default());
            print(&format!("{source}\n{}", text(&policy)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn count(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

/// A policy in sentences, one a line.
fn text(policy: &Policy) -> String {
    let Policy { default_share, default_memory, default_place, rules, reservations, outside, escaped } =
        policy;
    let or = |value: Option<&dyn Display>, otherwise: &str| {
        value.map_or_else(|| otherwise.to_owned(), ToString::to_string)
    };
    let share =
        or(default_share.as_ref().map(|it| it as _), "an even part of what the shares of others leave");
    let memory =
        or(default_memory.as_ref().map(|it| it as _), "what is not promised to others, in even parts");
    let mut text = format!("without --sm: {share}\nwithout --mem: {memory}\n");
    if let Some(place) = default_place {
        text.push_str(&format!("without --place: {place}\n"));
    }
    for rule in rules {
        let mut limits = Vec::new();
        limits.extend(rule.share_max.map(|most| format!("at most {most}")));
        limits.extend(rule.memory_max.map(|most| format!("at most {most} of memory")));
        limits.extend(rule.priorities.as_ref().map(|allowed| {
            let words: Vec<&str> = allowed.iter().map(|priority| priority.name()).collect();
            format!("priority {}", words.join(" or "))
        }));
        let (line, who) = (rule.line, who(&rule.who));
        text.push_str(&format!("line {line}: {who}{}: {}\n", when(rule.hours), limits.join(", ")));
    }
    for entry in reservations {
        let gpu = entry.gpu.as_ref().map_or_else(|| "each GPU".to_owned(), |gpu| format!("GPU {gpu}"));
        let (line, who) = (entry.line, who(&entry.who));
        let memory = entry.memory.map(|memory| format!("{memory} of the memory"));
        let kept: Vec<String> =
            entry.share.map(|share| share.to_string()).into_iter().chain(memory).collect();
        let verb = if kept.len() == 1 { "is" } else { "are" };
        text.push_str(&format!(
            "line {line}: {} of {gpu} {verb} kept for {who}{}\n",
            kept.join(" and "),
            when(entry.hours)
        ));
    }
    let exempt = outside.exempt.as_ref().map_or_else(String::new, |exempt| format!(" and {}", who(exempt)));
    let line = outside.line;
    text.push_str(&match outside.programs {
        Programs::Report => "programs outside of tenants: reported\n".to_owned(),
        Programs::End => {
            format!("line {line}: programs outside of tenants: ended, except those of root{exempt}\n")
        }
        Programs::Limit => {
            let sm = outside.share.map(|share| format!("--sm {share}"));
            let mem = outside.memory.map(|memory| format!("--mem {memory}"));
            let has: Vec<String> = sm.into_iter().chain(mem).collect();
            let with = if has.is_empty() { String::new() } else { format!(" with {}", has.join(" and ")) };
            format!(
                "line {line}: programs outside of tenants: made tenants{with}, except those of \
                 root{exempt}; `partita preload status` says whether they load the library\n"
            )
        }
    });
    let exempt =
        escaped.exempt.as_ref().map_or_else(String::new, |exempt| format!(", except {}", who(exempt)));
    text.push_str(&match escaped.is_ended {
        false => "programs that escape from tenants: reported\n".to_owned(),
        true => format!("line {}: programs that escape from tenants: ended{exempt}\n", escaped.line),
    });
    text
}

fn who(who: &Who) -> String {
    if who.is_everyone() {
        return "everyone but root".to_owned();
    }
    let groups = who.groups.iter().map(|group| format!("group {group}"));
    who.users.iter().cloned().chain(groups).collect::<Vec<_>>().join(", ")
}

fn when(hours: Option<Hours>) -> String {
    hours.map_or_else(String::new, |hours| format!(" ({hours})"))
}
