//! Elastic tenants: which TPCs of others a tenant may borrow, for how long, and how far ahead.
//!
//! A tenant's own TPCs are its *guarantee*. What it may use beyond them is *borrowed*: TPCs that no
//! tenant owns, and TPCs whose owners rest. Each process on the GPU shows whether it is at work in
//! a record that all others see ([`Seen`]).
//!
//! # Why a guarantee is late by at most a unit
//! A borrower works in *units*: kernels of [`Law::unit_ns`] together, or one longer kernel. Before
//! each unit the GPU waits until every owner of the TPCs that the unit borrows rests. So when an
//! owner begins to work, the units that have begun end, and no other one begins before the owner
//! rests again, or [`Law::hold_ns`] have passed. Units of one stream follow each other: each stream
//! has at most one that has begun.
//!
//! The borrower has a guarantee too, and what waits in its streams stands in front of its own work.
//! So it puts at most [`Law::units_ahead`] borrowed units into a stream, and what waits for longer
//! than [`Law::hold_ns`] goes on: at most `units_ahead` units, once for each time that the owner
//! begins to work, since further launches of the borrower carry its own TPCs alone.

use crate::TpcSet;

#[cfg(test)]
mod tests;

/// The constants of the law.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Law {
    /// How long the kernels of a unit run together, in nanoseconds.
    pub unit_ns: u64,
    /// How long an owner must have rested before its TPCs are lent, in nanoseconds.
    pub rest_ns: u64,
    /// The longest time that queued borrowed work waits for an owner, in nanoseconds.
    pub hold_ns: u64,
    /// Borrowed units in a stream that have not ended, the one that runs included.
    pub units_ahead: u32,
}

impl Default for Law {
    /// Units of 200 µs, two in a stream; owners rest for 1 ms first; what is queued waits 5 ms.
    fn default() -> Self {
        Self { unit_ns: 200_000, rest_ns: 1_000_000, hold_ns: 5_000_000, units_ahead: 2 }
    }
}

/// A process on the GPU, as its record shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// A number that the processes of one tenant share, and no other tenant has.
    pub tenant: u64,
    /// The TPCs of its guarantee.
    pub owned: TpcSet,
    /// Whether it has work on the GPU.
    pub at_work: bool,
    /// Since when it is at work or rests, in nanoseconds.
    pub since_ns: u64,
    /// Whether it borrows.
    pub borrows: bool,
    /// What it has borrowed and may have work on.
    pub held: TpcSet,
}

/// A tenant that borrows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Borrower {
    /// As in [`Seen`].
    pub tenant: u64,
    /// The TPCs of its guarantee.
    pub owned: TpcSet,
    /// The most TPCs that it uses at a time, its own included.
    pub tpcs_max: u32,
    /// The TPCs of the device that may be lent at all.
    pub lendable: TpcSet,
}

impl Law {
    /// The TPCs that a process keeps others from borrowing: its own, while it works and for a while
    /// after. A time in the future is invalid, and counts as now.
    fn kept(&self, seen: &Seen, now_ns: u64) -> TpcSet {
        let rests = !seen.at_work && now_ns.saturating_sub(seen.since_ns) >= self.rest_ns;
        if rests { TpcSet::EMPTY } else { seen.owned }
    }

    /// The TPCs that a borrower may use beside its own, as far as it can see. `others` are all
    /// processes on the GPU; those of its own tenant do not count. Tenants that borrow at the same
    /// time get even parts, each other TPCs.
    pub fn may_borrow(
        &self,
        borrower: &Borrower,
        others: impl Iterator<Item = Seen> + Clone,
        now_ns: u64,
    ) -> TpcSet {
        let others = others.filter(|other| other.tenant != borrower.tenant);
        let mut free = borrower.lendable - borrower.owned;
        let mut held = TpcSet::EMPTY;
        for other in others.clone() {
            free -= self.kept(&other, now_ns);
            held |= other.held;
        }
        let competes = |other: &Seen| other.borrows && (other.at_work || !other.held.is_empty());
        // A tenant counts once: by the first of its processes that competes.
        let is_first = |at: usize, other: &Seen| {
            !others.clone().take(at).any(|before| competes(&before) && before.tenant == other.tenant)
        };
        let rivals = others.clone().enumerate().filter(|(at, other)| competes(other) && is_first(*at, other));
        let (mut rank, mut count) = (0u32, 1u32);
        for (_, rival) in rivals {
            count += 1;
            rank += u32::from(rival.tenant < borrower.tenant);
        }
        let mut part = TpcSet::EMPTY;
        for (at, tpc) in (0u32..).zip(free.iter()) {
            if at % count == rank {
                part.insert(tpc);
            }
        }
        (part - held).lowest(borrower.tpcs_max.saturating_sub(borrower.owned.len()))
    }

    /// Whether a stream may get another borrowed unit: `begun` were put there so far, and `ended`
    /// of them have ended. Both count on without end.
    pub fn may_begin(&self, begun: u32, ended: u32) -> bool {
        begun.wrapping_sub(ended) < self.units_ahead
    }

    /// How long a launch waits for its stream to have room for a borrowed unit before it goes with
    /// the guarantee alone, in nanoseconds: `launch_ns` is the mean length of its launches, if
    /// known. Twice the unit that has to end first, and 20 ms at most.
    pub fn patience_ns(&self, launch_ns: Option<u64>) -> u64 {
        let unit_ns = launch_ns.unwrap_or(0).max(self.unit_ns);
        unit_ns.saturating_mul(2).min(20_000_000)
    }

    /// Whether what waits for an owner that began to work then is to go on.
    pub fn passes(&self, begun_ns: u64, now_ns: u64) -> bool {
        now_ns.abs_diff(begun_ns) >= self.hold_ns
    }
}
