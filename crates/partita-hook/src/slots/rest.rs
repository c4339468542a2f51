//! When all work of this process has ended, so that others may borrow its TPCs.
//!
//! The program's own waits tell. After each one that succeeds, the streams that the program has are
//! asked, unless the wait was for everything. Nothing is asked while a stream is captured. A
//! process with more than [`STREAMS`] streams, per-thread default streams or several contexts rests
//! after waits for its whole context alone.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::account::gpu::Gpu;
use crate::driver::calls::{Kept, calls};
use crate::driver::{capture, quiet};
use crate::sys::fork::in_child;

calls! {
    /// What tells whether a stream has work.
    struct QueryCalls;
    query = cuStreamQuery;
}

/// Streams that are asked.
const STREAMS: usize = 64;
static KNOWN: [AtomicUsize; STREAMS] = [const { AtomicUsize::new(0) }; STREAMS];
/// Whether there are others.
static UNSEEN: AtomicBool = AtomicBool::new(false);

// The parent's streams are the parent's.
in_child! {
    KNOWN.iter().for_each(|known| known.store(0, Ordering::Relaxed));
    UNSEEN.store(false, Ordering::Relaxed);
}

/// The program has made a stream.
pub fn stream_made(stream: *mut c_void) {
    let free = |known: &AtomicUsize| {
        known.compare_exchange(0, stream.addr(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if !KNOWN.iter().any(free) {
        lose_sight();
    }
}

/// The program launches in streams that cannot be asked.
pub fn lose_sight() {
    UNSEEN.store(true, Ordering::Relaxed);
}

/// The program is about to end a stream. Work that it leaves there is not seen.
pub fn stream_ends(stream: *mut c_void) {
    let is_idle = calls().is_some_and(|calls| {
        // SAFETY: the program's stream, which it has not ended yet.
        !capture::is_any() && unsafe { (calls.query)(stream) }.is_ok()
    });
    if !is_idle {
        lose_sight();
    }
    for known in &KNOWN {
        let _ = known.compare_exchange(stream.addr(), 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn calls() -> Option<&'static QueryCalls> {
    static CALLS: Kept<QueryCalls> = Kept::new();
    CALLS.get(QueryCalls::resolve)
}

/// The program has waited, for everything or for a part: shows that the process rests if all of its
/// streams are idle. `is_still` says whether nothing was launched since.
#[cold]
pub fn look(gpu: &Gpu, was_for_all: bool, is_still: impl Fn() -> bool) {
    let Some(presence) = &gpu.presence else { return };
    if !presence.map.is_at_work(presence.record) || !is_still() {
        return;
    }
    if was_for_all || are_idle() {
        presence.rest(is_still);
    }
}

fn are_idle() -> bool {
    if UNSEEN.load(Ordering::Relaxed) || capture::is_any() {
        return false;
    }
    let (Some(_asking), Some(calls)) = (quiet::ask(), calls()) else { return false };
    let used = KNOWN.iter().map(|known| known.load(Ordering::Acquire)).filter(|stream| *stream != 0);
    core::iter::once(0).chain(used).all(|stream| {
        // SAFETY: the default stream, or one that the program has not ended: that waits for the
        // guard above.
        unsafe { (calls.query)(core::ptr::with_exposed_provenance_mut(stream)) }.is_ok()
    })
}
