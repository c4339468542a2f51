//! The drivers' answers for the SMs of two boards: for the tests of this crate, and for those of
//! other crates, which include this file.

use std::vec::Vec;

use super::SmPlace;

/// What an H200's driver answered.
pub fn h200() -> Vec<SmPlace> {
    let lines = include_str!("h200.txt").lines().filter(|line| !line.starts_with('#'));
    let place = |line: &str| {
        let n: Vec<u16> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let [_, gpc, tpc_in_gpc, tpc, virtual_gpc, migratable_tpc, ugpu, cpc, virtual_tpc] = n[..] else {
            panic!("{line}")
        };
        [0, 1].map(|sm_in_tpc| SmPlace {
            gpc,
            tpc_in_gpc,
            sm_in_tpc,
            tpc,
            virtual_gpc,
            migratable_tpc,
            ugpu: Some(ugpu),
            cpc: Some(cpc),
            virtual_tpc: Some(virtual_tpc),
        })
    };
    lines.flat_map(place).collect()
}

/// A board like an A100: GPCs of 8, 8, 8, 8, 8, 7, 7 in round-robin order, in the answer of its
/// driver, which has six fields.
pub fn a100() -> Vec<SmPlace> {
    let sizes = [8u16, 8, 8, 8, 8, 7, 7];
    let rounds = (0..8u16)
        .flat_map(|i| (0..7u16).filter(move |&gpc| i < sizes[usize::from(gpc)]).map(move |gpc| (gpc, i)));
    let places = rounds.zip(0u16..).flat_map(|((gpc, tpc_in_gpc), tpc)| {
        [0, 1].map(|sm_in_tpc| SmPlace {
            gpc,
            tpc_in_gpc,
            sm_in_tpc,
            tpc,
            virtual_gpc: gpc,
            migratable_tpc: tpc_in_gpc,
            ugpu: None,
            cpc: None,
            virtual_tpc: None,
        })
    });
    places.collect()
}
