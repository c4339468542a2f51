//! Whether this process captures launches into graphs at the moment.
//!
//! Querying whether a stream's work is done is forbidden while it is captured, and invalidates the
//! capture. Only the driver knows whether a stream is captured: waiting for an event is enough to
//! join it to a capture. So the hook counts captures, and its own thread queries nothing while
//! there is one ([`quiet`]).

use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::CUgraphEdgeData;

use crate::driver::{calls, quiet};
use crate::sys::fork::in_child;

static CAPTURES: AtomicU32 = AtomicU32::new(0);

/// Whether there may be a capture. One that the program never ends is there for ever.
#[inline]
pub fn is_any() -> bool {
    CAPTURES.load(Ordering::SeqCst) != 0
}

/// Runs calls of the hook that a capture, of this thread or another one, would forbid and that
/// would invalidate it: they do not belong to the capture.
pub fn relaxed<R>(run: impl FnOnce() -> R) -> R {
    /// `CU_STREAM_CAPTURE_MODE_RELAXED`.
    const RELAXED: c_uint = 2;
    let before = if is_any() { calls::exchange_capture_mode(RELAXED) } else { None };
    let result = run();
    if let Some(before) = before {
        calls::exchange_capture_mode(before);
    }
    result
}

// Forgets the parent's captures, which a child cannot end.
in_child! {
    CAPTURES.store(0, Ordering::SeqCst);
}

/// Counts first: nothing of the hook's own is under way in a stream when the capture begins.
fn begun(begin: impl FnOnce() -> CuResult) -> CuResult {
    let quiet = quiet::keep();
    CAPTURES.fetch_add(1, Ordering::SeqCst);
    drop(quiet);
    let result = begin();
    if result.is_err() {
        ended();
    }
    result
}

fn ended() {
    let _ = CAPTURES.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
}

/// Wraps `cuStreamBeginCapture`, which captures as the second version does in the global mode.
pub unsafe fn begin_global(real: prototypes::cuStreamBeginCapture, stream: *mut c_void) -> CuResult {
    // SAFETY: the caller's stream, passed on.
    begun(|| unsafe { real(stream) })
}

/// Wraps `cuStreamBeginCapture_v2`.
pub unsafe fn begin(
    real: prototypes::cuStreamBeginCapture_v2,
    stream: *mut c_void,
    mode: c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    begun(|| unsafe { real(stream, mode) })
}

/// Wraps `cuStreamBeginCaptureToGraph`.
pub unsafe fn begin_to_graph(
    real: prototypes::cuStreamBeginCaptureToGraph,
    stream: *mut c_void,
    graph: *mut c_void,
    dependencies: *const *mut c_void,
    edges: *const CUgraphEdgeData,
    count: usize,
    mode: c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    begun(|| unsafe { real(stream, graph, dependencies, edges, count, mode) })
}

/// Wraps `cuStreamEndCapture`, which ends a capture that has become invalid, too.
pub unsafe fn end(
    real: prototypes::cuStreamEndCapture,
    stream: *mut c_void,
    graph: *mut *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(stream, graph) };
    match result {
        CuResult::SUCCESS | CuResult::STREAM_CAPTURE_INVALIDATED | CuResult::STREAM_CAPTURE_UNJOINED => {
            ended()
        }
        // There was no capture to end here.
        _ => {}
    }
    result
}

/// Wraps `cuStreamBeginCaptureToCig`.
pub unsafe fn begin_to_cig(
    real: prototypes::cuStreamBeginCaptureToCig,
    stream: *mut c_void,
    parameters: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    begun(|| unsafe { real(stream, parameters) })
}

/// Wraps `cuStreamEndCaptureToCig`.
pub unsafe fn end_to_cig(real: prototypes::cuStreamEndCaptureToCig, stream: *mut c_void) -> CuResult {
    // SAFETY: the caller's stream, passed on.
    let result = unsafe { real(stream) };
    if result.is_ok() {
        ended();
    }
    result
}
