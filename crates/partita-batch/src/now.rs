//! This boot of the machine, and the time.

use std::time::{SystemTime, UNIX_EPOCH};

use super::trouble::Trouble;

/// The id of this boot of the machine: nothing that ran in another boot still exists.
///
/// # Errors
/// If `/proc` is not mounted.
pub(super) fn boot() -> Result<String, Trouble> {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    match std::fs::read_to_string(FILE) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => Err(Trouble::node(format!("{FILE}: {error}; mount /proc"))),
    }
}

pub(super) fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
