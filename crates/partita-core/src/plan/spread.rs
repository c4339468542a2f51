//! The choice that lies as evenly over the GPCs as it can.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use crate::TpcSet;

/// What one GPC can give.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// What it gives in any case.
    pub least: u32,
    /// The most that it can give, at least `least`.
    pub most: u32,
}

/// How many TPCs each GPC gives so that they are `wanted` in all: one more from the GPC that gives
/// least so far, of several from that with most left over, of several from the first. `None` if
/// that many cannot be had, or fewer than `least` together are wanted.
///
/// A unit given anywhere costs the more the more is there already, so taking the cheapest each time
/// ends with the most even counts of all.
pub(super) fn level(bounds: &[Bounds], wanted: u32) -> Option<Vec<u32>> {
    let mut counts: Vec<u32> = bounds.iter().map(|gpc| gpc.least).collect();
    let given: u32 = counts.iter().sum();
    for _ in 0..wanted.checked_sub(given)? {
        let open = (0..counts.len()).filter(|&i| counts[i] < bounds[i].most);
        let next = open.min_by_key(|&i| (counts[i], u32::MAX - (bounds[i].most - counts[i])))?;
        counts[next] += 1;
    }
    Some(counts)
}

/// `wanted` TPCs of `usable`, those of `kept` (a part of it) among them, spread over `gpcs`.
pub(super) fn spread(
    gpcs: impl Iterator<Item = TpcSet> + Clone,
    kept: TpcSet,
    usable: TpcSet,
    wanted: u32,
) -> Option<TpcSet> {
    let bounds: Vec<Bounds> =
        gpcs.clone().map(|gpc| Bounds { least: (gpc & kept).len(), most: (gpc & usable).len() }).collect();
    let counts = level(&bounds, wanted)?;
    let parts = gpcs
        .zip(counts.iter().zip(&bounds))
        .map(|(gpc, (count, bounds))| (gpc & kept) | (gpc & (usable - kept)).lowest(count - bounds.least));
    Some(parts.fold(TpcSet::EMPTY, |set, part| set | part))
}
