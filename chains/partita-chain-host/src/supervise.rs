//! The process that runs a chain: it starts the components, restarts those that fail, and ends them
//! in order.

mod gpus;
mod keeper;
mod orphans;
mod process;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use partita_core::Count;
use partita_core::time::Priority;
use partita_frames::{
    CHAIN_VARIABLE, COMPONENT_VARIABLE, ChainFile, KEEPER_VARIABLE, Reach, STEER_VARIABLE,
    TRANSPORT_VARIABLE, monotonic_ns,
};
use partita_host::error::Error;
use partita_host::install::Install;
use partita_host::kill;
use partita_host::limits::{LimitSet, in_keys};
use partita_host::mps;
use partita_host::mps::ready::{self, READY_LIMIT};
use partita_host::offered::Via;
use partita_host::process::ProcessId;
use partita_host::program;
use partita_host::registry::{Isolation, LEDGER_VARIABLE, Registry, c_path};
use partita_host::run::{RunRequest, run};
use partita_host::signals;
use partita_mps::Service;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use self::gpus::OnGpu;
use self::keeper::Keeper;
use self::orphans::Orphans;
use self::process::{Process, VISIBLE_VARIABLE};
use super::control::Control;
use super::place::{self, ChainDir};
use super::shared::Shared;
use super::state::{ChainState, Phase, file_path, of_file};
use super::supervisor::{self, Supervisor};
use super::{Definition, MemoryOwner, Method, Steering};

/// The hidden subcommand that runs a chain in its tenant.
pub const SUBCOMMAND: &str = "internal-chain";
/// How the description of a chain's tenant begins.
const DESCRIBED: &str = "chain of ";
/// How long a component may take to exit when the chain ends and no frame is left in it. Then it
/// gets a signal.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// The same when a signal ends the chain, which drops its frames.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);
/// How long a component may take to exit after SIGTERM.
const TERM_LIMIT: Duration = Duration::from_secs(5);
/// The longest time between two checks of the components.
const POLL: Duration = Duration::from_millis(50);
/// How long the memory of a dead component stays unused: the GPU may still write to it when the
/// process is gone.
const MEMORY_REST: Duration = Duration::from_millis(20);

/// A chain to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainRun {
    /// The chain.
    pub definition: Definition,
    /// The file that gets a line of JSON for each period.
    pub log: Option<PathBuf>,
    /// The GPU of each component among those of the tenant, which [`start`] finds; empty for one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<usize>,
}

/// Runs a chain as a tenant until it ends. Returns the exit code: 0 if every component exited with
/// 0. If a chain of this name has lost the process that ran it, that chain is ended first.
///
/// # Errors
/// Any [`Error`]; then the chain was not started, and nothing is left behind.
pub fn start(
    install: &Install,
    chain: &ChainRun,
    mut say: impl FnMut(&str) + Clone + Send + 'static,
) -> Result<u8, Error> {
    let definition = &chain.definition;
    definition.check()?;
    let registry = Registry::open()?;
    supervisor::clear(install, &registry, &definition.name, &mut say)?;
    // A file system other than tmpfs may give the new tenant's directory the number of the last
    // one's, and a killed chain of that name has left its files.
    place::sweep();
    let (gpus, of) = gpus::find(install, definition, &mut say)?;
    let chain = ChainRun { gpus: of, ..chain.clone() };
    let json = serde_json::to_string(&chain).map_err(|error| Error::Refused {
        what: format!("chain {}", definition.name),
        reason: error.to_string(),
    })?;
    let program = install.program().as_os_str().to_owned();
    let request = RunRequest {
        gpus,
        limits: LimitSet {
            share: definition.share()?,
            memory: definition.quota()?.map(Into::into),
            ..of_method(definition.steer)
        },
        name: Some(definition.name.clone()),
        command: vec![program, SUBCOMMAND.into(), OsString::from(json)],
        description: Some(format!("{DESCRIBED}{} components", definition.components.len())),
        ..RunRequest::default()
    };
    let refuse = |reason| Error::Refused { what: format!("chain {}", definition.name), reason };
    run(install, &request, |_, _| {}, say).map_err(|error| match error {
        Error::NameInUse { name, user, gpu, what, command } => {
            let end = command
                .map_or_else(String::new, |command| format!(", or end it with `partita {command} {name}`"));
            refuse(format!(
                "{user}'s tenant on {gpu} has that name ({what}); choose another `name` in the \
                 definition{end}"
            ))
        }
        other => {
            // The definition has keys where `partita run` has options.
            let key = |option: &str| ["sm", "mem"].into_iter().find(|key| *key == option);
            let text = other.to_string();
            let with_keys = in_keys(&text, key);
            if with_keys == text { other } else { refuse(with_keys) }
        }
    })
}

/// Whether a tenant is a chain by the description of its program, the only thing that other users
/// see of it.
pub(super) fn is_described(command: &[String]) -> bool {
    matches!(command, [only] if only.starts_with(DESCRIBED))
}

/// The limits that a method needs. The driver chooses the SMs of contexts, so a chain of contexts
/// runs on the whole GPU, before tenants of low priority. Blocks cannot prove the SMs of a green
/// context under MPS, so its components take turns.
fn of_method(method: Method) -> LimitSet {
    let isolation = match method {
        Method::Masks => return LimitSet::default(),
        Method::Green => Isolation::Own,
        Method::Contexts => Isolation::Shared,
    };
    LimitSet {
        via: Some(Via::Time),
        priority: Some(Priority::High),
        isolation: Some(isolation),
        ..LimitSet::default()
    }
}

/// Runs the components. The hidden subcommand `internal-chain` calls this in the chain's tenant.
/// `say` gets the messages for standard error.
///
/// # Errors
/// [`Error::Refused`], [`Error::Program`] and those of the system. No component is alive then.
pub fn supervise(install: &Install, chain: &ChainRun, mut say: impl FnMut(&str)) -> Result<u8, Error> {
    signals::end_in_order().map_err(Error::io("signal handlers"))?;
    let definition = &chain.definition;
    definition.check()?;
    let tenant = std::env::var_os(LEDGER_VARIABLE).map(PathBuf::from).ok_or_else(|| Error::Refused {
        what: format!("chain {}", definition.name),
        reason: format!("a chain runs in a tenant; use `partita chain start {}`", definition.name),
    })?;
    let dir = ChainDir::of_tenant(&tenant)?;
    let _supervisor = Supervisor::begin(dir.path(), &definition.name)?;
    let mut running = Running::begin(install, chain, &tenant, dir.path())?;
    let outcome = running.attend(&mut say);
    let ended = running.end(matches!(outcome, Ok(0)), &mut say);
    outcome.and_then(|outcome| ended.map(|()| outcome))
}

/// One of a chain's processes.
#[derive(Clone, Copy)]
enum Failed {
    Component(usize),
    Keeper(usize),
}

/// A running chain.
struct Running {
    tenant: PathBuf,
    file: ChainFile,
    /// The MPS service, if the components are its clients: a client that dies with work in flight
    /// takes others with it.
    service: Option<Service>,
    /// The service has a fault, which lasts until all affected clients have left. Until then no
    /// component is started.
    in_fault: bool,
    /// One on each GPU of the chain, unless the first component has the memory.
    keepers: Vec<Keeper>,
    /// The chain's GPUs, and the one of each component.
    gpus: Vec<OnGpu>,
    of: Vec<usize>,
    /// Components whose frames go through host memory, as far as that was said.
    by_host: Vec<usize>,
    /// Components that could not apply a division, as far as that was said.
    refusing: Vec<usize>,
    orphans: Orphans,
    /// The components, in order.
    members: Vec<Process>,
    restarts_max: u32,
    shared: Arc<Shared>,
    /// Whether the last write of the state succeeded.
    is_shown: bool,
    ending: Arc<AtomicBool>,
    control: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn begin(install: &Install, chain: &ChainRun, tenant: &Path, dir: &Path) -> Result<Self, Error> {
        let definition = &chain.definition;
        let registry = Registry::open()?;
        let parts = registry.lock()?.tenant(&definition.name)?;
        let (gpus, of) = gpus::of_tenant(chain, &parts)?;
        let limits: Vec<_> = gpus.iter().map(|gpu| gpu.limits.clone()).collect();
        let path = file_path(dir);
        let of_path = |error| of_file(&path.display().to_string(), &error);
        let name = c_path(&path)?;
        let role_gpus = of.iter().map(|gpu| gpus[*gpu].uuid).collect();
        let file = ChainFile::create(&name, &definition.plan(role_gpus)?).map_err(of_path)?;
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
            tpcs_of_chain: gpus.iter().map(|gpu| gpu.tpcs).sum(),
            gpus: gpus.iter().map(OnGpu::state).collect(),
            components: Vec::new(),
            events: Vec::new(),
        };
        let shared = Arc::new(Shared::new(state, dir, chain.log.as_deref())?);
        let keepers = match definition.memory {
            MemoryOwner::Keeper => {
                let of = |(number, gpu): (usize, &OnGpu)| {
                    let visible = (gpus.len() > 1).then_some(gpu.visible.as_str());
                    Keeper::new(install, (tenant, dir), definition.handles, number, visible)
                };
                gpus.iter().enumerate().map(of).collect::<Result<_, _>>()?
            }
            MemoryOwner::FirstComponent => Vec::new(),
        };
        let members = definition.components.iter().enumerate().map(|(role, component)| {
            let mut words = component.command.iter();
            let word = words.next().map_or("", String::as_str);
            // What is not found now fails when it is started, with the reason.
            let mut command = Command::new(program::find(word.as_ref()).unwrap_or_else(|_| word.into()));
            command.args(words).env(CHAIN_VARIABLE, &path).env(COMPONENT_VARIABLE, role.to_string());
            command.env(STEER_VARIABLE, definition.steer.name());
            command.env(TRANSPORT_VARIABLE, definition.transport.name());
            match keepers.first() {
                Some(keeper) => command.env(KEEPER_VARIABLE, Keeper::socket(keeper)),
                None => command.env_remove(KEEPER_VARIABLE),
            };
            if gpus.len() > 1 {
                command.env(VISIBLE_VARIABLE, &gpus[of[role]].visible);
            }
            Process::new(format!("component {}", component.name), command, tenant)
        });
        let members = members.collect();
        let ending = Arc::new(AtomicBool::new(false));
        let mut this = Self {
            tenant: tenant.to_owned(),
            file,
            service,
            in_fault: false,
            keepers,
            gpus,
            of,
            by_host: Vec::new(),
            refusing: Vec::new(),
            orphans: Orphans::new(install, registry, &definition.name, parts),
            members,
            restarts_max: definition.restarts,
            shared,
            is_shown: true,
            ending,
            control: None,
        };
        this.note_components();
        this.shared.write()?;
        // The division comes first, so that components find it when they start.
        let own_file = ChainFile::open(&name).map_err(of_path)?;
        let control = Control::new(own_file, &limits, dir, definition, &this.ending, &this.shared)?;
        let thread = std::thread::Builder::new().name("optimizer".to_owned());
        this.control = Some(thread.spawn(move || control.run()).map_err(Error::io("a thread"))?);
        Ok(this)
    }

    /// Starts the components and restarts them until the chain ends. Returns its exit code.
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
                self.shared.note("stop requested: the chain ends".to_owned());
                return Ok(0);
            }
            self.recover_from_fault()?;
            let mut changed = false;
            for at in 0..self.keepers.len() {
                changed |= self.look_at_keeper(at, say)?;
            }
            for at in 0..self.members.len() {
                changed |= self.look_at(at, say)?;
            }
            if changed {
                self.show(say);
            }
            // Before its end: a chain may have few frames.
            self.say_who_is_reached_by_host(say);
            self.say_who_refuses(say);
            // A component that exits with 0 has no more frames for the others, or wants no more.
            if self.members.iter().any(Process::has_ended_well) {
                self.shared.note("a component exited with 0: the chain ends".to_owned());
                return Ok(0);
            }
            self.shared.take_log_end().iter().for_each(|line| say(line));
            self.wait();
        }
    }

    /// Says once of each component whether its frames go through host memory: the driver decides
    /// that at its first frame.
    fn say_who_is_reached_by_host(&mut self, say: &mut dyn FnMut(&str)) {
        for at in 1..self.members.len() {
            if self.file.reach(at as u8) != Reach::Host || self.by_host.contains(&at) {
                continue;
            }
            self.by_host.push(at);
            let [to, from] = [at, at - 1].map(|component| &self.gpus[self.of[component]].label);
            let line = format!(
                "{}: the driver gives {to} no access to the memory of {from}, so frames go through host memory",
                self.members[at].title
            );
            say(&line);
            self.shared.note(line);
        }
    }

    /// Says once of each component that it cannot apply its division.
    fn say_who_refuses(&mut self, say: &mut dyn FnMut(&str)) {
        for at in 0..self.members.len() {
            if self.file.refused_epoch(at as u8) == 0 || self.refusing.contains(&at) {
                continue;
            }
            self.refusing.push(at);
            let line = format!(
                "{}: it cannot apply its part of the compute units and goes on with those that it had; its \
                 standard error has the reason",
                self.members[at].title
            );
            say(&line);
            self.shared.note(line);
        }
    }

    /// Starts a component that is due, or checks whether it has ended. Returns whether anything
    /// changed.
    fn look_at(&mut self, at: usize, say: &mut dyn FnMut(&str)) -> Result<bool, Error> {
        let member = &mut self.members[at];
        let Some(status) = member.poll()? else {
            // Without the frames' memory, a component has no work.
            let has_memory = self.keepers.iter().all(Keeper::is_ready);
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
        self.orphans.end_of_component(at, say)?;
        // The others can use its frames at once, before a new process takes its place.
        let rests_until_ns = monotonic_ns() + MEMORY_REST.as_nanos() as u64;
        let recovered = self.file.recover(at as u8, rests_until_ns);
        let recovered = recovered.map_err(|error| of_file(&self.file.plan().name, &error))?;
        let frames = recovered.map_or(0, |recovered| recovered.dropped + recovered.stranded);
        // A signal to the whole process group reaches this process too.
        if signals::ending().is_some() || kill::was_asked_for(&self.tenant) || member.take_replaced() {
            return Ok(true);
        }
        self.handle_fault(say);
        self.restart(Failed::Component(at), &format!("{text}; {} dropped", Count(frames, "frame")), say)
    }

    /// Handles a fault of the service: it has hit every living component, whether or not the
    /// component knows. All end now and restart when the service takes clients again.
    fn handle_fault(&mut self, say: &mut dyn FnMut(&str)) {
        let Some(service) =
            self.service.as_ref().filter(|service| !self.in_fault && ready::is_in_fault(service))
        else {
            return;
        };
        let line =
            "a fault of the Multi-Process Service has hit the chain: all its processes restart".to_owned();
        say(&line);
        self.shared.note(line);
        self.in_fault = true;
        self.keepers.iter_mut().for_each(|keeper| keeper.process().replace(Some(service)));
        self.members.iter_mut().for_each(|member| member.replace(Some(service)));
    }

    /// Ends the pause after a fault, once the service takes clients.
    fn recover_from_fault(&mut self) -> Result<(), Error> {
        let a_keeper_lives = self.keepers.iter_mut().any(|keeper| keeper.process().lives());
        if !self.in_fault || a_keeper_lives || self.members.iter().any(Process::lives) {
            return Ok(());
        }
        if let Some(service) = &self.service {
            match ready::wait(service, READY_LIMIT) {
                // The main loop handles the signal.
                Err(Error::Interrupted { .. }) => return Ok(()),
                waited => waited?,
            };
        }
        self.in_fault = false;
        Ok(())
    }

    /// Starts a keeper, or checks whether it has ended. Returns whether anything changed.
    fn look_at_keeper(&mut self, at: usize, say: &mut dyn FnMut(&str)) -> Result<bool, Error> {
        let keeper = &mut self.keepers[at];
        let Some(status) = keeper.look(!self.in_fault)? else { return Ok(false) };
        let is_ending = signals::ending().is_some() || kill::was_asked_for(&self.tenant);
        if is_ending || keeper.process().take_replaced() {
            return Ok(true);
        }
        // The memory that they have open is lost.
        self.members.iter_mut().for_each(|member| member.replace(self.service.as_ref()));
        let text = format!("{}; all frames are lost, and all components restart", describe(status));
        self.restart(Failed::Keeper(at), &text, say)
    }

    /// Schedules the restart of a process that failed, unless it has failed too often.
    fn restart(&mut self, failed: Failed, text: &str, say: &mut dyn FnMut(&str)) -> Result<bool, Error> {
        let process = match failed {
            Failed::Component(at) => &mut self.members[at],
            Failed::Keeper(at) => self.keepers[at].process(),
        };
        if process.restarts >= self.restarts_max {
            return Err(Error::Refused {
                what: process.title.clone(),
                reason: format!(
                    "it has failed {} ({text}); see its output, or raise `restarts`",
                    Count(process.restarts + 1, "time")
                ),
            });
        }
        let pause = process.schedule_restart();
        let line = format!("{}: {text}; restart in {} ms", process.title, pause.as_millis());
        say(&line);
        self.shared.note(line);
        Ok(true)
    }

    /// Waits until a component ends, or for [`POLL`].
    fn wait(&self) {
        let keepers = self.keepers.iter().filter_map(Keeper::handle);
        let fds: Vec<_> = self.members.iter().filter_map(Process::handle).chain(keepers).collect();
        let mut polled: Vec<_> =
            fds.iter().map(|fd| rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)).collect();
        let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: POLL.subsec_nanos().into() };
        // A signal ends the wait early, which does no harm.
        let _ = rustix::event::poll(&mut polled, Some(&limit));
    }

    /// Writes the chain's state. A failure does not end the chain and is reported once.
    fn show(&mut self, say: &mut dyn FnMut(&str)) {
        self.note_components();
        let shown = self.shared.write();
        if let (Err(error), true) = (&shown, self.is_shown) {
            say(&format!("{error}; the chain continues, and `partita chain watch` shows an old state"));
        }
        self.is_shown = shown.is_ok();
    }

    fn note_components(&self) {
        let names = &self.file.plan().roles;
        let named = self.members.iter().zip(names).zip(&self.of);
        let components = named.map(|((member, name), gpu)| member.state(name, &self.gpus[*gpu].label));
        self.shared.set_components(components.collect());
    }

    /// Ends all components: those that wait for frames learn that none will come, and those that
    /// stay get a signal. With `in_order`, frames in the chain are finished first.
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
            self.poll_keepers()?;
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
                self.poll_keepers()?;
                for member in &mut self.members {
                    member.poll()?;
                }
            }
        }
        let keepers: Vec<_> = self.keepers.iter_mut().filter_map(|keeper| keeper.process().id()).collect();
        self.orphans.end_all(&keepers, say)?;
        // Last, because they own the components' memory.
        self.keepers.iter_mut().try_for_each(Keeper::end)?;
        if let Some(control) = self.control.take() {
            let _ = control.join();
        }
        self.show(say);
        self.shared.take_log_end().iter().for_each(|line| say(line));
        Ok(())
    }

    /// After a keeper has ended, there is nothing to wait for.
    fn poll_keepers(&mut self) -> Result<(), Error> {
        self.keepers.iter_mut().try_for_each(|keeper| keeper.process().poll().map(drop))
    }

    /// Whether a component learns that the chain ends. A component that never took its place does
    /// not. One that has released its place does, and is exiting.
    fn knows_of_end(&self, at: usize) -> bool {
        let role = at as u8;
        self.file.is_held(role).unwrap_or(false)
            || self.file.incarnation(role) != self.members[at].incarnation_before
    }

    /// Whether a component that has its place holds frames or will get some. Without a place, a
    /// component takes no frame, however long it lives.
    fn has_frames_on_their_way(&self) -> bool {
        let census = self.file.census();
        let is_there = |role| self.file.is_held(role).unwrap_or(false);
        let held = (0..).zip(&census.held).any(|(role, &held)| held > 0 && is_there(role));
        held || (1..).zip(&census.queued).any(|(role, &queued)| queued > 0 && is_there(role))
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => "it exited with 0".to_owned(),
        (Some(code), _) => format!("it exited with code {code}"),
        (None, Some(signal)) => format!("signal {signal} ended it"),
        (None, None) => "it ended".to_owned(),
    }
}
