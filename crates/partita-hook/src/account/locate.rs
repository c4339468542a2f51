//! Which of the tenant's GPUs a call is for.
//!
//! A process that sees one GPU never asks. With several, a call that names a stream is for the GPU
//! of that stream's context, and any other for that of the thread's current context, as in the
//! driver. Both are looked up in small tables of words, without a lock; the driver is queried once
//! for each stream and context. The launch callback reads a note that the call left for its thread,
//! because the driver does not pass the context.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

use partita_abi::CuResult;
use partita_abi::prototypes;

use crate::account::gpu::Gpu;
use crate::account::graph_gpus;
use crate::account::tenant::Tenant;
use crate::driver::places::PlaceCalls;
use crate::sys::fork::in_child;
use crate::sys::thread_word::ThreadWord;

/// The last of the handles of default streams: null, `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`.
const DEFAULT_STREAM_MAX: usize = 2;
/// The GPUs of streams and contexts seen lately: a handle above 16 bits that hold one more than the
/// GPU's index. A collision only costs asking the driver again.
struct Seen<const N: usize>([AtomicU64; N]);

impl<const N: usize> Seen<N> {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; N])
    }

    fn entry(&self, handle: usize) -> &AtomicU64 {
        &self.0[(handle >> 4) % N]
    }

    #[inline]
    fn get(&self, handle: usize) -> Option<usize> {
        let entry = self.entry(handle).load(Ordering::Relaxed);
        (entry >> 16 == handle as u64 && entry != 0).then(|| (entry & 0xffff) as usize - 1)
    }

    fn note(&self, handle: usize, gpu: &Gpu) {
        self.entry(handle).store((handle as u64) << 16 | (u64::from(gpu.index) + 1), Ordering::Relaxed);
    }

    fn forget(&self) {
        self.0.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
    }
}

static STREAMS: Seen<1024> = Seen::new();
static CONTEXTS: Seen<64> = Seen::new();

/// Forgets every stream and context: a context is ending, and another may be given its address.
pub fn forget_contexts() {
    STREAMS.forget();
    CONTEXTS.forget();
}

// A child creates its own contexts.
in_child! {
    forget_contexts();
}

/// Wraps `cuStreamDestroy`: another stream may be given its address.
pub unsafe fn destroy_stream(real: prototypes::cuStreamDestroy_v2, stream: *mut c_void) -> CuResult {
    if STREAMS.get(stream as usize).is_some() {
        STREAMS.entry(stream as usize).store(0, Ordering::Relaxed);
    }
    // SAFETY: the caller's handle, passed on.
    unsafe { real(stream) }
}

/// The GPU of a call, for the launch callback; on the stack of the call.
struct Note {
    gpu: *const Gpu,
    /// Whether the callback was called.
    called: Cell<bool>,
}

/// Each thread's [`Note`].
static NOTE: ThreadWord = ThreadWord::new();

/// Allocates the key for threads' notes.
///
/// # Errors
/// The C library has no key left for values of threads.
pub fn prepare() -> Result<(), &'static str> {
    NOTE.prepare(None)
}

/// The GPU that the calling thread's call is for, if it is noted; and notes that the callback was
/// called.
///
/// # Safety
/// Called in the launch callback of a process that has [`prepare`]d.
#[inline]
pub unsafe fn noted<'g>() -> Option<&'g Gpu> {
    let note = NOTE.get().cast::<Note>();
    // SAFETY: within() stored it on this very thread and is still running; GPUs live for ever.
    unsafe {
        let note = note.as_ref()?;
        note.called.set(true);
        note.gpu.as_ref()
    }
}

/// Runs a call with its GPU noted; whether the callback was called meanwhile.
fn within<R>(gpu: &Gpu, run: impl FnOnce() -> R) -> (R, bool) {
    let note = Note { gpu, called: Cell::new(false) };
    // Only this thread reads it, and only until the previous one is restored.
    let former = NOTE.get();
    NOTE.set(core::ptr::from_ref(&note).cast());
    let result = run();
    NOTE.set(former);
    (result, note.called.get())
}

/// Runs a call that is for `gpu`.
#[inline]
pub fn on<R>(tenant: &Tenant, gpu: &Gpu, run: impl FnOnce() -> R) -> R {
    if tenant.places().is_none() { run() } else { within(gpu, run).0 }
}

/// Runs a launch on `gpu`. If the stream captures it, its graph is noted as that GPU's.
#[inline]
pub fn launch_on(
    tenant: &Tenant,
    gpu: &Gpu,
    stream: *mut c_void,
    launch: impl FnOnce() -> CuResult,
) -> CuResult {
    let Some(places) = tenant.places() else { return launch() };
    let (result, called) = within(gpu, launch);
    if !called && result.is_ok() {
        note_captured(places, gpu, stream);
    }
    result
}

/// The GPU with an ordinal.
///
/// # Errors
/// `CUDA_ERROR_INVALID_DEVICE`.
pub fn gpu_of_device(tenant: &Tenant, device: c_int) -> Result<&Gpu, CuResult> {
    let index = usize::try_from(device).map_err(|_| CuResult::INVALID_DEVICE)?;
    tenant.gpus().get(index).ok_or(CuResult::INVALID_DEVICE)
}

/// The GPU of the thread's current context.
///
/// # Errors
/// Why the driver does not report it.
#[inline]
pub fn gpu_now(tenant: &Tenant) -> Result<&Gpu, CuResult> {
    match tenant.places() {
        None => Ok(tenant.first()),
        Some(places) => gpu_of_current(tenant, places),
    }
}

fn gpu_of_current<'t>(tenant: &'t Tenant, places: &PlaceCalls) -> Result<&'t Gpu, CuResult> {
    let context = tenant.driver().current_context();
    if let Some(gpu) = CONTEXTS.get(context).and_then(|index| tenant.gpus().get(index)) {
        return Ok(gpu);
    }
    let gpu = gpu_of_device(tenant, places.current_device()?)?;
    CONTEXTS.note(context, gpu);
    Ok(gpu)
}

/// The GPU on which work in a stream runs.
///
/// # Errors
/// Why the driver does not report it.
#[inline]
pub fn gpu_of_stream(tenant: &Tenant, stream: *mut c_void) -> Result<&Gpu, CuResult> {
    let Some(places) = tenant.places() else { return Ok(tenant.first()) };
    if stream as usize <= DEFAULT_STREAM_MAX {
        return gpu_of_current(tenant, places);
    }
    match STREAMS.get(stream as usize).and_then(|index| tenant.gpus().get(index)) {
        Some(gpu) => Ok(gpu),
        None => ask_of_stream(tenant, places, stream),
    }
}

#[cold]
fn ask_of_stream<'t>(
    tenant: &'t Tenant,
    places: &PlaceCalls,
    stream: *mut c_void,
) -> Result<&'t Gpu, CuResult> {
    let gpu = gpu_of_context(tenant, places.context_of(stream)?)?;
    STREAMS.note(stream as usize, gpu);
    Ok(gpu)
}

/// The GPU of a context, null for the current one.
///
/// # Errors
/// Why the driver does not report it.
pub fn gpu_of_context(tenant: &Tenant, context: *mut c_void) -> Result<&Gpu, CuResult> {
    let Some(places) = tenant.places() else { return Ok(tenant.first()) };
    if context.is_null() {
        return gpu_of_current(tenant, places);
    }
    if let Some(gpu) = CONTEXTS.get(context as usize).and_then(|index| tenant.gpus().get(index)) {
        return Ok(gpu);
    }
    let gpu = gpu_of_device(tenant, places.in_context(context, || places.current_device())??)?;
    CONTEXTS.note(context as usize, gpu);
    Ok(gpu)
}

/// Asks the driver something of a launch, in the context that it is for.
pub fn in_context_of<R>(
    tenant: &Tenant,
    stream: *mut c_void,
    ask: impl FnOnce() -> R,
) -> Result<R, CuResult> {
    match tenant.places() {
        Some(places) if stream as usize > DEFAULT_STREAM_MAX => {
            places.in_context(places.context_of(stream)?, ask)
        }
        _ => Ok(ask()),
    }
}

/// The GPU of some memory, if the driver reports it.
pub fn gpu_of_pointer(tenant: &Tenant, pointer: u64) -> Option<&Gpu> {
    match tenant.places() {
        None => Some(tenant.first()),
        Some(places) => gpu_of_device(tenant, places.device_of(pointer)?).ok(),
    }
}
#[cold]
fn note_captured(places: &PlaceCalls, gpu: &Gpu, stream: *mut c_void) {
    // The legacy stream cannot capture; null means the thread's own where it does.
    let stream = if stream.is_null() { DEFAULT_STREAM_MAX as *mut c_void } else { stream };
    if let Some(graph) = places.captured_into(stream) {
        graph_gpus::note(graph as usize, gpu);
    }
}
