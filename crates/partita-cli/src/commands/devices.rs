//! `partita devices`.

use std::process::ExitCode;

use partita::calibration::Cache;
use partita::facts::InstanceFacts;
use partita::gpu::Gpu;
use partita::gpus::{self, Selectors};
use partita::install::Install;
use partita_console::{Failure, GpusOption, Table, print, print_json, select_several, tell};
use serde::Serialize;

use crate::args::Devices;
use crate::commands::bytes;

/// A GPU as `devices` shows it.
#[derive(Debug, Serialize)]
struct DeviceRow {
    selector: String,
    uuid: String,
    name: String,
    pci: Option<String>,
    driver_version: String,
    cuda_version: String,
    compute_capability: String,
    memory_total_bytes: u64,
    memory_used_bytes: u64,
    mig_enabled: Option<bool>,
    mig_instances: Vec<InstanceFacts>,
    compute_mode: String,
    /// Absent before the first `run` or `doctor` on the GPU, and while MIG divides it.
    sms: Option<u32>,
    tpcs: Option<u32>,
    gpcs: Option<Vec<u32>>,
    qmd_version: Option<String>,
}

/// Lists the GPUs.
pub fn devices(arguments: &Devices) -> Result<ExitCode, Failure> {
    let install = Install::of_this_program()?;
    let is_named = arguments.gpu.gpu.as_ref().is_some_and(|text| !["", "all"].contains(&text.as_str()));
    let gpus = if is_named { select_several(&install, &arguments.gpu)? } else { every(&install)? };
    let cache = Cache::open();
    let rows: Vec<DeviceRow> = gpus.iter().map(|gpu| row(&install, &cache, gpu)).collect();
    if arguments.json {
        print_json(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&[
        "GPU",
        "NAME",
        "UUID",
        "CC",
        ">MEMORY",
        ">USED",
        ">SMS",
        "GPCS (TPCS EACH)",
        "DRIVER",
        "CUDA",
    ]);
    let is_divided = |row: &DeviceRow| row.mig_enabled == Some(true);
    let is_any_divided = rows.iter().any(is_divided);
    let is_unmeasured = rows.iter().any(|row| row.sms.is_none() && !is_divided(row));
    for row in rows {
        let mark = if is_divided(&row) { "-" } else { "?" };
        let unknown = || mark.to_owned();
        let instances = row.mig_instances;
        table.row([
            row.selector,
            row.name,
            row.uuid,
            row.compute_capability,
            bytes(row.memory_total_bytes),
            bytes(row.memory_used_bytes),
            row.sms.map_or_else(unknown, |sms| sms.to_string()),
            row.gpcs.map_or_else(unknown, |gpcs| {
                format!("{} ({})", gpcs.len(), gpcs.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))
            }),
            row.driver_version,
            row.cuda_version,
        ]);
        for instance in instances {
            table.row([
                format!("  {}", instance.profile()),
                instance.name.clone(),
                instance.uuid,
                String::new(),
                bytes(instance.memory_total_bytes),
                bytes(instance.memory_used_bytes),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
            ]);
        }
    }
    let mut text = table.render();
    if is_unmeasured {
        text.push_str(
            "?: not measured yet; the first `partita run` on the GPU, or `partita doctor`, measures it\n",
        );
    }
    if is_any_divided {
        text.push_str(
            "-: divided by MIG, so tenants have no SMs of it; `partita run --mig` uses an instance\n",
        );
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Every GPU of the machine, also of several kinds; else a simulated one with a notice. Says which
/// ones cannot be read.
fn every(install: &Install) -> Result<Vec<Gpu>, Failure> {
    match gpus::list(install, &Selectors::All(None)) {
        Ok(listed) if !listed.gpus.is_empty() => {
            listed.left_out.iter().for_each(|one| tell(&one.reason));
            Ok(listed.gpus)
        }
        _ => select_several(install, &GpusOption { gpu: Some("all".to_owned()) }),
    }
}

fn row(install: &Install, cache: &Cache, gpu: &Gpu) -> DeviceRow {
    // What was measured holds for the whole GPU alone.
    let kept = cache.kept(install, gpu).filter(|_| gpu.facts.mig_enabled != Some(true));
    let topology = kept.as_ref().and_then(|measured| measured.topology().ok());
    let facts = &gpu.facts;
    DeviceRow {
        selector: match gpu.sim() {
            Some(_) => gpu.selector().to_string(),
            None => facts.index.to_string(),
        },
        uuid: facts.uuid.clone(),
        name: facts.name.clone(),
        pci: facts.pci.clone(),
        driver_version: gpu.driver_version.clone(),
        cuda_version: gpu.cuda_version_text(),
        compute_capability: gpu.compute_capability_text(),
        memory_total_bytes: facts.memory_total_bytes,
        memory_used_bytes: facts.memory_used_bytes,
        mig_enabled: facts.mig_enabled,
        mig_instances: facts.mig_instances.clone(),
        compute_mode: facts.compute_mode.clone(),
        sms: topology.as_ref().map(|topology| topology.sm_count()),
        tpcs: topology.as_ref().map(|topology| topology.tpc_count()),
        gpcs: topology
            .as_ref()
            .filter(|_| kept.as_ref().is_some_and(|kept| kept.gpcs_proved))
            .map(|topology| topology.gpcs().iter().map(|gpc| gpc.tpcs.len()).collect()),
        qmd_version: kept
            .map(|measured| format!("{}.{}", measured.qmd_version >> 4, measured.qmd_version & 15)),
    }
}
