//! The streams that launch, and how many launches each has made.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use partita_ledger::mutex::Mutex;

use crate::driver::stream::places;
use crate::sys::fork::in_child;

/// The most streams that the table holds.
pub const STREAMS: usize = 2048;
/// Places of the table that are tried for a stream.
const TRIES: usize = 64;

/// A stream.
pub struct Stream {
    /// Its identity ([`key_of`](crate::driver::stream::key_of)); 0 if the place is free.
    key: AtomicUsize,
    /// The number of its context's pool, plus one; 0 without a pool.
    pool: AtomicU32,
    /// Launches that were counted so far. A new stream in the same place continues the count.
    pub launches: AtomicU32,
    /// The queue of the last launch. A thread that makes a launch in the stream holds the lock.
    pub turn: Mutex<Option<usize>>,
}

impl Stream {
    fn new() -> Self {
        Self {
            key: AtomicUsize::new(0),
            pool: AtomicU32::new(0),
            launches: AtomicU32::new(0),
            turn: Mutex::new(None),
        }
    }

    pub fn key(&self) -> usize {
        self.key.load(Ordering::Acquire)
    }

    /// The pool of its context.
    pub fn pool(&self) -> Option<usize> {
        (self.pool.load(Ordering::Acquire) as usize).checked_sub(1)
    }

    /// Frees this place. Its pool stays until another stream takes the place, because launches may
    /// still be in flight.
    pub fn end(&self) {
        self.key.store(0, Ordering::Release);
    }

    /// As [`Stream::end`], once no launch of it is in flight.
    pub fn leave_pool(&self) {
        self.end();
        self.pool.store(0, Ordering::Release);
    }
}

/// Every stream of the process that was ever counted.
pub struct Streams {
    streams: Vec<Stream>,
    adding: Mutex<()>,
}

/// Null until streams are counted. Made once and never freed.
static TABLE: AtomicPtr<Streams> = AtomicPtr::new(core::ptr::null_mut());

// A child does not inherit streams.
in_child! {
    TABLE.store(core::ptr::null_mut(), Ordering::Relaxed);
}

/// The table, if there is one.
pub fn table() -> Option<&'static Streams> {
    // SAFETY: null, or leaked by made().
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// The table, made when it is first needed.
pub fn made() -> &'static Streams {
    table().unwrap_or_else(make)
}

#[cold]
fn make() -> &'static Streams {
    let streams = (0..STREAMS).map(|_| Stream::new()).collect();
    let made = Box::into_raw(Box::new(Streams { streams, adding: Mutex::new(()) }));
    match TABLE.compare_exchange(core::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: leaked above.
        Ok(_) => unsafe { &*made },
        Err(other) => {
            // SAFETY: no other thread has seen the pointer.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: leaked by another thread, here.
            unsafe { &*other }
        }
    }
}

impl Streams {
    fn places(key: usize) -> impl Iterator<Item = usize> {
        places::<STREAMS>(key).take(TRIES)
    }

    /// The stream with a key, and its number.
    #[inline]
    pub fn find(&self, key: usize) -> Option<(usize, &Stream)> {
        Self::places(key).map(|at| (at, &self.streams[at])).find(|(_, stream)| stream.key() == key)
    }

    /// The same, or a new stream of this pool; `None` if the table has no room. `is_over` says
    /// whether all launches of a destroyed stream have ended; `begin` initializes a place.
    pub fn find_or_add(
        &self,
        key: usize,
        pool: impl FnOnce() -> Option<usize>,
        is_over: impl Fn(usize, &Stream) -> bool,
        begin: impl FnOnce(usize, usize, &Stream),
    ) -> Option<(usize, &Stream)> {
        if let Some(found) = self.find(key) {
            return Some(found);
        }
        let pool = pool()?;
        let _adding = self.adding.lock();
        // Another thread may have added it.
        if let Some(found) = self.find(key) {
            return Some(found);
        }
        let mut places = Self::places(key).map(|at| (at, &self.streams[at]));
        let (at, stream) = places
            .find(|(at, stream)| stream.key() == 0 && (stream.pool().is_none() || is_over(*at, stream)))?;
        *stream.turn.lock() = None;
        begin(pool, at, stream);
        stream.pool.store(pool as u32 + 1, Ordering::Release);
        stream.key.store(key, Ordering::Release);
        Some((at, stream))
    }

    /// Every stream with a pool, the pool's number and its own, destroyed streams included.
    pub fn in_pools(&self) -> impl Iterator<Item = (usize, usize, &Stream)> {
        let streams = self.streams.iter().enumerate();
        streams.filter_map(|(at, stream)| Some((stream.pool()?, at, stream)))
    }
}
