//! Contention for DRAM: the law, and the clock by which what touches memory is timed.
//!
//! The law: every block (and copy) that touches DRAM asks for its bytes spread evenly over its own length. While the
//! sum of what runs asks for more than the device has, all of them run slower by the same factor, capacity over
//! demand; blocks that touch no memory keep their pace. L2 hits, per-GPC limits and row conflicts are not modelled.
//!
//! Because the factor is the same for all, one clock that runs slower by it times them all: each ends when that clock
//! has advanced by its length. A change of demand changes the clock's pace and moves no entry of the queue.

use crate::Time;

/// A pace of one simulated nanosecond per nanosecond, in 2^-32 units.
const REAL_TIME: u64 = 1 << 32;

/// The pace of everything that touches memory, at most [`Pace::FULL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace(u64);

impl Pace {
    /// Unhindered.
    pub(crate) const FULL: Self = Self(REAL_TIME);

    /// The pace while `demand` is asked for of `capacity`, in any one unit.
    #[inline]
    pub(crate) fn of(demand: u64, capacity: u64) -> Self {
        if demand <= capacity {
            return Self::FULL;
        }
        // Never quite zero: what has begun ends.
        Self(((u128::from(capacity) << 32) / u128::from(demand)).max(1) as u64)
    }
}

/// What a length of `ns` with traffic of `bytes` asks for, in bytes per millisecond.
pub(crate) fn demand(bytes: u64, ns: Time) -> u64 {
    let per_ms = u128::from(bytes) * 1_000_000 / u128::from(ns.max(1));
    u64::try_from(per_ms).unwrap_or(u64::MAX >> 16).min(u64::MAX >> 16)
}

/// A clock that runs at a changing pace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PacedClock {
    ns: Time,
    fraction: u32,
}

impl PacedClock {
    /// What the clock shows, in whole nanoseconds.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        self.ns
    }

    /// The first whole nanosecond that has not passed.
    #[inline]
    pub(crate) fn ceil(&self) -> Time {
        self.ns + Time::from(self.fraction > 0)
    }

    /// Lets `dt` nanoseconds of real time pass.
    #[inline]
    pub(crate) fn advance(&mut self, dt: Time, pace: Pace) {
        if pace == Pace::FULL {
            self.ns += dt;
            return;
        }
        let passed = u128::from(self.fraction) + u128::from(dt) * u128::from(pace.0);
        self.ns += (passed >> 32) as u64;
        self.fraction = passed as u32;
    }

    /// The shortest real time after which the clock shows `due` or later.
    #[inline]
    pub(crate) fn until(&self, due: Time, pace: Pace) -> Time {
        let whole = due.saturating_sub(self.ns);
        if pace == Pace::FULL || whole == 0 {
            return whole;
        }
        let missing = (u128::from(whole) << 32) - u128::from(self.fraction);
        u64::try_from(missing.div_ceil(u128::from(pace.0))).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paced_clock_arrives_when_it_says_it_will() {
        for (demand, capacity) in [(1, 1), (3, 2), (7, 3), (1_000_003, 17), (u64::MAX >> 16, 1)] {
            let pace = Pace::of(demand, capacity);
            let mut clock = PacedClock::default();
            clock.advance(12_345, pace);
            for due in [clock.ceil(), clock.ceil() + 1, clock.ceil() + 999_983] {
                let dt = clock.until(due, pace);
                let mut there = clock;
                there.advance(dt, pace);
                assert!(there.now() >= due, "{demand}/{capacity} due {due}");
                if dt > 0 {
                    let mut before = clock;
                    before.advance(dt - 1, pace);
                    assert!(before.now() < due, "{demand}/{capacity} due {due}");
                }
                // In many steps as in one.
                let mut steps = clock;
                for part in [dt / 3, dt / 2, dt - dt / 3 - dt / 2] {
                    steps.advance(part, pace);
                }
                assert_eq!(steps, there);
            }
        }
    }

    #[test]
    fn demand_below_capacity_costs_nothing() {
        assert_eq!(Pace::of(0, 0), Pace::FULL);
        assert_eq!(Pace::of(99, 100), Pace::FULL);
        assert!(Pace::of(101, 100) != Pace::FULL);
        assert_eq!(demand(1_000, 1_000_000), 1_000);
        assert_eq!(demand(u64::MAX, 0), u64::MAX >> 16);
    }
}
