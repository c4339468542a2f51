//! Short runs for people who wait, long ones for CI.

use crate::devices::GENERATIONS;

/// Whether the slow tests run in full: `PARTITA_TEST_LONG=1`, which `.ci/long` sets. Otherwise each
/// of them runs a part of its cases.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("PARTITA_TEST_LONG").is_some_and(|value| value == "1")
}

/// Whether a test of every simulated device is to skip this one: a short run takes one device of
/// each generation.
#[must_use]
pub fn is_for_long_runs(device: &str) -> bool {
    let device = device.trim_start_matches("sim:");
    let is_skipped = !is_long() && device != "real" && !GENERATIONS.contains(&device);
    if is_skipped {
        eprintln!("skipped without PARTITA_TEST_LONG=1: {device} is one of several of its generation");
    }
    is_skipped
}
