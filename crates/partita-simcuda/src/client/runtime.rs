//! This process's connections to its boards, one for each GPU that it sees: made by `cuInit`, used by every other
//! call.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use partita_abi::CuResult;
use partita_abi::qmd::{QmdLayout, layout_for};
use partita_sim::DeviceSpec;

use super::region::Regions;
use super::stream::Stream;
use super::structure::Shape;
use super::worker::HostWorks;
use crate::mps;
use crate::shared::channel::{Channel, Producer};
use crate::shared::command::{Command, KIND_COMMAND};
use crate::shared::page::BoardPage;
use crate::shared::place::{GPUS_MAX, Place, usable_bytes};
use crate::shared::protocol::{MpsIdentity, PROTOCOL_VERSION, Reply, Request, Role, WINDOW_BYTES};
use crate::shared::socket::{self, MESSAGE_BYTES_MAX, Received};
use crate::shared::sys::{SharedMap, eventfd_signal, futex_wait};

/// Where device addresses start, if the addresses are free. A driver maps its own range in the same way.
const WINDOW_WISH: usize = 0x3000_0000_0000;
/// How long a waiting thread looks before it sleeps.
const SPIN: Duration = Duration::from_micros(3);
/// How long a waiting thread sleeps before it makes sure that the board still lives.
const PATIENCE: Duration = Duration::from_millis(100);
/// When set, a synchronising call that waits longer than this many milliseconds on work that can never run
/// gives up with `CUDA_ERROR_LAUNCH_TIMEOUT`.
const ENV_WATCHDOG: &str = "PARTITA_SIM_WATCHDOG_MS";

/// The connection and what comes with it.
#[derive(Debug)]
pub struct Runtime {
    /// The simulated device.
    pub spec: DeviceSpec,
    /// Its number in this process.
    pub ordinal: i32,
    /// The bus that it sits on.
    pub pci_bus: u32,
    /// Layout of its launch descriptors.
    pub qmd: &'static QmdLayout,
    /// Layout of its streams' structures.
    pub structure: Shape,
    /// This process's id when it connected. A copy that was made without fork handlers has another.
    pub process: u32,
    /// Its identifier.
    pub uuid: [u8; 16],
    /// SMs that this process may use.
    pub sms: u32,
    /// This process's MPS server.
    pub mps: Option<MpsIdentity>,
    /// Keeps the MPS server aware of this process.
    mps_connection: Option<OwnedFd>,
    /// The board's random number.
    pub instance: u64,
    /// First device address.
    pub window: u64,
    /// The board's clock and events.
    pub page: BoardPage,
    /// The device's memory.
    pub memory: SharedMap,
    /// The device's memory, as a file.
    pub memory_fd: OwnedFd,
    /// The fast path and the progress of streams.
    pub channel: Channel,
    /// What is mapped at which device address.
    pub regions: Regions,
    /// Host work that streams will ask for.
    pub host_work: HostWorks,
    /// Whether the thread that does it was started.
    pub worker: Once,
    next_token: AtomicU64,
    producer: Mutex<Producer>,
    doorbell: OwnedFd,
    socket: Mutex<OwnedFd>,
    socket_raw: i32,
    watchdog: Option<Duration>,
}

/// That of the first GPU; null before `cuInit`.
static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(std::ptr::null_mut());
/// Those of all GPUs that the process sees, by ordinal. Filled before [`RUNTIME`] is set.
static ALL: OnceLock<Vec<&'static Runtime>> = OnceLock::new();
/// Whether there are several: then the context decides.
static SEVERAL: AtomicBool = AtomicBool::new(false);
static STARTING: Mutex<()> = Mutex::new(());
/// Set in a child that was forked from a process with a runtime: CUDA does not survive that.
static FORKED: AtomicBool = AtomicBool::new(false);
static SOCKETS_TO_CLOSE: [AtomicI32; GPUS_MAX as usize] = [const { AtomicI32::new(-1) }; GPUS_MAX as usize];

thread_local! {
    /// The GPU of this thread's current context.
    static CURRENT: Cell<Option<&'static Runtime>> = const { Cell::new(None) };
}

/// Locks; a panic elsewhere cannot have happened (the workspace aborts on panics).
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The runtime of the current context's GPU; of the first GPU where no context is current.
///
/// # Errors
/// `NOT_INITIALIZED` before `cuInit` and in a child of an initialised process.
#[inline]
pub fn runtime() -> Result<&'static Runtime, CuResult> {
    let runtime = RUNTIME.load(Ordering::Acquire);
    // SAFETY: the pointer is null or was leaked from a box that is never freed.
    let first = unsafe { runtime.as_ref() }.ok_or(CuResult::NOT_INITIALIZED)?;
    if SEVERAL.load(Ordering::Relaxed) {
        return Ok(CURRENT.try_with(Cell::get).ok().flatten().unwrap_or(first));
    }
    Ok(first)
}

/// The GPUs that the process sees, by ordinal.
pub fn visible() -> &'static [&'static Runtime] {
    ALL.get().map_or(&[], Vec::as_slice)
}

/// Whether the process sees more than one GPU.
#[inline]
pub fn are_several() -> bool {
    SEVERAL.load(Ordering::Relaxed)
}

/// Says which GPU's context is current in this thread.
pub fn set_current(runtime: Option<&'static Runtime>) {
    // A thread that ends has no use for it any more.
    let _ = CURRENT.try_with(|current| current.set(runtime));
}

/// The GPU in whose window a device address lies. Addresses of host memory are no GPU's.
pub fn owner(address: u64) -> Option<&'static Runtime> {
    visible().iter().copied().find(|runtime| runtime.has(address))
}

/// The runtime that knows an address: its GPU's, or for host memory that of the current context.
///
/// # Errors
/// Those of [`runtime`].
#[inline]
pub fn runtime_at(address: u64) -> Result<&'static Runtime, CuResult> {
    let current = runtime()?;
    if !are_several() || current.has(address) {
        return Ok(current);
    }
    Ok(owner(address).unwrap_or(current))
}

/// Connects, once.
///
/// # Errors
/// `NOT_INITIALIZED` in a forked child; `NO_DEVICE` when none is visible, and when no board can be reached, with
/// the reason on stderr; an MPS error when the MPS server refuses.
pub fn initialize() -> Result<(), CuResult> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CuResult::NOT_INITIALIZED);
    }
    let _starting = lock(&STARTING);
    if runtime().is_ok() {
        return if visible().is_empty() { Err(CuResult::NO_DEVICE) } else { Ok(()) };
    }
    let places = Place::all_from_env().map_err(complain)?;
    let uuids: Vec<[u8; 16]> = places.iter().map(device_uuid).collect();
    let list = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let connect = |index: usize, ordinal| -> Result<&'static Runtime, CuResult> {
        Ok(Box::leak(Box::new(Runtime::connect(&places[index], ordinal)?)))
    };
    let shown = visible_devices(list.as_deref(), &uuids);
    let runtimes: Result<Vec<_>, _> =
        shown.iter().zip(0..).map(|(index, ordinal)| connect(*index, ordinal)).collect();
    let runtimes = runtimes?;
    // A process that sees nothing has a driver nevertheless, which tells it so.
    let first = match runtimes.first() {
        Some(first) => *first,
        None => connect(0, 0)?,
    };
    let sockets = runtimes.iter().copied().chain(runtimes.is_empty().then_some(first));
    for (runtime, socket) in sockets.zip(&SOCKETS_TO_CLOSE) {
        socket.store(runtime.socket_raw, Ordering::Relaxed);
    }
    SEVERAL.store(runtimes.len() > 1, Ordering::Relaxed);
    if ALL.set(runtimes).is_err() {
        return Err(CuResult::UNKNOWN);
    }
    // SAFETY: the handler only stores to atomics and closes descriptors, both allowed after a fork.
    unsafe { libc::pthread_atfork(None, None, Some(forget_after_fork)) };
    RUNTIME.store(std::ptr::from_ref(first).cast_mut(), Ordering::Release);
    if visible().is_empty() { Err(CuResult::NO_DEVICE) } else { Ok(()) }
}

fn complain(error: io::Error) -> CuResult {
    eprintln!("partita-sim: {error}");
    CuResult::NO_DEVICE
}

extern "C" fn forget_after_fork() {
    if !RUNTIME.swap(std::ptr::null_mut(), Ordering::Relaxed).is_null() {
        FORKED.store(true, Ordering::Relaxed);
    }
    // The board sees a client's end by its socket; a child that kept it open would hide the parent's death.
    for socket in &SOCKETS_TO_CLOSE {
        let socket = socket.swap(-1, Ordering::Relaxed);
        if socket >= 0 {
            // SAFETY: the descriptor belongs to a runtime that was just forgotten and is used by nobody here.
            unsafe { libc::close(socket) };
        }
    }
}

extern "C" fn say_goodbye() {
    if runtime().is_err() {
        return;
    }
    for runtime in visible() {
        // The thread that ends the process may be the one that was interrupted in a call; then the board finds
        // out by itself.
        for _ in 0..100 {
            if let Ok(socket) = runtime.socket.try_lock() {
                let _ = exchange(socket.as_fd(), &Request::Bye, &[]);
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs when the process ends in order.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = say_goodbye;

/// The path of the file that this code was loaded from.
pub fn own_path() -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the address is one of this code's own; dladdr fills the struct or returns 0.
    let found = unsafe { libc::dladdr(own_path as *const libc::c_void, info.as_mut_ptr()) };
    if found == 0 {
        return None;
    }
    // SAFETY: dladdr succeeded, so the struct is filled and the name is a C string that lives as long as the
    // object is loaded.
    let name = unsafe {
        let info = info.assume_init();
        if info.dli_fname.is_null() {
            return None;
        }
        std::ffi::CStr::from_ptr(info.dli_fname)
    };
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(name.to_bytes());
    std::fs::canonicalize(name).ok()
}

/// The identifier of a simulated device: the same for everybody who looks at the same place.
pub fn device_uuid(place: &Place) -> [u8; 16] {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut uuid = [0u8; 16];
    for (half, part) in uuid.chunks_exact_mut(8).enumerate() {
        let mut hasher = DefaultHasher::new();
        (half, place.spec.id, &place.dir).hash(&mut hasher);
        if place.index > 0 {
            place.index.hash(&mut hasher);
        }
        part.copy_from_slice(&hasher.finish().to_be_bytes());
    }
    // A random (version 4) identifier by its marked bits, as real boards have.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// `GPU-` and the identifier in the usual groups.
pub fn uuid_text(uuid: [u8; 16]) -> String {
    format!("GPU-{}", partita_abi::types::CUuuid { bytes: uuid })
}

/// Whether an entry of `CUDA_VISIBLE_DEVICES` names a device: by index, by identifier or by the start of one.
fn names(entry: &str, index: u32, uuid: [u8; 16]) -> bool {
    let entry = entry.trim();
    if let Ok(number) = entry.parse::<u32>() {
        return number == index;
    }
    entry.len() > 4
        && entry.starts_with("GPU-")
        && uuid_text(uuid).starts_with(&entry.to_lowercase().replacen("gpu-", "GPU-", 1))
}

/// The devices that `CUDA_VISIBLE_DEVICES` shows, in its order. As with the real driver the list ends at the first
/// entry that names nothing, that could be one of several, or that was there already.
pub fn visible_devices(list: Option<&str>, uuids: &[[u8; 16]]) -> Vec<usize> {
    let Some(list) = list else { return (0..uuids.len()).collect() };
    let mut shown = Vec::new();
    for entry in list.split(',') {
        let mut named = (0..uuids.len()).filter(|index| names(entry, *index as u32, uuids[*index]));
        match (named.next(), named.next()) {
            (Some(index), None) if !shown.contains(&index) => shown.push(index),
            _ => break,
        }
    }
    shown
}

/// Whether `CUDA_VISIBLE_DEVICES` shows one device, for somebody who knows of no others.
pub fn is_visible(list: Option<&str>, index: u32, uuid: [u8; 16]) -> bool {
    list.is_none_or(|list| list.split(',').any(|entry| names(entry, index, uuid)))
}

/// Reserves the window of device addresses; touching one from the host faults, as on hardware.
fn reserve_window() -> io::Result<u64> {
    // SAFETY: a hint without MAP_FIXED replaces no mapping.
    let window = unsafe {
        libc::mmap(
            std::ptr::without_provenance_mut(WINDOW_WISH),
            WINDOW_BYTES as usize,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if window == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok((window as u64).next_multiple_of(crate::shared::protocol::PAGE_BYTES))
}

/// Sends a request and receives the reply with its descriptors.
fn exchange(
    socket: BorrowedFd<'_>,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<(Reply, Vec<OwnedFd>)> {
    let bytes = postcard::to_allocvec(request).map_err(io::Error::other)?;
    socket::send(socket, &bytes, descriptors)?;
    let mut buffer = vec![0u8; MESSAGE_BYTES_MAX];
    match socket::receive(socket, &mut buffer)? {
        Received::Packet(bytes, descriptors) => {
            Ok((postcard::from_bytes(&buffer[..bytes]).map_err(io::Error::other)?, descriptors))
        }
        _ => Err(io::ErrorKind::ConnectionReset.into()),
    }
}

/// The name that lists show for this process.
fn command_name() -> String {
    std::fs::read_link("/proc/self/exe")
        .map(|path| path.display().to_string())
        .unwrap_or_else(|_| "unknown".to_owned())
}

/// Asks a question of the board without being its client. `None` when no board runs.
pub fn observe(place: &Place, request: &Request) -> Option<Reply> {
    let socket = place.connect().ok()?;
    let hello = Request::Hello { version: PROTOCOL_VERSION, role: Role::Observer, command: command_name() };
    exchange(socket.as_fd(), &hello, &[]).ok()?;
    exchange(socket.as_fd(), request, &[]).ok().map(|(reply, _)| reply)
}

impl Runtime {
    fn connect(place: &Place, ordinal: i32) -> Result<Self, CuResult> {
        let attached = mps::client::attach(place)?;
        let (identity, mps_connection) = match attached {
            Some((identity, connection)) => (Some(identity), Some(connection)),
            None => (None, None),
        };
        let window = reserve_window().map_err(complain)?;
        let hello = Request::Hello {
            version: PROTOCOL_VERSION,
            role: Role::Client { window, mps: identity },
            command: command_name(),
        };
        // A board that was about to end may take the connection with it; the next one will not.
        let mut last = io::Error::from(io::ErrorKind::ConnectionReset);
        for _ in 0..20 {
            let socket = place.connect_or_start(own_path().as_deref()).map_err(complain)?;
            match exchange(socket.as_fd(), &hello, &[]) {
                Ok((Reply::Welcome { instance, sms, .. }, descriptors)) => {
                    return Self::assemble(
                        place,
                        ordinal,
                        socket,
                        window,
                        identity,
                        mps_connection,
                        instance,
                        sms,
                        descriptors,
                    )
                    .map_err(complain);
                }
                Ok((Reply::Refused(code), _)) => return Err(CuResult(code)),
                Ok(_) => return Err(CuResult::SYSTEM_DRIVER_MISMATCH),
                Err(error) => last = error,
            }
        }
        Err(complain(last))
    }

    #[allow(clippy::too_many_arguments)]
    fn assemble(
        place: &Place,
        ordinal: i32,
        socket: OwnedFd,
        window: u64,
        mps: Option<MpsIdentity>,
        mps_connection: Option<OwnedFd>,
        instance: u64,
        sms: u32,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<Self> {
        let [page, channel, memory, doorbell]: [OwnedFd; 4] = descriptors.try_into().map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, "the board sent other descriptors than expected")
        })?;
        let spec = place.spec.clone();
        let capability = spec.compute_capability;
        let capability = u32::from(capability.major) * 10 + u32::from(capability.minor);
        let uuid = device_uuid(place);
        Ok(Self {
            qmd: layout_for(capability, spec.driver.qmd_version).map_err(io::Error::other)?,
            structure: Shape::of(&spec),
            process: std::process::id(),
            ordinal,
            pci_bus: place.pci_bus(),
            worker: Once::new(),
            uuid,
            sms,
            mps,
            mps_connection,
            instance,
            window,
            page: BoardPage::open(page.as_fd())?,
            memory: SharedMap::new(memory.as_fd(), usable_bytes(&spec) as usize)?,
            memory_fd: memory,
            channel: Channel::open(channel.as_fd())?,
            regions: Regions::default(),
            host_work: HostWorks::default(),
            next_token: AtomicU64::new(1),
            producer: Mutex::new(Producer::default()),
            doorbell,
            socket_raw: socket.as_raw_fd(),
            socket: Mutex::new(socket),
            watchdog: std::env::var(ENV_WATCHDOG)
                .ok()
                .and_then(|ms| ms.parse().ok())
                .map(Duration::from_millis),
            spec,
        })
    }

    /// Whether a device address is in its window.
    #[inline]
    pub fn has(&self, address: u64) -> bool {
        address.wrapping_sub(self.window) < WINDOW_BYTES
    }

    // ---- slow path ----

    /// Asks the board.
    ///
    /// # Errors
    /// The board's refusal; `DEVICE_UNAVAILABLE` when it is gone.
    pub fn call(&self, request: &Request) -> Result<Reply, CuResult> {
        let (reply, _) = self.call_with(request, &[])?;
        self.tell_mps(request, &reply);
        Ok(reply)
    }

    /// Tells the MPS server of contexts that come and go. Only its log depends on it.
    fn tell_mps(&self, request: &Request, reply: &Reply) {
        let Some(connection) = &self.mps_connection else { return };
        let _ = match (request, reply) {
            (_, Reply::Ctx { ctx, .. }) => mps::client::tell_context(connection.as_fd(), *ctx, true),
            (Request::CtxDestroy { ctx }, _) => mps::client::tell_context(connection.as_fd(), *ctx, false),
            _ => Ok(()),
        };
    }

    /// Asks the board and passes descriptors both ways.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_with(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), CuResult> {
        let socket = lock(&self.socket);
        match exchange(socket.as_fd(), request, descriptors) {
            Ok((Reply::Refused(code), _)) => Err(CuResult(code)),
            Ok(answer) => Ok(answer),
            Err(_) => Err(CuResult::DEVICE_UNAVAILABLE),
        }
    }

    // ---- fast path ----

    /// The error that ended this process's GPU work, if one has.
    ///
    /// # Errors
    /// That error.
    #[inline]
    pub fn healthy(&self) -> Result<(), CuResult> {
        CuResult(self.channel.head().fault.0.load(Ordering::Relaxed)).ok()
    }

    /// Puts a command into the ring; returns its number on the stream.
    ///
    /// # Errors
    /// The sticky error, if there is one.
    #[inline]
    pub fn publish(&self, stream: &Stream, kind: u32, parts: &[&[u8]]) -> Result<u64, CuResult> {
        self.healthy()?;
        loop {
            {
                let mut producer = lock(&self.producer);
                let seq = stream.submitted.load(Ordering::Relaxed) + 1;
                if producer.publish(&self.channel, kind, stream.slot.load(Ordering::Relaxed), seq, parts) {
                    stream.submitted.store(seq, Ordering::Release);
                    drop(producer);
                    self.ring();
                    return Ok(seq);
                }
            }
            self.ring();
            let head = &self.channel.head().head.0;
            let seen = head.load(Ordering::Acquire);
            self.wait(|| head.load(Ordering::Acquire) != seen)?;
        }
    }

    /// Puts a [`Command`] into the ring.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub fn command(&self, stream: &Stream, command: &Command) -> Result<u64, CuResult> {
        let mut buffer = [0u8; 128];
        let bytes = postcard::to_slice(command, &mut buffer).map_err(|_| CuResult::UNKNOWN)?;
        self.publish(stream, KIND_COMMAND, &[bytes])
    }

    /// Tells the board that host work is done.
    pub fn host_done(&self, token: u64) {
        let mut buffer = [0u8; 32];
        let Ok(bytes) = postcard::to_slice(&Command::HostDone { token }, &mut buffer) else { return };
        loop {
            if lock(&self.producer).publish(&self.channel, KIND_COMMAND, 0, 0, &[bytes]) {
                self.ring();
                return;
            }
            self.ring();
            std::thread::sleep(Duration::from_micros(50));
            if self.healthy().is_err() {
                return;
            }
        }
    }

    /// A name for a new piece of host work.
    pub fn token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    #[inline]
    fn ring(&self) {
        // The board sets the word before it looks at the rings a last time; the fence orders this side's
        // publication before the look at the word.
        fence(Ordering::SeqCst);
        let asleep = &self.page.head().asleep.0;
        if asleep.load(Ordering::Relaxed) == 1 && asleep.swap(0, Ordering::Relaxed) == 1 {
            eventfd_signal(self.doorbell.as_fd());
        }
    }

    /// Waits until the board has made something true.
    ///
    /// # Errors
    /// The sticky error; `LAUNCH_TIMEOUT` by the watchdog; `DEVICE_UNAVAILABLE` when the board is gone.
    pub fn wait(&self, ready: impl Fn() -> bool) -> Result<(), CuResult> {
        let start = Instant::now();
        while start.elapsed() < SPIN {
            if ready() {
                return self.healthy();
            }
            std::hint::spin_loop();
        }
        let head = self.channel.head();
        loop {
            head.waiters.0.fetch_add(1, Ordering::SeqCst);
            let seen = head.progress.0.load(Ordering::SeqCst);
            if !ready() && self.healthy().is_ok() {
                let limit = self.watchdog.map_or(PATIENCE, |limit| limit.min(PATIENCE));
                futex_wait(&head.progress.0, seen, Some(limit));
            }
            head.waiters.0.fetch_sub(1, Ordering::SeqCst);
            self.healthy()?;
            if ready() {
                return Ok(());
            }
            if let Some(limit) = self.watchdog
                && start.elapsed() > limit
                && head.stuck.0.load(Ordering::Relaxed) != 0
            {
                head.fault.0.store(CuResult::LAUNCH_TIMEOUT.0, Ordering::SeqCst);
                return Err(CuResult::LAUNCH_TIMEOUT);
            }
            if start.elapsed() > PATIENCE && self.board_is_gone() {
                return Err(CuResult::DEVICE_UNAVAILABLE);
            }
        }
    }

    /// The board's process, as far as this process can see it.
    pub fn board_pid(&self) -> Option<u32> {
        socket::peer(lock(&self.socket).as_fd()).ok().map(|(pid, _)| pid).filter(|pid| *pid != 0)
    }

    fn board_is_gone(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.socket_raw, events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: one entry, a local.
        let ready = unsafe { libc::poll(&mut poll, 1, 0) };
        ready > 0 && poll.revents & (libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_visible_by_index_and_by_identifier() {
        let uuid = *b"\x12\x34\x56\x78\x9a\xbc\x4d\xef\x80\x12\x34\x56\x78\x9a\xbc\xde";
        let other = *b"\x12\x99\x56\x78\x9a\xbc\x4d\xef\x80\x12\x34\x56\x78\x9a\xbc\xde";
        assert_eq!(uuid_text(uuid), "GPU-12345678-9abc-4def-8012-3456789abcde");
        let one = |list| visible_devices(Some(list), &[uuid]) == [0];
        assert_eq!(visible_devices(None, &[uuid, other]), [0, 1]);
        assert!(one("0") && one("0,1") && one("GPU-12345678-9abc-4def-8012-3456789abcde") && one("GPU-1234"));
        assert!(!one("") && !one("1,0") && !one("-1") && !one("GPU-999") && !one("GPU-"));
        let two = |list| visible_devices(Some(list), &[uuid, other]);
        assert_eq!(two("1,0"), [1, 0]);
        assert_eq!(two("1"), [1]);
        assert_eq!(two("GPU-1299, GPU-1234"), [1, 0]);
        assert_eq!(two("0,0"), [0]);
        // Both begin so.
        assert_eq!(two("GPU-12"), []);
        assert_eq!(two("2,0"), []);
        assert!(
            is_visible(Some("1,0"), 0, uuid) && !is_visible(Some("1"), 0, uuid) && is_visible(None, 0, uuid)
        );
    }
}
