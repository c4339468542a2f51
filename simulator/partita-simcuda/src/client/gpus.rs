//! The GPUs that this process sees: connected to by `cuInit`, found by every other call.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock};

use partita_abi::CuResult;

use super::runtime::{Runtime, report_no_device};
use crate::shared::place::{ENV_PEERS, GPUS_MAX, Place};
use crate::shared::sys::lock;
use crate::shared::visible::{device_uuid, visible_devices};

/// That of the first GPU; null before `cuInit`.
static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(std::ptr::null_mut());
/// Those of all GPUs that the process sees, by ordinal. Filled before [`RUNTIME`] is set.
static ALL: OnceLock<Vec<&'static Runtime>> = OnceLock::new();
/// The machine's other GPUs: empty until memory of one of them is opened.
static UNSEEN: OnceLock<Vec<&'static Runtime>> = OnceLock::new();
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

/// Sets the GPU whose context is current in this thread.
pub fn set_current(runtime: Option<&'static Runtime>) {
    // A thread that ends does not need it.
    let _ = CURRENT.try_with(|current| current.set(runtime));
}

/// The GPU whose window contains a device address; `None` for addresses of host memory.
pub fn owner(address: u64) -> Option<&'static Runtime> {
    connected().find(|runtime| runtime.has(address))
}

/// All GPUs that this process is connected to.
fn connected() -> impl Iterator<Item = &'static Runtime> {
    visible().iter().chain(UNSEEN.get().into_iter().flatten()).copied()
}

/// The GPU of the machine with that number, whether the process sees it or not, if this process can
/// have its memory: that of another one only if [`ENV_PEERS`] says so.
///
/// # Errors
/// `INVALID_VALUE` if no GPU has that number; `PEER_ACCESS_UNSUPPORTED` without access.
pub fn with_access(instance: u64) -> Result<&'static Runtime, CuResult> {
    let here = runtime()?;
    if here.instance == instance {
        return Ok(here);
    }
    let _starting = lock(&STARTING);
    if UNSEEN.get().is_none() {
        let places = Place::all_from_env().map_err(report_no_device)?;
        let is_unseen = |place: &Place| !visible().iter().any(|seen| seen.uuid == device_uuid(place));
        let hidden = places.iter().filter(|place| is_unseen(place));
        let connect = |place: &Place| Ok(&*Box::leak(Box::new(Runtime::connect_unseen(place)?)));
        let unseen = hidden.map(connect).collect::<Result<Vec<&'static Runtime>, CuResult>>()?;
        for (runtime, socket) in unseen.iter().zip(SOCKETS_TO_CLOSE.iter().skip(visible().len())) {
            socket.store(runtime.socket_raw, Ordering::Relaxed);
        }
        SEVERAL.store(visible().len() + unseen.len() > 1, Ordering::Relaxed);
        UNSEEN.set(unseen).map_err(|_| CuResult::UNKNOWN)?;
    }
    let peer = connected().find(|runtime| runtime.instance == instance).ok_or(CuResult::INVALID_VALUE)?;
    let has_access = std::env::var(ENV_PEERS).is_ok_and(|value| value == "1");
    if has_access { Ok(peer) } else { Err(CuResult::PEER_ACCESS_UNSUPPORTED) }
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
/// `NOT_INITIALIZED` in a forked child; `NO_DEVICE` when none is visible, and when no board can be
/// reached, with the reason on stderr; an MPS error when the MPS server refuses.
pub fn initialize() -> Result<(), CuResult> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CuResult::NOT_INITIALIZED);
    }
    let _starting = lock(&STARTING);
    if runtime().is_ok() {
        return if visible().is_empty() { Err(CuResult::NO_DEVICE) } else { Ok(()) };
    }
    let places = Place::all_from_env().map_err(report_no_device)?;
    let list = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let shown = visible_devices(list.as_deref(), &places).map_err(report_no_device)?;
    let connect = |place: &Place, ordinal| -> Result<&'static Runtime, CuResult> {
        Ok(Box::leak(Box::new(Runtime::connect(place, ordinal, &shown)?)))
    };
    let runtimes: Result<Vec<_>, _> =
        shown.iter().zip(0..).map(|(place, ordinal)| connect(place, ordinal)).collect();
    let runtimes = runtimes?;
    // A process without visible devices still has a driver, which reports that.
    let first = match runtimes.first() {
        Some(first) => *first,
        None => connect(&places[0], 0)?,
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

extern "C" fn forget_after_fork() {
    if !RUNTIME.swap(std::ptr::null_mut(), Ordering::Relaxed).is_null() {
        FORKED.store(true, Ordering::Relaxed);
    }
    // The board detects a client's end by its socket; a child that kept it open would hide the
    // parent's death.
    for socket in &SOCKETS_TO_CLOSE {
        let socket = socket.swap(-1, Ordering::Relaxed);
        if socket >= 0 {
            // SAFETY: the descriptor belongs to a runtime that was just dropped, and no code here
            // uses it.
            unsafe { libc::close(socket) };
        }
    }
}

extern "C" fn notify_exit() {
    // A child of a bare clone(2) has a copy of everything, but is a different process: it must not
    // send this.
    if runtime().is_ok_and(|runtime| runtime.process == std::process::id()) {
        connected().for_each(Runtime::notify_exit);
    }
}

/// Runs at a normal process exit.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = notify_exit;
