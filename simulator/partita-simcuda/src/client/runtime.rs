//! This process's connection to the board of one GPU.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use partita_abi::CuResult;
use partita_abi::qmd::{QmdLayout, layout_for};
use partita_sim::DeviceSpec;

use super::region::Regions;
use super::structure::Shape;
use crate::mps;
use crate::shared::ask::{command_name, exchange, receive_reply, send_request};
use crate::shared::channel::{CALL_BYTES, Channel, Producer};
use crate::shared::command::{Command, KIND_COMMAND};
use crate::shared::page::BoardPage;
use crate::shared::place::{Place, usable_bytes};
use crate::shared::protocol::{MpsIdentity, PROTOCOL_VERSION, Reply, Request, Role, WINDOW_BYTES};
use crate::shared::socket;
use crate::shared::sys::{SharedMap, eventfd_signal, futex_wait, lock};
use crate::shared::visible::device_uuid;

/// The preferred start of device addresses. A driver maps its own range in the same way.
const WINDOW_PREFERRED: usize = 0x3000_0000_0000;
/// How long a waiting thread polls before it sleeps.
const SPIN: Duration = Duration::from_micros(3);
/// The same for the reply to a request, which the board has sooner than it could wake a thread.
const CALL_SPIN: Duration = Duration::from_micros(30);
/// How long a waiting thread sleeps before it checks that the board is alive.
const PATIENCE: Duration = Duration::from_millis(100);
/// If set, a synchronising call fails with `CUDA_ERROR_LAUNCH_TIMEOUT` after waiting so many
/// milliseconds for work that can never run.
const ENV_WATCHDOG: &str = "PARTITA_SIM_WATCHDOG_MS";
/// How much of the window of device addresses is reserved, in GiB; default all of it.
const ENV_RESERVED: &str = "PARTITA_SIM_RESERVED_GIB";

/// The connection and its resources.
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
    /// That of the GPU, where the device is a MIG instance of it.
    pub gpu_uuid: [u8; 16],
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
    /// The mappings by device address.
    pub regions: Regions,
    next_token: AtomicU64,
    pub(super) producer: Mutex<Producer>,
    doorbell: OwnedFd,
    socket: Mutex<OwnedFd>,
    pub(super) socket_raw: i32,
    watchdog: Option<Duration>,
}

/// Reports why there is no device.
pub(super) fn report_no_device(error: io::Error) -> CuResult {
    eprintln!("partita-sim: {error}");
    CuResult::NO_DEVICE
}

/// The path of the file that this code was loaded from.
pub fn own_path() -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the address is one of this code's own; dladdr fills the struct or returns 0.
    let found = unsafe { libc::dladdr(own_path as *const libc::c_void, info.as_mut_ptr()) };
    if found == 0 {
        return None;
    }
    // SAFETY: dladdr succeeded, so the struct is filled and the name is a C string that lives as
    // long as the object is loaded.
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

/// Reserves the window of device addresses; touching one from the host faults, as on hardware. An
/// emulator of another processor may count reserved memory page by page, and cannot reserve it all.
fn reserve_window() -> io::Result<u64> {
    let reserved = std::env::var(ENV_RESERVED).ok().and_then(|gib| gib.parse::<u64>().ok());
    let bytes = reserved.map_or(WINDOW_BYTES, |gib| (gib << 30).min(WINDOW_BYTES));
    // SAFETY: a hint without MAP_FIXED replaces no mapping.
    let window = unsafe {
        libc::mmap(
            std::ptr::without_provenance_mut(WINDOW_PREFERRED),
            bytes as usize,
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

impl Runtime {
    /// Connects to a board, which is started when none runs.
    ///
    /// # Errors
    /// `NO_DEVICE` when it cannot be reached, with the reason on stderr; an MPS error when the MPS
    /// server refuses.
    pub(super) fn connect(place: &Place, ordinal: i32, visible: &[Place]) -> Result<Self, CuResult> {
        let attached = mps::client::attach(place, mps::own::Own::from_env(place, visible))?;
        Self::connect_as(place, ordinal, attached)
    }

    /// Connects to the board of a GPU that this process does not see, for its memory: the process
    /// has no context there, and is no client of MPS.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub(super) fn connect_unseen(place: &Place) -> Result<Self, CuResult> {
        Self::connect_as(place, -1, None)
    }

    fn connect_as(
        place: &Place,
        ordinal: i32,
        attached: Option<(MpsIdentity, OwnedFd)>,
    ) -> Result<Self, CuResult> {
        let (identity, mps_connection) = match attached {
            Some((identity, connection)) => (Some(identity), Some(connection)),
            None => (None, None),
        };
        let window = reserve_window().map_err(report_no_device)?;
        let connections = std::env::var(partita_sim::connections::VARIABLE).ok();
        let hello = Request::Hello {
            version: PROTOCOL_VERSION,
            role: Role::Client { window, mps: identity, connections },
            command: command_name(),
        };
        // A board that was about to exit can close the connection; the next one will not.
        let mut last = io::Error::from(io::ErrorKind::ConnectionReset);
        for _ in 0..20 {
            let socket = place.connect_or_start(own_path().as_deref()).map_err(report_no_device)?;
            match exchange(socket.as_fd(), &hello) {
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
                    .map_err(report_no_device);
                }
                Ok((Reply::Refused(code), _)) => return Err(CuResult(code)),
                Ok(_) => return Err(CuResult::SYSTEM_DRIVER_MISMATCH),
                Err(error) => last = error,
            }
        }
        Err(report_no_device(last))
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
        let gpu_uuid = device_uuid(&place.gpu());
        Ok(Self {
            qmd: layout_for(capability, spec.driver.qmd_version).map_err(io::Error::other)?,
            structure: Shape::of(&spec),
            process: std::process::id(),
            ordinal,
            pci_bus: place.pci_bus(),
            uuid,
            gpu_uuid,
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

    /// Whether its MPS clients share one context of the server.
    pub fn is_before_volta(&self) -> bool {
        mps::is_before_volta(&self.spec)
    }

    /// The SMs of a thread percentage on this device. A fraction counts as the next whole percent.
    pub fn percentage_sms(&self, percentage: f32) -> u32 {
        let per_tpc = self.spec.topology.sms_per_tpc();
        mps::percentage_sms(percentage.ceil() as u32, self.spec.sm_count(), per_tpc)
    }

    /// Whether a device address is in its window.
    #[inline]
    pub fn has(&self, address: u64) -> bool {
        address.wrapping_sub(self.window) < WINDOW_BYTES
    }

    // ---- slow path ----

    /// Sends a request to the board.
    ///
    /// # Errors
    /// The board's refusal; `DEVICE_UNAVAILABLE` when it is gone, and in a child of `fork`.
    pub fn call(&self, request: &Request) -> Result<Reply, CuResult> {
        let (reply, _) = self.call_with(request, &[])?;
        self.notify_mps(request, &reply);
        Ok(reply)
    }

    /// Notifies the MPS server of created and destroyed contexts. Only its log depends on it.
    fn notify_mps(&self, request: &Request, reply: &Reply) {
        let Some(connection) = &self.mps_connection else { return };
        let _ = match (request, reply) {
            (_, Reply::Ctx { ctx, .. }) => mps::client::notify_context(connection.as_fd(), *ctx, true),
            (Request::CtxDestroy { ctx }, _) => mps::client::notify_context(connection.as_fd(), *ctx, false),
            _ => Ok(()),
        };
    }

    /// Sends a request to the board and passes descriptors both ways.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_with(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), CuResult> {
        // A forked child has this memory too, and must not make calls in the process's name.
        if std::process::id() != self.process {
            return Err(CuResult::DEVICE_UNAVAILABLE);
        }
        let socket = lock(&self.socket);
        match self.ask_board(socket.as_fd(), request, descriptors) {
            Ok((Reply::Refused(code), _)) => Err(CuResult(code)),
            Ok(answer) => Ok(answer),
            Err(_) => Err(CuResult::DEVICE_UNAVAILABLE),
        }
    }

    /// Sends a request and takes the reply, through the shared memory as far as possible: the board
    /// looks there more often. Only with the socket locked.
    fn ask_board(
        &self,
        socket: BorrowedFd<'_>,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let mut room = [0; CALL_BYTES];
        match postcard::to_slice(request, &mut room) {
            Ok(bytes) if descriptors.is_empty() => self.channel.request(bytes),
            _ => {
                self.channel.announce_request();
                if let Err(error) = send_request(socket, request, descriptors) {
                    self.channel.withdraw_request();
                    return Err(error);
                }
            }
        }
        self.ring();
        let start = Instant::now();
        while self.channel.is_called() && start.elapsed() < CALL_SPIN {
            // The board, or another thread's call, may need the processor.
            std::thread::yield_now();
        }
        while self.channel.is_called() && !self.channel.await_reply(PATIENCE) {
            if self.board_is_gone() {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        }
        match self.channel.take_reply() {
            Some(packet) => Ok((postcard::from_bytes(&packet).map_err(io::Error::other)?, Vec::new())),
            None => receive_reply(socket),
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

    /// Notifies the board that host work is done.
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

    /// Notifies the board of commands in the ring.
    #[inline]
    pub(super) fn ring(&self) {
        // The board sets the word before it polls the rings a last time; the fence orders this
        // side's publication before the read of the word.
        fence(Ordering::SeqCst);
        let asleep = &self.page.head().asleep.0;
        if asleep.load(Ordering::Relaxed) == 1 && asleep.swap(0, Ordering::Relaxed) == 1 {
            eventfd_signal(self.doorbell.as_fd());
        }
    }

    /// Whether a stream's commands up to a number are complete. Numbers continue when a slot is
    /// reused.
    pub fn reached(&self, slot: u32, seq: u64) -> bool {
        self.completed(slot) >= seq
    }

    /// The number of a stream's last command that is complete.
    pub fn completed(&self, slot: u32) -> u64 {
        self.channel.head().streams[slot as usize].completed.load(Ordering::Acquire)
    }

    /// Waits until the board has made a condition true.
    ///
    /// # Errors
    /// The sticky error; `LAUNCH_TIMEOUT` by the watchdog; `DEVICE_UNAVAILABLE` when the board is
    /// gone.
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

    /// Notifies the board of a normal process exit.
    pub(super) fn notify_exit(&self) {
        // The exit may interrupt a call on the same thread; then the board notices the end by
        // itself.
        for _ in 0..100 {
            if let Ok(socket) = self.socket.try_lock() {
                let _ = exchange(socket.as_fd(), &Request::Bye);
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
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
