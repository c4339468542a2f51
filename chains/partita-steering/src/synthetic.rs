//! Chains for tests: throughput as a formula of the allocation, with noise, and with changes.

use std::vec::Vec;

use proptest::prelude::*;

use super::{Actuator, Allocation, Objective, Stop, place};
use crate::testing::h200;
use partita_core::Topology;

/// A component by Amdahl's law: a time that no TPC shortens, a time that TPCs share, and a largest
/// number of TPCs.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub fixed_ms: f64,
    pub shared_ms: f64,
    pub tpcs_max: u32,
}

/// A formula of a chain's throughput.
#[derive(Clone, Debug)]
pub struct Law {
    pub parts: Vec<Part>,
    /// A TPC's loss by each further component that may use it: 0 for nothing, 1 for the part that
    /// the component takes if it always runs.
    pub contention: f64,
}

impl Law {
    /// Frames per second.
    pub fn throughput(&self, topology: &Topology, allocation: &Allocation) -> f64 {
        let sets = place(topology, topology.all(), allocation);
        let slowest_ms = self.parts.iter().zip(&sets).map(|(part, set)| {
            let useful = set.iter().map(|tpc| {
                let others = sets.iter().filter(|other| other.contains(tpc)).count() - 1;
                1.0 / (1.0 + self.contention * others as f64)
            });
            let most = f64::from(part.tpcs_max);
            part.fixed_ms + part.shared_ms / useful.sum::<f64>().min(most)
        });
        1_000.0 / slowest_ms.fold(0.0, f64::max)
    }
}

/// A chain with one law, and another one from some period on.
#[derive(Clone, Debug)]
pub struct Synthetic {
    pub topology: Topology,
    /// The laws with their first periods, in order; the first from 0.
    pub laws: Vec<(usize, Law)>,
    /// Standard deviation of a measurement, relative.
    pub noise: f64,
    pub random: u64,
    pub in_force: Allocation,
    /// The allocation of each period, and its true throughput.
    pub history: Vec<(Allocation, f64)>,
}

impl Synthetic {
    pub fn new(law: Law, noise: f64, seed: u64) -> Self {
        let topology = h200();
        let in_force = Allocation::uniform(law.parts.len(), topology.tpc_count());
        let laws = Vec::from([(0, law)]);
        Self { topology, laws, noise, random: seed, in_force, history: Vec::new() }
    }

    pub fn starting_with(self, in_force: &Allocation) -> Self {
        Self { in_force: in_force.clone(), ..self }
    }

    /// The present law.
    pub fn law(&self) -> &Law {
        let now = self.history.len();
        &self.laws.iter().rev().find(|(from, _)| *from <= now).unwrap_or(&self.laws[0]).1
    }

    /// The present true throughput of an allocation.
    pub fn truth(&self, allocation: &Allocation) -> f64 {
        self.law().throughput(&self.topology, allocation)
    }

    /// Nearly normal, with a standard deviation of 1: the sum of twelve uniform ones.
    fn normal(&mut self) -> f64 {
        let mut sum = -6.0;
        for _ in 0..12 {
            self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            sum += (self.random >> 11) as f64 / (1_u64 << 53) as f64;
        }
        sum
    }
}

impl Objective for Synthetic {
    fn throughput(&mut self) -> Result<f64, Stop> {
        let truth = self.truth(&self.in_force);
        self.history.push((self.in_force.clone(), truth));
        Ok(truth * (1.0 + self.noise * self.normal()).max(0.0))
    }
}

impl Actuator for Synthetic {
    fn apply(&mut self, allocation: &Allocation) -> Result<(), Stop> {
        self.in_force = allocation.clone();
        Ok(())
    }
}

/// Laws of one to six components: some limited by TPCs and some not, several alike, with and
/// without contention.
pub fn laws() -> impl Strategy<Value = Law> {
    let part = (0.0..2.0, prop_oneof![1.0..40.0, 40.0..400.0], 1..=66_u32)
        .prop_map(|(fixed_ms, shared_ms, tpcs_max)| Part { fixed_ms, shared_ms, tpcs_max });
    (prop::collection::vec(part, 1..=6), prop_oneof![Just(0.0), 0.0..1.0])
        .prop_map(|(parts, contention)| Law { parts, contention })
}

/// Allocations for this many components.
pub fn allocations(components: usize) -> impl Strategy<Value = Allocation> {
    prop::collection::vec(1..=66_u32, components).prop_map(|tpcs| Allocation::new(tpcs).expect("no zeros"))
}
