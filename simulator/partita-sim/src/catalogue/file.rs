//! From a device file to a device.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

use partita_core::mig::{Profile, Slot};
use partita_core::{Topology, Tpc};

use super::SEED;
use super::error::FileError;
use super::figures::{Chip, Figures, Measured, Mig, MigProfile, NumberingName, Sources};
use super::plan::{Numbering, Plan};
use crate::control::{ControlSpec, TpcPlace};
use crate::spec::{
    BoardSpec, ClockSpec, ComputeCapability, CopySpec, DeviceSpec, DriverSpec, MemorySpec, MigSpec,
    SchedulerSpec, SmSpec, StreamMaskLayout, StreamMaskSpec,
};

/// The limits of SMs, by compute capability.
const SMS: &str = include_str!("../../devices/sm.toml");

/// Delays of the pipeline, the same for all devices until separate measurements exist. The counts
/// belong to no device.
const DELAYS: SchedulerSpec = SchedulerSpec {
    task_slots: 0,
    queues_default: 0,
    queues_max: 0,
    priority_least: 0,
    priority_greatest: 0,
    // Published launch latencies of a null kernel lie between 2 and 5 µs from call to start; H200
    // took 3.3 µs for the call alone, part of which overlaps. Assumption: 2 µs in the host
    // interface and front end.
    launch_ns: 2_000,
    // Back-to-back kernels of one stream leave about 1 µs (assumption, agrees with 4 kernels of 190
    // µs in 779 µs).
    kernel_gap_ns: 1_000,
    // A few hundred cycles from placement to first instruction (assumption).
    block_start_ns: 200,
    // One block per clock of about 2 GHz (assumption).
    block_interval_ps: 500,
    // H200 under time slicing: the slowest request waited 2.02 ms longer than alone.
    slice_ns: 2_000_000,
    // H200 under time slicing: the median request, which came at the end of the other's slice,
    // waited 0.31 ms longer than alone, in two experiments. Its division is an assumption.
    switch_ns: 35_000,
    preempt_ns: 150_000,
};

/// The H200's, used for every device (assumption): the share of the data sheet's bandwidth that a
/// kernel reaches …
const REACHED_PERMILLE: u32 = 821;
/// … and the draw of one SM alone, relative to its share of that (95.5 of 29.8 GB/s).
const DRAWN_PERCENT: u64 = 320;
/// From issue to a copy's first byte (assumption).
const COPY_LATENCY_NS: u64 = 2_000;
/// The subsystem id for a generic board.
const SUBSYSTEM: u32 = 0x10de;

/// Reads the device of a file.
pub(super) fn load(path: &Path, seed: u64) -> Result<DeviceSpec, FileError> {
    let name = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let mut spec = parse(&name, &text, seed)?;
            // Another device than the catalogue's of the same name, and than the file's earlier
            // content.
            let hash = partita_core::kept::fnv1a(text.as_bytes());
            spec.id = kept(format!("{}-{hash:016x}", spec.id));
            Ok(spec)
        }
        Err(error) => Err(FileError { file: name, reason: format!("it cannot be read: {error}") }),
    }
}

/// The device of a text; `seed` as in [`super::board`].
pub(super) fn parse(file: &str, text: &str, seed: u64) -> Result<DeviceSpec, FileError> {
    read(text, seed).map_err(|reason| FileError { file: file.to_owned(), reason })
}

fn read(text: &str, seed: u64) -> Result<DeviceSpec, String> {
    let figures: Figures = toml::from_str(text).map_err(|error| error.to_string())?;
    check_sources(text, &figures)?;
    let Figures { chip, memory, clocks, copy, scheduler, driver, board, .. } = &figures;
    let capability = version("compute_capability", &figures.compute_capability)?;
    let plan = plan(chip)?;
    let (topology, control) = match &figures.measured {
        Some(measured) if seed == 0 => measured_board(chip, measured)?,
        _ => board_of(chip, &plan, seed)?,
    };
    let id = checked_id(&figures.id)?;

    within("memory.bandwidth_mb_per_s", memory.bandwidth_mb_per_s, 1, 1 << 32)?;
    within("memory.capacity_mib", memory.capacity_mib, 1, 1 << 32)?;
    within("memory.l2_kib", memory.l2_kib.into(), 1, 1 << 21)?;
    within("memory.l2_persisting_kib", memory.l2_persisting_kib.into(), 0, memory.l2_kib.into())?;
    let reached_permille = memory.reached_permille.unwrap_or(REACHED_PERMILLE);
    within("memory.reached_permille", reached_permille.into(), 1, 1_000)?;
    let bandwidth = memory.bandwidth_mb_per_s * 1_000_000;
    let share = bandwidth / 1_000 * u64::from(reached_permille) / u64::from(topology.sm_count());
    within("clocks.sm_mhz", clocks.sm_mhz.into(), 1, 100_000)?;
    within("clocks.memory_mhz", clocks.memory_mhz.into(), 1, 100_000)?;
    within("copy.engines", copy.engines.into(), 1, 64)?;
    if copy.pcie_lanes > 0 {
        within("copy.pcie_lanes", copy.pcie_lanes.into(), 1, 32)?;
        within("copy.pcie_generation", copy.pcie_generation.into(), 3, 8)?;
    }
    within("scheduler.task_slots", scheduler.task_slots.into(), 1, 1 << 16)?;
    if !(-100..=0).contains(&scheduler.priority_greatest) {
        return Err(refuse("scheduler.priority_greatest", &scheduler.priority_greatest, "-100 to 0"));
    }
    // One hardware queue before Hyper-Q, which came with compute capability 3.5.
    let (queues_default, queues_max) = if capability < (3, 5) { (1, 1) } else { (8, 32) };
    let queues_max = scheduler.queues_max.unwrap_or(queues_max);
    let queues_default = scheduler.queues_default.unwrap_or(queues_default);
    within("scheduler.queues_max", queues_max.into(), 1, 1 << 16)?;
    within("scheduler.queues_default", queues_default.into(), 1, queues_max.into())?;
    let qmd = version("driver.qmd_version", &driver.qmd_version)?;
    if qmd.0 > 15 || qmd.1 > 15 {
        return Err(refuse("driver.qmd_version", &driver.qmd_version, "0.0 to 15.15"));
    }

    Ok(DeviceSpec {
        id: if seed == 0 { kept(id.to_owned()) } else { kept(format!("{id}{SEED}{seed}")) },
        name: kept(figures.name.clone()),
        architecture: kept(figures.architecture.clone()),
        compute_capability: ComputeCapability::new(capability.0, capability.1),
        topology,
        control,
        sm: sm(&figures)?,
        memory: MemorySpec {
            capacity_bytes: memory.capacity_mib << 20,
            bandwidth_bytes_per_s: bandwidth,
            reached_permille,
            sm_bytes_per_s: memory.sm_mb_per_s.map_or(share * DRAWN_PERCENT / 100, |rate| rate * 1_000_000),
            bus_bits: memory.bus_bits,
            l2_bytes: memory.l2_kib << 10,
            l2_persisting_bytes: memory.l2_persisting_kib << 10,
            constant_bytes: 64 << 10,
            ecc: memory.ecc,
        },
        clocks: ClockSpec { sm_khz: clocks.sm_mhz * 1_000, memory_khz: clocks.memory_mhz * 1_000 },
        copy: CopySpec {
            engines: copy.engines,
            // A lane carries 1 GB/s in generation 3 and twice that in each later one; an integrated
            // GPU copies in its memory.
            link_bytes_per_s: match (copy.link_mb_per_s, copy.pcie_lanes) {
                (Some(rate), _) => rate * 1_000_000,
                (None, 0) => bandwidth / 200 * 85,
                (None, lanes) => (u64::from(lanes) * 800_000_000) << (copy.pcie_generation - 3),
            },
            local_bytes_per_s: copy.local_mb_per_s.map_or(bandwidth / 200 * 85, |rate| rate * 1_000_000),
            latency_ns: copy.latency_ns.unwrap_or(COPY_LATENCY_NS),
        },
        scheduler: SchedulerSpec {
            task_slots: scheduler.task_slots,
            queues_default,
            queues_max,
            priority_least: 0,
            priority_greatest: scheduler.priority_greatest,
            launch_ns: scheduler.launch_ns.unwrap_or(DELAYS.launch_ns),
            kernel_gap_ns: scheduler.kernel_gap_ns.unwrap_or(DELAYS.kernel_gap_ns),
            block_start_ns: scheduler.block_start_ns.unwrap_or(DELAYS.block_start_ns),
            block_interval_ps: scheduler.block_interval_ps.unwrap_or(DELAYS.block_interval_ps),
            slice_ns: scheduler.slice_ns.unwrap_or(DELAYS.slice_ns),
            switch_ns: scheduler.switch_ns.unwrap_or(DELAYS.switch_ns),
            preempt_ns: scheduler.preempt_ns.unwrap_or(DELAYS.preempt_ns),
        },
        driver: DriverSpec {
            version: kept(driver.version.clone()),
            cuda_version: driver.cuda_version,
            qmd_version: qmd.0 << 4 | qmd.1,
            stream_mask: StreamMaskSpec {
                offset_bytes: driver.stream_mask_offset,
                layout: if driver.cuda_version < 12_000 {
                    StreamMaskLayout::UpperLower
                } else {
                    StreamMaskLayout::EnabledWords4
                },
            },
        },
        board: BoardSpec {
            pci_device_id: board.pci_device_id,
            pci_subsystem_id: board.pci_subsystem_id.unwrap_or(SUBSYSTEM),
            pcie_generation: copy.pcie_generation,
            pcie_lanes: copy.pcie_lanes,
            power_limit_mw: board.power_limit_w * 1_000,
        },
        mig: figures.mig.as_ref().map(mig_profiles).transpose()?,
    })
}

/// Specs refer to strings with static lifetime; each is stored once, however often a file is read.
fn kept(text: String) -> &'static str {
    static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut kept = KEPT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(known) = kept.get(text.as_str()) {
        return known;
    }
    let text: &'static str = text.leak();
    kept.insert(text);
    text
}

fn refuse(field: &str, value: &dyn core::fmt::Display, accepted: &str) -> String {
    format!("{field} is {value}; accepted is {accepted}")
}

fn within(field: &str, value: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(refuse(field, &value, &format!("{least} to {most}")))
}

/// A name that is valid in a file's name.
fn checked_id(id: &str) -> Result<&str, String> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=40).contains(&id.len()) && id.bytes().all(fits) {
        return Ok(id);
    }
    Err(refuse("id", &format_args!("'{id}'"), "1 to 40 of a-z, 0-9 and -"))
}

/// `major.minor`.
fn version(field: &str, text: &str) -> Result<(u8, u8), String> {
    let parts = text.split_once('.');
    let numbers = parts.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    numbers.ok_or_else(|| refuse(field, &format_args!("'{text}'"), "two numbers, as \"9.0\""))
}

fn plan(chip: &Chip) -> Result<Plan, String> {
    within("chip.sms_per_tpc", chip.sms_per_tpc.into(), 1, Topology::SMS_PER_TPC_MAX.into())?;
    within("chip.gpcs", chip.gpcs.into(), 1, Topology::GPC_COUNT_MAX as u64)?;
    within("chip.tpcs_per_gpc", chip.tpcs_per_gpc.into(), 1, 255)?;
    let whole = u64::from(chip.gpcs) * u64::from(chip.tpcs_per_gpc);
    within("chip.tpcs", chip.tpcs.into(), chip.gpcs.into(), whole.min(256))?;
    let dies = chip.dies.unwrap_or(1);
    within("chip.dies", dies.into(), 1, chip.gpcs.into())?;
    if u16::from(chip.gpcs) % dies != 0 {
        return Err(refuse("chip.dies", &dies, "a number that divides chip.gpcs"));
    }
    let stride = || match chip.stride {
        Some(stride) if stride >= u16::from(chip.tpcs_per_gpc) => Ok(stride),
        Some(stride) => Err(refuse("chip.stride", &stride, "chip.tpcs_per_gpc or more")),
        None => Err("chip.stride is missing: with this numbering it says how many bits a GPC has".to_owned()),
    };
    let numbering = match chip.numbering {
        NumberingName::Logical => Numbering::Logical,
        NumberingName::GpcMajor => Numbering::GpcMajor { stride: stride()? },
        NumberingName::GpcMinor => Numbering::GpcMinor,
        NumberingName::TwoDies if dies == 2 => Numbering::TwoDies { stride: stride()? },
        NumberingName::TwoDies => {
            return Err(refuse("chip.dies", &dies, "2 with the numbering \"two-dies\""));
        }
    };
    Ok(Plan {
        sms_per_tpc: chip.sms_per_tpc,
        gpcs: chip.gpcs,
        tpcs_per_gpc: chip.tpcs_per_gpc,
        tpcs: chip.tpcs,
        order: chip.order,
        numbering,
    })
}

fn board_of(chip: &Chip, plan: &Plan, seed: u64) -> Result<(Topology, ControlSpec), String> {
    let topology = plan.topology(seed).map_err(|error| format!("chip: {error}"))?;
    let mut control = ControlSpec::of(&topology);
    let gpcs_per_die = u16::from(chip.gpcs) / chip.dies.unwrap_or(1);
    for place in &mut control.places {
        place.ugpu = place.virtual_gpc / gpcs_per_die;
    }
    Ok((topology, control))
}

fn measured_board(chip: &Chip, measured: &Measured) -> Result<(Topology, ControlSpec), String> {
    let Measured { tpcs, places, tpc_masks, .. } = measured;
    for (field, count) in [("measured.tpcs", tpcs.len()), ("measured.places", places.len())] {
        if count != usize::from(chip.tpcs) {
            return Err(format!(
                "{field} has {count} entries; accepted is one for each of chip.tpcs, {}",
                chip.tpcs
            ));
        }
    }
    let table: Vec<Tpc> = tpcs.iter().map(|&(gpc, physical)| Tpc { gpc, physical }).collect();
    let topology =
        Topology::new(chip.sms_per_tpc, table).map_err(|error| format!("measured.tpcs: {error}"))?;
    let place = |&(gpc, tpc_in_gpc, virtual_gpc, migratable_tpc, ugpu, cpc, virtual_tpc)| TpcPlace {
        gpc,
        tpc_in_gpc,
        virtual_gpc,
        migratable_tpc,
        ugpu,
        cpc,
        virtual_tpc,
    };
    let control = ControlSpec { places: places.iter().map(place).collect(), tpc_masks: tpc_masks.clone() };
    Ok((topology, control))
}

fn mig_profiles(mig: &Mig) -> Result<Vec<MigSpec>, String> {
    let profile = |figures: &MigProfile| {
        let field = |name: &str| format!("mig.profiles {}: {name}", figures.name);
        within(&field("slices"), figures.slices.into(), 1, 8)?;
        within(&field("sms"), figures.sms.into(), 1, 1 << 16)?;
        within(&field("index"), figures.index.into(), 0, 63)?;
        within(&field("count_max"), figures.count_max.into(), 1, 8)?;
        within(&field("size"), figures.size.into(), 1, 8)?;
        let slots = figures.starts.iter().map(|&start| {
            within(&field("starts"), start.into(), 0, (8 - figures.size).into())?;
            Ok(Slot { start, size: figures.size })
        });
        let profile = Profile {
            id: figures.id,
            name: figures.name.clone(),
            slices: figures.slices,
            sms: figures.sms,
            memory_mib: figures.memory_mib,
            count_max: figures.count_max,
            slots: slots.collect::<Result<_, String>>()?,
        };
        Ok(MigSpec { index: figures.index, profile })
    };
    mig.profiles.iter().map(profile).collect()
}

/// The SM of the device's compute capability, with the file's changes.
fn sm(figures: &Figures) -> Result<SmSpec, String> {
    let known: toml::Table = toml::from_str(SMS).map_err(|error| format!("sm.toml: {error}"))?;
    let mut limits = match known.get(&figures.compute_capability) {
        Some(toml::Value::Table(limits)) => limits.clone(),
        _ => toml::Table::new(),
    };
    limits.extend(figures.sm.iter().map(|(figure, value)| (figure.clone(), value.clone())));
    limits.remove("source");
    let sm: SmSpec = limits.try_into().map_err(|error| {
        let known: Vec<&str> = known.keys().map(String::as_str).collect();
        let capability = &figures.compute_capability;
        format!(
            "sm: {error} (limits are known for compute capability {}, this is {capability})",
            known.join(", ")
        )
    })?;
    for (field, value) in [
        ("sm.threads_max", sm.threads_max),
        ("sm.blocks_max", sm.blocks_max),
        ("sm.threads_per_block_max", sm.threads_per_block_max),
        ("sm.warp_threads", sm.warp_threads),
        ("sm.registers", sm.registers),
        ("sm.register_unit", sm.register_unit),
        ("sm.shared_unit_bytes", sm.shared_unit_bytes),
        ("sm.cluster_blocks_max", sm.cluster_blocks_max),
    ] {
        within(field, value.into(), 1, 1 << 24)?;
    }
    Ok(sm)
}

/// A source without a figure belongs to a missing or misspelt figure.
fn check_sources(text: &str, figures: &Figures) -> Result<(), String> {
    let table: toml::Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let none = Sources::new();
    let sections = [
        ("chip", &figures.chip.source),
        ("memory", &figures.memory.source),
        ("clocks", &figures.clocks.source),
        ("copy", &figures.copy.source),
        ("scheduler", &figures.scheduler.source),
        ("driver", &figures.driver.source),
        ("board", &figures.board.source),
        ("mig", figures.mig.as_ref().map_or(&none, |mig| &mig.source)),
        ("measured", figures.measured.as_ref().map_or(&none, |measured| &measured.source)),
    ];
    for (section, sources) in sections {
        let Some(toml::Value::Table(known)) = table.get(section) else { continue };
        if let Some(source) = sources.keys().find(|source| !known.contains_key(*source)) {
            let known: Vec<&str> = known.keys().map(String::as_str).filter(|&key| key != "source").collect();
            return Err(format!(
                "{section}.source.{source} names no figure of [{section}]; accepted are {}",
                known.join(", ")
            ));
        }
    }
    Ok(())
}
