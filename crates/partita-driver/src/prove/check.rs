//! Checks the counts of one launch.

use alloc::format;
use alloc::vec::Vec;

use partita_core::{Topology, TpcSet};

use super::Route;
use crate::error::Error;

/// A launch and its mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expected {
    /// The mask's number, from 1.
    pub mask: u32,
    pub set: TpcSet,
    pub route: Route,
    /// Blocks.
    pub grid: u32,
}

/// Blocks of one launch on one SM outside its set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Escape {
    /// The mask's number, from 1.
    pub mask: u32,
    /// The set that it enables.
    pub set: TpcSet,
    /// The SM; the number of SMs stands for any beyond the device.
    pub sm: u32,
    /// How many blocks ran there.
    pub blocks: u32,
    /// How the kernel was launched.
    pub route: Route,
}

/// The result of one launch's counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// The TPCs of the device on which blocks ran.
    pub used: TpcSet,
    pub escapes: Vec<Escape>,
}

/// Checks a launch by its counts: one for each SM, and one for all numbers beyond the device.
///
/// # Errors
/// [`Error::Disproved`] if they do not add up to the grid: then blocks were lost or counted twice,
/// and nothing is proved.
pub(super) fn judge(topology: &Topology, expected: &Expected, counts: &[u32]) -> Result<Found, Error> {
    let Expected { mask, set, route, grid } = *expected;
    let sum: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    if sum != u64::from(grid) || counts.len() != topology.sm_count() as usize + 1 {
        return Err(Error::Disproved(format!(
            "mask {mask} (tpc:{set}), {route}: {sum} blocks counted themselves, {grid} were launched"
        )));
    }
    let mut found = Found { used: TpcSet::EMPTY, escapes: Vec::new() };
    for (sm, &blocks) in (0u32..).zip(counts).filter(|&(_, &blocks)| blocks > 0) {
        // The count beyond the device belongs to no TPC.
        let tpc = (sm < topology.sm_count()).then(|| (sm / topology.sms_per_tpc()) as u8);
        found.used.extend(tpc);
        if !tpc.is_some_and(|tpc| set.contains(tpc)) {
            found.escapes.push(Escape { mask, set, sm, blocks, route });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec;

    use partita_core::Tpc;

    use super::*;

    /// Four TPCs of two SMs.
    fn topology() -> Topology {
        Topology::new(
            2,
            vec![0, 1, 2, 3].into_iter().map(|i| Tpc { gpc: 0, physical: i }).collect::<Vec<_>>(),
        )
        .unwrap()
    }

    fn expected(set: &str, grid: u32) -> Expected {
        Expected { mask: 3, set: set.parse().unwrap(), route: Route::Graph, grid }
    }

    #[test]
    fn counts_inside_are_no_escapes() {
        let found = judge(&topology(), &expected("1,3", 10), &[0, 0, 4, 1, 0, 0, 0, 5, 0]).unwrap();
        assert_eq!(found, Found { used: "1,3".parse().unwrap(), escapes: vec![] });
    }

    #[test]
    fn every_sm_outside_is_an_escape() {
        let found = judge(&topology(), &expected("1", 10), &[1, 0, 4, 0, 0, 0, 0, 2, 3]).unwrap();
        let escaped: Vec<(u32, u32)> =
            found.escapes.iter().map(|escape| (escape.sm, escape.blocks)).collect();
        assert_eq!(escaped, [(0, 1), (7, 2), (8, 3)], "beyond the device too");
        assert_eq!(found.escapes[0].set, "1".parse().unwrap());
        assert_eq!((found.escapes[0].mask, found.escapes[0].route), (3, Route::Graph));
    }

    #[test]
    fn counts_must_add_up() {
        for counts in [[0, 0, 9, 0, 0, 0, 0, 0, 0], [0, 0, 10, 0, 0, 0, 0, 0, 1]] {
            let error = judge(&topology(), &expected("1", 10), &counts).unwrap_err().to_string();
            assert!(error.contains("mask 3 (tpc:1), graph") && error.contains("10 were launched"), "{error}");
        }
        assert!(judge(&topology(), &expected("1", 0), &[0; 8]).is_err());
    }
}
