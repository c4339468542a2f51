use std::vec::Vec;

use proptest::prelude::*;

use super::{Borrower, Law, Seen};
use crate::TpcSet;

const LAW: Law = Law { unit_ns: 200_000, rest_ns: 1_000_000, hold_ns: 5_000_000, units_ahead: 2 };
const TPCS: u32 = 24;

fn borrower(tenant: u64, owned: TpcSet, tpcs_max: u32) -> Borrower {
    Borrower { tenant, owned, tpcs_max, lendable: TpcSet::first(TPCS) }
}

/// Tenants with disjoint guarantees, in any state.
fn crowd() -> impl Strategy<Value = Vec<Seen>> {
    let owners = prop::collection::vec(0usize..6, TPCS as usize);
    let states = prop::collection::vec((any::<bool>(), 0u64..4_000_000, any::<bool>(), any::<u64>()), 5);
    (owners, states).prop_map(|(owners, states)| {
        let seen = |(at, (at_work, since_ns, borrows, bits)): (usize, (bool, u64, bool, u64))| {
            let owned = (0u8..).zip(&owners).filter(|(_, owner)| **owner == at);
            let mut set = TpcSet::EMPTY;
            owned.for_each(|(tpc, _)| _ = set.insert(tpc));
            let held = TpcSet::from_words([bits, 0, 0, 0]) & TpcSet::first(TPCS);
            let held = if borrows { held } else { TpcSet::EMPTY };
            Seen { tenant: at as u64, owned: set, at_work, since_ns, borrows, held }
        };
        states.into_iter().enumerate().map(seen).collect()
    })
}

proptest! {
    #[test]
    fn what_is_borrowed_is_idle_and_within_the_ceiling(
        seen in crowd(), now_ns in 0u64..6_000_000, tpcs_max in 0u32..30,
    ) {
        let own = seen[0];
        let part = LAW.may_borrow(&borrower(0, own.owned, tpcs_max), seen.iter().copied(), now_ns);
        prop_assert!(part.is_disjoint(&own.owned));
        prop_assert!(part.is_empty() || own.owned.len() + part.len() <= tpcs_max);
        for other in &seen[1..] {
            prop_assert!(part.is_disjoint(&other.held), "another one has work there");
            if other.at_work || now_ns.saturating_sub(other.since_ns) < LAW.rest_ns {
                prop_assert!(part.is_disjoint(&other.owned), "its owner does not rest");
            }
        }
    }

    #[test]
    fn borrowers_who_see_the_same_count_on_different_tpcs(
        mut seen in crowd(), now_ns in 0u64..6_000_000,
    ) {
        // At work, so that each sees the others borrow; nothing is held yet.
        for one in &mut seen {
            one.held = TpcSet::EMPTY;
            one.at_work |= one.borrows;
        }
        let parts: Vec<TpcSet> = seen.iter().filter(|one| one.borrows).map(|one| {
            LAW.may_borrow(&borrower(one.tenant, one.owned, TPCS), seen.iter().copied(), now_ns)
        }).collect();
        let mut all = TpcSet::EMPTY;
        for part in &parts {
            prop_assert!(part.is_disjoint(&all), "{parts:?}");
            all |= *part;
        }
        // Nothing that is free stays unused, and the guarantees and parts fit the device.
        let busy = seen.iter().filter(|one| one.at_work || now_ns.saturating_sub(one.since_ns) < LAW.rest_ns);
        let free = busy.fold(TpcSet::first(TPCS), |free, one| free - one.owned);
        prop_assert!(parts.is_empty() || all == free, "{all} of {free}");
        prop_assert!(all.len() + seen.iter().filter(|one| one.at_work).map(|one| one.owned.len()).sum::<u32>() <= TPCS);
    }

    #[test]
    fn a_guarantee_is_late_by_a_unit_at_most(
        kernels in prop::collection::vec((1u64..900_000, 0u64..50_000), 1..80),
        bursts in prop::collection::vec((1u64..12_000_000, 1_000u64..4_900_000), 1..6),
        streams in 1usize..4,
    ) {
        let mut owner = Owner::new(&bursts);
        let mut lanes = std::vec![Lane::default(); streams];
        let (mut now_ns, mut ran) = (0, Vec::new());
        for (at, &(kernel_ns, think_ns)) in kernels.iter().enumerate() {
            now_ns += think_ns;
            let stream = at % streams;
            ran.push(lanes[stream].launch(&mut owner, &mut now_ns, stream, kernel_ns));
        }
        for &(from_ns, to_ns) in &owner.bursts {
            let borrowed = ran.iter().filter(|unit| unit.borrows);
            prop_assert!(
                !borrowed.clone().any(|unit| from_ns < unit.start_ns && unit.start_ns < to_ns),
                "a unit begins while the owner works"
            );
            // What had begun ends: one unit of each stream.
            for stream in 0..streams {
                let beside = borrowed.clone().filter(|unit| unit.stream == stream);
                let late = beside.filter(|unit| unit.start_ns <= from_ns && unit.end_ns > from_ns);
                prop_assert!(late.count() <= 1);
            }
        }
        // The borrower's own guarantee: it waits for no longer than its patience, then for a burst.
        for unit in ran.iter().filter(|unit| !unit.borrows) {
            prop_assert!(unit.start_ns <= unit.ready_ns);
        }
    }

    #[test]
    fn patience_is_bounded(launch_ns in prop::option::of(any::<u64>())) {
        let patience_ns = LAW.patience_ns(launch_ns);
        prop_assert!((2 * LAW.unit_ns..=20_000_000).contains(&patience_ns));
    }
}

/// An owner of TPC 0, at work in these times.
struct Owner {
    bursts: Vec<(u64, u64)>,
}

impl Owner {
    fn new(pauses_and_bursts: &[(u64, u64)]) -> Self {
        let mut now_ns = 0;
        let bursts = pauses_and_bursts.iter().map(|(pause_ns, burst_ns)| {
            let from_ns = now_ns + pause_ns;
            now_ns = from_ns + burst_ns;
            (from_ns, now_ns)
        });
        Self { bursts: bursts.collect() }
    }

    fn seen(&self, now_ns: u64) -> Seen {
        let begun = self.bursts.iter().rev().find(|(from_ns, _)| *from_ns <= now_ns);
        let (at_work, since_ns) = match begun {
            None => (false, 0),
            Some(&(from_ns, to_ns)) if now_ns < to_ns => (true, from_ns),
            Some(&(_, to_ns)) => (false, to_ns),
        };
        let (owned, held) = (TpcSet::single(0), TpcSet::EMPTY);
        Seen { tenant: 1, owned, at_work, since_ns, borrows: false, held }
    }

    /// When the gate that a unit finds at this time is open.
    fn opens_ns(&self, now_ns: u64) -> u64 {
        let closed = self.bursts.iter().find(|(from_ns, to_ns)| *from_ns <= now_ns && now_ns < *to_ns);
        closed.map_or(now_ns, |(_, to_ns)| *to_ns)
    }
}

/// A kernel of the borrower that is a unit of its own.
struct Ran {
    stream: usize,
    borrows: bool,
    /// When all in front of it had ended.
    ready_ns: u64,
    start_ns: u64,
    end_ns: u64,
}

/// A stream of the borrower: when its borrowed units end.
#[derive(Clone, Default)]
struct Lane {
    ends_ns: Vec<u64>,
    free_ns: u64,
}

impl Lane {
    fn ended(&self, now_ns: u64) -> u32 {
        self.ends_ns.iter().filter(|end_ns| **end_ns <= now_ns).count() as u32
    }

    /// Launches as the law says.
    fn launch(&mut self, owner: &mut Owner, now_ns: &mut u64, stream: usize, kernel_ns: u64) -> Ran {
        let own = borrower(0, TpcSet::single(1), 2);
        let begun = self.ends_ns.len() as u32;
        if !LAW.may_begin(begun, self.ended(*now_ns)) {
            let room_ns = self.ends_ns[self.ends_ns.len() - LAW.units_ahead as usize];
            *now_ns = room_ns.min(*now_ns + LAW.patience_ns(Some(kernel_ns))).max(*now_ns);
        }
        let has_room = LAW.may_begin(begun, self.ended(*now_ns));
        let lent = LAW.may_borrow(&own, core::iter::once(owner.seen(*now_ns)), *now_ns);
        let borrows = has_room && lent.contains(0);
        let ready_ns = self.free_ns.max(*now_ns);
        let start_ns = if borrows { owner.opens_ns(ready_ns) } else { ready_ns };
        self.free_ns = start_ns + kernel_ns;
        if borrows {
            self.ends_ns.push(self.free_ns);
        }
        Ran { stream, borrows, ready_ns, start_ns, end_ns: self.free_ns }
    }
}
