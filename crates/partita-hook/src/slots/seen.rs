//! Whether streams are counted, and which streams may skip the queues.
//!
//! While few streams exist, launches are not counted and do not look here.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use partita_core::task_slots::UNCOUNTED;

use crate::account::gpu::Gpu;
use crate::driver::stream::PER_THREAD;
use crate::slots::share;
use crate::sys::fork::in_child;

/// Whether streams are counted.
static COUNTS: AtomicBool = AtomicBool::new(false);
/// Streams that the program has created and not destroyed.
static STREAMS: AtomicUsize = AtomicUsize::new(0);
/// Whether the program has ever created a stream.
static WERE_MADE: AtomicBool = AtomicBool::new(false);
/// Streams that may skip the queues while the share is the same: their handles plus one. A
/// collision only costs the slower path.
static FREE: [AtomicUsize; 128] = [const { AtomicUsize::new(0) }; 128];
/// The [`share::version`] for which [`FREE`] holds.
static VERSION: AtomicU64 = AtomicU64::new(u64::MAX);

// A child counts its own streams.
in_child! {
    COUNTS.store(false, Ordering::Relaxed);
    STREAMS.store(0, Ordering::Relaxed);
    WERE_MADE.store(false, Ordering::Relaxed);
    forget();
}

/// Whether streams are counted.
#[inline]
pub fn counts() -> bool {
    COUNTS.load(Ordering::Relaxed)
}

/// Counts streams from now on; returns whether that is new.
pub fn count() -> bool {
    !COUNTS.load(Ordering::Relaxed) && !COUNTS.swap(true, Ordering::SeqCst)
}

/// The program has created a stream. Returns whether streams must be counted now. One of the
/// [`UNCOUNTED`] is the default stream.
pub fn made() -> bool {
    WERE_MADE.store(true, Ordering::Relaxed);
    STREAMS.fetch_add(1, Ordering::Relaxed) + 1 >= UNCOUNTED as usize
}

/// Whether the program has ever created a stream.
pub fn were_made() -> bool {
    WERE_MADE.load(Ordering::Relaxed)
}

/// The program has destroyed a stream.
pub fn ended() {
    let _ = STREAMS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |streams| streams.checked_sub(1));
}

#[inline]
fn entry(stream: usize) -> &'static AtomicUsize {
    &FREE[(stream >> 4 ^ stream >> 11) % FREE.len()]
}

/// Whether a stream may skip the queues under the current share.
#[inline]
pub fn is_free(gpu: &Gpu, stream: usize) -> bool {
    // In this order: under a new version there are no old entries.
    entry(stream).load(Ordering::Acquire) == stream + 1
        && VERSION.load(Ordering::Relaxed) == share::version(gpu)
}

/// Records that a stream may skip the queues.
pub fn note_free(version: u64, stream: usize) {
    // Every thread has another stream by that name.
    if stream == PER_THREAD {
        return;
    }
    if VERSION.load(Ordering::Relaxed) != version {
        forget();
        VERSION.store(version, Ordering::Release);
    }
    entry(stream).store(stream + 1, Ordering::Release);
}

/// Forgets all streams.
pub fn forget() {
    VERSION.store(u64::MAX, Ordering::Relaxed);
    FREE.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
}
