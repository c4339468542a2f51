//! The components that limit a chain's throughput: section 3.1.1 of the paper.

use alloc::vec::Vec;

use super::trial::{Purpose, Trials};
use super::{Allocation, Plant, Room, Stop, ladder};

/// The criteria for bottlenecks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BottleneckOptions {
    /// The total of all components while each in turn is restricted, in per cent of the
    /// chain's TPCs on their GPU: the paper's R_SM, 200.
    pub together_percent: u32,
    /// A component is a bottleneck if restricting it costs more than this part of the throughput.
    pub threshold: f64,
}

impl Default for BottleneckOptions {
    /// 200 %, as in the paper, and a half: the paper mentions a predefined threshold without a
    /// number. A component whose time falls as its TPCs grow takes eight times as long on 5 % as on
    /// its 40 % (of five components); the chain loses more than half if that is twice the slowest
    /// one's time. So bottlenecks are those that take more than a quarter as long as the slowest:
    /// in the paper's sets of larger load that makes several, as it says.
    fn default() -> Self {
        Self { together_percent: 200, threshold: 0.5 }
    }
}

/// The findings about the components.
#[derive(Clone, Debug, PartialEq)]
pub struct Bottlenecks {
    /// The part of the throughput that each component's restriction costs, 0 to 1; negative if the
    /// chain was faster.
    pub losses: Vec<f64>,
    /// The bottlenecks, at least one, in the chain's order.
    pub components: Vec<usize>,
    /// Throughput with equal parts, in frames per second.
    pub equal_frames_per_s: f64,
}

/// The equal part of each component: R_eq1 = R_SM / N, in TPCs, at most all; N is the number of
/// components on its GPU.
#[must_use]
pub fn equal_part(room: &Room, options: &BottleneckOptions) -> Allocation {
    let mut parts = room.whole();
    for group in room.groups() {
        for &component in &group {
            let all = u64::from(room.tpcs(component)) * u64::from(options.together_percent);
            let part = u32::try_from(all / (100 * group.len() as u64)).unwrap_or(u32::MAX);
            parts = parts.with(component, part);
        }
    }
    room.within(&parts)
}

/// Finds the bottlenecks of a chain with the allocation `in_force` in this room, and restores
/// `in_force` afterwards.
///
/// # Errors
/// Why the search was stopped.
pub fn find_bottlenecks<P: Plant + ?Sized>(
    plant: &mut P,
    in_force: &Allocation,
    room: &Room,
    settle_periods: u32,
    options: &BottleneckOptions,
) -> Result<Bottlenecks, Stop> {
    let mut trials = Trials::new(plant, in_force, settle_periods);
    let found = search(&mut trials, room, options);
    // Restore the allocation even if the search was stopped, and return the first error.
    let back = trials.apply(in_force);
    let found = found?;
    back.map(|()| found)
}

/// Gives all components equal parts, restricts each in turn to the smallest portion of [`ladder`],
/// and compares.
///
/// The paper says that a component is restricted strongly, not how much: the smallest portion is
/// the strongest possible. More than one component may exceed the threshold (the paper mentions
/// several bottlenecks in its larger chains); if none does, the one that costs most is chosen,
/// since the throughput of a chain always depends on one. At the end the equal parts are in force
/// again.
pub(super) fn search<P: Plant + ?Sized>(
    trials: &mut Trials<'_, P>,
    room: &Room,
    options: &BottleneckOptions,
) -> Result<Bottlenecks, Stop> {
    let components = room.components();
    let equal = equal_part(room, options);
    let before = trials.measure(&equal, Purpose::Reference)?;
    let mut losses = Vec::with_capacity(components);
    for component in 0..components {
        let restricted = equal.with(component, ladder(room.tpcs(component))[0]);
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
