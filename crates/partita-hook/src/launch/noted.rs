//! What the launch callback must know of the call that it is in.
//!
//! The driver calls back on the launching thread, inside the call. Calls that need more than the
//! tenant's mask (a launch that may leave the partition, an upload of a graph) record their thread
//! here while they last. Without such a call, the callback costs one load.

use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::launch::carried::Carried;
use crate::sys::thread_word::this_thread;

/// Threads that may be in such calls at the same time.
const THREADS_MAX: usize = 64;

/// A call that is noted.
pub struct Call<'a> {
    /// Whether its launches go without the tenant's mask.
    pub unmasked: bool,
    /// The masks in the descriptors of the graph that it uploads, if any.
    pub carried: Option<&'a Carried>,
    /// The disable words of its launches, in place of the tenant's.
    pub mask: Option<&'a [u32; 8]>,
}

struct Place {
    thread: AtomicUsize,
    call: AtomicPtr<Call<'static>>,
}

static PLACES: [Place; THREADS_MAX] =
    [const { Place { thread: AtomicUsize::new(0), call: AtomicPtr::new(core::ptr::null_mut()) } };
        THREADS_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Runs a call, noted; `None`, and nothing is run, if too many threads are in such calls.
pub fn within<R>(call: &Call<'_>, run: impl FnOnce() -> R) -> Option<R> {
    let own = this_thread();
    let free =
        |place: &&Place| place.thread.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    let place = PLACES.iter().find(free)?;
    // Only this thread looks at it, and only until the call has ended.
    place.call.store(core::ptr::from_ref(call).cast_mut().cast(), Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Relaxed);
    let result = run();
    COUNT.fetch_sub(1, Ordering::Relaxed);
    place.thread.store(0, Ordering::Relaxed);
    Some(result)
}

/// Whether the callback has more to look at than the tenant's mask: calls that are noted, or the
/// program's green contexts.
#[inline]
pub fn is_any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Has the callback look at every launch from now on.
pub fn look_always() {
    COUNT.fetch_add(1, Ordering::Relaxed);
}

/// The call that this thread is in, if it is noted.
///
/// # Safety
/// The reference is not kept beyond the callback.
#[cold]
pub unsafe fn noted<'a>() -> Option<&'a Call<'a>> {
    let own = this_thread();
    let place = PLACES.iter().find(|place| place.thread.load(Ordering::Relaxed) == own)?;
    // SAFETY: within() stored it on this very thread and is still running, so it lives.
    unsafe { place.call.load(Ordering::Relaxed).cast::<Call<'a>>().as_ref() }
}
