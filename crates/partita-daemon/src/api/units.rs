//! How many SMs a GPU has, and how many of them no tenant has.

use partita::calibration::Cache;
use partita::gpu::Gpu;
use partita::install::Install;
use partita::ps::TenantRow;
use partita_core::TpcSet;

/// SMs of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Units {
    /// All; `None` if the GPU was never measured and has no tenant.
    pub sms: Option<u32>,
    /// Those that no tenant has. `None` also where MPS divides them, which does not report how.
    pub free_sms: Option<u32>,
}

impl Units {
    /// Of a GPU with these tenants, of all GPUs.
    pub fn of(install: &Install, gpu: &Gpu, tenants: &[TenantRow]) -> Self {
        let rows = || tenants.iter().filter(|row| row.gpu_uuid.as_deref() == Some(&*gpu.facts.uuid));
        let sms = rows().find_map(|row| row.sms_of_device).or_else(|| {
            let measured = Cache::open().kept(install, gpu)?;
            u32::try_from(measured.tpcs.len()).ok()?.checked_mul(measured.sms_per_tpc)
        });
        Self { sms, free_sms: sms.and_then(|sms| free_sms(sms, rows())) }
    }
}

/// The SMs that no tenant has; tenants that take turns have the same ones.
fn free_sms<'r>(sms: u32, rows: impl Iterator<Item = &'r TenantRow>) -> Option<u32> {
    let (mut held, mut sms_of_tpc) = (TpcSet::EMPTY, 1);
    for row in rows {
        if row.mps_partition.is_some() {
            return None;
        }
        // `all`: it has no partition, and excludes no other tenant.
        let Some(set) = row.tpcs.as_deref().filter(|tpcs| *tpcs != "all") else { continue };
        let set: TpcSet = set.parse().ok()?;
        sms_of_tpc = row.sms?.checked_div(set.len()).unwrap_or(sms_of_tpc);
        held |= set;
    }
    Some(sms.saturating_sub(held.len() * sms_of_tpc))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tpcs: Option<&str>, sms: Option<u32>, mps_partition: Option<&str>) -> TenantRow {
        TenantRow {
            tpcs: tpcs.map(str::to_owned),
            sms,
            mps_partition: mps_partition.map(str::to_owned),
            ..TenantRow::default()
        }
    }

    #[test]
    fn shared_units_count_once_and_unknown_ones_make_the_rest_unknown() {
        let free = |rows: &[TenantRow]| free_sms(132, rows.iter());
        assert_eq!(free(&[]), Some(132));
        let (first, second) = (row(Some("0-9"), Some(20), None), row(Some("5-14"), Some(20), None));
        assert_eq!(free(std::slice::from_ref(&first)), Some(112));
        assert_eq!(free(&[first.clone(), second]), Some(102));
        assert_eq!(free(&[first.clone(), row(Some("all"), Some(132), None)]), Some(112));
        // A damaged file.
        assert_eq!(free(&[first.clone(), row(None, None, None)]), Some(112));
        assert_eq!(free(&[first, row(None, None, Some("a"))]), None);
    }
}
