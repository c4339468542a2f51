//! `partita topology`: where the units of a GPU are, which tenants hold them, and how this is
//! known.
//!
//! The calibration queries the driver's control interface, tests every bit of a launch mask and
//! runs clusters; the cached result has the report of each source ([`Evidence`]). This module
//! compares the sources ([`partita_core::survey`]), together with the files of `nvdebug` if there
//! are any, and draws the result.

mod chart;
pub mod nvdebug;
mod svg;
mod text;

use std::path::Path;
use std::time::Instant;

pub use chart::{
    Chart, ControlRow, CpcRow, DisagreementRow, GpcRow, NvdebugRow, SCHEMA, SourceRow, TenantRow, UnitRow,
};
use partita_host::calibration::Cache;
pub use partita_host::calibration::evidence::{ControlRecord, Evidence, SmRecord};
use partita_host::error::Error;
use partita_host::gpu::Gpu;
use partita_host::gpus::Selectors;
use partita_host::install::Install;
use partita_host::registry::Registry;
pub use text::Ink;

use partita_core::survey::NvdebugClaims;

use crate::audit;

impl Chart {
    /// The chart as lines of at most 100 columns, or a few more if numbers are long.
    pub fn to_text(&self, ink: Ink) -> String {
        text::render(self, ink)
    }

    /// The chart as a picture.
    pub fn to_svg(&self) -> String {
        svg::render(self)
    }
}

/// Charts `gpu` by its cached calibration, or by a new one if `fresh` is set or none is cached. The
/// reported duration counts from `begin`.
///
/// # Errors
/// [`Error::Unproved`] if the GPU cannot be measured; [`Error::RunDirectory`].
pub fn examine(install: &Install, gpu: &Gpu, fresh: bool, begin: Instant) -> Result<Chart, Error> {
    let cache = Cache::open();
    let cached = if fresh { None } else { cache.kept(install, gpu) };
    let fresh_now = cached.is_none();
    let measured = match cached {
        Some(measured) => measured,
        None => cache.renew(install, gpu)?,
    };
    let report = measured.survey(nvdebug_claims(gpu)).report();
    let registry = Registry::open()?;
    let tenants = registry.lock()?.tenants()?;
    let key = gpu.key();
    let tenants = tenants.iter().filter(|tenant| tenant.gpu_key == key);
    // `ps` reports a tenant whose limits cannot be read; such a tenant cannot launch.
    let held = tenants.filter_map(|tenant| Some((tenant.name.clone(), tenant.set().ok()?))).collect();
    let mut chart = Chart::new(gpu, &measured, &report, held);
    chart.outsiders = audit::loads(install, &registry, Some(&Selectors::List(vec![gpu.selector()])))?
        .outsiders
        .into_iter()
        .filter(|outsider| outsider.gpu_uuid == chart.uuid)
        .collect();
    chart.fresh = fresh_now;
    chart.took_s = begin.elapsed().as_secs_f64();
    Ok(chart)
}

/// The report of the files of `nvdebug` on a GPU.
pub(crate) fn nvdebug_claims(gpu: &Gpu) -> Result<NvdebugClaims, String> {
    match gpu.sim() {
        Some(_) => Err("a simulated GPU has no such files".to_owned()),
        None => nvdebug::read(Path::new(nvdebug::PROC), gpu.facts.index),
    }
}

#[cfg(test)]
#[path = "../../../partita-core/src/topology/survey/tests/boards.rs"]
mod boards;
#[cfg(test)]
use partita_core::survey::SmPlace;

#[cfg(test)]
pub(crate) mod tests {
    use partita_core::TpcSet;

    use super::*;
    use partita_host::calibration::Measured;
    use partita_host::facts::GpuFacts;
    use partita_host::process::ProcessId;
    use partita_host::registry::GpuMeta;

    fn gpu(name: &str, compute_capability: (u32, u32)) -> Gpu {
        let facts = GpuFacts { name: name.to_owned(), compute_capability, ..GpuFacts::example() };
        Gpu::of(facts, "580.1", 13000)
    }

    fn chart(gpu: &Gpu, measured: &Measured, tenants: &[(&str, &str)]) -> Chart {
        let report = measured.survey(Err("its kernel module is not loaded".to_owned())).report();
        assert_eq!(report.disagreements, []);
        let tenant = |&(name, set): &(&str, &str)| (name.to_owned(), set.parse::<TpcSet>().unwrap());
        Chart::new(gpu, measured, &report, tenants.iter().map(tenant).collect())
    }

    fn record(sms: &[SmPlace]) -> Evidence {
        let sms = sms.iter().map(SmRecord::from).collect();
        let control = Ok(ControlRecord { sms, tpc_counts: Vec::new() });
        Evidence { control, clusters: Ok(()), runs_clusters: true }
    }

    /// As measured, with two tenants and a name with characters that are special in a terminal and
    /// in SVG.
    pub(crate) fn h200() -> Chart {
        let sms = boards::h200();
        let bit = |sm: &SmPlace| {
            let singletons = [11, 14, 17, 19];
            match singletons.iter().position(|&v| v == sm.virtual_gpc) {
                Some(index) => (8 + index as u8, 72 + sm.virtual_gpc - 8),
                None => (sm.virtual_gpc as u8, 9 * sm.virtual_gpc + sm.migratable_tpc),
            }
        };
        let measured = Measured {
            device_class: 90,
            qmd_version: 0x40,
            sms_per_tpc: 2,
            tpcs: sms.iter().step_by(2).map(bit).collect(),
            gpcs_proved: true,
            evidence: record(&sms),
            memory_total_bytes: 1 << 37,
            task_slots: Some(128),
        };
        chart(&gpu("NVIDIA H200", (9, 0)), &measured, &[("serve", "0,8,16,24"), ("<train>", "1-7")])
    }

    /// Seven GPCs in turn, the last two smaller, without CPCs.
    pub(crate) fn a100() -> Chart {
        let sms = boards::a100();
        let mut evidence = record(&sms);
        (evidence.clusters, evidence.runs_clusters) = (Err("this device runs no clusters".to_owned()), false);
        let measured = Measured {
            device_class: 80,
            qmd_version: 0x30,
            sms_per_tpc: 2,
            tpcs: sms.iter().step_by(2).map(|sm| (sm.gpc as u8, sm.tpc)).collect(),
            gpcs_proved: true,
            evidence,
            memory_total_bytes: 1 << 37,
            task_slots: Some(128),
        };
        chart(&gpu("NVIDIA A100", (8, 0)), &measured, &[])
    }

    #[test]
    fn programs_outside_of_tenants_are_named() {
        let mut chart = a100();
        assert!(!chart.to_text(Ink::Plain).contains("outside"));
        chart.outsiders.push(audit::Outsider {
            gpu: chart.gpu.clone(),
            gpu_uuid: chart.uuid.clone(),
            pid: 4242,
            user: "ann".to_owned(),
            memory_bytes: Some(3 << 29),
            command: ["python3", "\x1b[2Jx.py"].map(str::to_owned).to_vec(),
            process: ProcessId { pid: 4242, start_ticks: 1 },
            device: GpuMeta::of(&gpu("NVIDIA A100", (8, 0))),
        });
        let text = chart.to_text(Ink::Plain);
        assert!(text.contains("outside   process 4242 of ann: 1.5GiB, python3 "), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
        assert_eq!(serde_json::to_value(&chart).unwrap()["outsiders"][0]["pid"], 4242);
    }

    #[test]
    fn charts_say_who_holds_what() {
        let chart = h200();
        assert_eq!((chart.sms, chart.confirmed_sms, chart.holes), (132, 132, 6));
        assert_eq!(chart.tenants[1].letter, 'B');
        assert_eq!(chart.units[3].tenant.as_deref(), Some("<train>"));
        assert_eq!(chart.units[9].tenant, None);
        assert_eq!(chart.free_tpcs(), 55);
        let json = serde_json::to_value(&chart).unwrap();
        assert_eq!(json["units"][62]["control"]["predicted_bit"], 75);
        assert_eq!(json["gpcs"][0]["cpcs"][2]["places"], serde_json::json!([16, 63, null]));
        assert_eq!(json["gpcs_proved_by"], "clusters");
        assert_eq!(a100().gpcs_proved_by, Some("control"));
    }
}
