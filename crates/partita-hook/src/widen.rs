//! Launches that may leave the partition: what does not fit it, where the tenant
//! is allowed to run such work on the whole GPU (`--on-misfit widen`).
//!
//! The driver calls the launch callback on the launching thread, inside the call.
//! So a thread that is in such a call is noted here, and the callback leaves its
//! descriptors as the driver made them. While no thread is, the callback pays for
//! one load.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use partita_abi::CuResult;

use crate::report;
use crate::tenant::Tenant;

/// Threads that may be in such calls at the same time.
const THREADS_MAX: usize = 64;

static THREADS: [AtomicUsize; THREADS_MAX] = [const { AtomicUsize::new(0) }; THREADS_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static WARNED: AtomicBool = AtomicBool::new(false);

fn this_thread() -> usize {
    // SAFETY: a plain call; glibc's numbers are addresses and never 0.
    unsafe { libc::pthread_self() as usize }
}

/// Whether the calling thread's launches are to be left as they are.
#[inline]
pub fn is_wide() -> bool {
    COUNT.load(Ordering::Relaxed) != 0 && is_noted()
}

#[cold]
fn is_noted() -> bool {
    let own = this_thread();
    THREADS.iter().any(|thread| thread.load(Ordering::Relaxed) == own)
}

/// Runs a launch on the whole GPU and counts it.
pub fn run(tenant: &Tenant, launch: impl FnOnce() -> CuResult) -> CuResult {
    let result = unmasked(launch);
    if result.is_ok() {
        tenant.slot.count_widened();
        if !WARNED.swap(true, Ordering::Relaxed) {
            report::line(format_args!(
                "a launch that cannot fit this partition runs on the whole GPU (--on-misfit widen); `partita ps` counts them"
            ));
        }
    }
    result
}

/// Runs a call whose launches and uploads keep the descriptors that the driver makes.
pub fn unmasked(call: impl FnOnce() -> CuResult) -> CuResult {
    let own = this_thread();
    let free =
        |place: &&AtomicUsize| place.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    let Some(place) = THREADS.iter().find(free) else {
        // Masked, the launch would wait for ever.
        return CuResult::LAUNCH_OUT_OF_RESOURCES;
    };
    COUNT.fetch_add(1, Ordering::Relaxed);
    let result = call();
    COUNT.fetch_sub(1, Ordering::Relaxed);
    place.store(0, Ordering::Relaxed);
    result
}
