//! The simulated devices, each figure with its source.
//!
//! Each device is a data file in `devices/` that gives the source of every figure, and deviating
//! sources: the TPC counts of «Hardware Compute Partitioning on NVIDIA GPUs» (table II), for
//! example, are SM counts for most parts with two SMs to a TPC. Unpublished figures are marked
//! there as assumptions. The limits of an SM are in `devices/sm.toml`, by compute capability. For
//! all devices:
//!
//! - Which TPCs a board lost is an assumption, spread evenly; [`board`] and `?seed=` make others.
//! - Copies reach 0.8 of the link, and a copy inside device memory 0.85 of half its bandwidth
//!   (assumptions), unless the file says otherwise.
//! - A kernel holds a task slot, and there are as many as resident grids in the CUDA C++
//!   Programming Guide.
//! - PCI device ids are those of pci.ids; a subsystem id of 0000:10de is a generic one, as many
//!   makers make boards.
//!
//! A user's file is a device, too: `sim:/path/to/device.toml`. It has the form of those in
//! `devices/`; sources are optional.

mod error;
mod figures;
mod file;
mod plan;

use std::path::Path;

pub use error::{DeviceError, FileError, UnknownDevice};

use crate::spec::DeviceSpec;

/// Every device: its name, and its file.
const DEVICES: [(&str, &str); 17] = [
    ("h200", include_str!("../../devices/h200.toml")),
    ("a100", include_str!("../../devices/a100.toml")),
    ("gtx1060-3gb", include_str!("../../devices/gtx1060-3gb.toml")),
    ("gtx-680", include_str!("../../devices/gtx-680.toml")),
    ("tesla-k40", include_str!("../../devices/tesla-k40.toml")),
    ("gtx970", include_str!("../../devices/gtx970.toml")),
    ("p100", include_str!("../../devices/p100.toml")),
    ("titan-v", include_str!("../../devices/titan-v.toml")),
    ("xavier", include_str!("../../devices/xavier.toml")),
    ("rtx2060", include_str!("../../devices/rtx2060.toml")),
    ("rtx3070", include_str!("../../devices/rtx3070.toml")),
    ("rtx6000-ada", include_str!("../../devices/rtx6000-ada.toml")),
    ("l40s", include_str!("../../devices/l40s.toml")),
    ("h100", include_str!("../../devices/h100.toml")),
    ("h100-v3", include_str!("../../devices/h100-v3.toml")),
    ("b200", include_str!("../../devices/b200.toml")),
    ("gb10", include_str!("../../devices/gb10.toml")),
];

/// Names of all devices, in the order in which help texts list them.
pub const NAMES: [&str; DEVICES.len()] = {
    let mut names = [""; DEVICES.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = DEVICES[index].0;
        index += 1;
    }
    names
};

/// The default device.
pub const DEFAULT: &str = "h200";

/// The text before the number of a board.
const SEED: &str = "?seed=";

/// The device of that name, with or without the prefix `sim:`: a name of [`NAMES`], in any case and
/// with `_` for `-`, or the path of a device file, which has a `/` in it. A bare `sim` is
/// [`DEFAULT`]. `?seed=` followed by a number names a board that lost other TPCs ([`board`]).
///
/// ```
/// use partita_sim::catalogue;
///
/// let usual = catalogue::device("sim:a100")?;
/// let other = catalogue::device("sim:a100?seed=7")?;
/// assert_eq!(other.tpc_count(), usual.tpc_count());
/// assert_ne!(other.topology, usual.topology);
/// # Ok::<(), catalogue::DeviceError>(())
/// ```
///
/// # Errors
/// An unknown name, with the known ones; an invalid seed; the fault of a file.
pub fn device(name: &str) -> Result<DeviceSpec, DeviceError> {
    match name.split_once(SEED) {
        None => board(name, 0),
        Some((device, seed)) => match seed.parse() {
            Ok(seed) => board(device, seed),
            Err(_) => Err(DeviceError::Seed { name: name.to_owned() }),
        },
    }
}

/// As [`device`], for a board that lost other TPCs: two boards of one model differ only in which
/// TPCs of which GPCs were fused off. Seed 0 is the board of [`device`]; another board's id
/// contains its seed.
///
/// # Errors
/// As [`device`].
pub fn board(name: &str, seed: u64) -> Result<DeviceSpec, DeviceError> {
    let bare = name.strip_prefix("sim:").unwrap_or(if name == "sim" { DEFAULT } else { name });
    if bare.contains('/') {
        return Ok(file::load(Path::new(bare), seed)?);
    }
    let wanted = bare.to_ascii_lowercase().replace('_', "-");
    let Some((known, text)) = DEVICES.iter().find(|(known, _)| *known == wanted) else {
        return Err(UnknownDevice { name: name.to_owned() }.into());
    };
    Ok(file::parse(&format!("{known}.toml"), text, seed)?)
}

/// All devices, in the order of [`NAMES`].
///
/// # Panics
/// If a file of the catalogue is invalid; tests read them all.
#[must_use]
pub fn all() -> Vec<DeviceSpec> {
    NAMES.map(|name| board(name, 0).expect("a file of the catalogue describes a device")).into()
}

#[cfg(test)]
mod tests;
