//! The streams that this process launches in: those that are asked whether its burst is over.
//!
//! A program may have many streams and use few: PyTorch makes pools of 32. The fast path of a
//! launch looks whether its stream is noted ([`is_noted`]); the first launch in a stream after a
//! rest is not, and takes the slow path, which notes it. A stream stays in the list until a burst
//! ends without it, so that one is still asked whose launch met the end of the burst before.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::sys::fork::in_child;

/// Streams that are asked after a wait. A question takes 1.6 µs (NVIDIA H100, driver 580.159.04):
/// 13 µs for all of them.
pub const STREAMS: usize = 8;

/// Streams whose launches take the fast path: their handles plus one. A collision only costs the
/// slower path.
static NOTED: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];
/// The list: handles plus one, 0 for a free place.
static LIST: [AtomicUsize; STREAMS] = [const { AtomicUsize::new(0) }; STREAMS];
/// A bit for each place of the list whose stream the present burst uses.
static NOW: AtomicU32 = AtomicU32::new(0);
/// Whether work may run in a stream that is not in the list, until a wait for everything.
static LOST: AtomicBool = AtomicBool::new(false);

// The parent's streams are the parent's.
in_child! {
    forget_notes();
    LIST.iter().for_each(|place| place.store(0, Ordering::Relaxed));
    NOW.store(0, Ordering::Relaxed);
    LOST.store(false, Ordering::Relaxed);
}

#[inline(always)]
fn entry(stream: usize) -> &'static AtomicUsize {
    &NOTED[(stream >> 4 ^ stream >> 11) % NOTED.len()]
}

/// Whether a launch in this stream has nothing to note: one was noted since the last rest.
#[inline(always)]
pub fn is_noted(stream: *mut c_void) -> bool {
    entry(stream.addr()).load(Ordering::Relaxed) == stream.addr() + 1
}

/// Lets launches in a stream take the fast path, without a place in the list: nothing is asked.
pub fn let_pass(stream: *mut c_void) {
    entry(stream.addr()).store(stream.addr() + 1, Ordering::Relaxed);
}

/// Notes a stream in which the process is about to launch. No lock: it is on the path of a launch.
pub fn note(stream: *mut c_void) {
    let word = stream.addr() + 1;
    // Another thread may take the place that is found here.
    let is_listed = (0..STREAMS).any(|_| place_for(word).is_some_and(|(at, found)| hold(at, found, word)));
    if !is_listed {
        LOST.store(true, Ordering::Relaxed);
    }
    let_pass(stream);
}

/// The place of a stream, a free one, or that of a stream which the burst before left idle and this
/// one has not used so far; with what is there.
fn place_for(word: usize) -> Option<(usize, usize)> {
    let now = NOW.load(Ordering::Relaxed);
    let places = LIST.iter().map(|place| place.load(Ordering::Relaxed)).enumerate();
    let is_unused = |(at, found): &(usize, usize)| *found == 0 || now >> at & 1 == 0;
    places.clone().find(|(_, found)| *found == word).or_else(|| places.clone().find(is_unused))
}

fn hold(at: usize, found: usize, word: usize) -> bool {
    NOW.fetch_or(1 << at, Ordering::AcqRel);
    LIST[at].compare_exchange(found, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Work was left in a stream that cannot be asked.
pub fn lose_one() {
    LOST.store(true, Ordering::Relaxed);
}

/// The program has waited for everything.
pub fn found_all() {
    LOST.store(false, Ordering::Relaxed);
}

/// Whether all work runs in streams of the list.
pub fn knows_all() -> bool {
    !LOST.load(Ordering::Relaxed)
}

/// The streams to ask, by their handles.
pub fn streams() -> impl Iterator<Item = usize> + Clone {
    LIST.iter().filter_map(|place| place.load(Ordering::Acquire).checked_sub(1))
}

/// All work has ended: the next launch in each stream is to be noted again.
pub fn burst_ended() {
    forget_notes();
    let now = NOW.swap(0, Ordering::AcqRel);
    for (at, place) in LIST.iter().enumerate().filter(|(at, _)| now >> at & 1 == 0) {
        let word = place.swap(0, Ordering::AcqRel);
        // A launch may have found it meanwhile.
        if word != 0 && NOW.load(Ordering::Acquire) >> at & 1 == 1 {
            let _ = place.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// A context has ended, and its streams with it: which of the list are not known.
pub fn context_ended() {
    forget_notes();
    LIST.iter().for_each(|place| place.store(0, Ordering::Release));
    NOW.store(0, Ordering::Release);
}

/// Has the next launch in each stream noted again.
pub fn forget_notes() {
    NOTED.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
}

/// The program ends a stream: another one may get its handle. Returns whether it was in use.
pub fn stream_ends(stream: *mut c_void) -> bool {
    let word = stream.addr() + 1;
    let free = |place: &AtomicUsize| place.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
    let was_listed = LIST.iter().filter(|place| free(place).is_ok()).count() > 0;
    let _ = entry(stream.addr()).compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
    was_listed
}
