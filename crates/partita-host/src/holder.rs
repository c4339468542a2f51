//! The holder of a tenant: a process that holds what the GPU needs of the tenant's dead.
//!
//! A client of MPS that dies with work in flight breaks its neighbours as soon as its descriptors
//! are closed. So each process of the tenant sends copies of the driver's descriptors here
//! (`partita-hook/src/holder`). When it dies, the holder keeps them until the work has ended, which
//! the GPU itself tells by fences in a shared page ([`Flight`]). With them it keeps the lock of the
//! process's slot, so that compute units and memory stay taken meanwhile.
//!
//! It is not a child of the program and has none of its pipes, files and locks. So a process that
//! waits for the program sees no difference.

mod looks;

pub(crate) use self::looks::look_for;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use partita_ledger::{
    FLIGHT_BYTES, Flight, HOLDER_DESCRIPTORS_MAX, HOLDER_MESSAGE_VERSION, HOLDER_SOCKET_NAME, SlotInfo,
    Waited,
};
use partita_mps::{MpsError, Pid, Service};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept_with, bind, connect, listen, recvmsg, socket_with,
};
use rustix::process::PidfdFlags;

use self::looks::{Looks, Rest};
use crate::dead::{self, DeadProcess};
use crate::error::Error;
use crate::install::Install;
use crate::kill;
use crate::mps::incident::{self, Because, Incident, RestartCause, What};
use crate::mps::vacancy::{self, Vacancy};
use crate::mps::{self, DETACH_SUBCOMMAND, ready, recover};
use crate::partition;
use crate::process::ProcessId;
use crate::registry::{LEDGER_VARIABLE, OwnedTenant, Registry, TMPFS, Tenant};
use crate::system;

/// The hidden subcommand of `partita` that is a holder.
pub const SUBCOMMAND: &str = "internal-holder";
/// Set to `off`, tenants start without a holder.
const VARIABLE: &str = "PARTITA_HOLDER";

/// How often the holder looks after the work of the dead; and whether the tenant is over, after its
/// `partita run` has ended.
const LOOK: Duration = Duration::from_millis(100);
/// The same for a tenant for containers, which lasts.
const LOOK_AT_TENANT: Duration = Duration::from_secs(1);
/// How long the work of a process that dies without neighbours may go on, before its server is
/// ended.
const ALONE: Duration = Duration::from_millis(300);
/// How often it looks whether clients are left that the work could break.
const LOOK_AT_CLIENTS: Duration = Duration::from_millis(200);
/// How long launches without a fence are left to end by themselves, before the holder looks at the
/// compute units.
const SETTLE: Duration = Duration::from_millis(200);
/// How long copies without a fence are held at least, and launches where the compute units do not
/// tell. On an H100 no neighbour lost anything when the descriptors of 16 dead clients with finite
/// kernels were closed after 2 s.
const UNFENCED: Duration = Duration::from_secs(2);
/// How long launches without a fence are held at least beside a living process of the tenant that
/// works. On an H200 that twelve services shared in turns, 2 s were too short for 0.8 s of kernels.
const UNFENCED_BESIDE: Duration = Duration::from_secs(10);
/// Bytes of a message.
const MESSAGE_BYTES: usize = 32;
/// The most programs of a tenant that are held, living or dead, and connections without a message.
/// Any user of a container can send messages.
const HELD_MAX: usize = 512;
const CONNECTIONS_MAX: usize = 64;

/// The directory of its socket in the tenant's. Containers have it as a mount, so that they find
/// the socket of a later holder, too.
pub(crate) const DIR: &str = "holder";

/// Whether tenants get one.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os(VARIABLE).is_none_or(|value| value != "off")
}

/// The socket for the holder of a tenant of a user, in whose directory only root can make it.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn listen_for(tenant: &OwnedTenant, user: u32) -> Result<OwnedFd, Error> {
    let dir = tenant.dir();
    let socket = listen_in(dir, OWN).and_then(|socket| {
        let path = dir.join(HOLDER_SOCKET_NAME.to_string_lossy().as_ref());
        std::os::unix::fs::lchown(path, Some(user), None)?;
        Ok(socket)
    });
    socket.map_err(Error::io("the socket of the tenant's holder"))
}

/// Starts the holder of a tenant, which listens at `socket`: none where this process can make it.
/// It ends by itself after the tenant.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn start(install: &Install, tenant: &OwnedTenant, socket: Option<OwnedFd>) -> Result<(), Error> {
    if !is_wanted() {
        return Ok(());
    }
    let socket = match socket {
        Some(socket) => socket,
        None => listen_in(tenant.dir(), OWN).map_err(Error::io("the socket of the tenant's holder"))?,
    };
    spawn(install, &tenant.meta().name, socket, None).map(drop)
}

/// Starts the holder of a tenant of a user's, as that user, where root makes the tenant and no
/// `partita run` of the user's does it.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn start_for(install: &Install, tenant: &OwnedTenant, user: u32, group: u32) -> Result<(), Error> {
    if !is_wanted() {
        return Ok(());
    }
    let socket = listen_for(tenant, user)?;
    spawn(install, &tenant.meta().name, socket, Some((user, group))).map(drop)
}

/// Starts the holder of a tenant for containers, unless one answers.
///
/// # Errors
/// [`Error::Io`]; those of the registry's lock, which keeps two from being started.
pub(crate) fn keep(install: &Install, registry: &Registry, part: &Tenant) -> Result<(), Error> {
    if !is_wanted() {
        return Ok(());
    }
    let _lock = registry.lock()?;
    if answers(&part.dir) {
        return Ok(());
    }
    let socket =
        listen_in(&part.dir, OF_CONTAINERS).map_err(Error::io("the socket of the tenant's holder"))?;
    let mut holder = spawn(install, &part.name, socket, None)?;
    // The driver for Kubernetes may outlive it, and keeps no zombie of it.
    let waiter = thread::Builder::new().name("holder".to_owned());
    waiter.spawn(move || holder.wait()).map(drop).map_err(Error::io("a thread"))
}

/// The same for all tenants for containers that are clients of a service.
///
/// # Errors
/// [`Error::Io`]; those of the registry's lock.
pub fn keep_all(install: &Install, registry: &Registry, service: &Service) -> Result<(), Error> {
    let tenants = registry.lock()?.tenants()?;
    for part in tenants.iter().filter(|part| part.is_prepared() && part.is_first()) {
        if mps::service_of(install, registry, part)?.is_some_and(|its| its.dirs() == service.dirs()) {
            keep(install, registry, part)?;
        }
    }
    Ok(())
}

/// `user`: as which user, with which group, root starts it.
fn spawn(install: &Install, name: &str, socket: OwnedFd, user: Option<(u32, u32)>) -> Result<Child, Error> {
    let program = install.program();
    let mut command = Command::new(program);
    if let Some((user, group)) = user {
        command.uid(user).gid(group).current_dir("/");
        // What root's environment says is not that user's.
        let is_place = |name: &OsStr| name.as_encoded_bytes().starts_with(b"PARTITA_");
        command.env_clear().envs(std::env::vars_os().filter(|(name, _)| is_place(name)));
    }
    command.args([OsStr::new(DETACH_SUBCOMMAND), OsStr::new("--"), program.as_os_str()]);
    command.args([SUBCOMMAND, "--", name]).env_remove(LEDGER_VARIABLE);
    command.stdin(Stdio::from(socket)).stdout(Stdio::null()).stderr(Stdio::null());
    // What a terminal or a shell sends to this job is not for it.
    command.process_group(0);
    command.spawn().map_err(Error::io("the tenant's holder"))
}

/// Who may connect: processes of the tenant's user.
const OWN: rustix::fs::Mode = rustix::fs::Mode::RWXU;
/// Every user of a container. On the host only root enters the tenant's directory.
const OF_CONTAINERS: rustix::fs::Mode = rustix::fs::Mode::from_raw_mode(0o666);

/// The socket of the holder of the tenant in this directory, in the place of an earlier one.
fn listen_in(dir: &Path, mode: rustix::fs::Mode) -> io::Result<OwnedFd> {
    let dir = open_dir(dir)?;
    match rustix::fs::mkdirat(&dir, DIR, rustix::fs::Mode::from_raw_mode(0o755)) {
        Err(rustix::io::Errno::EXIST) | Ok(()) => {}
        Err(error) => return Err(error.into()),
    }
    match rustix::fs::unlinkat(&dir, HOLDER_SOCKET_NAME, rustix::fs::AtFlags::empty()) {
        Err(rustix::io::Errno::NOENT) | Ok(()) => {}
        Err(error) => return Err(error.into()),
    }
    let socket = new_socket()?;
    bind(&socket, &address(&dir)?)?;
    rustix::fs::chmodat(&dir, HOLDER_SOCKET_NAME, mode, rustix::fs::AtFlags::empty())?;
    listen(&socket, 64)?;
    Ok(socket)
}

/// Whether a holder of the tenant in this directory takes connections, now or soon.
fn answers(dir: &Path) -> bool {
    let connected = || -> io::Result<()> {
        let dir = open_dir(dir)?;
        match connect(&new_socket()?, &address(&dir)?) {
            // Many wait for it.
            Err(rustix::io::Errno::AGAIN) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    };
    connected().is_ok()
}

fn open_dir(dir: &Path) -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open(dir, flags, rustix::fs::Mode::empty())?)
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Short, whatever the length of the directory's path.
fn address(dir: &OwnedFd) -> io::Result<SocketAddrUnix> {
    let (number, name) = (std::os::fd::AsRawFd::as_raw_fd(dir), HOLDER_SOCKET_NAME.to_string_lossy());
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{number}/{name}"))?)
}

/// Whether the tenant in this directory has a holder.
pub(crate) fn is_in(dir: &Path) -> bool {
    dir.join(HOLDER_SOCKET_NAME.to_string_lossy().as_ref()).exists()
}

/// Is the holder of the tenant of this name, whose socket is standard input, until it is over.
///
/// # Errors
/// Why it cannot be.
pub fn run(install: &Install, name: &str) -> Result<(), Error> {
    let registry = Registry::open()?;
    let parts = registry.lock()?.tenant(name)?;
    let first = parts.first().ok_or_else(|| Error::io("the tenant")(io::ErrorKind::NotFound.into()))?;
    let run = first.meta()?.run;
    // What a holder that was killed has shown.
    let shown = first.dead();
    let of_containers = first.is_prepared().then(|| identity_of(&first.dir)).flatten();
    // A container has as many processes as it likes.
    let _ = partita_mps::detach::raise_open_files();
    let service = mps::service_of(install, &registry, first)?;
    let run_exit = open_process(run.pid);
    let mut holder = Holder {
        install: install.clone(),
        registry,
        parts,
        of_containers,
        service,
        held: Vec::new(),
        shown,
        connections: Vec::new(),
        looked: None,
        servers: Vec::new(),
        looks: Looks::default(),
    };
    loop {
        holder.wait(run_exit.as_ref().filter(|_| run.lives())).map_err(Error::io("the holder's wait"))?;
        let found = holder.looks.ended();
        holder.take_all();
        if let Some(found) = found {
            let rest = holder.rest();
            holder.looks.note(found, rest);
        }
        holder.look();
        if holder.held.is_empty() && holder.is_over_for(name, run) {
            holder.looks.finish();
            return Ok(());
        }
    }
}

/// What came from one program.
struct Held {
    /// Its process, as this one numbers it.
    pid: u32,
    /// Its process's number as it sees it itself, and its start.
    owner: (u64, u64),
    /// Readable when the process has ended; none if it had ended when its message came.
    exit: Option<OwnedFd>,
    /// Closed at its other end when the program has ended, by death or by exec.
    lifeline: OwnedFd,
    page: File,
    /// The driver's, and behind them those with the locks of its slots.
    descriptors: Vec<OwnedFd>,
    died: Option<Instant>,
    /// Since when everything with a fence has ended.
    unfenced: Option<Instant>,
    is_running: bool,
}

impl Held {
    /// Closes the descriptors. The slots come last: until then no other tenant gets the compute
    /// units.
    fn let_go(self) {
        self.descriptors.into_iter().for_each(drop);
    }
}

/// What the slots of a process say of its launches.
struct Launched {
    /// Its work has ended with an error.
    has_failed: bool,
    /// It had waited for all launches.
    has_waited: bool,
    launches: u64,
}

struct Holder {
    install: Install,
    registry: Registry,
    parts: Vec<Tenant>,
    /// The tenant's directory, if the tenant is one for containers: it lives until it is removed.
    of_containers: Option<Identity>,
    service: Option<Service>,
    held: Vec<Held>,
    shown: Vec<DeadProcess>,
    /// Those that have not sent their message yet.
    connections: Vec<OwnedFd>,
    /// When it last looked at the clients.
    looked: Option<Instant>,
    /// The servers with clients beside the dead, as the daemon said last.
    servers: Vec<ProcessId>,
    looks: Looks,
}

impl Holder {
    /// Waits for a message, a death, or the time of the next look.
    fn wait(&self, run: Option<&OwnedFd>) -> io::Result<()> {
        let living = self.held.iter().filter(|held| held.died.is_none());
        let limit = match (self.held.iter().any(|held| held.died.is_some()), run) {
            (true, _) => Some(LOOK),
            (false, None) if self.held.is_empty() && self.of_containers.is_some() => Some(LOOK_AT_TENANT),
            (false, None) if self.held.is_empty() => Some(LOOK),
            _ => None,
        };
        let stdin = io::stdin();
        let mut polled = vec![PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
        let ends = living.flat_map(|held| held.exit.iter().chain([&held.lifeline]));
        let ends = ends.chain(&self.connections).chain(run);
        polled.extend(ends.map(|end| PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN)));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut polled, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes every message that has come.
    fn take_all(&mut self) {
        let stdin = io::stdin();
        loop {
            match accept_with(stdin.as_fd(), SocketFlags::CLOEXEC) {
                Ok(connection) => self.connections.push(connection),
                Err(rustix::io::Errno::AGAIN) => break,
                // As with too many open files: what waits must not keep this process busy.
                Err(_) => break thread::sleep(LOOK),
            }
        }
        let is_any_user = self.of_containers.is_some();
        for connection in std::mem::take(&mut self.connections) {
            match receive(connection.as_fd(), is_any_user) {
                Received::Nothing => self.connections.push(connection),
                Received::Message(held) => self.take(*held),
                Received::Refused => {}
            }
        }
        // The oldest have had their time: a program sends its message with its connection.
        let excess = self.connections.len().saturating_sub(CONNECTIONS_MAX);
        self.connections.drain(..excess);
    }

    /// Takes the place of an earlier message of the same program.
    fn take(&mut self, held: Held) {
        let identity = |file: &File| file.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
        let page = identity(&held.page);
        self.held.retain(|old| identity(&old.page) != page);
        if self.held.len() < HELD_MAX {
            self.held.push(held);
        }
    }

    /// Looks after the dead: lets go of those whose work has ended, and shows the others.
    fn look(&mut self) {
        for held in &mut self.held {
            if held.died.is_none()
                && (held.exit.as_ref().is_none_or(is_readable) || is_readable(&held.lifeline))
            {
                held.died = Some(Instant::now());
            }
        }
        if self.held.iter().all(|held| held.died.is_none()) {
            self.looks.cancel();
            return self.show();
        }
        if self.held.iter().all(|held| held.died.is_some()) {
            // Without a share of time there is no gate.
            self.parts.iter().for_each(|part| _ = part.open_gate());
        }
        let held_before = self.held.len();
        let rest = self.rest();
        let everyone = self.parts.first().is_some_and(|part| kill::was_asked_for(&part.dir));
        for mut held in std::mem::take(&mut self.held) {
            let because = match held.died {
                Some(_) if everyone => Some(Because::Asked),
                Some(_) => self.is_over(&mut held, rest.is_some()),
                None => None,
            };
            match because {
                Some(because) => self.let_go(held, because),
                None => self.held.push(held),
            }
        }
        self.look_at_units(rest);
        let is_due = self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_AT_CLIENTS);
        if is_due && self.held.iter().any(|held| held.died.is_some()) {
            if !self.may_hurt() && self.is_safe_for_newcomers() {
                let (dead, living) =
                    std::mem::take(&mut self.held).into_iter().partition(|held| held.died.is_some());
                self.held = living;
                Vec::into_iter(dead).for_each(|held| self.let_go(held, Because::Alone));
            }
            self.looked = Some(Instant::now());
        }
        if self.held.len() < held_before {
            // What the dead had is free: others without a share get a part of it. The next command
            // does that, too.
            let _ = match self.registry.is_client() {
                true => system::clean(&self.registry),
                false => self.registry.lock_to_plan().and_then(|lock| partition::divide_after_end(&lock)),
            };
        }
        self.show();
    }

    /// Releases a dead process. The log tells of those that were held beside others.
    fn let_go(&self, held: Held, because: Because) {
        let (pid, died) = (held.pid, held.died);
        let note = || {
            let held_ms =
                died.map_or(0, |died| u64::try_from(died.elapsed().as_millis()).unwrap_or(u64::MAX));
            if let (Some(service), Some(part)) = (&self.service, self.parts.first())
                && Duration::from_millis(held_ms) >= LOOK
            {
                let what = What::Released { pid, held_ms, because };
                match self.registry.is_client() {
                    // The service is root's. A log without this line changes nothing.
                    true => drop(system::note_incident(&self.registry, &part.name, what)),
                    false => incident::note(service, &Incident::now(&part.name, what)),
                }
            }
        };
        if self.registry.is_client() {
            // `partitad` finds the log by the tenant, which may end with this process.
            note();
            return held.let_go();
        }
        // Descriptors first, and then the word: a reader of the log may count on it.
        held.let_go();
        note();
    }

    /// Why the work of a dead process has ended, if it has. `can_look`: no living process of the
    /// tenant works.
    fn is_over(&self, held: &mut Held, can_look: bool) -> Option<Because> {
        let process = ProcessId { pid: held.pid, start_ticks: held.owner.1 };
        let ended = self.parts.first().is_some_and(|part| dead::was_work_ended(&part.dir, process));
        let (flight, _) = self.flight(held);
        held.is_running = flight == Some(Flight::Runs);
        match flight {
            _ if ended => Some(Because::WorkEnded),
            Some(Flight::Over) => Some(Because::Passed),
            Some(Flight::Runs) => {
                held.unfenced = None;
                None
            }
            flight => {
                let (longest_ms, has_copies) = match flight {
                    Some(Flight::Unfenced { longest_ms, has_copies }) => (longest_ms, has_copies),
                    _ => (0, true),
                };
                let since = *held.unfenced.get_or_insert_with(Instant::now);
                let has_waited = |least: Duration| {
                    let patience = least.max(2 * Duration::from_millis(longest_ms.into()));
                    (since.elapsed() >= patience).then_some(Because::Waited)
                };
                match self.looks.since(since) {
                    Some(Vacancy::Free) if has_copies => has_waited(UNFENCED),
                    Some(Vacancy::Free) => Some(Because::Free),
                    Some(Vacancy::Taken) => {
                        held.is_running = true;
                        None
                    }
                    None | Some(Vacancy::Unanswered) if can_look => None,
                    Some(Vacancy::Untold) => has_waited(UNFENCED),
                    None | Some(Vacancy::Unanswered) => has_waited(UNFENCED_BESIDE),
                }
            }
        }
    }

    /// What the tenant's living processes have begun, if all of it has ended: then the compute
    /// units tell whether the work of the dead has.
    fn rest(&self) -> Option<Rest> {
        self.service.as_ref()?;
        let living = self.held.iter().filter(|held| held.died.is_none());
        let rests = |held| match self.flight(held) {
            (Some(Flight::Over), begun) => Some((held.owner, begun)),
            _ => None,
        };
        living.map(rests).collect()
    }

    /// Has a look at the compute units if work without a fence may run there. Beside a process of
    /// the tenant that works only if such work was found to run before: free compute units tell
    /// then that it has ended. `rest` is what [`Self::rest`] says.
    fn look_at_units(&mut self, rest: Option<Rest>) {
        let is_open = |since: Instant| match self.looks.since(since) {
            Some(Vacancy::Free | Vacancy::Untold) => false,
            Some(Vacancy::Taken) => true,
            Some(Vacancy::Unanswered) | None => rest.is_some() && since.elapsed() >= SETTLE,
        };
        if self.held.iter().filter_map(|held| held.unfenced).any(is_open)
            && let Some(service) = &self.service
        {
            self.looks.begin(&self.install, &self.registry, service, &self.parts, rest);
        }
    }

    /// What is known of the work of a process, and how many launches and copies it has begun.
    fn flight(&self, held: &Held) -> (Option<Flight>, u64) {
        let Launched { has_failed, has_waited, launches } = self.launched(held.owner);
        let mut page = [0; FLIGHT_BYTES];
        let is_read = held.page.read_exact_at(&mut page, 0).is_ok();
        let flight = match has_failed {
            true => Some(Flight::Over),
            false if !is_read => None,
            false => Flight::read(&page, (!has_waited).then_some(launches)),
        };
        (flight, launches.wrapping_add(Flight::begun(&page).unwrap_or(0)))
    }

    /// What a process has launched, as its slots have counted it.
    fn launched(&self, owner: (u64, u64)) -> Launched {
        let views = self.parts.iter().filter_map(|part| part.usage().ok());
        let mut slots: Vec<_> = views.flat_map(|view| view.slots().flatten().collect::<Vec<_>>()).collect();
        slots.retain(|slot| (u64::from(slot.pid.unsigned_abs()), slot.start_ticks) == owner);
        let has_waited = |slot: &SlotInfo| slot.waited == Waited::ForAll { launches: slot.launches };
        Launched {
            has_failed: slots.iter().any(|slot| slot.error != 0),
            has_waited: !slots.is_empty() && slots.iter().all(has_waited),
            launches: slots.iter().fold(0, |sum: u64, slot| sum.wrapping_add(slot.launches)),
        }
    }

    /// Whether there are clients that the end of the dead's work could break. After a fault all
    /// have lost theirs, and the server waits for the dead too.
    fn may_hurt(&mut self) -> bool {
        let Some(service) = &self.service else { return false };
        let dead = |pid: Pid| self.held.iter().any(|held| held.died.is_some() && held.pid == pid);
        match service.clients() {
            Ok(clients) => {
                // A look that waits is behind the work of the dead, and is let go of with them.
                let counts = |client: Pid| !dead(client) && !vacancy::is_look(client);
                let beside = clients.into_iter().filter(|(_, client)| counts(*client));
                let mut servers: Vec<Pid> = beside.map(|(server, _)| server).collect();
                servers.dedup();
                self.servers = servers.into_iter().filter_map(ProcessId::living).collect();
                !self.servers.is_empty() && !ready::is_in_fault(service)
            }
            Err(MpsError::NotRunning { .. }) => false,
            // It may have clients, unless the servers of its last answer have ended.
            Err(_) => self.servers.is_empty() || self.servers.iter().any(|server| server.lives()),
        }
    }

    /// Whether the dead can be let go of where nobody is left to be hurt. A server that loses a
    /// client with work that never ends refuses every new client (error 719, measured on an H100),
    /// so it is ended first; the next client starts another.
    fn is_safe_for_newcomers(&self) -> bool {
        let running = || self.held.iter().filter(|held| held.is_running).filter_map(|held| held.died);
        let Some(service) = self.service.as_ref().filter(|_| running().next().is_some()) else { return true };
        if ready::is_in_fault(service) {
            return true;
        }
        if running().any(|died| died.elapsed() < ALONE) {
            return false;
        }
        let by = self.parts.first().and_then(|part| part.meta().ok()).map_or("", |meta| &meta.name);
        // A server that stays is let go of all the same: no client can use it.
        let _ = match self.registry.is_client() {
            true => system::end_servers(&self.registry, by),
            false => end_servers(service, by),
        };
        true
    }

    /// Whether the tenant is over, which was made by that process: by `partita run`, or by a
    /// command that prepared it for containers.
    fn is_over_for(&self, name: &str, run: ProcessId) -> bool {
        match (self.of_containers, self.parts.first()) {
            (Some(identity), Some(part)) => identity_of(&part.dir) != Some(identity),
            _ => !run.lives() && !self.is_needed(name, run),
        }
    }

    /// Whether the tenant lives, which was made by that `partita run`.
    fn is_needed(&self, name: &str, run: ProcessId) -> bool {
        let Ok(lock) = self.registry.lock() else { return false };
        let found = lock.tenant(name).ok();
        found.is_some_and(|parts| {
            parts.iter().any(|part| part.meta.as_ref().is_ok_and(|meta| meta.run == run))
        })
    }

    /// Writes down which dead processes are held.
    fn show(&mut self) {
        let dead = |held: &Held| {
            let died = held.died?;
            let known = self.shown.iter().find(|shown| shown.pid == held.pid);
            let died_unix_s =
                known.map_or_else(|| DeadProcess::now_s(died.elapsed()), |shown| shown.died_unix_s);
            Some(DeadProcess { pid: held.pid, died_unix_s, runs: held.is_running })
        };
        let dead: Vec<DeadProcess> = self.held.iter().filter_map(dead).collect();
        if dead != self.shown
            && let Some(part) = self.parts.first()
        {
            DeadProcess::write(&part.dir, &dead);
            self.shown = dead;
        }
    }
}

/// Ends all servers of a service.
fn end_servers(service: &Service, by: &str) -> Result<(), Error> {
    let servers = service.control().server_list()?;
    servers.into_iter().try_for_each(|server| recover::end_server(service, by, server, RestartCause::Dead))
}

/// The same as root for a tenant of the acting user, if all clients are dead.
///
/// # Errors
/// [`Error::Served`] if they are not; [`Error::Mps`]; those of [`recover::end_server`].
pub(crate) fn end_servers_of_dead(service: &Service, by: &str) -> Result<(), Error> {
    let refused = |reason: String| Error::Served { reason: format!("the MPS server goes on: {reason}") };
    let clients: Vec<Pid> = service.clients()?.into_iter().map(|(_, client)| client).collect();
    let (living, dead): (Vec<Pid>, Vec<Pid>) =
        clients.into_iter().partition(|client| ProcessId::living(*client).is_some());
    match living.into_iter().find(|client| !vacancy::is_look(*client)) {
        Some(client) => Err(refused(format!("client {client} lives, and would lose its work"))),
        None if dead.is_empty() => Err(refused("it has no dead client".to_owned())),
        None => end_servers(service, by),
    }
}

/// Tells a directory from a later one of the same name: its file system and its number there.
type Identity = (u64, u64);

fn identity_of(dir: &Path) -> Option<Identity> {
    dir.symlink_metadata().map(|meta| (meta.dev(), meta.ino())).ok()
}

/// What a connection has brought.
enum Received {
    Nothing,
    Message(Box<Held>),
    /// Its end, or something else than a message of this user.
    Refused,
}

/// `is_any_user`: messages of other users count, too.
fn receive(connection: BorrowedFd<'_>, is_any_user: bool) -> Received {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HOLDER_DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = match recvmsg(connection, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Ok(received) => received,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Received::Nothing,
        Err(_) => return Received::Refused,
    };
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let held = (received.bytes == MESSAGE_BYTES)
        .then(|| held(connection, is_any_user, &bytes, descriptors))
        .flatten();
    held.map_or(Received::Refused, |held| Received::Message(Box::new(held)))
}

/// What a message brings.
fn held(
    connection: BorrowedFd<'_>,
    is_any_user: bool,
    bytes: &[u8; MESSAGE_BYTES],
    mut descriptors: Vec<OwnedFd>,
) -> Option<Held> {
    let peer = rustix::net::sockopt::socket_peercred(connection).ok()?;
    let word = |at: usize| Some(u64::from_ne_bytes(*bytes[8 * at..].first_chunk()?));
    let is_users = is_any_user || peer.uid == rustix::process::geteuid();
    if !is_users || word(0) != Some(HOLDER_MESSAGE_VERSION.into()) || descriptors.len() < 2 {
        return None;
    }
    let rest = descriptors.split_off(2);
    let [page, lifeline]: [OwnedFd; 2] = descriptors.try_into().ok()?;
    if !is_memory(&page) || !is_pipe(&lifeline) {
        return None;
    }
    let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).ok()?;
    Some(Held {
        pid,
        owner: (word(1)?, word(2)?),
        exit: open_process(pid),
        lifeline,
        page: File::from(page),
        descriptors: rest,
        died: None,
        unfenced: None,
        is_running: false,
    })
}

fn open_process(pid: u32) -> Option<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Whether a read of it never waits for another process, as one of a FUSE file would.
fn is_memory(file: &OwnedFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|system| system.f_type == TMPFS)
}

fn is_pipe(file: &OwnedFd) -> bool {
    let kind = rustix::fs::fstat(file).map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode));
    kind == Ok(rustix::fs::FileType::Fifo)
}

fn is_readable(end: &OwnedFd) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}
