//! The page that a board shares with all its clients: its clock, its doorbell's state and the table
//! of events.

use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::channel::Apart;
use super::sys::{SharedMap, memfd, monotonic_ns};

/// Events that may exist at a time, over all clients.
pub const EVENTS_MAX: usize = 65536;

/// One event. Written by the board, but for `recorded`, which the recording client counts up.
#[repr(C)]
pub struct EventSlot {
    /// How many recordings were requested.
    pub recorded: AtomicU64,
    /// The last recording that is complete.
    pub completed: AtomicU64,
    /// Virtual time at which it completed, in nanoseconds.
    pub time_ns: AtomicU64,
    _pad: u64,
}

/// The content of the page.
#[repr(C)]
pub struct PageHead {
    /// 1 while the board sleeps and a writer must ring the doorbell.
    pub asleep: Apart<AtomicU32>,
    /// `CLOCK_MONOTONIC` at virtual time zero, in nanoseconds.
    pub epoch_ns: AtomicU64,
    /// Virtual seconds per second, as the bits of an f64.
    pub speed_bits: AtomicU64,
    /// The events.
    pub events: [EventSlot; EVENTS_MAX],
}

/// A mapping of the page.
#[derive(Debug)]
pub struct BoardPage {
    map: SharedMap,
}

impl BoardPage {
    /// Creates the page of a new board whose clock starts now.
    ///
    /// # Errors
    /// Those of `memfd_create` and `mmap`.
    pub fn create(speed: f64) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd(c"partita-sim-board", mem::size_of::<PageHead>() as u64)?;
        let page = Self::open(fd.as_fd())?;
        page.head().epoch_ns.store(monotonic_ns(), Ordering::Relaxed);
        page.head().speed_bits.store(speed.to_bits(), Ordering::Relaxed);
        Ok((page, fd))
    }

    /// Maps the page of a board.
    ///
    /// # Errors
    /// Those of `mmap`.
    pub fn open(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self { map: SharedMap::new(fd, mem::size_of::<PageHead>())? })
    }

    /// The page's words.
    pub fn head(&self) -> &PageHead {
        // SAFETY: the mapping is page-aligned, as long as the struct, and holds atomics only.
        unsafe { &*self.map.base().cast::<PageHead>() }
    }

    /// The slot of an event, or `None` for an invalid number.
    pub fn event(&self, index: u32) -> Option<&EventSlot> {
        self.head().events.get(index as usize)
    }

    /// Virtual seconds per second.
    pub fn speed(&self) -> f64 {
        f64::from_bits(self.head().speed_bits.load(Ordering::Relaxed))
    }

    /// The virtual time, in nanoseconds since the board started.
    pub fn now_ns(&self) -> u64 {
        let real = monotonic_ns().saturating_sub(self.head().epoch_ns.load(Ordering::Relaxed));
        (real as f64 * self.speed()) as u64
    }

    /// How long to wait in real time for a virtual moment, in nanoseconds.
    pub fn real_ns_until(&self, virtual_ns: u64) -> u64 {
        (virtual_ns.saturating_sub(self.now_ns()) as f64 / self.speed()) as u64
    }
}
