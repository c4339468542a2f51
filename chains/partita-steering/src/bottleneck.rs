//! Which components a chain's throughput depends on: section 3.1.1 of the paper.

use alloc::vec::Vec;

use super::trial::{Purpose, Trials};
use super::{Allocation, Plant, Stop, ladder};

/// How bottlenecks are told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BottleneckOptions {
    /// What all components have together while one after the other is restricted, in per cent of
    /// the chain's TPCs: the paper's R_SM, 200.
    pub together_percent: u32,
    /// A component is a bottleneck if restricting it costs more than this part of the throughput.
    pub threshold: f64,
}

impl Default for BottleneckOptions {
    /// 200 %, as in the paper, and a half: it speaks of a predefined threshold and names none. A
    /// component whose time falls as its TPCs grow takes eight times as long on 5 % as on its 40 %
    /// (of five components); the chain loses more than half if that is twice the slowest one's
    /// time. So bottlenecks are those that take more than a quarter as long as the slowest: in the
    /// paper's sets of larger load that makes several, as it says.
    fn default() -> Self {
        Self { together_percent: 200, threshold: 0.5 }
    }
}

/// What was found out about the components.
#[derive(Clone, Debug, PartialEq)]
pub struct Bottlenecks {
    /// The part of the throughput that each component's restriction costs, 0 to 1; below 0 where
    /// the chain was faster.
    pub losses: Vec<f64>,
    /// The bottlenecks, at least one, in the chain's order.
    pub components: Vec<usize>,
    /// Throughput with equal parts, in frames per second.
    pub equal_frames_per_s: f64,
}

/// The equal part of each of so many components: R_eq1 = R_SM / N, in TPCs, no more than there are.
#[must_use]
pub fn equal_part(components: usize, tpcs: u32, options: &BottleneckOptions) -> Allocation {
    let components = components.max(1);
    let part = u64::from(tpcs) * u64::from(options.together_percent) / (100 * components as u64);
    Allocation::uniform(components, u32::try_from(part).unwrap_or(tpcs).clamp(1, tpcs.max(1)))
}

/// Finds the bottlenecks of a chain on which `in_force` is in force, of so many TPCs; afterwards
/// `in_force` is in force again.
///
/// # Errors
/// Why the search was stopped.
pub fn find_bottlenecks<P: Plant + ?Sized>(
    plant: &mut P,
    in_force: &Allocation,
    tpcs: u32,
    settle_periods: u32,
    options: &BottleneckOptions,
) -> Result<Bottlenecks, Stop> {
    let mut trials = Trials::new(plant, in_force, settle_periods);
    let found = search(&mut trials, in_force.components(), tpcs, options);
    // What was in force comes back even where the search was stopped; why it was stopped is the
    // better answer.
    let back = trials.apply(in_force);
    let found = found?;
    back.map(|()| found)
}

/// Gives all components equal parts, restricts each in turn to the smallest portion of [`ladder`],
/// and compares.
///
/// The paper says that a component is restricted strongly, not how much: the smallest portion is as
/// strongly as its portions go. More than one component may be beyond the threshold (the paper
/// speaks of several bottlenecks in its larger chains); if none is, the one that costs most is
/// taken, since the throughput of a chain always depends on one. At the end the equal parts are in
/// force again.
pub(super) fn search<P: Plant + ?Sized>(
    trials: &mut Trials<'_, P>,
    components: usize,
    tpcs: u32,
    options: &BottleneckOptions,
) -> Result<Bottlenecks, Stop> {
    let equal = equal_part(components, tpcs, options);
    let before = trials.measure(&equal, Purpose::Reference)?;
    let smallest = ladder(tpcs)[0];
    let mut losses = Vec::with_capacity(components);
    for component in 0..components {
        let restricted = equal.with(component, smallest);
        let after = trials.measure(&restricted, Purpose::Restriction { component })?;
        losses.push(if before > 0.0 { 1.0 - after / before } else { 0.0 });
    }
    trials.apply(&equal)?;
    let mut found: Vec<usize> = (0..components).filter(|&i| losses[i] > options.threshold).collect();
    if found.is_empty() {
        // The first of those that cost most.
        found.extend((0..components).rev().max_by(|&a, &b| losses[a].total_cmp(&losses[b])));
    }
    Ok(Bottlenecks { losses, components: found, equal_frames_per_s: before })
}
