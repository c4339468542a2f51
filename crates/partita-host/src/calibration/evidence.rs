//! [`Evidence`]: the cached form of a calibration's findings beside the probe.

use std::fs;
use std::path::Path;

use partita_core::survey::{ControlClaims, ProbeClaims, SmPlace, Survey};
use partita_driver::control::{self, Nodes};
use partita_driver::{Cuda, Gpu, LaunchMask, Probe};
use serde::{Deserialize, Serialize};

/// Where the kernel driver describes its GPUs, one directory each by PCI address.
const PROC_GPUS: &str = "/proc/driver/nvidia/gpus";

/// The reports of the sources beside the probe at the time of the calibration. Cached unchanged,
/// and compared at every use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// The control interface, or why it said nothing.
    pub control: Result<ControlRecord, String>,
    /// Whether clusters of blocks ran in every GPC, or why they did not.
    pub clusters: Result<(), String>,
    /// Whether the driver launches clusters on this device at all.
    pub runs_clusters: bool,
}

impl Default for Evidence {
    /// Nothing was asked.
    fn default() -> Self {
        let silent = || "it was not asked".to_owned();
        Self { control: Err(silent()), clusters: Err(silent()), runs_clusters: true }
    }
}

/// The report of the control interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlRecord {
    /// Every SM in the order of `%smid`.
    pub sms: Vec<SmRecord>,
    /// GPCs and how many TPCs each has.
    pub tpc_counts: Vec<(u16, u32)>,
}

/// One SM: the fields of [`SmPlace`] in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmRecord(u16, u16, u16, u16, u16, u16, Option<u16>, Option<u16>, Option<u16>);

impl From<&SmPlace> for SmRecord {
    fn from(p: &SmPlace) -> Self {
        Self(
            p.gpc,
            p.tpc_in_gpc,
            p.sm_in_tpc,
            p.tpc,
            p.virtual_gpc,
            p.migratable_tpc,
            p.ugpu,
            p.cpc,
            p.virtual_tpc,
        )
    }
}

impl From<&SmRecord> for SmPlace {
    fn from(record: &SmRecord) -> Self {
        let &SmRecord(gpc, tpc_in_gpc, sm_in_tpc, tpc, virtual_gpc, migratable_tpc, ugpu, cpc, virtual_tpc) =
            record;
        Self { gpc, tpc_in_gpc, sm_in_tpc, tpc, virtual_gpc, migratable_tpc, ugpu, cpc, virtual_tpc }
    }
}

impl From<&ControlClaims> for ControlRecord {
    fn from(claims: &ControlClaims) -> Self {
        Self { sms: claims.sms.iter().map(SmRecord::from).collect(), tpc_counts: claims.tpc_counts.clone() }
    }
}

impl From<&ControlRecord> for ControlClaims {
    fn from(record: &ControlRecord) -> Self {
        Self { sms: record.sms.iter().map(SmPlace::from).collect(), tpc_counts: record.tpc_counts.clone() }
    }
}

/// The GPC of each TPC of a probe, whether that is proved, and what it rests on.
///
/// Asks the control interface, and lets clusters prove the GPCs that it names where the device has
/// clusters and the probe knew none.
///
/// # Errors
/// The driver's words.
pub(crate) fn gather(
    cuda: &Cuda,
    gpu: &Gpu<'_>,
    mask: &mut LaunchMask,
    probe: &mut Probe,
) -> Result<(Vec<u8>, bool, Evidence), String> {
    let control = ask_control(cuda, &probe.facts.uuid);
    let mut survey = Survey {
        compute_capability: probe.facts.compute_capability,
        qmd_version: probe.qmd_version,
        runs_clusters: partita_driver::runs_clusters(gpu),
        probe: ProbeClaims {
            sms_per_tpc: probe.sms_per_tpc,
            bits: probe.tpcs.iter().map(|tpc| tpc.physical).collect(),
        },
        control,
        clusters: Err("this device runs no clusters".to_owned()),
        nvdebug: Err("it was not asked".to_owned()),
    };
    if survey.runs_clusters && !probe.gpcs_proved {
        survey.clusters = Err("no source says which TPCs to run them on".to_owned());
        if let Some(groups) = survey.control_groups() {
            partita_driver::prove_gpcs(gpu, mask, probe, &groups).map_err(|error| error.to_string())?;
            survey.clusters = Err("one did not run in a GPC that the control interface reports".to_owned());
        }
    }
    if probe.gpcs_proved {
        survey.clusters = Ok(probe.tpcs.iter().map(|tpc| tpc.gpc).collect());
    }
    let (gpcs, grouping) = survey.gpcs();
    let evidence = Evidence {
        control: survey.control.as_ref().map(ControlRecord::from).map_err(Clone::clone),
        clusters: survey.clusters.map(|_| ()),
        runs_clusters: survey.runs_clusters,
    };
    Ok((gpcs, grouping != partita_core::survey::Grouping::Unproved, evidence))
}

fn ask_control(cuda: &Cuda, uuid: &[u8; 16]) -> Result<ControlClaims, String> {
    let address = control::pci_address(cuda, 0).map_err(|error| error.to_string())?;
    let information = Path::new(PROC_GPUS).join(address.to_string()).join("information");
    let minor =
        fs::read_to_string(information).ok().and_then(|text| control::node_minor(&text, &uuid_text(uuid)));
    control::read(&Nodes::of(cuda), address, minor).map_err(|error| error.to_string())
}

/// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (index, byte) in uuid.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_written_as_the_driver_writes_them() {
        let mut uuid = [0; 16];
        (uuid[0], uuid[4], uuid[15]) = (0x12, 0xab, 0xff);
        assert_eq!(uuid_text(&uuid), "GPU-12000000-ab00-0000-0000-0000000000ff");
    }

    #[test]
    fn what_was_said_comes_back() {
        let place = SmPlace {
            gpc: 1,
            tpc_in_gpc: 2,
            sm_in_tpc: 0,
            tpc: 3,
            virtual_gpc: 4,
            migratable_tpc: 5,
            ugpu: Some(6),
            cpc: None,
            virtual_tpc: Some(8),
        };
        let claims = ControlClaims { sms: vec![place], tpc_counts: vec![(1, 9)] };
        let evidence =
            Evidence { control: Ok(ControlRecord::from(&claims)), clusters: Ok(()), runs_clusters: true };
        let text = serde_json::to_string(&evidence).unwrap();
        let again: Evidence = serde_json::from_str(&text).unwrap();
        assert_eq!(again, evidence);
        assert_eq!(ControlClaims::from(again.control.as_ref().unwrap()), claims);
    }
}
