//! The streams of this process and the unit of launches that each is in. A launch inside of a unit
//! takes no lock.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use partita_ledger::mutex::{Guard, Mutex};

use crate::driver::stream::places;

/// Streams that are known at a time; launches in others are measured one by one.
pub const STREAMS: usize = 256;
/// Places of the table that are tried for a stream.
const TRIES: usize = 16;
/// The longest pause between two launches of a unit, in nanoseconds. A longer one may be idle time,
/// which must not be charged.
const GAP_NS: u64 = 100_000;

/// The unit that a stream is in, as one word: 0 for none, or one more than its number above 32
/// bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Present(u64);

impl Present {
    pub const NONE: Self = Self(0);
    /// A thread begins or ends a unit.
    const HELD: Self = Self(u64::MAX);
    /// Set if the gate was closed when the unit was begun: it waits, with all that comes into it.
    const WAITS: u64 = 1 << 31;

    /// A unit that takes `left` more launches.
    pub fn new(unit: usize, left: u32, waits: bool) -> Self {
        Self((unit as u64 + 1) << 32 | u64::from(waits) << 31 | u64::from(left) & (Self::WAITS - 1))
    }

    /// The unit's number.
    pub fn unit(self) -> Option<usize> {
        (self.0 >> 32).checked_sub(1).map(|unit| unit as usize)
    }

    fn is_held(self) -> bool {
        self == Self::HELD
    }

    /// Launches that it still takes.
    pub fn left(self) -> u32 {
        (self.0 & (Self::WAITS - 1)) as u32
    }
}

/// A stream and its unit.
pub struct Stream {
    /// Its key ([`key_of`]); 0 for none.
    key: AtomicUsize,
    present: AtomicU64,
    /// Only one thread at a time begins or ends a unit. Others wait here, and lend it their
    /// priority.
    turn: Mutex<()>,
    /// When the last launch was, by the clock of `now_ns`.
    launched_ns: AtomicU64,
    /// Launches that make a unit.
    pub target: AtomicU32,
    /// One more than the number of the pool of its context; 0 before that is known.
    pub pool: AtomicU32,
}

/// The action for a launch.
pub enum Part<'s> {
    /// It belongs to the present unit.
    Inside,
    /// It is the last of the present unit: to be launched, then marked.
    Last(usize, Held<'s>),
    /// It begins a unit. The unit before, if there is one, has no end yet. `paused`: it may have
    /// ended long ago.
    First { before: Present, paused: bool, held: Held<'s> },
}

/// A stream in which this thread begins or ends a unit.
#[must_use = "others wait for it"]
pub struct Held<'s> {
    stream: &'s Stream,
    _turn: Guard<'s, ()>,
}

impl Held<'_> {
    /// Lets go of the stream, with the unit that it is in from here on.
    pub fn let_go(self, present: Present) {
        self.stream.present.store(present.0, Ordering::Release);
    }
}

impl Stream {
    const fn new() -> Self {
        Self {
            key: AtomicUsize::new(0),
            present: AtomicU64::new(0),
            turn: Mutex::new(()),
            launched_ns: AtomicU64::new(0),
            target: AtomicU32::new(1),
            pool: AtomicU32::new(0),
        }
    }

    /// Adds a launch. `alone`: it is a unit by itself. So is one after a pause, and one for which
    /// the gate has closed since its unit began.
    #[inline]
    pub fn part(&self, now_ns: u64, alone: bool, open: bool) -> Part<'_> {
        let paused = now_ns.saturating_sub(self.launched_ns()) > GAP_NS;
        self.launched_ns.store(now_ns, Ordering::Relaxed);
        let mut turn = None;
        loop {
            let present = self.present.load(Ordering::Acquire);
            let inside = present != 0 && !paused && !alone && (open || present & Present::WAITS != 0);
            let is_edge = !inside || Present(present).left() <= 1;
            if turn.is_none() && (is_edge || Present(present).is_held()) {
                // Another thread may be at an edge of the same stream; this one comes after it.
                turn = Some(self.turn.try_lock().unwrap_or_else(|| self.turn.lock()));
                continue;
            }
            let next = if is_edge { Present::HELD.0 } else { present - 1 };
            if self.present.compare_exchange_weak(present, next, Ordering::AcqRel, Ordering::Relaxed).is_err()
            {
                continue;
            }
            return match (turn, Present(present).unit()) {
                (Some(turn), unit) if is_edge => {
                    let held = Held { stream: self, _turn: turn };
                    match unit {
                        Some(unit) if inside => Part::Last(unit, held),
                        _ => Part::First { before: Present(present), paused, held },
                    }
                }
                _ => Part::Inside,
            };
        }
    }

    /// Holds the stream if it is in a unit, and in this one if one is named; not for one that
    /// another thread holds.
    pub fn hold(&self, unit: Option<usize>) -> Option<(Present, Held<'_>)> {
        let turn = self.turn.try_lock()?;
        let present = Present(self.present.load(Ordering::Acquire));
        let is_meant = present.unit().is_some_and(|found| unit.is_none_or(|unit| unit == found));
        let is_held = is_meant
            && self
                .present
                .compare_exchange(present.0, Present::HELD.0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        is_held.then_some((present, Held { stream: self, _turn: turn }))
    }

    /// Whether it is in another unit than this by now, or in none; false while a thread holds it.
    pub fn has_left(&self, unit: usize) -> bool {
        let present = Present(self.present.load(Ordering::Acquire));
        !present.is_held() && present.unit() != Some(unit)
    }

    /// Whether nothing was launched for longer than a unit pauses.
    pub fn is_paused(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.launched_ns()) > GAP_NS
    }

    fn launched_ns(&self) -> u64 {
        self.launched_ns.load(Ordering::Relaxed)
    }

    pub fn key(&self) -> usize {
        self.key.load(Ordering::Relaxed)
    }
}

/// Every stream.
pub struct Streams([Stream; STREAMS]);

impl Streams {
    pub const fn new() -> Self {
        Self([const { Stream::new() }; STREAMS])
    }

    fn places(&self, key: usize) -> impl Iterator<Item = usize> {
        places::<STREAMS>(key).take(TRIES)
    }

    /// The number of the stream with a key.
    #[inline]
    pub fn find(&self, key: usize) -> Option<usize> {
        self.places(key).find(|&at| self.0[at].key() == key)
    }

    /// The same, or a new one; `None` without room.
    pub fn find_or_add(&self, key: usize) -> Option<usize> {
        self.find(key).or_else(|| {
            self.places(key).find(|&at| {
                let place = &self.0[at];
                let claimed = place.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire);
                claimed.is_ok() || claimed == Err(key)
            })
        })
    }

    pub fn get(&self, at: usize) -> Option<&Stream> {
        self.0.get(at)
    }

    /// One more than the number of one of these.
    pub fn number_of(&self, stream: &Stream) -> u32 {
        let offset = core::ptr::from_ref(stream).addr().wrapping_sub(self.0.as_ptr().addr());
        (offset / size_of::<Stream>()) as u32 + 1
    }

    /// Every stream that is known, with its number.
    pub fn known(&self) -> impl Iterator<Item = (usize, &Stream)> {
        self.0.iter().enumerate().filter(|(_, stream)| stream.key() != 0)
    }

    /// Removes a stream that has no unit and will have none.
    pub fn forget(&self, at: usize) {
        if let Some(stream) = self.get(at) {
            stream.present.store(0, Ordering::Relaxed);
            stream.target.store(1, Ordering::Relaxed);
            stream.pool.store(0, Ordering::Relaxed);
            stream.key.store(0, Ordering::Release);
        }
    }
}
