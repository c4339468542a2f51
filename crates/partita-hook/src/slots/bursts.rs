//! Bursts of this process's work: from the first launch after a rest to the end of all work.
//!
//! While a burst runs, a launch looks whether its stream is noted ([`in_use`]) and goes on. The
//! first one in a stream takes the slow path, which notes it, begins a burst if none runs, and then
//! reads the clock. [`rest`] sees the end. A launch in the instant in which another thread sees the
//! end may belong to no burst.
//!
//! [`rest`]: crate::slots::rest

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::account::gpu::Gpu;
use crate::account::tenant::Tenant;
use crate::slots::in_use;
use crate::sys::clock::now_ns;
use crate::sys::fork::in_child;

/// 0 at rest, [`UNSEEN`], or when the burst began, on the monotonic clock in nanoseconds, with the
/// bit [`TORN`].
static BURST: AtomicU64 = AtomicU64::new(0);
/// Launches of this process before the burst.
static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// The ends of this process's bursts cannot be seen.
const UNSEEN: u64 = u64::MAX;
/// The burst may have ended before: its length tells nothing.
const TORN: u64 = 1;

// A child has none of its parent's work.
in_child! {
    BURST.store(0, Ordering::Relaxed);
}

/// Whether a burst runs whose end is looked for.
#[inline]
pub fn is_open() -> bool {
    !matches!(BURST.load(Ordering::Relaxed), 0 | UNSEEN)
}

/// A launch that has begun a burst.
pub struct Begun(u64);

/// The process is about to launch: notes the stream, and begins a burst if none runs.
#[inline]
pub fn begin(tenant: &Tenant, gpu: &Gpu, stream: *mut c_void) -> Option<Begun> {
    if in_use::is_noted(stream) { None } else { begin_now(tenant, gpu, stream) }
}

#[cold]
fn begin_now(tenant: &Tenant, gpu: &Gpu, stream: *mut c_void) -> Option<Begun> {
    if BURST.load(Ordering::Relaxed) == UNSEEN {
        in_use::let_pass(stream);
        return None;
    }
    if tenant.is_captured(stream) {
        return None;
    }
    in_use::note(stream);
    if BURST.load(Ordering::Relaxed) != 0 {
        return None;
    }
    if tenant.places().is_some() {
        // One wait tells of one GPU.
        lose_sight();
        return None;
    }
    let burst = now_ns() & !TORN;
    BURST.compare_exchange(0, burst, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    LAUNCHES.store(gpu.slot.launches(), Ordering::Relaxed);
    Some(Begun(burst))
}

/// The launch has failed.
#[cold]
pub fn cancel(begun: &Begun) {
    if BURST.compare_exchange(begun.0, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        in_use::forget_notes();
    }
}

/// The ends of this process's bursts cannot be seen any more.
#[cold]
pub fn lose_sight() {
    BURST.store(UNSEEN, Ordering::Relaxed);
}

/// A part of the work has ended, and it cannot be seen whether that was the last: the burst that
/// runs is not counted.
#[cold]
pub fn tear() {
    let burst = BURST.load(Ordering::Relaxed);
    if !matches!(burst, 0 | UNSEEN) {
        let _ = BURST.compare_exchange(burst, burst | TORN, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// All work has ended, unless something was launched meanwhile.
pub fn end(gpu: &Gpu, is_still: impl Fn() -> bool) {
    let burst = BURST.load(Ordering::Acquire);
    if matches!(burst, 0 | UNSEEN) {
        return;
    }
    let (now_ns, launches) = (now_ns(), gpu.slot.launches());
    let before = LAUNCHES.load(Ordering::Relaxed);
    if BURST.compare_exchange(burst, 0, Ordering::SeqCst, Ordering::Relaxed).is_err() {
        return;
    }
    in_use::burst_ended();
    // Else the count could be read before other threads see that no stream is noted.
    fence(Ordering::SeqCst);
    if !is_still() {
        // The launch saw that the burst ran. If another one has begun by now, this one is lost.
        let _ = BURST.compare_exchange(0, burst, Ordering::AcqRel, Ordering::Relaxed);
    } else if burst & TORN == 0 {
        gpu.slot.count_burst(now_ns.saturating_sub(burst), launches.saturating_sub(before));
    }
}
