use proptest::prelude::*;
use std::vec::Vec;

use super::*;
use crate::synthetic::{Law, Part, Synthetic, laws};
use crate::{Actuator, Objective};

/// A chain of three: the slow one needs 40 TPCs for itself, and the others compete with it.
fn law(slow_ms: f64) -> Law {
    let slow = Part { fixed_ms: 0.0, shared_ms: slow_ms, tpcs_max: 40 };
    let quick = Part { fixed_ms: 0.0, shared_ms: 130.0, tpcs_max: 66 };
    Law { parts: [quick, slow, quick].into(), contention: 1.0 }
}

fn controller(components: usize) -> Controller {
    Controller::new(
        Allocation::uniform(components, 66),
        Room::one(components, 66),
        ControllerOptions::default(),
    )
}

fn run(controller: &mut Controller, plant: &mut Synthetic, until: usize) {
    while plant.history.len() < until {
        controller.step(plant).unwrap();
        assert_eq!(controller.periods(), plant.history.len() as u64);
        assert_eq!(controller.in_force(), &plant.in_force);
    }
}

fn count(controller: &Controller, name: &str) -> usize {
    controller.records().filter(|record| record.what.name() == name).count()
}

#[test]
fn it_searches_once_and_rests() {
    let mut plant = Synthetic::new(law(500.0), 0.005, 1);
    let mut controller = controller(3);
    run(&mut controller, &mut plant, 600);
    assert_eq!(count(&controller, "search"), 1);
    let what = &controller.records().next().unwrap().what;
    let Happening::Search { before, after, before_frames_per_s, .. } = what else {
        panic!("{what:?}");
    };
    assert_eq!((before, after), (&Allocation::uniform(3, 66), controller.in_force()));
    assert!(plant.truth(after) > 1.5 * plant.truth(before));
    assert!((before_frames_per_s / plant.truth(before) - 1.0).abs() < 0.05);
    let level = controller.level_frames_per_s().unwrap();
    assert!((level / plant.truth(after) - 1.0).abs() < 0.05);
}

#[test]
fn what_goes_away_causes_nothing_and_what_stays_a_search() {
    let mut plant = Synthetic::new(law(500.0), 0.0, 1);
    plant.laws.extend([(200, law(800.0)), (204, law(500.0)), (300, law(800.0))]);
    let mut controller = controller(3);
    run(&mut controller, &mut plant, 290);
    assert_eq!(["search", "deviation", "shift"].map(|name| count(&controller, name)), [1, 1, 0]);
    let deviation = controller.records().next_back().unwrap();
    assert!(matches!(deviation.what, Happening::Deviation { periods: 4, .. }), "{deviation:?}");
    assert_eq!(deviation.period, 205);
    run(&mut controller, &mut plant, 600);
    assert_eq!(["search", "deviation", "shift"].map(|name| count(&controller, name)), [2, 1, 1]);
    let shift = controller.records().find(|record| record.what.name() == "shift").unwrap();
    assert_eq!(shift.period, 305);
}

/// The throughput alternates for ever, each half long enough to be a shift.
#[test]
fn a_chain_that_swings_is_not_searched_at_every_swing() {
    let mut plant = Synthetic::new(law(500.0), 0.002, 1);
    for swing in 0..200 {
        plant.laws.push((100 + 30 * swing, law(if swing % 2 == 0 { 800.0 } else { 500.0 })));
    }
    let mut controller = controller(3);
    run(&mut controller, &mut plant, 6_000);
    assert!(count(&controller, "shift") > 50);
    // Rests of 20, 40, … 1280 periods.
    assert!(count(&controller, "search") <= 12, "{}", count(&controller, "search"));
}

#[test]
fn what_turns_out_badly_is_taken_back_in_the_second_period() {
    let mut plant = Synthetic::new(law(500.0), 0.0, 1);
    let mut controller = controller(3);
    while count(&controller, "search") == 0 {
        controller.step(&mut plant).unwrap();
    }
    assert_ne!(*controller.in_force(), Allocation::uniform(3, 66));
    // From now on the component that the search restricted needs most.
    let worse = Law {
        parts: [130.0, 3_000.0, 130.0]
            .map(|shared_ms| Part { fixed_ms: 0.0, shared_ms, tpcs_max: 66 })
            .into(),
        contention: 0.0,
    };
    let now = plant.history.len();
    plant.laws.push((now + 3, worse));
    run(&mut controller, &mut plant, now + 5);
    let last = controller.records().next_back().unwrap();
    assert_eq!((last.period, last.what.name()), (now as u64 + 5, "rollback"));
    assert_eq!(*controller.in_force(), Allocation::uniform(3, 66));
    // After its rest it searches again, as the chain has changed.
    run(&mut controller, &mut plant, now + 200);
    assert_eq!(count(&controller, "search"), 2);
}

/// A search with a result worse than the former allocation.
#[test]
fn the_published_algorithm_is_guarded() {
    /// Any restriction of the first three costs half, and the paper's start restricts them; no
    /// single step back helps.
    struct Punishes(Allocation);
    impl Objective for Punishes {
        fn throughput(&mut self) -> Result<f64, Stop> {
            let [first, second, third, last] = *self.0.tpcs() else { unreachable!() };
            let slow = if first.min(second).min(third) < 66 { 50.0 } else { 100.0 };
            Ok(if last < 10 { 5.0 } else { slow })
        }
    }
    impl Actuator for Punishes {
        fn apply(&mut self, allocation: &Allocation) -> Result<(), Stop> {
            self.0 = allocation.clone();
            Ok(())
        }
    }
    let whole = Allocation::uniform(4, 66);
    let mut plant = Punishes(whole.clone());
    let algorithm = Algorithm::Published(PublishedOptions::default());
    let options = ControllerOptions { algorithm, ..ControllerOptions::default() };
    let mut controller = Controller::new(whole.clone(), Room::one(whole.components(), 66), options);
    while count(&controller, "search") == 0 {
        controller.step(&mut plant).unwrap();
    }
    assert_ne!(plant.0, whole);
    let after = controller.periods();
    while count(&controller, "rollback") == 0 {
        controller.step(&mut plant).unwrap();
    }
    assert_eq!(controller.periods(), after + 2);
    assert_eq!(plant.0, whole);
}

#[test]
fn a_chain_that_stands_still_is_not_searched() {
    struct Still(u32);
    impl Objective for Still {
        fn throughput(&mut self) -> Result<f64, Stop> {
            Ok(0.0)
        }
    }
    impl Actuator for Still {
        fn apply(&mut self, _: &Allocation) -> Result<(), Stop> {
            self.0 += 1;
            Ok(())
        }
    }
    let mut plant = Still(0);
    let mut controller = controller(4);
    for _ in 0..500 {
        assert_eq!(controller.step(&mut plant), Ok(0.0));
    }
    assert_eq!((plant.0, controller.records().count()), (0, 0));
}

#[test]
fn records_are_forgotten_in_order() {
    let options = ControllerOptions { records_max: 3, shift_periods: 1, ..ControllerOptions::default() };
    let mut plant = Synthetic::new(law(500.0), 0.0, 1);
    plant.laws.extend((0..20).map(|i| (100 + 30 * i, law(if i % 2 == 0 { 800.0 } else { 500.0 }))));
    let mut controller = Controller::new(Allocation::uniform(3, 66), Room::one(3, 66), options);
    run(&mut controller, &mut plant, 800);
    let periods: Vec<u64> = controller.records().map(|record| record.period).collect();
    assert!(periods.len() == 3 && periods.is_sorted(), "{periods:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the chain does: only as many searches as shifts and rollbacks cause, separated by
    /// the rests.
    #[test]
    fn searches_have_reasons(
        first in laws(),
        noise in 0.0..0.02,
        shifts in prop::collection::vec((20..800_usize, 0.2..5.0), 0..8),
        seed: u64,
    ) {
        let components = first.parts.len();
        let mut plant = Synthetic::new(first.clone(), noise, seed);
        for &(from, factor) in &shifts {
            let parts = first.parts.iter().map(|part| Part { shared_ms: part.shared_ms * factor, ..*part });
            plant.laws.push((from, Law { parts: parts.collect(), ..first }));
        }
        plant.laws.sort_by_key(|(from, _)| *from);
        let mut controller = controller(components);
        run(&mut controller, &mut plant, 1_200);
        let [searches, shifts, rollbacks] = ["search", "shift", "rollback"].map(|name| count(&controller, name));
        prop_assert!(searches >= 1 && searches <= 1 + shifts + rollbacks);
        let mut rested_from = None;
        for record in controller.records() {
            if let Happening::Search { periods, .. } = record.what {
                let began = record.period - periods;
                prop_assert!(rested_from.is_none_or(|ended| began >= ended + 20), "{:?}", rested_from);
                rested_from = Some(record.period);
            }
        }
    }
}
