use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use super::*;
use crate::trial::Trial;
use crate::{Actuator, Objective};

/// A chain whose throughput is an exact function of its allocation.
struct Exact<F> {
    of: F,
    in_force: Allocation,
}

impl<F: Fn(&[u32]) -> f64> Exact<F> {
    fn new(in_force: Allocation, of: F) -> Self {
        Self { of, in_force }
    }
}

impl<F: Fn(&[u32]) -> f64> Objective for Exact<F> {
    fn throughput(&mut self) -> Result<f64, Stop> {
        Ok((self.of)(self.in_force.tpcs()))
    }
}

impl<F> Actuator for Exact<F> {
    fn apply(&mut self, allocation: &Allocation) -> Result<(), Stop> {
        self.in_force = allocation.clone();
        Ok(())
    }
}

fn allocations(trials: &[Trial]) -> Vec<Vec<u32>> {
    trials.iter().map(|trial| trial.allocation.tpcs().to_vec()).collect()
}

/// Ten TPCs, so ten portions of 1 to 10 (5 % is below one TPC), and three components: the middle
/// one is the bottleneck, the others have R_C = 50 %.
#[test]
fn an_example_worked_by_hand_line_by_line() {
    let whole = Allocation::uniform(3, 10);
    // The first is best with 8 TPCs, the last with 3. In hundredths, to be exact.
    let first = [20, 30, 40, 50, 60, 70, 80, 100, 98, 96];
    let last = [94, 97, 100, 99, 98, 97, 96, 95, 94, 93];
    let throughput = move |tpcs: &[u32]| {
        if tpcs[1] < 10 {
            // The search for bottlenecks: equal parts of 200 % / 3, which are 6 TPCs.
            return if tpcs[1] == 1 { 10.0 } else { 60.0 };
        }
        f64::from(first[tpcs[0] as usize - 1] * last[tpcs[2] as usize - 1]) / 100.0
    };
    let mut plant = Exact::new(whole.clone(), throughput);
    let options = PublishedOptions { settle_periods: 0, ..PublishedOptions::default() };
    let (found, bottlenecks) =
        published(&mut plant, &whole, &Room::one(whole.components(), 10), &options).unwrap();

    // 3.1.1: equal parts, then each component on the smallest portion; the middle one
    // costs 50 of 60.
    assert_eq!(allocations(&found.trials[..4]), [[6, 6, 6], [1, 6, 6], [6, 1, 6], [6, 6, 1]]);
    assert_eq!(bottlenecks.components, [1]);
    assert_eq!(bottlenecks.losses, [0.0, 1.0 - 10.0 / 60.0, 0.0]);
    // 3.1.2: the bottleneck has all, the others 50 % each. performance = 60 × 98 / 100 = 58.8,
    // D_thr = 2 % of it: better means above 59.976.
    assert_eq!(found.trials[4].allocation.tpcs(), [5, 10, 5]);
    let firsts = [
        // 8 to 12: C_min = 1, C_max = 10, C_RC = 5; C_A = 10 gives 94.08, which is better.
        // 14 and 15: portions below 5 go (5 and 10 were measured); 6 7 8 9 remain, C_A = mid = 7.
        (10, 94.08),
        // 20: 78.4, better. 22 and 23: portions below 7 go; 8 9 remain, C_A = 8.
        (7, 78.4),
        // 20: 98, better. 22 and 23: 9 remains, C_A = 9.
        (8, 98.0),
        // 20: 96.04, better. The list is empty. The highest was measured with 8.
        (9, 96.04),
    ];
    for (trial, (portion, frames_per_s)) in found.trials[5..9].iter().zip(firsts) {
        assert_eq!(trial.allocation.tpcs(), [portion, 10, 5]);
        assert!((trial.frames_per_s - frames_per_s).abs() < 1e-9, "{trial:?}");
    }
    // The last component. performance = 98 now, better means above 99.96.
    let lasts = [
        // 11 and 12: C_A = 10 gives 93, not better. 17 and 18: portions above C_RC = 5 go; 1 2 3 4
        // remain, C_A = 2.
        (10, 93.0),
        // 20: 97, not better. 25 and 26: portions above 2 go; 1 remains.
        (2, 97.0),
        // 20: 94. The list is empty: of 5 (98), 10, 2 and 1 it keeps 5, and never tried 3.
        (1, 94.0),
    ];
    for (trial, (portion, frames_per_s)) in found.trials[9..].iter().zip(lasts) {
        assert_eq!(trial.allocation.tpcs(), [8, 10, portion]);
        assert!((trial.frames_per_s - frames_per_s).abs() < 1e-9, "{trial:?}");
    }
    assert_eq!(found.trials.len(), 12);
    assert_eq!(found.periods, 12);
    assert_eq!(found.allocation.tpcs(), [8, 10, 5]);
    assert_eq!(found.frames_per_s, 98.0);
    assert_eq!(plant.in_force, found.allocation);
}

#[test]
fn it_ends_after_as_many_trials_as_the_paper_says() {
    // For any answers: N_C components of at most ⌊log₂ 20⌋ + 1 rounds and the largest portion, N +
    // 1 trials before, and one of the start.
    for seed in 0..200_u64 {
        let whole = Allocation::uniform(5, 66);
        let answer = move |tpcs: &[u32]| {
            let mixed = tpcs.iter().fold(seed + 1, |mixed, &tpcs| {
                (mixed ^ u64::from(tpcs)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
            });
            100.0 + (mixed % 1_000) as f64 / 10.0
        };
        let mut plant = Exact::new(whole.clone(), answer);
        let (found, _) =
            published(&mut plant, &whole, &Room::one(whole.components(), 66), &PublishedOptions::default())
                .unwrap();
        assert!(found.trials.len() <= 6 + 1 + 4 * (1 + 5), "{}", found.trials.len());
        // No allocation of a component is measured twice.
        let mut seen = BTreeMap::new();
        for trial in &found.trials[6..] {
            *seen.entry(trial.allocation.clone()).or_insert(0) += 1;
        }
        assert!(seen.values().all(|&times| times == 1), "{seen:?}");
    }
}

#[test]
fn where_all_are_bottlenecks_all_have_everything() {
    let whole = Allocation::uniform(2, 66);
    let slowest = |tpcs: &[u32]| f64::from(*tpcs.iter().min().unwrap());
    let mut plant = Exact::new(Allocation::uniform(2, 7), slowest);
    let (found, bottlenecks) =
        published(&mut plant, &whole, &Room::one(whole.components(), 66), &PublishedOptions::default())
            .unwrap();
    assert_eq!(bottlenecks.components, vec![0, 1]);
    assert_eq!(found.allocation, whole);
}

#[test]
fn one_that_is_stopped_leaves_what_there_was() {
    struct Stops(Allocation, u32);
    impl Objective for Stops {
        fn throughput(&mut self) -> Result<f64, Stop> {
            self.1 -= 1;
            if self.1 == 0 { Err(Stop::Asked) } else { Ok(5.0) }
        }
    }
    impl Actuator for Stops {
        fn apply(&mut self, allocation: &Allocation) -> Result<(), Stop> {
            self.0 = allocation.clone();
            Ok(())
        }
    }
    let before = Allocation::new([4, 6, 50]).unwrap();
    // Equal throughputs: the first counts as the bottleneck, and the others are tried on 100, 25,
    // 10 and 5 %.
    for periods in 1..20 {
        let mut plant = Stops(before.clone(), periods);
        assert_eq!(
            published(&mut plant, &before, &Room::one(before.components(), 66), &PublishedOptions::default()),
            Err(Stop::Asked)
        );
        assert_eq!(plant.0, before);
    }
}
