//! Whether streams are counted, and which ones were found to be free to launch as they like.
//!
//! While few streams exist, nothing is counted and no launch looks here.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use partita_core::task_slots::UNCOUNTED;

use crate::account::gpu::Gpu;
use crate::driver::stream::PER_THREAD;
use crate::slots::share;
use crate::sys::fork::in_child;

/// Whether streams are counted.
static COUNTS: AtomicBool = AtomicBool::new(false);
/// Streams that the program has made and not ended.
static STREAMS: AtomicUsize = AtomicUsize::new(0);
/// Streams that launch as they like, as long as the share is the same: one more than their handles.
/// A collision only costs the slower way.
static FREE: [AtomicUsize; 128] = [const { AtomicUsize::new(0) }; 128];
/// The share for which [`FREE`] holds, as [`share::version`] tells it.
static VERSION: AtomicU64 = AtomicU64::new(u64::MAX);

// Lets a child count its own.
in_child! {
    COUNTS.store(false, Ordering::Relaxed);
    STREAMS.store(0, Ordering::Relaxed);
    forget();
}

/// Whether streams are counted.
#[inline]
pub fn counts() -> bool {
    COUNTS.load(Ordering::Relaxed)
}

/// Has streams counted from now on; whether that is new.
pub fn count() -> bool {
    !COUNTS.load(Ordering::Relaxed) && !COUNTS.swap(true, Ordering::SeqCst)
}

/// The program has made a stream; whether streams are now too many not to be counted. One of those
/// that nobody counts is the default stream.
pub fn made() -> bool {
    STREAMS.fetch_add(1, Ordering::Relaxed) + 1 >= UNCOUNTED as usize
}

/// The program has ended a stream.
pub fn ended() {
    let _ = STREAMS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |streams| streams.checked_sub(1));
}

#[inline]
fn entry(stream: usize) -> &'static AtomicUsize {
    &FREE[(stream >> 4 ^ stream >> 11) % FREE.len()]
}

/// Whether a stream was found to be free under the share that still holds.
#[inline]
pub fn is_free(gpu: &Gpu, stream: usize) -> bool {
    entry(stream).load(Ordering::Relaxed) == stream + 1
        && VERSION.load(Ordering::Relaxed) == share::version(gpu)
}

/// Notes that a stream is free.
pub fn note_free(version: u64, stream: usize) {
    // Every thread has another stream by that name.
    if stream == PER_THREAD {
        return;
    }
    if VERSION.load(Ordering::Relaxed) != version {
        forget();
        VERSION.store(version, Ordering::Relaxed);
    }
    entry(stream).store(stream + 1, Ordering::Relaxed);
}

/// Forgets all streams.
pub fn forget() {
    VERSION.store(u64::MAX, Ordering::Relaxed);
    FREE.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
}
