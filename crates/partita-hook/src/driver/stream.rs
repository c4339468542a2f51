//! Handles of streams, those of the default streams among them.

use core::ffi::c_void;

/// `CU_STREAM_LEGACY`.
pub const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`.
pub const PER_THREAD: usize = 2;

/// The key of a stream, unique in the process: its handle, which is an address; for the default
/// streams, the context's or the thread's address, marked.
#[inline]
pub fn key_of(stream: usize, context: impl FnOnce() -> usize) -> usize {
    match stream {
        0 | LEGACY => context() | LEGACY,
        // SAFETY: a plain call; glibc's numbers are addresses and never 0.
        PER_THREAD => unsafe { libc::pthread_self() as usize | PER_THREAD },
        stream => stream,
    }
}

/// Where in a table of `SIZE` streams, a power of two, that of a key is looked for, one place after
/// the other.
#[inline]
pub fn places<const SIZE: usize>(key: usize) -> impl Iterator<Item = usize> {
    const { assert!(SIZE.is_power_of_two()) };
    let first = (key >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - SIZE.ilog2());
    (0..SIZE).map(move |step| (first + step) % SIZE)
}

/// The handle by which any thread reaches the stream of a key in that stream's context; `None` for
/// the default stream of another thread.
pub fn handle_of(key: usize) -> Option<usize> {
    match key & 7 {
        LEGACY => Some(LEGACY),
        // SAFETY: as above.
        PER_THREAD => (unsafe { libc::pthread_self() } as usize | PER_THREAD == key).then_some(PER_THREAD),
        _ => Some(key),
    }
}

/// Whether the stream of a key is a legacy default stream.
pub fn is_legacy(key: usize) -> bool {
    key & 7 == LEGACY
}

/// The stream that a null one means to calls of the per-thread variant.
pub fn per_thread(stream: *mut c_void) -> *mut c_void {
    if stream.is_null() { core::ptr::without_provenance_mut(PER_THREAD) } else { stream }
}
