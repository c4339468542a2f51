//! The process that runs a chain: it starts the components, starts those anew that fail, and ends
//! them in order.

mod keeper;
mod left;
mod process;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use partita_core::Count;
use partita_frames::{CHAIN_VARIABLE, COMPONENT_VARIABLE, ChainFile, KEEPER_VARIABLE, monotonic_ns};
use partita_host::error::Error;
use partita_host::gpu::Selector;
use partita_host::gpus::Selectors;
use partita_host::install::Install;
use partita_host::kill;
use partita_host::limits::LimitSet;
use partita_host::mps;
use partita_host::mps::ready::{self, READY_LIMIT};
use partita_host::process::ProcessId;
use partita_host::registry::{LEDGER_VARIABLE, Registry, c_path, only_the_daemon};
use partita_host::run::{RunRequest, run};
use partita_host::signals;
use partita_mps::Service;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use self::keeper::Keeper;
use self::left::Left;
use self::process::Process;
use super::control::Control;
use super::shared::Shared;
use super::state::{ChainState, Phase, file_path, of_file};
use super::supervisor::{self, Supervisor};
use super::{Definition, MemoryOwner, Steering};

/// The hidden subcommand by which a program runs a chain in its tenant.
pub const SUBCOMMAND: &str = "internal-chain";
/// How long a component may take to end by itself once the chain is to end and no frame is on its
/// way, before a signal ends it.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// The same where a signal ends the chain: what is on its way is dropped.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);
/// How long it may take after SIGTERM.
const TERM_LIMIT: Duration = Duration::from_secs(5);
/// How long nobody looks at the components, at most.
const LOOK: Duration = Duration::from_millis(50);
/// How long the memory of a dead component rests: the GPU may not have stopped yet when the process
/// is gone.
const REST: Duration = Duration::from_millis(20);

/// A chain to be run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The chain.
    pub definition: Definition,
    /// Where to write a line of JSON for each period.
    pub log: Option<PathBuf>,
}

/// Runs a chain as a tenant, to its end, and returns the exit code: 0 if every component ended
/// well. What is left of the same chain whose process has died is ended first.
///
/// # Errors
/// Any [`Error`]; the chain was not started then, and nothing is left behind.
pub fn start(install: &Install, order: &Order, mut say: impl FnMut(&str)) -> Result<u8, Error> {
    let definition = &order.definition;
    definition.check()?;
    let registry = Registry::open()?;
    if registry.is_client() {
        // Its processes write in the tenant's directory, which is root's there.
        return Err(only_the_daemon(registry.root()));
    }
    supervisor::clear(install, &registry, &definition.name, &mut say)?;
    let one = |text: &String| Ok::<_, Error>(Selectors::List(vec![text.parse::<Selector>()?]));
    let order = serde_json::to_string(order).map_err(|error| Error::Refused {
        what: format!("chain {}", definition.name),
        reason: error.to_string(),
    })?;
    let program = install.program().as_os_str().to_owned();
    let request = RunRequest {
        gpus: definition.gpu.as_ref().map(one).transpose()?,
        limits: LimitSet { share: definition.share()?, memory: definition.quota()?, ..LimitSet::default() },
        name: Some(definition.name.clone()),
        command: vec![program, SUBCOMMAND.into(), OsString::from(order)],
        description: Some(format!("chain of {} components", definition.components.len())),
        ..RunRequest::default()
    };
    run(install, &request, say)
}

/// Runs the components; called in the chain's tenant, by the hidden subcommand `internal-chain`.
/// `say` gets what is to be told on stderr.
///
/// # Errors
/// [`Error::Refused`], [`Error::Program`] and the system's. No component lives then.
pub fn supervise(install: &Install, order: &Order, mut say: impl FnMut(&str)) -> Result<u8, Error> {
    signals::end_in_order().map_err(Error::io("signal handlers"))?;
    let definition = &order.definition;
    definition.check()?;
    let tenant = std::env::var_os(LEDGER_VARIABLE).map(PathBuf::from).ok_or_else(|| Error::Refused {
        what: format!("chain {}", definition.name),
        reason: format!("a chain runs in a tenant; use `partita chain start {}`", definition.name),
    })?;
    let _supervisor = Supervisor::begin(&tenant, &definition.name)?;
    let mut chain = Running::begin(install, order, &tenant)?;
    let outcome = chain.attend(&mut say);
    let ended = chain.end(matches!(outcome, Ok(0)), &mut say);
    outcome.and_then(|outcome| ended.map(|()| outcome))
}

/// Which of a chain's processes.
#[derive(Clone, Copy)]
enum Whose {
    Component(usize),
    Keeper,
}

/// A chain that runs.
struct Running {
    tenant: PathBuf,
    file: ChainFile,
    /// What the components are clients of, if they are: one that dies with work in flight takes
    /// others along.
    service: Option<Service>,
    /// The service has a fault, which lasts until everybody whom it hit has left. Nobody is started
    /// before.
    in_fault: bool,
    keeper: Option<Keeper>,
    left: Left,
    /// The components, in the chain's order.
    members: Vec<Process>,
    restarts_max: u32,
    shared: Arc<Shared>,
    /// Whether the state could be written when it was last.
    is_shown: bool,
    ending: Arc<AtomicBool>,
    control: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn begin(install: &Install, order: &Order, tenant: &Path) -> Result<Self, Error> {
        let definition = &order.definition;
        let limits = tenant.join(partita_ledger::LIMITS_FILE_NAME.to_str().unwrap_or_default());
        let limits = c_path(&limits)?;
        let path = file_path(tenant);
        let of_path = |error| of_file(&path.display().to_string(), &error);
        let map = partita_ledger::LimitsMap::open_ro(&limits).and_then(|map| map.load());
        let (_, now) = map.map_err(|error| of_file(&definition.name, &error))?;
        let name = c_path(&path)?;
        let file = ChainFile::create(&name, &definition.plan(now.gpu_uuid)?).map_err(of_path)?;
        let registry = Registry::open()?;
        let parts = registry.lock()?.tenant(&definition.name)?;
        let service =
            parts.first().map(|part| mps::service_of(install, &registry, part)).transpose()?.flatten();
        let state = ChainState {
            definition: definition.clone(),
            supervisor: ProcessId::own().map_err(Error::io("/proc/self"))?,
            started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            steering: Steering::Algorithm(definition.algorithm),
            phase: Phase::Waiting,
            periods: 0,
            throughput_fps: None,
            tpcs: None,
            tpcs_of_chain: partita_core::TpcSet::from_words(now.set).len(),
            components: Vec::new(),
            events: Vec::new(),
        };
        let shared = Arc::new(Shared::new(state, tenant, order.log.as_deref())?);
        let keeper = match definition.memory {
            MemoryOwner::Keeper => Some(Keeper::new(install, tenant, definition.handles)?),
            MemoryOwner::FirstComponent => None,
        };
        let members = definition.components.iter().enumerate().map(|(role, component)| {
            let mut words = component.command.iter();
            let mut command = Command::new(words.next().map_or("", String::as_str));
            command.args(words).env(CHAIN_VARIABLE, &path).env(COMPONENT_VARIABLE, role.to_string());
            match &keeper {
                Some(keeper) => command.env(KEEPER_VARIABLE, keeper.socket()),
                None => command.env_remove(KEEPER_VARIABLE),
            };
            Process::new(format!("component {}", component.name), command)
        });
        let members = members.collect();
        let ending = Arc::new(AtomicBool::new(false));
        let mut this = Self {
            tenant: tenant.to_owned(),
            file,
            service,
            in_fault: false,
            keeper,
            left: Left::new(install, registry, &definition.name, parts),
            members,
            restarts_max: definition.restarts,
            shared,
            is_shown: true,
            ending,
            control: None,
        };
        this.note_components();
        this.shared.write()?;
        // The division first: components that come find what they may use.
        let own_file = ChainFile::open(&name).map_err(of_path)?;
        let control = Control::new(own_file, &limits, tenant, definition, &this.ending, &this.shared)?;
        let thread = std::thread::Builder::new().name("optimizer".to_owned());
        this.control = Some(thread.spawn(move || control.run()).map_err(Error::io("a thread"))?);
        Ok(this)
    }

    /// Starts the components and keeps them running, until the chain is to end. Returns its exit
    /// code.
    fn attend(&mut self, say: &mut dyn FnMut(&str)) -> Result<u8, Error> {
        loop {
            if let Some(signal) = signals::ending() {
                self.shared.note(format!("signal {signal}: the chain ends"));
                return Ok(u8::try_from(128 + signal).unwrap_or(u8::MAX));
            }
            if kill::was_asked_for(&self.tenant) {
                return Ok(128 + 15);
            }
            if self.file.is_stopping() {
                self.shared.note("asked to stop: the chain ends".to_owned());
                return Ok(0);
            }
            self.recover_from_fault()?;
            let mut changed = self.look_at_keeper(say)?;
            for at in 0..self.members.len() {
                changed |= self.look_at(at, say)?;
            }
            if changed {
                self.show(say);
            }
            // One that has ended well has no more frames for the others, or wants none.
            if self.members.iter().any(Process::has_ended_well) {
                self.shared.note("a component has ended well: the chain ends".to_owned());
                return Ok(0);
            }
            self.shared.take_log_end().iter().for_each(|line| say(line));
            self.wait();
        }
    }

    /// Starts a component whose time it is, or sees what became of it. Whether anything has
    /// changed.
    fn look_at(&mut self, at: usize, say: &mut dyn FnMut(&str)) -> Result<bool, Error> {
        let member = &mut self.members[at];
        let Some(status) = member.poll()? else {
            // Without memory there is nothing for it to do.
            let has_memory = self.keeper.as_ref().is_none_or(Keeper::is_ready);
            if !member.is_due() || self.in_fault || !has_memory {
                return Ok(false);
            }
            member.incarnation_before = self.file.incarnation(at as u8);
            member.spawn()?;
            return Ok(true);
        };
        let text = describe(status);
        if status.success() {
            self.shared.note(format!("{}: {text}", member.title));
            return Ok(true);
        }
        self.left.end_of(at, say)?;
        // What it held is of use to the others at once, not only when its place is taken again.
        let rests_until_ns = monotonic_ns() + REST.as_nanos() as u64;
        let recovered = self.file.recover(at as u8, rests_until_ns);
        let recovered = recovered.map_err(|error| of_file(&self.file.plan().name, &error))?;
        let frames = recovered.map_or(0, |recovered| recovered.dropped + recovered.stranded);
        // A signal that ends all of them comes to this process too.
        if signals::ending().is_some() || kill::was_asked_for(&self.tenant) || member.take_replaced() {
            return Ok(true);
        }
        self.meet_fault(say);
        self.restart(Whose::Component(at), &format!("{text}; {} dropped", Count(frames, "frame")), say)
    }

    /// If the service is in a fault, whoever of the chain lives has been hit by it, whether it
    /// knows or waits for frames: it ends, and begins anew when the service takes clients again.
    fn meet_fault(&mut self, say: &mut dyn FnMut(&str)) {
        let Some(service) =
            self.service.as_ref().filter(|service| !self.in_fault && ready::is_in_fault(service))
        else {
            return;
        };
        let line =
            "a fault of the Multi-Process Service has hit the chain: all its processes begin anew".to_owned();
        say(&line);
        self.shared.note(line);
        self.in_fault = true;
        self.keeper.iter_mut().for_each(|keeper| keeper.process().replace(Some(service)));
        self.members.iter_mut().for_each(|member| member.replace(Some(service)));
    }

    /// Ends the pause that a fault makes, once the service takes clients.
    fn recover_from_fault(&mut self) -> Result<(), Error> {
        let keeper_lives = self.keeper.as_mut().is_some_and(|keeper| keeper.process().lives());
        if !self.in_fault || keeper_lives || self.members.iter().any(Process::lives) {
            return Ok(());
        }
        if let Some(service) = &self.service {
            match ready::wait(service, READY_LIMIT) {
                // The loop sees it too.
                Err(Error::Interrupted { .. }) => return Ok(()),
                waited => waited?,
            };
        }
        self.in_fault = false;
        Ok(())
    }

    /// Starts the keeper, or sees what became of it. Whether anything has changed.
    fn look_at_keeper(&mut self, say: &mut dyn FnMut(&str)) -> Result<bool, Error> {
        let Some(keeper) = &mut self.keeper else { return Ok(false) };
        let Some(status) = keeper.look(!self.in_fault)? else { return Ok(false) };
        let is_ending = signals::ending().is_some() || kill::was_asked_for(&self.tenant);
        if is_ending || keeper.process().take_replaced() {
            return Ok(true);
        }
        // What they have open is nobody's now.
        self.members.iter_mut().for_each(|member| member.replace(self.service.as_ref()));
        let text = format!("{}; all frames are lost, and all components begin anew", describe(status));
        self.restart(Whose::Keeper, &text, say)
    }

    /// Has a process that has failed started anew, unless it has failed too often.
    fn restart(&mut self, whose: Whose, text: &str, say: &mut dyn FnMut(&str)) -> Result<bool, Error> {
        let process = match (whose, &mut self.keeper) {
            (Whose::Component(at), _) => &mut self.members[at],
            (Whose::Keeper, Some(keeper)) => keeper.process(),
            (Whose::Keeper, None) => return Ok(false),
        };
        if process.restarts >= self.restarts_max {
            return Err(Error::Refused {
                what: process.title.clone(),
                reason: format!(
                    "it has failed {} ({text}); see what it printed, or raise `restarts`",
                    Count(process.restarts + 1, "time")
                ),
            });
        }
        let pause = process.schedule_restart();
        let line = format!("{}: {text}; it is started anew in {} ms", process.title, pause.as_millis());
        say(&line);
        self.shared.note(line);
        Ok(true)
    }

    /// Waits until a component has ended, or for [`LOOK`].
    fn wait(&self) {
        let keeper = self.keeper.iter().filter_map(Keeper::handle);
        let fds: Vec<_> = self.members.iter().filter_map(Process::handle).chain(keeper).collect();
        let mut polled: Vec<_> =
            fds.iter().map(|fd| rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)).collect();
        let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        // A signal ends it early, which is as well.
        let _ = rustix::event::poll(&mut polled, Some(&limit));
    }

    /// Shows the chain as it is. That it cannot be shown is no reason to end it, and is told once.
    fn show(&mut self, say: &mut dyn FnMut(&str)) {
        self.note_components();
        let shown = self.shared.write();
        if let (Err(error), true) = (&shown, self.is_shown) {
            say(&format!("{error}; the chain goes on, and `partita chain watch` shows it as it was before"));
        }
        self.is_shown = shown.is_ok();
    }

    fn note_components(&self) {
        let names = &self.file.plan().roles;
        let components = self.members.iter().zip(names).map(|(member, name)| member.state(name));
        self.shared.set_components(components.collect());
    }

    /// Has everybody end: those who wait for frames find that none will come, those who do not heed
    /// it get a signal. `in_order`: what is on its way is finished first.
    fn end(&mut self, in_order: bool, say: &mut dyn FnMut(&str)) -> Result<(), Error> {
        self.ending.store(true, Ordering::Relaxed);
        self.file.stop();
        let mut limit = Instant::now() + if in_order { DRAIN_LIMIT } else { LEAVE_LIMIT };
        let mut told = Vec::new();
        while Instant::now() < limit && self.members.iter().any(Process::lives) {
            for (at, member) in self.members.iter().enumerate() {
                if !told.contains(&at) && !self.knows_of_end(at) {
                    told.push(at);
                    member.signal(Signal::TERM, self.service.as_ref());
                }
            }
            if in_order && signals::ending().is_none() && self.has_frames_on_their_way() {
                limit = Instant::now() + DRAIN_LIMIT;
            }
            self.wait();
            self.poll_keeper()?;
            for member in &mut self.members {
                if let Some(status) = member.poll()?
                    && in_order
                    && !status.success()
                    && status.signal() != Some(Signal::TERM.as_raw())
                {
                    say(&format!("{}: {} while the chain ended", member.title, describe(status)));
                }
            }
        }
        for (signal, patience) in [(Signal::TERM, TERM_LIMIT), (Signal::KILL, kill::KILL_LIMIT)] {
            self.members.iter().for_each(|member| member.signal(signal, self.service.as_ref()));
            let limit = Instant::now() + patience;
            while Instant::now() < limit && self.members.iter().any(Process::lives) {
                self.wait();
                self.poll_keeper()?;
                for member in &mut self.members {
                    member.poll()?;
                }
            }
        }
        let keeper = self.keeper.as_mut().and_then(|keeper| keeper.process().id());
        self.left.end_all(keeper, say)?;
        // Not before them: it has their memory.
        if let Some(keeper) = &mut self.keeper {
            keeper.end()?;
        }
        if let Some(control) = self.control.take() {
            let _ = control.join();
        }
        self.show(say);
        self.shared.take_log_end().iter().for_each(|line| say(line));
        Ok(())
    }

    /// One that has ended is waited for no more.
    fn poll_keeper(&mut self) -> Result<(), Error> {
        self.keeper.iter_mut().try_for_each(|keeper| keeper.process().poll().map(drop))
    }

    /// Whether a component finds out that the chain ends: who has no place in it does not, and who
    /// has given it back has, and is leaving.
    fn knows_of_end(&self, at: usize) -> bool {
        let role = at as u8;
        self.file.is_held(role).unwrap_or(false)
            || self.file.incarnation(role) != self.members[at].incarnation_before
    }

    /// Whether a component that has its place has frames, or will get some. One that has none takes
    /// no frame, however long it lives.
    fn has_frames_on_their_way(&self) -> bool {
        let census = self.file.census();
        let is_there = |role| self.file.is_held(role).unwrap_or(false);
        let held = (0..).zip(&census.held).any(|(role, &held)| held > 0 && is_there(role));
        held || (1..).zip(&census.queued).any(|(role, &queued)| queued > 0 && is_there(role))
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => "it has ended well".to_owned(),
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "it ended".to_owned(),
    }
}
