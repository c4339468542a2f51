//! The devices that can be simulated, each figure with its source.
//!
//! One file per generation; each device is plain data. What nobody published is marked as an assumption where it stands. For all of
//! them:
//!
//! - GPCs and TPCs come from the chip's white paper; which TPCs a board lost is assumed, spread evenly, and [`board`] makes others.
//!   «Hardware Compute Partitioning on NVIDIA GPUs» (table II) counts SMs as TPCs for most parts with two SMs to a TPC.
//! - Copies reach 0.8 of the link, and a copy inside device memory 0.85 of half its bandwidth (assumptions).
//! - A kernel holds a task slot, and there are as many as resident grids in the CUDA C++ Programming Guide.
//! - PCI device ids are those of pci.ids; a subsystem id of 0000:10de is nobody's, as boards of many makers exist.

mod ada;
mod ampere;
mod blackwell;
mod h200;
mod hopper;
mod kepler;
mod maxwell;
mod parts;
mod pascal;
mod plan;
mod sm;
mod turing;
mod volta;

use core::fmt;

use partita_core::{Topology, Tpc};

use crate::spec::DeviceSpec;

/// Makes a device's entry, of the board with that seed ([`board`]).
type Make = fn(u64) -> DeviceSpec;

/// Every device.
const DEVICES: [(&str, Make); 17] = [
    ("h200", h200::spec),
    ("a100", ampere::a100),
    ("gtx1060-3gb", pascal::gtx1060_3gb),
    ("gtx-680", kepler::gtx_680),
    ("tesla-k40", kepler::tesla_k40),
    ("gtx970", maxwell::gtx970),
    ("p100", pascal::p100),
    ("titan-v", volta::titan_v),
    ("xavier", volta::xavier),
    ("rtx2060", turing::rtx2060),
    ("rtx3070", ampere::rtx3070),
    ("rtx6000-ada", ada::rtx6000_ada),
    ("l40s", ada::l40s),
    ("h100", hopper::h100),
    ("h100-v3", hopper::h100_v3),
    ("b200", blackwell::b200),
    ("gb10", blackwell::gb10),
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

/// The device taken where none is named.
pub const DEFAULT: &str = "h200";

/// No device of that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDevice {
    /// The name that was asked for.
    pub name: String,
}

impl fmt::Display for UnknownDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no simulated device is called '{}'; known are", self.name)?;
        for (i, name) in NAMES.iter().enumerate() {
            write!(f, "{} sim:{name}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownDevice {}

/// The device of that name, with or without the prefix `sim:`; case and `_` for `-` are forgiven. A bare `sim` is
/// [`DEFAULT`].
///
/// # Errors
/// [`UnknownDevice`], whose text lists the names.
pub fn device(name: &str) -> Result<DeviceSpec, UnknownDevice> {
    board(name, 0)
}

/// As [`device`], a board that lost other TPCs: two boards of one model differ in which TPCs of which GPCs were fused off. Seed 0 is the
/// board that [`device`] gives.
///
/// # Errors
/// [`UnknownDevice`], whose text lists the names.
pub fn board(name: &str, seed: u64) -> Result<DeviceSpec, UnknownDevice> {
    let bare = name.strip_prefix("sim:").unwrap_or(if name == "sim" { DEFAULT } else { name });
    let wanted = bare.to_ascii_lowercase().replace('_', "-");
    let found = DEVICES.iter().find(|(known, _)| *known == wanted);
    found.map(|(_, make)| make(seed)).ok_or_else(|| UnknownDevice { name: name.to_owned() })
}

/// All devices, in the order of [`NAMES`].
#[must_use]
pub fn all() -> Vec<DeviceSpec> {
    DEVICES.iter().map(|(_, make)| make(0)).collect()
}

/// A topology from a table of `(gpc, physical bit)` in logical order.
///
/// # Panics
/// On a table that describes no device; the tables are constants and tests build them all.
fn topology(sms_per_tpc: u32, table: &[(u8, u16)]) -> Topology {
    let tpcs: Vec<Tpc> = table.iter().map(|&(gpc, physical)| Tpc { gpc, physical }).collect();
    Topology::new(sms_per_tpc, tpcs).expect("a catalogue table describes a device")
}

#[cfg(test)]
mod tests;
