//! The throughput of the best allocation, by trial, and an upper bound.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use partita_core::TpcSet;
use partita_sim::{DeviceSpec, Footprint, KernelWork};
use partita_steering::{Actuator, Allocation, Stop, ladder, place};

use super::run::{ChainOptions, ModelChain};

/// A chain on a device, run under one allocation after the other: each time a new chain, so that no
/// state of one is left in the other.
#[derive(Debug, Clone)]
pub struct Rig {
    pub spec: DeviceSpec,
    /// A kernel for each component.
    pub kernels: Vec<KernelWork>,
    pub options: ChainOptions,
}

/// Frames before the measurement.
const WARM_UP: u64 = 20;
/// Frames of a look at one of many allocations.
const SHORT: u64 = 40;
/// Frames of each run of a measurement that is reported.
const LONG: u64 = 100;
/// Rounds of them: in each, every component is disturbed once. Further ones follow until the
/// standard error is [`ERROR`].
const ROUNDS: RangeInclusive<usize> = 3..=12;
/// The sufficient standard error, as a part of the mean.
const ERROR: f64 = 0.005;
/// The seed for the length of blocks when allocations are judged.
const JUDGE_SEED: u64 = 99;
/// And when one of many is chosen: the largest of many numbers is partly chance, so the chosen one
/// is judged by other runs.
const CHOICE_SEED: u64 = 10_099;
/// Allocations that looked best and are run after every disturbance.
const SECOND_LOOKS: usize = 40;
/// And those of them with a run as long as in the report.
const CHOICES: usize = 12;

impl Rig {
    /// All components on the whole GPU: default MPS.
    pub fn whole(&self) -> Allocation {
        Allocation::uniform(self.kernels.len(), self.spec.tpc_count())
    }

    /// The running chain under an allocation.
    ///
    /// # Errors
    /// A chain that stands still.
    pub fn started(&self, allocation: &Allocation, seed: u64) -> Result<ModelChain, Stop> {
        let all = self.spec.topology.all();
        let mut chain = ModelChain::new(&self.spec, all, self.kernels.clone(), self.options, seed);
        chain.apply(allocation)?;
        chain.run_frames(WARM_UP)?;
        Ok(chain)
    }

    /// Throughput under an allocation, in frames per second: the mean of three to twelve runs for
    /// each component, until the standard error is half a per cent.
    ///
    /// Components that wait for each other may fall into one rhythm or another and stay in it,
    /// whatever the allocation: with short kernels the same one is up to a tenth faster after one
    /// start than after another. So each run starts with blocks of other lengths and after another
    /// disturbance, in which one component had a fifth of the TPCs, each component equally often.
    ///
    /// # Errors
    /// A chain that stands still.
    pub fn judge(&self, allocation: &Allocation) -> Result<f64, Stop> {
        self.mean_of_runs(allocation, JUDGE_SEED, ROUNDS)
    }

    fn mean_of_runs(
        &self,
        allocation: &Allocation,
        seed: u64,
        rounds: RangeInclusive<usize>,
    ) -> Result<f64, Stop> {
        let components = self.kernels.len();
        // The runs after each component's disturbance: their sum, and that of their squares.
        let mut sums = vec![(0.0, 0.0); components];
        let mut mean = 0.0;
        for round in 1..=*rounds.end() {
            for (component, (sum, squares)) in sums.iter_mut().enumerate() {
                let disturbed = allocation.with(component, self.spec.tpc_count() / 5);
                let mut chain = self.started(&disturbed, seed + (round * components + component) as u64)?;
                chain.apply(allocation)?;
                chain.run_frames(3 * WARM_UP)?;
                let rate = chain.run_frames(LONG)?;
                *sum += rate;
                *squares += rate * rate;
            }
            let runs = (round * components) as f64;
            mean = sums.iter().map(|(sum, _)| sum).sum::<f64>() / runs;
            let within = |(sum, squares): &(f64, f64)| (squares - sum * sum / round as f64).max(0.0);
            // A difference by the disturbance alone is not an error, as each counts equally.
            let variance = sums.iter().map(within).sum::<f64>() / (runs - components as f64);
            if rounds.contains(&round) && variance / runs <= (ERROR * mean).powi(2) {
                break;
            }
        }
        Ok(mean)
    }

    pub(super) fn look(&self, allocation: &Allocation) -> Result<f64, Stop> {
        self.started(allocation, JUDGE_SEED)?.run_frames(SHORT)
    }

    /// An upper bound of the throughput of any allocation with these sets, in frames per second, in
    /// whatever order blocks are placed.
    ///
    /// * A kernel takes at least as long as the blocks of its busiest SM, one after the other if
    ///   each needs the whole SM, otherwise as many at a time as fit; and as long as its bytes take
    ///   on the path to memory.
    /// * The SM time of any group of components is spent on the SMs that they have together.
    /// * All bytes pass through DRAM.
    ///
    /// Varying blocks count with their shortest length for a kernel alone, and with their mean,
    /// which sums of many are near, less a fifth of a per cent for groups.
    pub fn ceiling(&self, sets: &[TpcSet]) -> f64 {
        let sms_per_tpc = self.spec.topology.sms_per_tpc();
        let scheduler = &self.spec.scheduler;
        let memory = &self.spec.memory;
        let dram_bytes_per_ns =
            memory.bandwidth_bytes_per_s as f64 * f64::from(memory.reached_permille) / 1_000.0 / 1e9;
        let mut slowest_ns = 0.0_f64;
        for (kernel, set) in self.kernels.iter().zip(sets) {
            let sms = u64::from((set.len() * sms_per_tpc).max(1));
            let of_sm = kernel.grid_blocks.div_ceil(sms) as f64;
            let at_a_time =
                f64::from(Footprint::of(kernel, &self.spec.sm).blocks_per_sm(&self.spec.sm).max(1));
            let rounds = (of_sm * f64::from(kernel.sm_permille) / 1_000.0).max((of_sm / at_a_time).ceil());
            let shortest = kernel.block_ns as f64 * (1.0 - f64::from(kernel.jitter_permille) / 1_000.0);
            let way = (sms as f64 * memory.sm_bytes_per_s as f64 / 1e9).min(dram_bytes_per_ns);
            let bytes = kernel.grid_blocks as f64 * kernel.bytes_per_block as f64;
            let overhead = self.options.hand_over_ns + scheduler.launch_ns + scheduler.block_start_ns;
            slowest_ns = slowest_ns.max((rounds * shortest).max(bytes / way) + overhead as f64);
        }
        let vary = self.kernels.iter().any(|kernel| kernel.jitter_permille > 0);
        let sum = if vary { 0.998 } else { 1.0 };
        let work = |kernel: &KernelWork| {
            kernel.grid_blocks as f64 * kernel.block_ns as f64 * f64::from(kernel.sm_permille) / 1_000.0
        };
        for group in 1_u32..1 << sets.len() {
            let (mut union, mut work_ns) = (TpcSet::EMPTY, 0.0);
            for (i, set) in sets.iter().enumerate().filter(|(i, _)| group >> i & 1 == 1) {
                union |= *set;
                work_ns += work(&self.kernels[i]);
            }
            slowest_ns = slowest_ns.max(work_ns * sum / f64::from((union.len() * sms_per_tpc).max(1)));
        }
        let bytes: f64 =
            self.kernels.iter().map(|kernel| kernel.grid_blocks as f64 * kernel.bytes_per_block as f64).sum();
        1e9 / slowest_ns.max(bytes * sum / dram_bytes_per_ns)
    }
}

/// The best of the tried allocations.
#[derive(Debug, Clone)]
pub struct Oracle {
    pub allocation: Allocation,
    /// Its throughput, in frames per second.
    pub frames_per_s: f64,
    /// The upper bound, in frames per second.
    pub ceiling_frames_per_s: f64,
    /// Allocations that were run.
    pub run: usize,
    /// Allocations of the grid that were not run, because their ceiling is below an earlier result.
    pub excluded: usize,
}

/// Searches for the best allocation.
///
/// * Every combination of 20, 40, 60, 80 and 100 % for all components is run, except those whose
///   [`Rig::ceiling`] is below an earlier result: highest ceilings first, so that an omitted one
///   stays omitted. Over these portions the search is complete.
/// * From the best of them, and from `known` ones, every single component tries every portion of
///   [`ladder`] in turn, until that gains nothing more.
/// * The best forty of all are run after a disturbance of every component, the best dozen of these
///   and `known` as long as in the report, and the best of these counts: with its throughput in
///   separate runs.
///
/// # Errors
/// A chain that stands still.
pub fn oracle(rig: &Rig, known: &[Allocation]) -> Result<Oracle, Stop> {
    let tpcs = rig.spec.tpc_count();
    let portions = ladder(tpcs);
    let coarse: Vec<u32> = portions.iter().copied().skip(3).step_by(4).collect();
    let ceiling = |allocation: &Allocation| {
        rig.ceiling(&place(&rig.spec.topology, rig.spec.topology.all(), allocation))
    };
    let mut grid = combinations(&coarse, rig.kernels.len());
    let mut ceilings: Vec<(f64, Allocation)> = grid.drain(..).map(|one| (ceiling(&one), one)).collect();
    ceilings.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut found: Vec<(f64, Allocation)> = Vec::new();
    for allocation in known.iter().chain([&rig.whole()]) {
        found.push((rig.look(allocation)?, allocation.clone()));
    }
    let best = |found: &[(f64, Allocation)]| found.iter().map(|(rate, _)| *rate).fold(0.0, f64::max);
    let mut excluded = 0;
    for (ceiling, allocation) in ceilings {
        if ceiling <= best(&found) {
            excluded += 1;
        } else {
            found.push((rig.look(&allocation)?, allocation));
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut starts: Vec<Allocation> = found.iter().take(2).map(|(_, one)| one.clone()).collect();
    starts.extend(known.iter().cloned());
    for start in starts {
        refine(rig, start, &portions, &ceiling, &mut found)?;
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut seen = BTreeSet::new();
    found.retain(|(_, allocation)| seen.insert(allocation.clone()));
    let run = found.len();
    let mut choices = Vec::new();
    for (_, allocation) in found.into_iter().take(SECOND_LOOKS) {
        choices.push((rig.mean_of_runs(&allocation, CHOICE_SEED, 1..=1)?, allocation));
    }
    choices.sort_by(|a, b| b.0.total_cmp(&a.0));
    choices.truncate(CHOICES);
    choices.extend(known.iter().chain([&rig.whole()]).map(|one| (0.0, one.clone())));
    let mut top = (0.0, rig.whole());
    for (_, allocation) in choices {
        let rate = rig.mean_of_runs(&allocation, CHOICE_SEED, ROUNDS)?;
        if rate > top.0 {
            top = (rate, allocation);
        }
    }
    let allocation = top.1;
    let frames_per_s = rig.judge(&allocation)?;
    // More TPCs never lower a ceiling.
    let ceiling_frames_per_s = ceiling(&rig.whole());
    Ok(Oracle { allocation, frames_per_s, ceiling_frames_per_s, run, excluded })
}

/// Tries each portion for each component in turn, as long as that gains something.
fn refine(
    rig: &Rig,
    start: Allocation,
    portions: &[u32],
    ceiling: &impl Fn(&Allocation) -> f64,
    found: &mut Vec<(f64, Allocation)>,
) -> Result<(), Stop> {
    let mut at = (rig.look(&start)?, start);
    let mut asked = usize::MAX;
    for component in (0..rig.kernels.len()).cycle() {
        if component == asked {
            break;
        }
        let before = at.0;
        let base = at.1.clone();
        for &portion in portions {
            let allocation = base.with(component, portion);
            if ceiling(&allocation) <= at.0 {
                continue;
            }
            let rate = rig.look(&allocation)?;
            found.push((rate, allocation.clone()));
            if rate > at.0 {
                at = (rate, allocation);
            }
        }
        // Once more around from the last one that gained something.
        if at.0 > before * 1.000_5 || asked == usize::MAX {
            asked = component;
        }
    }
    Ok(())
}

/// Every combination of these numbers for so many components.
fn combinations(numbers: &[u32], components: usize) -> Vec<Allocation> {
    let mut all = vec![Vec::new()];
    for _ in 0..components {
        let longer = |one: &Vec<u32>| {
            let one = one.clone();
            numbers.iter().map(move |&number| [one.clone(), vec![number]].concat())
        };
        all = all.iter().flat_map(longer).collect();
    }
    all.into_iter().filter_map(|tpcs| Allocation::new(tpcs).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chains::{CHAIN_SETS, REGIMES};

    #[test]
    fn nothing_exceeds_the_ceiling() {
        for regime in &REGIMES[..2] {
            let spec = regime.spec().unwrap();
            for set in [CHAIN_SETS[0], CHAIN_SETS[4]] {
                let kernels = regime.kernels(&spec, &set);
                let rig = Rig { spec: spec.clone(), kernels, options: regime.options(5) };
                for tpcs in [[66; 5], [40, 60, 50, 7, 20], [13; 5], [3, 9, 66, 30, 66]] {
                    let allocation = Allocation::new(tpcs).unwrap();
                    let sets = place(&spec.topology, spec.topology.all(), &allocation);
                    let (rate, ceiling) = (rig.look(&allocation).unwrap(), rig.ceiling(&sets));
                    assert!(
                        rate <= ceiling * 1.001,
                        "{} {} at {allocation}: {rate}, {ceiling}",
                        regime.name,
                        set.name
                    );
                    assert!(
                        rate >= ceiling * 0.4,
                        "{} {} at {allocation}: {rate}, {ceiling}",
                        regime.name,
                        set.name
                    );
                }
            }
        }
    }

    #[test]
    fn every_combination_is_there_once() {
        let all = combinations(&[1, 2, 5], 3);
        let distinct: std::collections::BTreeSet<&Allocation> = all.iter().collect();
        assert_eq!((all.len(), distinct.len()), (27, 27));
    }
}
