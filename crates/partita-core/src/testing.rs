//! Devices for the tests of this crate.

use std::format;
use std::vec::Vec;

use proptest::prelude::*;
use proptest::sample::subsequence;

use crate::{Present, Topology, Tpc, TpcSet};

/// A device of GPCs of the given sizes, numbered round-robin over them, as Hopper's `%smid` is.
/// Each GPC has `stride` places in the physical mask.
pub fn round_robin(sizes: &[u16], stride: u16) -> Topology {
    let most = sizes.iter().copied().max().unwrap_or(0);
    let tpcs = (0..most).flat_map(|i| {
        let there = (0u8..).zip(sizes).filter(move |&(_, &size)| i < size);
        there.map(move |(gpc, _)| Tpc { gpc, physical: stride * u16::from(gpc) + i })
    });
    Topology::new(2, tpcs.collect::<Vec<_>>()).expect("the sizes fit a device")
}

/// A board like the H200 of the measurements: 66 TPCs in GPCs of 9, 9 and six times 8.
pub fn h200() -> Topology {
    round_robin(&[9, 9, 8, 8, 8, 8, 8, 8], 9)
}

/// Devices with up to that many GPCs, of up to that many TPCs each (but for 256 in all), with holes
/// in the physical numbers, GPC ids with gaps, and the logical order shuffled.
pub fn topologies(gpcs_max: usize, tpcs_max: usize) -> impl Strategy<Value = Topology> {
    let ids = (1..=gpcs_max).prop_flat_map(|n| subsequence((0..40u8).collect::<Vec<_>>(), n));
    let sizes = ids.prop_flat_map(move |ids| {
        let n = ids.len();
        (Just(ids), prop::collection::vec(1..=tpcs_max, n))
    });
    let gpc_of = sizes.prop_map(|(ids, sizes)| {
        let all = ids.into_iter().zip(sizes).flat_map(|(id, size)| std::iter::repeat_n(id, size));
        all.take(256).collect::<Vec<u8>>()
    });
    let shuffled = gpc_of.prop_flat_map(|gpc_of| {
        let bits = subsequence((0..256u16).collect::<Vec<_>>(), gpc_of.len());
        (1..=2u32, Just(gpc_of).prop_shuffle(), bits.prop_shuffle())
    });
    shuffled.prop_map(|(sms_per_tpc, gpc_of, bits)| {
        let tpcs = gpc_of.into_iter().zip(bits).map(|(gpc, physical)| Tpc { gpc, physical });
        Topology::new(sms_per_tpc, tpcs.collect::<Vec<_>>()).expect("a device")
    })
}

/// A device and tenants on it, with disjoint sets, some of them empty: `owners` gives each TPC's
/// tenant; numbers beyond the tenants mean a free TPC.
pub fn occupied(gpcs_max: usize, tpcs_max: usize) -> impl Strategy<Value = (Topology, Vec<Present>)> {
    let owners = prop::collection::vec(0..12usize, 256);
    (topologies(gpcs_max, tpcs_max), 0..6usize, owners, any::<bool>()).prop_map(
        |(topology, n, owners, by_gpc)| {
            let owner_of = |tpc: u8| {
                // By GPC, whole ones are held and whole ones are free; by TPC, there are none of
                // either.
                let place = if by_gpc { topology.tpcs()[usize::from(tpc)].gpc } else { tpc };
                // A few TPCs are an exception.
                if owners[usize::from(tpc)] == 0 { n } else { owners[255 - usize::from(place)] }
            };
            let tenants = (0..n).map(|i| Present {
                name: format!("t{i}"),
                set: topology.all().iter().filter(|&tpc| owner_of(tpc) == i).collect(),
            });
            let tenants = tenants.collect();
            (topology, tenants)
        },
    )
}

/// All subsets of `of` with `count` members.
pub fn subsets(of: TpcSet, count: u32) -> impl Iterator<Item = TpcSet> {
    let members: Vec<u8> = of.iter().collect();
    (0u32..1 << members.len()).filter(move |bits| bits.count_ones() == count).map(move |bits| {
        let chosen = members.iter().enumerate().filter(|&(i, _)| bits >> i & 1 == 1);
        chosen.map(|(_, &tpc)| tpc).collect()
    })
}
