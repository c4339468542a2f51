use proptest::prelude::*;
use std::vec::Vec;

use super::*;
use crate::chain::synthetic::{Law, Part, Synthetic, allocations, laws};
use crate::chain::{Actuator, Objective, PublishedOptions, published};

fn start_of(law: Law) -> impl Strategy<Value = (Law, Allocation)> {
    let components = law.parts.len();
    let start = prop_oneof![Just(Allocation::uniform(components, 66)), allocations(components)];
    (Just(law), start)
}

/// For how many periods on end the chain was slower than `limit`.
fn longest_below(plant: &Synthetic, limit: f64) -> usize {
    let mut longest = 0;
    let mut now = 0;
    for (_, truth) in &plant.history {
        now = if *truth < limit { now + 1 } else { 0 };
        longest = longest.max(now);
    }
    longest
}

proptest! {
    /// Exact measurements: nothing is lost, nothing bad lasts, and it ends.
    #[test]
    fn without_noise_it_never_ends_below_where_it_began_and_nothing_bad_lasts(
        (law, start) in laws().prop_flat_map(start_of),
    ) {
        let mut plant = Synthetic::new(law, 0.0, 0).starting_with(&start);
        let before = plant.truth(&start);
        let found = steady(&mut plant, &start, 66, &SteadyOptions::default()).unwrap();
        prop_assert!(plant.truth(&found.allocation) >= before);
        prop_assert_eq!(&plant.in_force, &found.allocation);
        prop_assert_eq!(plant.history.len() as u64, found.periods);
        // At least the whole GPU for all, but for what does not count.
        let whole = plant.truth(&Allocation::uniform(start.components(), 66));
        prop_assert!(plant.truth(&found.allocation) >= whole * 0.99);
        prop_assert!(longest_below(&plant, before * 0.99) <= 2, "{:?}", plant.history);
        // Better ones replace each other: the incumbent's throughput never falls.
        let references = found.trials.iter().filter(|trial| trial.purpose == Purpose::Reference);
        let rates: Vec<f64> = references.map(|trial| trial.frames_per_s).collect();
        prop_assert!(rates.is_sorted(), "{:?}", rates);
    }

    /// Measurements that differ by up to 3 %: what it ends with may be worse by less than it can see.
    #[test]
    fn noise_does_not_lead_it_astray(
        (law, start) in laws().prop_flat_map(start_of),
        noise in 0.0..0.03,
        seed: u64,
    ) {
        let mut plant = Synthetic::new(law, noise, seed).starting_with(&start);
        let before = plant.truth(&start);
        let options = SteadyOptions::default();
        let found = steady(&mut plant, &start, 66, &options).unwrap();
        let after = plant.truth(&found.allocation);
        prop_assert!(after >= before * (1.0 - 0.01 - noise), "{} to {}", before, after);
        let looks = found.trials.iter().filter(|trial| trial.purpose == Purpose::Candidate).count();
        prop_assert!(looks <= options.looks_max_in_all as usize);
    }

    /// The chain's own throughput changes in the midst of the search, once or twice: it ends with what is no worse *now* than where it began.
    #[test]
    fn a_shift_during_the_search_does_not_leave_it_worse(
        (first, start) in laws().prop_flat_map(start_of),
        factors in prop::collection::vec((1..40_usize, prop::collection::vec(0.3..3.0, 6)), 1..3),
    ) {
        let mut plant = Synthetic::new(first.clone(), 0.002, 1).starting_with(&start);
        for (from, factors) in factors {
            let parts = first.parts.iter().zip(factors);
            let parts = parts.map(|(part, factor)| Part { shared_ms: part.shared_ms * factor, ..*part });
            plant.laws.push((from, Law { parts: parts.collect(), ..first }));
        }
        plant.laws.sort_by_key(|(from, _)| *from);
        let found = steady(&mut plant, &start, 66, &SteadyOptions::default()).unwrap();
        let last_shift = plant.laws.last().unwrap().0;
        if (found.periods as usize) < last_shift + 10 {
            // A shift in the last comparison of all is for the controller to see.
            return Ok(());
        }
        let (before, after) = (plant.truth(&start), plant.truth(&found.allocation));
        prop_assert!(after >= before * 0.98, "{} to {}", before, after);
    }

    /// Whenever it is stopped, what is in force is what there was, or better.
    #[test]
    fn stopped_at_any_time_it_leaves_nothing_bad((law, start) in laws().prop_flat_map(start_of), periods in 0..60_usize) {
        struct Stops(Synthetic, usize);
        impl Objective for Stops {
            fn throughput(&mut self) -> Result<f64, Stop> {
                if self.0.history.len() >= self.1 { Err(Stop::Asked) } else { self.0.throughput() }
            }
        }
        impl Actuator for Stops {
            fn apply(&mut self, allocation: &Allocation) -> Result<(), Stop> {
                self.0.apply(allocation)
            }
        }
        let mut plant = Stops(Synthetic::new(law, 0.0, 0).starting_with(&start), periods);
        let before = plant.0.truth(&start);
        let ended = steady(&mut plant, &start, 66, &SteadyOptions::default());
        prop_assert!(ended.is_ok() || ended == Err(Stop::Asked));
        prop_assert!(plant.0.truth(&plant.0.in_force) >= before);
    }
}

/// A chain by contention: two components that take long, three that do not.
fn contended(shared_ms: [f64; 5]) -> Law {
    let parts = shared_ms.map(|shared_ms| Part { fixed_ms: 0.1, shared_ms, tpcs_max: 66 });
    Law { parts: parts.into(), contention: 0.5 }
}

#[test]
fn several_bottlenecks_get_what_the_others_do_not_need() {
    for shared_ms in
        [[300.0, 4.0, 4.0, 4.0, 4.0], [300.0, 4.0, 300.0, 4.0, 4.0], [200.0, 10.0, 300.0, 10.0, 150.0]]
    {
        let whole = Allocation::uniform(5, 66);
        for (noise, part_of_gain) in [(0.0, 0.6), (0.005, 0.5)] {
            let mut plant = Synthetic::new(contended(shared_ms), noise, 7);
            let found = steady(&mut plant, &whole, 66, &SteadyOptions::default()).unwrap();
            let mut other = Synthetic::new(contended(shared_ms), noise, 7);
            let (theirs, _) = published(&mut other, &whole, 66, &PublishedOptions::default()).unwrap();
            let [default, ours, theirs_is] =
                [&whole, &found.allocation, &theirs.allocation].map(|allocation| plant.truth(allocation));
            assert!(ours - default >= part_of_gain * (theirs_is - default), "{default} {ours} {theirs_is}");
            assert!(ours > default * 1.2, "{shared_ms:?}: {default} {ours} {theirs_is}");
        }
    }
}

#[test]
fn what_is_flat_is_left_alone_in_few_trials() {
    let flat = Law {
        parts: [(); 5].map(|()| Part { fixed_ms: 3.0, shared_ms: 0.0, tpcs_max: 1 }).into(),
        contention: 0.0,
    };
    let whole = Allocation::uniform(5, 66);
    let mut plant = Synthetic::new(flat, 0.001, 3);
    let found = steady(&mut plant, &whole, 66, &SteadyOptions::default()).unwrap();
    assert_eq!(found.allocation, whole);
    // One for each component, three for all of them.
    assert!(found.candidates() <= 9, "{}", found.candidates());
}

#[test]
fn a_stage_that_needs_less_than_all_makes_room() {
    // A fifth of the GPU is of no use to the slow one, and all the others want is on it.
    let slow = Part { fixed_ms: 0.0, shared_ms: 500.0, tpcs_max: 40 };
    let quick = Part { fixed_ms: 0.0, shared_ms: 130.0, tpcs_max: 66 };
    let law = Law { parts: [quick, slow, quick].into(), contention: 1.0 };
    let whole = Allocation::uniform(3, 66);
    let mut plant = Synthetic::new(law, 0.0, 0);
    let found = steady(&mut plant, &whole, 66, &SteadyOptions::default()).unwrap();
    let gain = plant.truth(&found.allocation) / plant.truth(&whole);
    assert!(gain > 1.5, "{gain} with {}", found.allocation);
}

/// The two that stream are best apart from each other, and the one between them everywhere: what the model of the image chain measured at these allocations and, in
/// between, what lies nearest.
struct Apart {
    in_force: Allocation,
}

impl Objective for Apart {
    fn throughput(&mut self) -> Result<f64, Stop> {
        let tpcs = self.in_force.tpcs();
        let apart = tpcs[0] + tpcs[2] <= 66 && tpcs[1] > 60;
        let starved = tpcs[0].min(tpcs[2]).min(tpcs[1]) < 20;
        Ok(match (starved, apart) {
            (true, _) => 700.0,
            (false, true) => 1160.0,
            // The nearest that single steps lead to.
            (false, false) => 865.0 + 5.0 * f64::from(66 - tpcs[1].max(30)),
        })
    }
}

impl Actuator for Apart {
    fn apply(&mut self, allocation: &Allocation) -> Result<(), Stop> {
        self.in_force = allocation.clone();
        Ok(())
    }
}

#[test]
fn a_place_that_no_single_step_leads_to_is_found() {
    let whole = Allocation::uniform(3, 66);
    let mut plant = Apart { in_force: whole.clone() };
    let found = steady(&mut plant, &whole, 66, &SteadyOptions::default()).unwrap();
    assert_eq!(plant.throughput().unwrap(), 1160.0, "{}", found.allocation);
    assert_eq!(plant.in_force, found.allocation);
}
