use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

use super::*;
use crate::synthetic::{Law, Part, laws};
use crate::testing::h200;
use crate::trial::{Purpose, Trial};
use crate::{Actuator, Objective, PublishedOptions, SteadyOptions, Stop, place, published, steady};
use partita_core::{Topology, TpcSet};

/// A chain on several GPUs of one kind: a law for the components of each.
struct OnSeveral {
    room: Room,
    laws: Vec<Law>,
    topology: Topology,
    in_force: Allocation,
    /// Every allocation that was applied.
    applied: Vec<Allocation>,
}

impl OnSeveral {
    /// The components of each GPU follow each other in the chain.
    fn new(laws: &[Law]) -> Self {
        let topology = h200();
        let of: Vec<usize> =
            laws.iter().enumerate().flat_map(|(gpu, law)| law.parts.iter().map(move |_| gpu)).collect();
        let room = Room::new(vec![topology.tpc_count(); laws.len()], of).unwrap();
        let in_force = room.whole();
        Self { room, laws: laws.to_vec(), topology, in_force, applied: Vec::new() }
    }

    /// Frames per second: the slowest GPU's.
    fn truth(&self, allocation: &Allocation) -> f64 {
        let parts = self.room.parts(allocation);
        parts.map(|(gpu, _, part)| self.laws[gpu].throughput(&self.topology, &part)).fold(f64::MAX, f64::min)
    }
}

impl Objective for OnSeveral {
    fn throughput(&mut self) -> Result<f64, Stop> {
        Ok(self.truth(&self.in_force))
    }
}

impl Actuator for OnSeveral {
    fn apply(&mut self, allocation: &Allocation) -> Result<(), Stop> {
        self.in_force = allocation.clone();
        self.applied.push(allocation.clone());
        Ok(())
    }
}

/// The GPUs whose components have other numbers.
fn changed(room: &Room, one: &Allocation, other: &Allocation) -> Vec<usize> {
    let pairs = room.parts(one).zip(room.parts(other));
    pairs.filter(|((.., a), (.., b))| a != b).map(|((gpu, ..), _)| gpu).collect()
}

fn grows(from: &Allocation, to: &Allocation) -> bool {
    from.tpcs().iter().zip(to.tpcs()).all(|(from, to)| to >= from)
}

/// Each candidate is a step from an allocation that was measured before it: of one GPU's
/// components, or of several components in one direction. The whole GPUs are one too.
fn assert_steps(room: &Room, trials: &[Trial]) {
    for (at, trial) in trials.iter().enumerate() {
        let is_step = |before: &Trial| {
            changed(room, &before.allocation, &trial.allocation).len() <= 1
                || grows(&before.allocation, &trial.allocation)
                || grows(&trial.allocation, &before.allocation)
        };
        let is_candidate = trial.purpose == Purpose::Candidate && trial.allocation != room.whole();
        assert!(!is_candidate || trials[..at].iter().any(is_step), "{trial:?}");
    }
}

/// Rooms of one to three GPUs.
fn rooms() -> impl Strategy<Value = Room> {
    prop::collection::vec(1..=66_u32, 1..=3).prop_flat_map(|gpus| {
        let of = prop::collection::vec(0..gpus.len(), 1..=6);
        of.prop_map(move |of| Room::new(gpus.clone(), of).unwrap())
    })
}

proptest! {
    #[test]
    fn parts_are_the_whole_and_no_component_has_more_than_its_gpu(
        room in rooms(),
        tpcs in prop::collection::vec(1..=100_u32, 6),
    ) {
        let allocation = Allocation::new(&tpcs[..room.components()]).unwrap();
        let mut seen = Vec::new();
        for (gpu, group, part) in room.parts(&allocation) {
            for (at, component) in group.into_iter().enumerate() {
                prop_assert_eq!(part.tpcs()[at], tpcs[component].min(room.tpcs(component)));
                prop_assert_eq!(room.tpcs(component), room.gpus[gpu]);
                seen.push(component);
            }
        }
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..room.components()).collect::<Vec<_>>());
    }

    #[test]
    fn a_change_on_one_gpu_moves_no_tpc_of_another(
        room in rooms(),
        tpcs in prop::collection::vec(1..=66_u32, 6),
        component in 0..6_usize,
        then in 1..=66_u32,
    ) {
        let component = component % room.components();
        let before = Allocation::new(&tpcs[..room.components()]).unwrap();
        let after = before.with(component, then);
        let (topology, set) = (h200(), |gpu: usize| h200().all().iter().take(room.gpus[gpu] as usize).collect::<TpcSet>());
        for ((gpu, group, was), (.., is)) in room.parts(&before).zip(room.parts(&after)) {
            if !group.contains(&component) {
                prop_assert_eq!(place(&topology, set(gpu), &was), place(&topology, set(gpu), &is));
            }
        }
    }

    #[test]
    fn searches_on_several_gpus_step_on_one_at_a_time_and_end_no_worse(
        laws in prop::collection::vec(laws(), 1..=3),
    ) {
        let mut plant = OnSeveral::new(&laws);
        let room = plant.room.clone();
        let whole = room.whole();
        let found = steady(&mut plant, &whole, &room, &SteadyOptions::default()).unwrap();
        assert_steps(&room, &found.trials);
        prop_assert!(plant.truth(&found.allocation) >= plant.truth(&whole) * (1.0 - 1e-9));
        prop_assert!(plant.applied.iter().all(|applied| *applied == room.within(applied)));
        prop_assert_eq!(&found.allocation, &plant.in_force);
        let mut plant = OnSeveral::new(&laws);
        published(&mut plant, &whole, &room, &PublishedOptions::default()).unwrap();
        prop_assert!(plant.applied.iter().all(|applied| *applied == room.within(applied)));
    }
}

/// Two components that compete: a quick one with a few TPCs, and one that needs many.
fn competing() -> Law {
    let part = |shared_ms, tpcs_max| Part { fixed_ms: 0.5, shared_ms, tpcs_max };
    Law { parts: Vec::from([part(300.0, 66), part(10.0, 66)]), contention: 1.0 }
}

#[test]
fn a_chain_gains_on_each_of_its_gpus() {
    let mut plant = OnSeveral::new(&[competing(), competing()]);
    let (room, whole) = (plant.room.clone(), plant.room.whole());
    let found = steady(&mut plant, &whole, &room, &SteadyOptions::default()).unwrap();
    for (gpu, _, part) in room.parts(&found.allocation) {
        let of = |part: &Allocation| plant.laws[gpu].throughput(&plant.topology, part);
        let all = Allocation::uniform(2, 66);
        assert!(of(&part) > of(&all) * 1.05, "GPU {gpu}: {part} of {}", found.allocation);
    }
    assert!(plant.truth(&found.allocation) > plant.truth(&whole) * 1.05);
}

#[test]
fn a_room_without_a_component_or_its_gpu_is_none() {
    assert_eq!(Room::new([66], []), None);
    assert_eq!(Room::new([66], [0, 1]), None);
    assert_eq!(Room::new([0], [0]).map(|room| room.tpcs(0)), Some(1));
    assert_eq!(Room::one(0, 0), Room::one(1, 1));
}
