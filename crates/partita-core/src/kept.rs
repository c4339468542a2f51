//! The names of cached calibrations, in one place for the code that writes and the code that reads
//! them.
//!
//! A calibration holds for one board under one driver build. The facade writes the files; it and
//! the C library read them.

use alloc::format;
use alloc::string::String;

/// The format name and version in a calibration's file.
pub const BOARD: (&str, u32) = ("partita-calibration", 5);
/// The same for the file with the place of a stream's mask.
pub const STREAM_PLACE: (&str, u32) = ("partita-stream-mask", 1);
/// No such file is longer, in bytes.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The directory of root's files.
pub const ROOT_DIRECTORY: &str = "/var/cache/partita";
/// Variables that replace a simulated driver by another; part of its build.
pub const SIMULATOR_VARIABLES: [&str; 3] =
    ["PARTITA_SIM_DRIVER", "PARTITA_SIM_STREAM_OFFSET", "PARTITA_SIM_QMD"];

/// The file of a board under a driver build, without its extension: `.json` is the calibration's,
/// `.stream.json` that of the place of stream masks. `uuid` is `GPU-…`, `compute_capability` is
/// major and minor.
#[must_use]
pub fn file_stem(uuid: &str, driver: &str, compute_capability: (u32, u32)) -> String {
    let safe = |text: &str| -> String {
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' }).collect()
    };
    let (major, minor) = compute_capability;
    format!("{}-{}-sm{major}{minor}", safe(uuid), safe(driver))
}

/// The build of a simulated driver, which changes with every build and keeps its version, so its
/// file counts: `path` without links, its length in bytes, and when it was last changed, in seconds
/// and nanoseconds. `variable` gives those of [`SIMULATOR_VARIABLES`] that are set.
#[must_use]
pub fn simulated_build(
    version: &str,
    path: &str,
    bytes: u64,
    changed: (i64, i64),
    variable: impl Fn(&str) -> Option<String>,
) -> String {
    let mut identity = format!("{path}:{bytes}:{}:{}", changed.0, changed.1);
    for name in SIMULATOR_VARIABLES {
        if let Some(value) = variable(name) {
            identity += &format!(":{name}={value}");
        }
    }
    format!("{version}+sim.{:016x}", fnv1a(identity.as_bytes()))
}

/// The 64-bit FNV-1a hash. Names made with it must stay the same between versions, which the
/// standard library's hashes do not promise.
#[must_use]
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_boards_and_builds_apart_and_are_safe() {
        assert_eq!(file_stem("GPU-1a", "580.1", (9, 0)), "GPU-1a-580.1-sm90");
        assert_eq!(file_stem("../x", "5/8", (12, 1)), ".._x-5_8-sm121");
        let none = |_: &str| None;
        let build = simulated_build("1", "/a", 2, (3, 4), none);
        assert_eq!(build, simulated_build("1", "/a", 2, (3, 4), none));
        assert!(build.starts_with("1+sim."));
        let set = |name: &str| (name == SIMULATOR_VARIABLES[1]).then(|| String::from("0x10"));
        for other in [
            simulated_build("1", "/b", 2, (3, 4), none),
            simulated_build("1", "/a", 2, (3, 5), none),
            simulated_build("1", "/a", 2, (3, 4), set),
        ] {
            assert_ne!(other, build);
        }
        // The published test vector.
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}
