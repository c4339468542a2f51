//! The most even choice over the GPCs.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use crate::TpcSet;

/// The range that one GPC can give.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The number that it gives in any case.
    pub least: u32,
    /// The most that it can give, at least `least`.
    pub most: u32,
}

/// How many TPCs each GPC gives, `wanted` in all: one more from the GPC that gives least so far, of
/// several from the one with the most left, of several from the first. `None` if there are not that
/// many, or if fewer than the sum of `least` are wanted.
///
/// The cost of one more TPC grows with the number already taken from the GPC, so taking the
/// cheapest each time gives the most even counts.
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

/// `wanted` TPCs of `usable`, including those of `kept` (a part of it), spread over `gpcs`.
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
