//! When all work of this process has ended: its burst ends, and others may borrow its TPCs.
//!
//! The program's own waits tell, and its questions whether work is done. After each one that
//! succeeds, the streams that it launches in ([`in_use`]) are asked, unless it was a wait for
//! everything. The stream that it waited for is not asked: the answer would cost time, and while a
//! fence is in it ([`fences`](crate::holder::fences)) it would be wrong. Nothing is asked while a
//! stream is captured. A process that launches in more streams than that list holds, or in
//! per-thread default streams, rests after waits for its whole context alone, and one with several
//! contexts or GPUs never is seen to.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::account::gpu::Gpu;
use crate::account::presence::Presence;
use crate::account::tenant::Tenant;
use crate::driver::calls::{Kept, calls};
use crate::driver::{capture, quiet};
use crate::holder::fences;
use crate::slots::{bursts, in_use};
use crate::sys::fork::in_child;

calls! {
    /// What tells whether a stream has work.
    struct QueryCalls;
    query = cuStreamQuery;
}

/// Whether the program launches in streams that cannot be asked.
static UNSEEN: AtomicBool = AtomicBool::new(false);
/// The stream that was last found at work, which is asked first.
static BUSY: AtomicUsize = AtomicUsize::new(0);

// The parent's streams are the parent's.
in_child! {
    UNSEEN.store(false, Ordering::Relaxed);
    BUSY.store(0, Ordering::Relaxed);
}

/// The program launches in streams that cannot be asked.
pub fn lose_sight() {
    UNSEEN.store(true, Ordering::Relaxed);
}

/// The program is about to end a stream. Work that it leaves there is not seen.
pub fn stream_ends(stream: *mut c_void) {
    if !in_use::stream_ends(stream) {
        return;
    }
    let is_idle = calls().is_some_and(|calls| {
        // SAFETY: the program's stream, which it has not ended yet.
        !capture::is_any() && unsafe { (calls.query)(stream) }.is_ok()
    });
    if !is_idle {
        in_use::lose_one();
    }
}

/// A context has ended, and its streams with it.
pub fn context_ended(tenant: &Tenant) {
    in_use::context_ended();
    if tenant.driver().active_context().is_some() {
        // The streams of another one are known again from their next launches on.
        in_use::lose_one();
    }
}

fn calls() -> Option<&'static QueryCalls> {
    static CALLS: Kept<QueryCalls> = Kept::new();
    CALLS.get(QueryCalls::resolve)
}

/// Whether there is anything to see the end of.
#[inline]
pub fn is_awaited(gpu: &Gpu) -> bool {
    bursts::is_open() || gpu.presence.as_ref().is_some_and(Presence::is_at_work)
}

/// What the program has waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    ForAll,
    /// A stream, or some work if there is no handle.
    ForStream(Option<usize>),
}

/// What the streams answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Streams {
    Idle,
    AtWork,
    /// They cannot be asked.
    Unseen,
}

/// The program has waited, for everything or for a part: the process rests if all of its streams
/// are idle. `is_still` says whether nothing was launched since, as far as launches are counted.
#[cold]
pub fn look(gpu: &Gpu, waited: Waited, is_still: impl Fn() -> bool) {
    if !is_awaited(gpu) || !is_still() {
        return;
    }
    let was_for_all = waited == Waited::ForAll;
    // Without a mask launches are not counted, and other threads may have launched meanwhile.
    let streams = match waited {
        _ if gpu.mask.is_none() => ask(None),
        Waited::ForAll => Streams::Idle,
        Waited::ForStream(stream) => ask(stream),
    };
    match streams {
        Streams::AtWork => return,
        Streams::Unseen if !was_for_all => return bursts::tear(),
        Streams::Idle | Streams::Unseen => {}
    }
    if was_for_all {
        in_use::found_all();
    }
    if let Some(presence) = gpu.presence.as_ref().filter(|presence| presence.is_at_work()) {
        presence.rest(&is_still);
    }
    bursts::end(gpu, is_still);
}

/// Asks the streams, but for an idle one.
fn ask(idle: Option<usize>) -> Streams {
    if UNSEEN.load(Ordering::Relaxed) || !in_use::knows_all() || capture::is_any() {
        return Streams::Unseen;
    }
    let streams = in_use::streams().filter(move |stream| Some(*stream) != idle);
    if streams.clone().next().is_none() {
        return Streams::Idle;
    }
    // What the hook's thread puts into a stream just now would make it look busy.
    let Some(_putting) = quiet::put_soon() else { return Streams::Unseen };
    let (Some(_asking), Some(calls)) = (quiet::ask_soon(), calls()) else { return Streams::Unseen };
    // A fence alone passes within microseconds, and no other one is put meanwhile.
    let were_just_put = fences::were_just_put();
    let at_work = loop {
        let busy = BUSY.load(Ordering::Relaxed);
        // It may have ended since, and is asked only while it is in use.
        let first = streams.clone().find(|stream| *stream == busy);
        let at_work = first.into_iter().chain(streams.clone()).find(|stream| {
            // SAFETY: the default stream, or one that the program has not ended: that waits for the
            // guards above.
            unsafe { (calls.query)(core::ptr::with_exposed_provenance_mut(*stream)) }.is_err()
        });
        let Some(at_work) = at_work else { return Streams::Idle };
        if !fences::were_just_put() {
            break at_work;
        }
        core::hint::spin_loop();
    };
    BUSY.store(at_work, Ordering::Relaxed);
    if were_just_put { Streams::Unseen } else { Streams::AtWork }
}
