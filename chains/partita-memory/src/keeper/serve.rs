//! The keeper's one thread: it waits, answers, and waits again.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant, SystemTime};

use partita_driver::{Cuda, Error};
use partita_ledger::SocketPeer;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use thiserror::Error as ThisError;

use super::listener::{BindError, Listener};
use super::memory::{GpuMemory, Memory};
use super::{ClientId, Facts, Options, Peer, Service};
use crate::millis;
use crate::socket::{self, Buffer};
use crate::wire::{Code, Reply};

/// How long memory rests by default after a process's end under MPS, whose server cleans up after
/// its clients by itself.
const SETTLE_MPS: Duration = Duration::from_secs(1);

/// The interval of [`Service::tick`].
const TICK_MS: u64 = 100;

/// The longest single wait: kernels before Linux 5.11 support at most 31 bits of milliseconds.
const WAIT_MS_MAX: u64 = 3_600_000;

/// Events that one wait returns at most.
const EVENTS_AT_ONCE: usize = 64;

/// The tokens of the listener and the stop; each client has two numbers from [`FIRST_CLIENT`] on.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_CLIENT: u64 = 2;

/// Why a keeper ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A client's request.
    Told,
    Signal,
    /// It was idle.
    Idle,
}

/// Why a keeper cannot serve.
#[derive(Debug, ThisError)]
pub enum RunError {
    /// The GPU cannot be used.
    #[error("the keeper cannot use the GPU: {0}")]
    Driver(Error),
    /// No socket.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A failed system call that a keeper needs.
    #[error("the keeper cannot {what}: {reason}")]
    System {
        /// The intended action.
        what: &'static str,
        reason: io::Error,
    },
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> RunError {
    move |reason| RunError::System { what, reason: reason.into() }
}

/// Serves the memory of the visible GPU with this ordinal, until a client, `SIGTERM` or `SIGINT`
/// ends it, or it is idle.
///
/// # Errors
/// [`RunError`].
pub fn run(cuda: &Cuda, ordinal: u32, options: &Options) -> Result<End, RunError> {
    raise_descriptor_limit();
    let gpu = partita_driver::Gpu::open(cuda, ordinal).map_err(RunError::Driver)?;
    let memory = GpuMemory::new(&gpu, options.handles).map_err(RunError::Driver)?;
    let (stopped, stop) = UnixStream::pair().map_err(system("make a pair of sockets"))?;
    for signal in [SIGTERM, SIGINT] {
        let stop = stop.try_clone().map_err(system("duplicate a socket"))?;
        signal_hook::low_level::pipe::register(signal, stop).map_err(system("wait for signals"))?;
    }
    let settle = options.settle.unwrap_or(if gpu.facts().under_mps { SETTLE_MPS } else { Duration::ZERO });
    let mut options = Options { settle: Some(settle), ..options.clone() };
    // The pool does not try to exceed that: no idle memory is freed for an impossible request.
    options.limits.bytes_max = options.limits.bytes_max.min(gpu.facts().memory_bytes);
    serve(memory, gpu.facts().uuid, &options, Some(stopped.as_fd()))
}

/// As [`run`], with memory from any source, until a client or input on `stop` ends it, or it is
/// idle.
///
/// # Errors
/// [`RunError`].
pub fn serve<M: Memory>(
    memory: M,
    gpu_uuid: [u8; 16],
    options: &Options,
    stop: Option<BorrowedFd<'_>>,
) -> Result<End, RunError> {
    let listener = Listener::bind(&options.socket)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("wait for events"))?;
    let pid = std::process::id();
    let facts = Facts { gpu_uuid, instance: instance(pid), pid, uid: rustix::process::geteuid().as_raw() };
    let mut keeper = Keeper {
        service: Service::new(memory, facts, options),
        epoll,
        connections: BTreeMap::new(),
        dying: BTreeMap::new(),
        settling: Vec::new(),
        clients_max: options.clients_max,
        settle_ms: millis(options.settle.unwrap_or_default()),
        start: Instant::now(),
        buffer: Buffer::new(),
        out: Vec::new(),
    };
    keeper.watch(&listener, LISTENER)?;
    if let Some(stop) = stop {
        keeper.watch(stop, STOP)?;
    }
    keeper.run(&listener, options.idle)
}

struct Connection {
    socket: OwnedFd,
    process: OwnedFd,
}

struct Keeper<M: Memory> {
    service: Service<M>,
    epoll: OwnedFd,
    connections: BTreeMap<ClientId, Connection>,
    /// Processes with closed connections that still have memory.
    dying: BTreeMap<ClientId, OwnedFd>,
    /// Clients whose processes are gone, and when their work on the GPU counts as over.
    settling: Vec<(u64, ClientId)>,
    clients_max: usize,
    settle_ms: u64,
    start: Instant,
    buffer: Buffer,
    out: Vec<u8>,
}

impl<M: Memory> Keeper<M> {
    fn run(&mut self, listener: &Listener, idle: Option<Duration>) -> Result<End, RunError> {
        let idle_ms = idle.map(millis);
        let mut tick_ms = 0;
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        loop {
            let now_ms = self.now_ms();
            if now_ms >= tick_ms {
                self.settle(now_ms);
                self.service.tick(now_ms);
                tick_ms = now_ms + TICK_MS;
            }
            let until_idle_ms = idle_ms
                .map(|idle_ms| self.service.idle_since_ms().saturating_add(idle_ms).saturating_sub(now_ms));
            if until_idle_ms == Some(0) {
                return Ok(End::Idle);
            }
            let needs_ticks = self.service.needs_ticks() || !self.settling.is_empty();
            let until_tick_ms = needs_ticks.then_some(tick_ms - now_ms);
            let wait = match (until_tick_ms, until_idle_ms) {
                (Some(tick), Some(idle)) => Some(tick.min(idle)),
                (tick, idle) => tick.or(idle),
            };
            let wait = wait.map(|wait_ms| wait_ms.min(WAIT_MS_MAX));
            if let Some(end) = self.wait(listener, wait, &mut events)? {
                return Ok(end);
            }
        }
    }

    /// Waits for events, this many milliseconds at most, and handles them.
    fn wait(
        &mut self,
        listener: &Listener,
        wait_ms: Option<u64>,
        events: &mut Vec<epoll::Event>,
    ) -> Result<Option<End>, RunError> {
        let timeout =
            wait_ms.and_then(|ms| rustix::event::Timespec::try_from(Duration::from_millis(ms)).ok());
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(system("wait for events")(errno)),
        }
        let now_ms = self.now_ms();
        for event in events.iter() {
            match event.data.u64() {
                LISTENER => self.accept(listener, now_ms)?,
                STOP => return Ok(Some(End::Signal)),
                number => {
                    let client = ClientId((number - FIRST_CLIENT) / 2);
                    if number % 2 == FIRST_CLIENT % 2 {
                        self.answer(client, now_ms);
                    } else {
                        self.process_ended(client, now_ms);
                    }
                }
            }
        }
        Ok(self.service.must_end().then_some(End::Told))
    }

    fn watch(&self, what: impl AsFd, number: u64) -> Result<(), RunError> {
        epoll::add(&self.epoll, what, EventData::new_u64(number), EventFlags::IN)
            .map_err(system("wait for events"))
    }

    fn now_ms(&self) -> u64 {
        millis(self.start.elapsed())
    }

    fn accept(&mut self, listener: &Listener, now_ms: u64) -> Result<(), RunError> {
        let socket = match listener.accept() {
            Ok(Some(socket)) => socket,
            Ok(None) => return Ok(()),
            // Too few descriptors: waiting connections go on waiting, until another client leaves.
            Err(_) => {
                self.service.tick(now_ms);
                std::thread::sleep(Duration::from_millis(1));
                return Ok(());
            }
        };
        // A refused client gets the reason before the connection is closed.
        let refuse = |text: String| {
            let mut out = Vec::new();
            Reply::Error { code: Code::TooMany, text }.encode(0, &mut out);
            let _ = socket::send(&socket, &out, None, SendFlags::DONTWAIT);
        };
        if self.connections.len() + self.dying.len() >= self.clients_max {
            refuse(format!("there are already {} connections: end one", self.clients_max));
            return Ok(());
        }
        let peer = match SocketPeer::of(socket.as_raw_fd()) {
            Ok(peer) => peer,
            Err(errno) => {
                refuse(format!("the kernel does not report your process and user: {errno}"));
                return Ok(());
            }
        };
        let process = match process_of(peer.pid) {
            Ok(process) => process,
            Err(why) => {
                refuse(format!(
                    "the keeper cannot watch your process, so its memory could never be used again: {why}"
                ));
                return Ok(());
            }
        };
        let client = self.service.join(Peer { pid: peer.pid.unsigned_abs(), uid: peer.uid });
        let number = FIRST_CLIENT + 2 * client.0;
        let watched = self.watch(&process, number + 1).and_then(|()| self.watch(&socket, number));
        if let Err(error) = watched {
            refuse(error.to_string());
            self.service.leave(client, now_ms);
            return Ok(());
        }
        self.connections.insert(client, Connection { socket, process });
        Ok(())
    }

    /// Answers one request of a client: the others have their turn before its next.
    fn answer(&mut self, client: ClientId, now_ms: u64) {
        let Self { connections, service, buffer, out, .. } = self;
        // An earlier event of the same wait may have closed it.
        let Some(Connection { socket, .. }) = connections.get(&client) else { return };
        let is_open = match socket::receive(socket, buffer, RecvFlags::DONTWAIT) {
            Ok(Some(packet)) => {
                let (bytes, lost) = (packet.bytes, packet.lost_descriptors);
                let with = service.answer(client, bytes, packet.descriptors, lost, now_ms, out);
                // The keeper does not wait for a client that does not read its answers.
                socket::send(socket, out, with, SendFlags::DONTWAIT).is_ok()
            }
            Ok(None) => false,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        let is_watched = match self.service.take_adopted() {
            Some(process) => self.adopt(client, process),
            None => true,
        };
        if !(is_open && is_watched) {
            self.close(client, now_ms);
        }
    }

    /// Watches another process in the place of the one that connected. Returns whether it can.
    fn adopt(&mut self, client: ClientId, process: OwnedFd) -> bool {
        let number = FIRST_CLIENT + 2 * client.0 + 1;
        let Some(connection) = self.connections.get_mut(&client) else { return false };
        let former = std::mem::replace(&mut connection.process, process);
        let _ = epoll::delete(&self.epoll, &former);
        let added = epoll::add(&self.epoll, &connection.process, EventData::new_u64(number), EventFlags::IN);
        added.is_ok()
    }

    /// A connection is closed, by either side.
    fn close(&mut self, client: ClientId, now_ms: u64) {
        let Some(connection) = self.connections.remove(&client) else { return };
        if !self.service.leave(client, now_ms) {
            self.dying.insert(client, connection.process);
        }
    }

    /// A process has ended. Its connection ends with it, even if another process has inherited
    /// that.
    fn process_ended(&mut self, client: ClientId, now_ms: u64) {
        self.close(client, now_ms);
        if self.dying.remove(&client).is_none() {
            return;
        }
        if self.settle_ms == 0 {
            self.service.gone(client, now_ms);
        } else {
            self.settling.push((now_ms.saturating_add(self.settle_ms), client));
        }
    }

    /// Frees memory that has rested long enough.
    fn settle(&mut self, now_ms: u64) {
        let Self { settling, service, .. } = self;
        settling.retain(|(due_ms, client)| {
            let is_due = now_ms >= *due_ms;
            if is_due {
                service.gone(*client, now_ms);
            }
            !is_due
        });
    }
}

/// A descriptor of a process, which becomes readable when it has ended.
fn process_of(pid: i32) -> Result<OwnedFd, String> {
    let Some(pid) = Pid::from_raw(pid) else {
        return Err(
            "it is in another PID namespace; run the keeper where it sees its clients' processes".to_owned()
        );
    };
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => Ok(process),
        Err(rustix::io::Errno::SRCH) => Err("it has ended already".to_owned()),
        Err(rustix::io::Errno::NOSYS) => {
            Err("this kernel has no pidfd_open: use Linux 5.3 or later".to_owned())
        }
        Err(errno) => Err(io::Error::from(errno).to_string()),
    }
}

/// Each client has a socket and a process to watch, and each slab may have a descriptor: more than
/// the usual limit.
fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    // Without it there is room for fewer clients, and further ones get an error.
    let _ = rustix::process::setrlimit(
        Resource::Nofile,
        Rlimit { current: limit.maximum, maximum: limit.maximum },
    );
}

/// A number that no other keeper of this machine has had: the time in nanoseconds, with the process
/// number in its lowest bits.
fn instance(pid: u32) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64 & !0x3f_ffff) | u64::from(pid & 0x3f_ffff)
}
