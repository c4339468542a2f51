//! The same measurements under the names of other exporters, for dashboards that exist.
//!
//! DCGM's are those of dcgm-exporter, for whole GPUs. HAMi's are those of HAMi 2.10: a tenant is
//! shown as a pod with one container, both of its name, in the namespace of its user.

use partita::gpu::Gpu;
use partita::ps::TenantRow;

use super::scrape::{Labels, Now};
use super::units::Units;
use crate::args::MetricNames;

/// Adds what `names` ask for. `host`: this machine's name.
pub(super) fn add(
    now: &mut Now,
    names: &[MetricNames],
    host: &str,
    gpus: &[(&Gpu, Units)],
    rows: &[TenantRow],
) {
    if names.contains(&MetricNames::Dcgm) {
        dcgm(now, host, gpus);
    }
    if names.contains(&MetricNames::Hami) {
        hami_gpus(now, host, gpus, rows);
        hami_tenants(now, rows);
    }
}

fn mib(bytes: u64) -> f64 {
    (bytes >> 20) as f64
}

fn dcgm(now: &mut Now, host: &str, gpus: &[(&Gpu, Units)]) {
    let labels = |gpu: &Gpu| {
        vec![
            ("gpu", gpu.facts.index.to_string()),
            ("UUID", gpu.facts.uuid.clone()),
            ("pci_bus_id", gpu.facts.pci.clone().unwrap_or_default()),
            ("device", format!("nvidia{}", gpu.facts.index)),
            ("modelName", gpu.facts.name.clone()),
            ("hostname", host.to_owned()),
        ]
    };
    let mut each = |name: &str, help: &str, of: fn(&Gpu) -> Option<f64>| {
        now.gauge(name, help, gpus.iter().filter_map(|(gpu, _)| Some((labels(gpu), of(gpu)?))));
    };
    each("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %)", |gpu| {
        gpu.facts.utilization_percent.map(f64::from)
    });
    each("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %)", |gpu| {
        gpu.facts.memory_utilization_percent.map(f64::from)
    });
    each("DCGM_FI_DEV_FB_TOTAL", "Device memory (in MiB)", |gpu| Some(mib(gpu.facts.memory_total_bytes)));
    each("DCGM_FI_DEV_FB_USED", "Device memory used (in MiB)", |gpu| Some(mib(gpu.facts.memory_used_bytes)));
    each("DCGM_FI_DEV_FB_FREE", "Device memory free (in MiB)", |gpu| {
        Some(mib(gpu.facts.memory_total_bytes.saturating_sub(gpu.facts.memory_used_bytes)))
    });
}

/// What HAMi says of a whole GPU.
struct Shared {
    utilization_percent: Option<u32>,
    memory_total_bytes: u64,
    memory_used_bytes: u64,
    /// The quotas of its tenants together.
    promised_bytes: u64,
    tenants: usize,
    /// The part of its SMs that tenants have.
    held_percent: Option<f64>,
}

fn hami_gpus(now: &mut Now, host: &str, gpus: &[(&Gpu, Units)], rows: &[TenantRow]) {
    let all: Vec<(Labels, Shared)> = gpus
        .iter()
        .map(|(gpu, units)| {
            let of_gpu = || rows.iter().filter(|row| row.gpu_uuid.as_deref() == Some(&*gpu.facts.uuid));
            let held = units.sms.zip(units.free_sms);
            let shared = Shared {
                utilization_percent: gpu.facts.utilization_percent,
                memory_total_bytes: gpu.facts.memory_total_bytes,
                memory_used_bytes: gpu.facts.memory_used_bytes,
                promised_bytes: of_gpu()
                    .filter_map(TenantRow::memory_quota_bytes)
                    .fold(0, u64::saturating_add),
                tenants: of_gpu().count(),
                held_percent: held.map(|(sms, free)| 100.0 * f64::from(sms - free) / f64::from(sms.max(1))),
            };
            let labels = vec![
                ("node", host.to_owned()),
                ("device_index", gpu.facts.index.to_string()),
                ("device_uuid", gpu.facts.uuid.clone()),
                ("device_type", gpu.facts.name.clone()),
            ];
            (labels, shared)
        })
        .collect();
    let mut each = |name: &str, help: &str, of: fn(&Shared) -> Option<f64>| {
        now.gauge(name, help, all.iter().filter_map(|(labels, shared)| Some((labels.clone(), of(shared)?))));
    };
    each("hami_host_gpu_memory_used_bytes", "Device memory in use", |gpu| Some(gpu.memory_used_bytes as f64));
    each("hami_host_gpu_utilization_ratio", "GPU utilization, 0 to 100", |gpu| {
        gpu.utilization_percent.map(f64::from)
    });
    each("hami_gpu_memory_limit_bytes", "Device memory", |gpu| Some(gpu.memory_total_bytes as f64));
    each("hami_gpu_memory_allocated_bytes", "The quotas of all tenants", |gpu| {
        Some(gpu.promised_bytes as f64)
    });
    each("hami_gpu_core_limit_ratio", "Compute units, 100", |_| Some(100.0));
    each("hami_gpu_core_allocated_ratio", "Compute units that tenants have, 0 to 100", |gpu| {
        gpu.held_percent
    });
    each("hami_gpu_shared_count", "Tenants of a GPU", |gpu| Some(gpu.tenants as f64));
}

fn hami_tenants(now: &mut Now, rows: &[TenantRow]) {
    // The place of each row's GPU among those of its tenant.
    let place = |at: usize| {
        let row = &rows[at];
        rows[..at].iter().filter(|other| (&other.name, &other.user) == (&row.name, &row.user)).count()
    };
    let labels = |at: usize| -> Labels {
        let row = &rows[at];
        vec![
            ("namespace", row.user.clone()),
            ("pod", row.name.clone()),
            ("container", row.name.clone()),
            ("vdevice_index", place(at).to_string()),
            ("device_uuid", row.gpu_uuid.clone().unwrap_or_default()),
        ]
    };
    let mut each = |name: &str, help: &str, of: fn(&TenantRow) -> Option<f64>| {
        now.gauge(name, help, rows.iter().enumerate().filter_map(|(at, row)| Some((labels(at), of(row)?))));
    };
    for name in ["hami_vgpu_memory_used_bytes", "hami_container_device_memory_bytes"] {
        each(name, "Device memory that a tenant holds", |row| {
            row.memory_used_bytes.map(|bytes| bytes as f64)
        });
    }
    each("hami_vgpu_memory_limit_bytes", "Device memory that a tenant may hold", |row| {
        let quota = row.memory_quota_bytes().or(row.memory_rest_bytes);
        quota.map(|bytes| bytes as f64)
    });
    each("hami_container_device_utilization_ratio", "GPU time that a tenant uses, 0 to 100", |row| {
        row.time.and_then(|time| time.used_percent)
    });
}
