//! Units of launches, and the events that measure them.
//!
//! A unit is a stream's work between a wait for the tenant's gate and the next one: the wait, an
//! event, some launches, an event. The events use the GPU's own clock. They are created on demand
//! and reused.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use alloc::vec::Vec;
use partita_abi::CuResult;

use crate::sys::clock::now_ns;
use crate::sys::{futex, watcher};
use crate::time::calls::TimeCalls;

/// Units of a context at a time. A program that is further ahead of the GPU waits, as it does for
/// the driver when its queue is full.
pub const UNITS: usize = 1024;
/// How long a thread that waits for a unit sleeps before it has the hook's thread look for one
/// again.
const AGAIN_NS: u64 = 500_000;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

/// Not in use.
pub const FREE: u32 = 0;
/// Begun, and no event marks its end yet.
pub const OPEN: u32 = 1;
/// An event marks its end, right behind its last launch or while the GPU was still at it.
pub const ENDED: u32 = 2;
/// An event marks its end, and the GPU may have been idle before it.
pub const ENDED_LATE: u32 = 3;

/// A unit.
pub struct Unit {
    start: AtomicPtr<c_void>,
    end: AtomicPtr<c_void>,
    pub state: AtomicU32,
    pub launches: AtomicU32,
    /// One more than the stream's number; 0 for one that is not in the table.
    pub stream: AtomicU32,
    /// Units follow each other by these.
    pub order: AtomicU64,
    /// When it was begun, by the clock of `now_ns`.
    pub begun_ns: AtomicU64,
    /// When the GPU came to it, as far as that is known; 0 before.
    pub started_ns: AtomicU64,
    /// Up to when it is in the account.
    pub reported_ns: AtomicU64,
    /// Whether part of the time since it started was not charged: it seemed to follow a unit that
    /// waited at the gate.
    pub was_blocked: AtomicBool,
}

impl Unit {
    fn new() -> Self {
        Self {
            start: AtomicPtr::new(core::ptr::null_mut()),
            end: AtomicPtr::new(core::ptr::null_mut()),
            state: AtomicU32::new(FREE),
            launches: AtomicU32::new(0),
            stream: AtomicU32::new(0),
            order: AtomicU64::new(0),
            begun_ns: AtomicU64::new(0),
            started_ns: AtomicU64::new(0),
            reported_ns: AtomicU64::new(0),
            was_blocked: AtomicBool::new(false),
        }
    }

    pub fn start(&self) -> *mut c_void {
        self.start.load(Ordering::Relaxed)
    }

    pub fn end(&self) -> *mut c_void {
        self.end.load(Ordering::Relaxed)
    }

    /// Has its events made, in the current context.
    fn prepare(&self, calls: &TimeCalls) -> Result<(), CuResult> {
        for event in [&self.start, &self.end] {
            if event.load(Ordering::Relaxed).is_null() {
                event.store(calls.new_event()?, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// The units of a context.
pub struct Pool {
    /// The context; 0 if it has ended.
    pub context: AtomicUsize,
    /// Where its GPU has the gate.
    pub gate: AtomicU64,
    units: Vec<Unit>,
    free: Vec<AtomicU64>,
    /// The event from which all others are measured. It is complete.
    mark: AtomicPtr<c_void>,
    /// When it was, by the clock of `now_ns`.
    pub marked_ns: AtomicU64,
}

impl Pool {
    /// Of no context yet.
    pub fn new() -> Self {
        Self {
            context: AtomicUsize::new(0),
            gate: AtomicU64::new(0),
            units: (0..UNITS).map(|_| Unit::new()).collect(),
            free: (0..UNITS / 64).map(|_| AtomicU64::new(u64::MAX)).collect(),
            mark: AtomicPtr::new(core::ptr::null_mut()),
            marked_ns: AtomicU64::new(0),
        }
    }

    /// Makes it the pool of the current context, whose number this is.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn open(&self, calls: &TimeCalls, context: usize, gate: u64) -> Result<(), CuResult> {
        let (mut stream, mark) = (core::ptr::null_mut(), calls.new_event()?);
        self.marked_ns.store(now_ns(), Ordering::Relaxed);
        // SAFETY: a valid pointer; the event and the stream have just been made, in this context.
        unsafe {
            (calls.new_stream)(&mut stream, NON_BLOCKING).ok()?;
            (calls.record)(mark, stream).ok()?;
        }
        self.mark.store(mark, Ordering::Relaxed);
        self.gate.store(gate, Ordering::Relaxed);
        self.context.store(context, Ordering::Release);
        Ok(())
    }

    /// The mark.
    pub fn mark(&self) -> *mut c_void {
        self.mark.load(Ordering::Relaxed)
    }

    /// Makes the end of a unit the mark, which was at this time. The unit gets the former one.
    pub fn mark_at_end_of(&self, unit: &Unit, marked_ns: u64) {
        unit.end.store(self.mark.swap(unit.end(), Ordering::Relaxed), Ordering::Relaxed);
        self.marked_ns.store(marked_ns, Ordering::Relaxed);
    }

    /// Removes the data of a context that has ended, and returns how many units it had in flight.
    pub fn close(&self) -> u32 {
        self.context.store(0, Ordering::Release);
        let mut ended = 0;
        for (number, unit) in self.units.iter().enumerate() {
            unit.start.store(core::ptr::null_mut(), Ordering::Relaxed);
            unit.end.store(core::ptr::null_mut(), Ordering::Relaxed);
            if !self.is_free(number) {
                ended += 1;
                self.give_back(number);
            }
        }
        ended
    }

    fn is_free(&self, number: usize) -> bool {
        self.free.get(number / 64).is_none_or(|word| word.load(Ordering::Acquire) >> (number % 64) & 1 != 0)
    }

    pub fn get(&self, number: usize) -> Option<&Unit> {
        self.units.get(number)
    }

    /// Units that are in flight, with their numbers.
    pub fn in_flight(&self) -> impl Iterator<Item = (usize, &Unit)> {
        let words = self.free.iter().enumerate();
        let numbers = words.flat_map(|(at, word)| {
            let taken = !word.load(Ordering::Acquire);
            (0..64).filter(move |bit| taken >> bit & 1 != 0).map(move |bit| at * 64 + bit)
        });
        numbers
            .filter_map(|number| Some((number, self.units.get(number)?)))
            .filter(|(_, unit)| unit.state.load(Ordering::Acquire) != FREE)
    }

    /// Takes a unit with its events. Waits while all are in flight.
    ///
    /// # Errors
    /// Those of the driver, if events cannot be made.
    pub fn take(&self, calls: &TimeCalls) -> Result<usize, CuResult> {
        let mut round = 0u32;
        loop {
            for (at, word) in self.free.iter().enumerate() {
                let free = word.load(Ordering::Acquire);
                if free == 0 {
                    continue;
                }
                let bit = free.trailing_zeros() as usize;
                if word.fetch_and(!(1 << bit), Ordering::AcqRel) >> bit & 1 == 0 {
                    continue;
                }
                let number = at * 64 + bit;
                if let Some(unit) = self.get(number) {
                    unit.prepare(calls).inspect_err(|_| self.give_back(number))?;
                }
                return Ok(number);
            }
            // The current look may have passed work that has ended since. Work that the next one
            // does not find is running.
            if round % 3 < 2 {
                watcher::RELEASES.await_look();
            } else {
                futex::sleep(AGAIN_NS);
            }
            round = round.wrapping_add(1);
        }
    }

    /// Gives a unit back.
    pub fn give_back(&self, number: usize) {
        if let (Some(unit), Some(word)) = (self.units.get(number), self.free.get(number / 64)) {
            unit.state.store(FREE, Ordering::Release);
            word.fetch_or(1 << (number % 64), Ordering::AcqRel);
        }
    }
}
