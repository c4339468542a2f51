//! The limits of a tenant: [their table](LIMITS), and from what was asked to what the ledger says.

pub(crate) mod ceiling;
mod given;
mod table;

use partita_core::{ByteSize, Quota, Share, Topology, TpcSet};
use partita_ledger::{FLAG_GPCS_UNPROVED, Limits, LimitsFault, MECHANISM_MASK, NO_QUOTA};
pub use partita_ledger::{OnMisfit, SmCount, Spill, TaskSlots};
use thiserror::Error;

pub use self::given::{Given, Members, Refused, in_keys, option_of};
pub use self::table::{Change, Form, LIMITS, Limit, LimitError, LimitSet, Needs, Restart, Shown};
use crate::calibration::Measured;
use crate::error::Error;

/// Why there can be no such limits.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NewLimitsError {
    /// Not a GPU's UUID.
    #[error("{0:?} is no GPU's UUID")]
    Uuid(String),
    /// A name that does not fit into the ledger.
    #[error("{0}")]
    Name(LimitsFault),
}

/// The limits of a new tenant: its partition as planned, its quota as checked.
///
/// # Errors
/// A UUID or a name that does not fit into the ledger.
pub fn new_limits(
    name: &str,
    uuid: &str,
    measured: &Measured,
    topology: &Topology,
    set: &TpcSet,
    quota: Option<ByteSize>,
) -> Result<Limits, NewLimitsError> {
    let mut limits = Limits {
        gpu_uuid: parse_uuid(uuid).ok_or_else(|| NewLimitsError::Uuid(uuid.to_owned()))?,
        device_class: measured.device_class,
        qmd_version: measured.qmd_version,
        memory_quota_bytes: quota.map_or(NO_QUOTA, |quota| quota.0),
        memory_total_bytes: measured.memory_total_bytes,
        mechanism: MECHANISM_MASK,
        flags: if measured.gpcs_proved { 0 } else { FLAG_GPCS_UNPROVED },
        name: Limits::name_field(name).map_err(NewLimitsError::Name)?,
        ..Limits::default()
    };
    limits.set_topology(topology);
    limits.set_partition(topology, set);
    Ok(limits)
}

/// A quota in bytes on a GPU of that memory, beside what the driver may take for itself.
///
/// # Errors
/// [`Error::NotOffered`] for a percentage that leaves nothing beside the driver.
pub(crate) fn quota_on(
    quota: Quota,
    gpu: &str,
    total_bytes: u64,
    driver_bytes: u64,
) -> Result<ByteSize, Error> {
    match quota.bytes(total_bytes, driver_bytes) {
        ByteSize(0) if matches!(quota, Quota::Percent(_)) => Err(Error::NotOffered {
            option: format!("--mem {quota}"),
            reason: format!(
                "on {gpu} that is no more than the {} that the driver may take for itself; ask for more, or \
                 lower --mem-driver",
                ByteSize(driver_bytes)
            ),
        }),
        bytes => Ok(bytes),
    }
}

/// Refuses shares by GPC if the map of TPCs to GPCs is not proved.
///
/// # Errors
/// [`Error::NotOffered`] with the share to write instead.
pub fn check_share(share: Option<&Share>, gpcs_proved: bool) -> Result<(), Error> {
    match share {
        Some(share @ Share::Gpcs(_)) if !gpcs_proved => Err(Error::NotOffered {
            option: format!("--sm {share}"),
            reason: "which TPCs share a GPC is not proved on this GPU; write 30%, 20tpc or tpc:0-9"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}

/// The 16 bytes of `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
pub(crate) fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.strip_prefix("GPU-")?.bytes().filter(|&byte| byte != b'-').collect();
    let mut uuid = [0; 16];
    if digits.len() != 32 {
        return None;
    }
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measured {
        Measured {
            device_class: 90,
            qmd_version: 0x40,
            sms_per_tpc: 2,
            tpcs: vec![(0, 0), (1, 9), (0, 2), (1, 11)],
            gpcs_proved: true,
            evidence: crate::calibration::evidence::Evidence::default(),
            memory_total_bytes: 1 << 30,
            task_slots: Some(128),
        }
    }

    #[test]
    fn a_ledger_describes_its_device() {
        let topology = measured().topology().unwrap();
        let set: TpcSet = "0,2".parse().unwrap();
        let uuid = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        let limits = new_limits("t", uuid, &measured(), &topology, &set, Some(ByteSize(4096))).unwrap();
        limits.check().unwrap();
        assert_eq!(limits.gpu_uuid[..3], [0x00, 0x11, 0x22]);
        assert_eq!(limits.max_cluster_sms, 4);
        assert_eq!(limits.qmd_disable[0], !0b101);
        let again = limits.topology().unwrap();
        assert_eq!((again.tpcs(), again.sms_per_tpc()), (topology.tpcs(), 2));
        assert!(new_limits("t", "GPU-0011", &measured(), &topology, &set, None).is_err());
        assert!(new_limits("t", &uuid.replace('a', "x"), &measured(), &topology, &set, None).is_err());
    }

    #[test]
    fn without_proved_gpcs_nothing_is_promised_of_them() {
        let measured = Measured { gpcs_proved: false, ..measured() };
        let topology = measured.topology().unwrap();
        let uuid = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        let limits = new_limits("t", uuid, &measured, &topology, &topology.all(), None).unwrap();
        assert_eq!(limits.max_cluster_sms, 2, "one TPC");
        let by_gpc: Share = "gpc:0".parse().unwrap();
        assert!(check_share(Some(&by_gpc), false).unwrap_err().to_string().contains("20tpc"));
        assert!(check_share(Some(&by_gpc), true).is_ok());
        assert!(check_share(Some(&"50%".parse().unwrap()), false).is_ok());
    }
}
