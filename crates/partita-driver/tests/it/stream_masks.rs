//! The mask of a stream is found and proved on simulated drivers that store it at unlisted offsets.
//!
//! Each search runs in a separate child process, as on a real machine.

use crate::common;

use std::sync::atomic::{AtomicUsize, Ordering};

use common::Sim;
use partita_abi::stream::{STREAM_HINTS, StreamPlatform, stream_hint};
use partita_driver::Gpu;
use partita_driver::stream_proof::{self, Board, Found};

/// In a child: what was found, and how many times the simulated driver found its own state changed.
#[test]
#[ignore = "the tests run it in child processes"]
fn child_finds_and_verifies() {
    let cuda = common::cuda();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let (topology, layout) = common::board(&gpu);
    let board = Board { topology: &topology, layout };
    match stream_proof::search(&gpu, board) {
        Err(error) => common::say(format!("refused: {error}")),
        Ok(Found::Candidates(places)) => {
            panic!("a simulated driver's copy reaches its descriptor: {places:x?}")
        }
        Ok(Found::Shown { offset_bytes, .. } | Found::Listed(offset_bytes)) => {
            let proof = stream_proof::verify(&gpu, board, offset_bytes).unwrap();
            common::say(format!("proved {:#x} with {} sets", proof.field.offset_bytes(), proof.sets));
        }
    }
    common::say(format!("corruptions {:?}", common::corruptions(&cuda)));
}

/// A simulated driver, and where it stores the mask.
struct Case {
    device: &'static str,
    version: &'static str,
    offset_bytes: Option<u32>,
}

/// Searches under one simulated driver; returns its output.
fn search(number: usize, case: &Case) -> Vec<String> {
    let sim = Sim::new(&format!("s{number}"), case.device);
    let mut variables = vec![("PARTITA_SIM_DRIVER", case.version.to_owned())];
    variables.extend(case.offset_bytes.map(|offset| ("PARTITA_SIM_STREAM_OFFSET", format!("{offset:#x}"))));
    sim.child_says("child_finds_and_verifies", &variables)
}

/// Searches under each driver, two at a time, and checks that each mask was found in the right
/// place and that no driver found its own state changed.
fn all_are_found(cases: &[Case]) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(number) else { return };
                    let Case { device, version, offset_bytes } = case;
                    let said = search(number, case);
                    let expected = offset_bytes
                        .or(stream_hint(StreamPlatform::X86_64, cuda_version(version)))
                        .map(|offset| format!("proved {offset:#x} "));
                    let context = format!("{device}, CUDA {version}, {offset_bytes:x?}: {said:?}");
                    assert!(said[0].starts_with(expected.as_deref().unwrap_or("proved ")), "{context}");
                    assert_eq!(said[1], "corruptions Some(0)", "{context}");
                }
            });
        }
    });
}

fn cuda_version(text: &str) -> u32 {
    let (major, minor) = text.split_once('.').unwrap();
    1000 * major.parse::<u32>().unwrap() + 10 * minor.parse::<u32>().unwrap()
}

/// Unlisted offsets inside the structure of simulated drivers, whose first bytes have another use.
fn unlisted_offset(seed: &mut u64) -> u32 {
    loop {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = 0x40 + 4 * ((*seed >> 33) as u32 % ((0x8ec - 0x40) / 4 + 1));
        if STREAM_HINTS.iter().all(|hint| hint.offset_bytes != offset) {
            return offset;
        }
    }
}

#[test]
fn every_drivers_own_place_is_found() {
    let case = |(device, version)| Case { device, version, offset_bytes: None };
    let drivers = [
        ("gtx1060-3gb", "8.0"),
        ("gtx1060-3gb", "10.1"),
        ("a100", "11.4"),
        ("h200", "11.8"),
        ("h200", "12.4"),
        // Unlisted versions.
        ("h200", "12.9"),
        ("h200", "13.1"),
        ("h200", "13.0"),
    ];
    all_are_found(&drivers.map(case));
}

#[test]
fn unlisted_places_are_found_and_nothing_is_corrupted() {
    let mut seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |time| time.as_nanos() as u64);
    eprintln!("seed {seed}");
    let drivers = [
        ("h200", "11.8"),
        ("h200", "12.2"),
        ("h200", "12.9"),
        ("h200", "13.0"),
        ("h200", "13.2"),
        ("a100", "11.0"),
        ("gtx1060-3gb", "9.1"),
    ];
    let cases: Vec<Case> = (0..if partita_testing::is_long() { 24 } else { 7 })
        .map(|number| {
            let (device, version) = drivers[number % drivers.len()];
            Case { device, version, offset_bytes: Some(unlisted_offset(&mut seed)) }
        })
        .collect();
    all_are_found(&cases);
}
