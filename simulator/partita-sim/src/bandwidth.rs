//! Contention for memory: the laws, and the clock for works that touch memory.
//!
//! Every block (and copy) that touches memory spreads its traffic evenly over its own length, which
//! is its time without contention. Three things slow it down:
//!
//! 1. **DRAM.** If the running works demand D of a capacity C, blocks run at (1 + (D/C)^5/2)^-2/5
//!    of their pace: the smooth minimum of demand and supply. Measured on the H200
//!    (`research/bench/results/tpc_scaling.md`, a copy kernel, 1 to 66 TPCs, each demanding 191
//!    GB/s): the law with C = 3.94 TB/s, 0.82 of the data sheet's, is within 4 % at every number of
//!    TPCs. At 5, 10, 20, 40, 66 TPCs it gives 945, 1799, 2945, 3680, 3856 GB/s; the measurements
//!    are 923, 1745, 2939, 3782, 3929.
//! 2. **The GPC's path to memory.** The blocks of a GPC get at most what the GPC's SMs can draw
//!    together; if they demand more, all of them run slower by the same factor, and DRAM sees only
//!    that maximum. On the H200 one SM draws 95.5 GB/s, and a whole GPC of nine TPCs draws as much
//!    as nine TPCs of nine GPCs (1590 and 1595 GB/s): the path of a GPC is not narrower than its
//!    SMs together. So this limits only kernels described as demanding more than SMs can draw.
//!    Packed sets of 11 to 30 TPCs were up to 3 % slower than spread ones; that is not modelled.
//!
//! 3. **The ports.** What the SMs of a GPC draw from DRAM and what L2 serves them pass its ports,
//!    64 bytes a clock and SM (more than an SM draws from DRAM). If they ask for more, all its
//!    blocks with traffic run slower by the same factor. Blocks whose traffic L2 serves alone are
//!    slowed by nothing else.
//!
//! Copy engines have priority: they slow down only once DRAM is exhausted, by C/D. Blocks that
//! touch no memory keep their pace. The bandwidth of L2 itself and row conflicts are not modelled,
//! and which traffic hits L2 is the caller's to say.
//!
//! Because a factor is the same for all blocks of a GPC that reach DRAM, and for all others, one
//! clock each times them: a block ends when that clock has advanced by its length. A change of
//! demand changes the clock's pace and moves no entry of the queue.

use crate::Time;
use crate::spec::MemorySpec;

/// A pace of one simulated nanosecond per nanosecond, in 2^-32 units.
const REAL_TIME: u64 = 1 << 32;

/// The pace of a work that touches memory, at most [`Pace::FULL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace(u64);

impl Pace {
    /// Unhindered.
    pub(crate) const FULL: Self = Self(REAL_TIME);

    /// Supply shared in proportion to demand: the pace at `demand` of `capacity`, in any one unit.
    #[inline]
    pub(crate) fn of(demand: u64, capacity: u64) -> Self {
        if demand <= capacity {
            return Self::FULL;
        }
        // Never quite zero: every started work ends.
        Self(((u128::from(capacity) << 32) / u128::from(demand)).max(1) as u64)
    }

    /// What passes of a demand at this pace, in the demand's unit.
    #[inline]
    pub(crate) fn passes(self, demand: u64) -> u64 {
        ((u128::from(demand) * u128::from(self.0)) >> 32) as u64
    }

    /// Slowed down by two factors at once.
    #[inline]
    pub(crate) fn and(self, other: Self) -> Self {
        if other == Self::FULL {
            return self;
        }
        Self(((u128::from(self.0) * u128::from(other.0)) >> 32).max(1) as u64)
    }
}

/// The law of DRAM, tabulated.
#[derive(Clone, Debug)]
pub(crate) struct Dram {
    /// Bytes per millisecond.
    capacity: u64,
    /// [`STEPS`] over the capacity, in 2^-[`SCALE`] units.
    steps_per_byte: u64,
    /// The pace at demands of 0, 1, … [`STEPS`]-ths of the capacity.
    paces: Vec<u64>,
}

/// Steps of the table for each capacity of demand.
const STEPS: u64 = 64;
/// The table ends at this many capacities; beyond, the law is a plain share to within 0.04 %.
const CAPACITIES: u64 = 16;
const SCALE: u32 = 48;
/// Bits of the place between two steps.
const BETWEEN: u32 = 16;

impl Dram {
    pub(crate) fn new(memory: &MemorySpec) -> Self {
        let reached =
            u128::from(memory.bandwidth_bytes_per_s) * u128::from(memory.reached_permille) / 1_000_000;
        let capacity = u64::try_from(reached).unwrap_or(u64::MAX).max(1);
        let steps_per_byte = (u128::from(STEPS) << (SCALE + BETWEEN)) / u128::from(capacity);
        Self {
            capacity,
            steps_per_byte: u64::try_from(steps_per_byte).unwrap_or(u64::MAX),
            paces: (0..=STEPS * CAPACITIES)
                .map(|step| (law(step as f64 / STEPS as f64) * REAL_TIME as f64) as u64)
                .collect(),
        }
    }

    /// The pace of blocks at `demand`, in bytes per millisecond.
    #[inline]
    pub(crate) fn blocks(&self, demand: u64) -> Pace {
        let place = (u128::from(demand) * u128::from(self.steps_per_byte)) >> SCALE;
        let step = (place >> BETWEEN) as usize;
        if step >= self.paces.len() - 1 {
            let share = Pace::of(demand, self.capacity);
            return share.and(Pace(self.paces[self.paces.len() - 1] * CAPACITIES));
        }
        let (here, next) = (self.paces[step], self.paces[step + 1]);
        let between = place as u64 & ((1 << BETWEEN) - 1);
        Pace(here - (((here - next) * between) >> BETWEEN))
    }

    /// How long the traffic of `bytes`, in bytes per millisecond times nanoseconds, takes DRAM at
    /// its capacity, in nanoseconds.
    pub(crate) fn busy_ns(&self, traffic: u128) -> Time {
        Time::try_from(traffic / u128::from(self.capacity)).unwrap_or(Time::MAX)
    }

    /// The pace of copies meanwhile.
    #[inline]
    pub(crate) fn copies(&self, demand: u64) -> Pace {
        Pace::of(demand, self.capacity)
    }
}

/// (1 + x^5/2)^-2/5, only by operations that IEEE 754 defines to the last bit: every machine has
/// the same table.
fn law(x: f64) -> f64 {
    let base = 1.0 + x * x * x.sqrt();
    let square = base * base;
    // The p with p^5 × square = 1, by Newton's method: the first step goes from below it to above
    // it, the others fall towards it.
    let mut p = 1.0 / base.sqrt();
    for _ in 0..32 {
        let p4 = p * p * p * p;
        p -= (p4 * p * square - 1.0) / (5.0 * p4 * square);
    }
    p.clamp(0.0, 1.0)
}

/// The demand of a length of `ns` with traffic of `bytes`, in bytes per millisecond.
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
    /// The clock's reading, in whole nanoseconds.
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

    /// How far the clock has to run to read `due`, in 2^-32 ns.
    #[inline]
    pub(crate) fn missing(&self, due: Time) -> u128 {
        (u128::from(due.saturating_sub(self.ns)) << 32).saturating_sub(u128::from(self.fraction))
    }

    /// The shortest real time after which the clock reads `due` or later.
    #[inline]
    pub(crate) fn until(&self, due: Time, pace: Pace) -> Time {
        if due <= self.ns {
            return 0;
        }
        time_for(self.missing(due), pace)
    }
}

/// The shortest real time in which a clock advances by `missing`, in 2^-32 ns.
#[inline]
pub(crate) fn time_for(missing: u128, pace: Pace) -> Time {
    match u64::try_from(missing) {
        // The usual case: a division of machine words.
        Ok(missing) => missing.div_ceil(pace.0),
        Err(_) => u64::try_from(missing.div_ceil(u128::from(pace.0))).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    #[test]
    fn a_paced_clock_arrives_when_it_says_it_will() {
        for (demand, capacity) in [(1, 1), (3, 2), (7, 3), (1_000_003, 17), (u64::MAX >> 16, 1)] {
            let pace = Pace::of(demand, capacity);
            let mut clock = PacedClock::default();
            clock.advance(12_345, pace);
            for due in [clock.ceil(), clock.ceil() + 1, clock.ceil() + 999_983, clock.ceil() + (1 << 31)] {
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
    fn shares_and_demands() {
        assert_eq!(Pace::of(0, 0), Pace::FULL);
        assert_eq!(Pace::of(99, 100), Pace::FULL);
        assert!(Pace::of(101, 100) != Pace::FULL);
        let half = Pace::of(2, 1);
        assert_eq!((half.and(half), half.and(Pace::FULL)), (Pace::of(4, 1), half));
        assert_eq!(demand(1_000, 1_000_000), 1_000);
        assert_eq!(demand(u64::MAX, 0), u64::MAX >> 16);
    }

    fn h200() -> Dram {
        Dram::new(&catalogue::device("h200").unwrap().memory)
    }

    #[test]
    fn the_table_is_the_law() {
        let dram = h200();
        assert_eq!(dram.blocks(0), Pace::FULL);
        let mut last = REAL_TIME;
        for permille in 0..40_000_u64 {
            let demand = dram.capacity / 1_000 * permille;
            let x = demand as f64 / dram.capacity as f64;
            let Pace(pace) = dram.blocks(demand);
            let exact = (1.0 + x.powf(2.5)).powf(-0.4);
            assert!((pace as f64 / REAL_TIME as f64 / exact - 1.0).abs() < 5e-4, "{x}: {pace}");
            assert!(pace <= last, "{x}");
            // The total never exceeds the supply.
            assert!(pace as f64 / REAL_TIME as f64 * x <= 1.0 + 1e-6, "{x}");
            last = pace;
        }
        assert!(dram.blocks(u64::MAX >> 4) != Pace(0));
    }

    /// Copying on 1, 5, 10, … TPCs, in GB/s (`research/bench/results/tpc_scaling.md`).
    #[test]
    fn a_kernel_that_copies_gets_what_was_measured() {
        let dram = h200();
        let measured = [
            (1, 190.97),
            (5, 923.01),
            (10, 1744.74),
            (15, 2413.84),
            (20, 2939.45),
            (25, 3271.98),
            (30, 3458.67),
            (35, 3636.35),
            (40, 3782.42),
            (50, 3919.12),
            (66, 3929.22),
        ];
        for (tpcs, gb_per_s) in measured {
            let asked = 191_000_000 * tpcs;
            let Pace(pace) = dram.blocks(asked);
            let got = asked as f64 * pace as f64 / REAL_TIME as f64 / 1e6;
            assert!((got / gb_per_s - 1.0).abs() < 0.04, "{tpcs} TPCs: {got} GB/s, measured {gb_per_s}");
        }
    }
}
