//! The devices that can be simulated, each figure with its source.
//!
//! One file per device; each holds plain data. What nobody published is marked as an assumption where it stands.

mod a100;
mod gtx1060_3gb;
mod h200;

use core::fmt;

use partita_core::{Topology, Tpc};

use crate::spec::{DeviceSpec, SchedulerSpec};

/// Names of all devices, in the order in which help texts list them.
pub const NAMES: [&str; 3] = ["h200", "a100", "gtx1060-3gb"];

/// The device taken where none is named.
pub const DEFAULT: &str = "h200";

/// Delays of the pipeline, alike for all devices until they are measured apart.
///
/// The counts in it are those of no device; each entry sets its own.
const DELAYS: SchedulerSpec = SchedulerSpec {
    task_slots: 0,
    queues_default: 0,
    queues_max: 0,
    priority_least: 0,
    priority_greatest: 0,
    // Published launch latencies of a null kernel lie between 2 and 5 µs from call to start; H200 took 3.3 µs for the
    // call alone, part of which overlaps. Assumption: 2 µs in the host interface and front end.
    launch_ns: 2_000,
    // Back-to-back kernels of one stream leave about 1 µs (assumption, agrees with 4 kernels of 190 µs in 779 µs).
    kernel_gap_ns: 1_000,
    // A few hundred cycles from placement to first instruction (assumption).
    block_start_ns: 200,
    // One block per clock of about 2 GHz (assumption).
    block_interval_ps: 500,
    // H200 under time slicing: the slowest request waited 2.02 ms longer than alone.
    slice_ns: 2_000_000,
    // H200 under time slicing: the median request, which came as the other's slice ended, waited 0.31 ms longer than
    // alone, in two experiments. How that divides is an assumption.
    switch_ns: 35_000,
    preempt_ns: 150_000,
};

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
    let bare = name.strip_prefix("sim:").unwrap_or(if name == "sim" { DEFAULT } else { name });
    match bare.to_ascii_lowercase().replace('_', "-").as_str() {
        "h200" => Ok(h200::spec()),
        "a100" => Ok(a100::spec()),
        "gtx1060-3gb" => Ok(gtx1060_3gb::spec()),
        _ => Err(UnknownDevice { name: name.to_owned() }),
    }
}

/// All devices, in the order of [`NAMES`].
#[must_use]
pub fn all() -> Vec<DeviceSpec> {
    vec![h200::spec(), a100::spec(), gtx1060_3gb::spec()]
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
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_to_its_device() {
        for (name, spec) in NAMES.iter().zip(all()) {
            assert_eq!(device(name).unwrap().id, *name);
            assert_eq!(device(&format!("sim:{name}")).unwrap().id, *name);
            assert_eq!(spec.id, *name);
            assert!(
                spec.scheduler.task_slots > 0 && spec.scheduler.queues_max >= spec.scheduler.queues_default
            );
            assert!(spec.scheduler.priority_greatest < spec.scheduler.priority_least);
        }
        assert_eq!(device("sim").unwrap().id, DEFAULT);
        assert_eq!(device("sim:GTX1060_3GB").unwrap().id, "gtx1060-3gb");
    }

    #[test]
    fn an_unknown_name_is_told_the_known_ones() {
        let error = device("sim:h900").unwrap_err().to_string();
        assert_eq!(
            error,
            "no simulated device is called 'sim:h900'; known are sim:h200, sim:a100, sim:gtx1060-3gb"
        );
    }

    #[test]
    fn the_h200_agrees_with_what_was_measured() {
        let spec = device("h200").unwrap();
        let t = &spec.topology;
        assert_eq!((t.tpc_count(), t.sm_count()), (66, 132));
        let bits: Vec<u16> = t.tpcs().iter().map(|tpc| tpc.physical).collect();
        // A 64-bit mask cannot reach 12 of the TPCs.
        let mut high: Vec<u16> = bits.iter().copied().filter(|&b| b >= 64).collect();
        high.sort_unstable();
        assert_eq!(high, [64, 65, 66, 67, 68, 69, 70, 71, 75, 78, 81, 83]);
        // The first eight logical TPCs lie in eight GPCs: one TPC's two SMs are the largest cluster there.
        assert_eq!(t.max_cluster_sms(&partita_core::TpcSet::first(8)), 2);
        // A cluster of 16 does not fit into logical 0 to 32, but does into the whole device.
        assert!(t.max_cluster_sms(&partita_core::TpcSet::first(33)) < 16);
        assert!(t.max_cluster_sms(&t.all()) >= 16);
        // GPC-major with stride 9 inside the eight regular GPCs.
        for tpc in t.tpcs().iter().filter(|tpc| tpc.physical < 72) {
            assert_eq!(u16::from(tpc.gpc), tpc.physical / 9);
        }
        assert_eq!(spec.memory.capacity_bytes, 143_771 * 1024 * 1024);
    }

    #[test]
    fn the_other_devices_have_their_published_sizes() {
        let a100 = device("a100").unwrap();
        assert_eq!((a100.tpc_count(), a100.sm_count(), a100.topology.gpcs().len()), (54, 108, 7));
        let gtx = device("gtx1060-3gb").unwrap();
        assert_eq!((gtx.tpc_count(), gtx.sm_count(), gtx.topology.gpcs().len()), (9, 9, 2));
    }
}
