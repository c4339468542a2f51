//! The calibration of one GPU: what each bit of a launch mask disables.
//!
//! It runs in a sacrificial process without MPS, because a wrong mask hangs a kernel forever. It
//! assumes nothing about the numbering: it disables each physical bit alone, and the SMs that a
//! census then misses are those of the bit. That cannot hang, since all other bits stay enabled;
//! the opposite direction is tested only with proved bits. On an H200 all of this takes 0.05 s.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;

use partita_abi::qmd::{self, QmdLayout};

use crate::census::Census;
use crate::error::Error;
use crate::gpu::{Gpu, GpuFacts, Grid};
use crate::launch_mask::LaunchMask;

/// Spin of a census block: long enough that blocks cover every enabled SM before the first ends.
const CENSUS_NS: u64 = 20_000;
/// Rounds over all bits before a disagreement counts as a contradiction.
const ROUNDS_MAX: u32 = 3;
/// Deadline of one cluster launch, which takes microseconds if it can run at all.
const CLUSTER_DEADLINE_MS: u64 = 1_000;
/// Blocks of the largest cluster of any device, and of the largest that every device with clusters
/// runs (CUDA C++ Programming Guide).
const CLUSTER_BLOCKS_MAX: u32 = 16;
const CLUSTER_BLOCKS_PORTABLE: u32 = 8;
/// Positions of one GPC in Hopper's physical numbering: bit = 9 × GPC + TPC (measured on all H200
/// boards tried).
const HOPPER_STRIDE: u16 = 9;
/// From this bit on, TPCs are outside every GPC that clusters can use ("singletons"; measured on
/// H200).
const HOPPER_SINGLETONS: u16 = 72;

/// One TPC, at its logical position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbedTpc {
    /// Its bit in a launch mask.
    pub physical: u16,
    /// The GPC that clusters share; 0 for all TPCs if none is proved.
    pub gpc: u8,
}

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// What the driver reports about the GPU.
    pub facts: GpuFacts,
    /// Version byte of its launch descriptors.
    pub qmd_version: u8,
    /// SMs of a TPC.
    pub sms_per_tpc: u32,
    /// Every TPC in logical order: TPC i has the SMs from i × `sms_per_tpc` on.
    pub tpcs: Vec<ProbedTpc>,
    /// Whether clusters proved the GPCs. If not, a cluster can rely on one TPC only.
    pub gpcs_proved: bool,
    /// Launches that the probe took.
    pub launches: u64,
}

/// Proves the launch mask of a GPU, bit by bit.
///
/// # Errors
/// [`Error::Disproved`] for a contradiction; [`Error::Hang`], after which the process must end;
/// those of the driver.
pub fn probe(gpu: &Gpu<'_>) -> Result<Probe, Error> {
    probe_with(gpu, &mut LaunchMask::install(gpu.cuda())?)
}

/// As [`probe()`], with the process's mask, which stays the caller's and is empty afterwards.
///
/// # Errors
/// As [`probe()`].
pub fn probe_with(gpu: &Gpu<'_>, mask: &mut LaunchMask) -> Result<Probe, Error> {
    let facts = gpu.facts().clone();
    if facts.under_mps {
        return Err(Error::Disproved("under MPS the SM numbers that blocks see are not the device's".into()));
    }
    let (census, all) = all_sms(gpu)?;
    let layout = mask
        .layout(facts.compute_capability)
        .ok_or_else(|| Error::Disproved("a kernel ran without the launch callback being called".into()))??;

    let found = bits(mask, layout, &census, &all)?;
    let sms_per_tpc = found.first().map_or(0, |(_, sms)| sms.len() as u32);
    let tpcs = order(&found, &all, sms_per_tpc, layout)?;
    confirm(mask, layout, &census, &tpcs, sms_per_tpc)?;

    let mut probe = Probe {
        facts,
        qmd_version: layout.version.byte(),
        sms_per_tpc,
        tpcs: tpcs.iter().map(|&physical| ProbedTpc { physical, gpc: 0 }).collect(),
        gpcs_proved: false,
        launches: 0,
    };
    assign_gpcs(gpu, mask, layout, &mut probe)?;
    mask.clear();
    probe.launches = mask.launches();
    Ok(probe)
}

/// How many SMs a TPC has, where the SMs are numbered from 0 without a hole.
///
/// For kernels that read `%smid` and keep to some SMs by themselves: no mask is proved, and a TPC
/// is a unit of neighbouring numbers. Two SMs from Volta on and on a P100, one before
/// (`docs/hardware.md`).
///
/// # Errors
/// [`Error::Disproved`] if the numbers are others; [`Error::Hang`]; those of the driver.
pub fn sms_without_masks(gpu: &Gpu<'_>) -> Result<u32, Error> {
    let facts = gpu.facts();
    if facts.under_mps {
        return Err(Error::Disproved("under MPS the SM numbers that blocks see are not the device's".into()));
    }
    let (_, all) = all_sms(gpu)?;
    let sms_per_tpc = if matches!(facts.compute_capability, 60 | 70..) { 2 } else { 1 };
    if !all.iter().copied().eq(0..facts.sms) || !facts.sms.is_multiple_of(sms_per_tpc) {
        return Err(Error::Disproved(format!(
            "the {} SMs of this device are not numbered from 0, or not {sms_per_tpc} to a TPC",
            facts.sms
        )));
    }
    Ok(sms_per_tpc)
}

/// A census of the whole device, and its SMs.
fn all_sms<'g, 'a>(gpu: &'g Gpu<'a>) -> Result<(Census<'g, 'a>, BTreeSet<u32>), Error> {
    let sms = gpu.facts().sms;
    let census = Census::new(gpu, Grid { blocks: sms * 4, threads: 1024, cluster_blocks: 1 }, CENSUS_NS)?;
    let all = full_census(&census, sms)?;
    Ok((census, all))
}

/// The SMs of the whole device. A census can miss one while another process uses the GPU, so
/// several are united.
fn full_census(census: &Census<'_, '_>, sms: u32) -> Result<BTreeSet<u32>, Error> {
    let mut all = BTreeSet::new();
    for _ in 0..8 {
        all.extend(census.sms()?);
        if all.len() as u32 == sms {
            return Ok(all);
        }
    }
    Err(Error::Disproved(format!("blocks ran on {} SMs, the driver reports {sms}", all.len())))
}

/// For each live bit, the SMs that are missing when only this bit is disabled.
fn bits(
    mask: &mut LaunchMask,
    layout: &'static QmdLayout,
    census: &Census<'_, '_>,
    all: &BTreeSet<u32>,
) -> Result<Vec<(u16, BTreeSet<u32>)>, Error> {
    let mut found = Vec::new();
    for bit in 0..layout.mask.tpcs_max() as u16 {
        mask.set(layout, &words(&[bit], false));
        let mut missing = all.clone();
        // An SM counts as disabled only if it stays empty in every round.
        for _ in 0..ROUNDS_MAX {
            for sm in census.sms()? {
                missing.remove(&sm);
            }
            if missing.is_empty() {
                break;
            }
        }
        if !missing.is_empty() {
            found.push((bit, missing));
        }
    }
    Ok(found)
}

/// Sorts the live bits into logical order, and checks that they divide the SMs without a gap or an
/// overlap.
fn order(
    found: &[(u16, BTreeSet<u32>)],
    all: &BTreeSet<u32>,
    sms_per_tpc: u32,
    layout: &QmdLayout,
) -> Result<Vec<u16>, Error> {
    if found.is_empty() {
        return Err(Error::Disproved("no bit of the mask disables any SM".into()));
    }
    let tpcs = all.len() as u32 / sms_per_tpc;
    let mut physical = alloc::vec![None; tpcs as usize];
    for (bit, sms) in found {
        let first = sms.first().copied().unwrap_or(0);
        let expected: BTreeSet<u32> = (first..first + sms_per_tpc).collect();
        if *sms != expected || first % sms_per_tpc != 0 {
            return Err(Error::Disproved(format!("mask bit {bit} disables SMs {sms:?}, not one TPC")));
        }
        match physical.get_mut((first / sms_per_tpc) as usize) {
            Some(slot @ None) => *slot = Some(*bit),
            _ => return Err(Error::Disproved(format!("two mask bits disable SM {first}"))),
        }
    }
    let mut tpcs = Vec::with_capacity(physical.len());
    for (tpc, bit) in physical.into_iter().enumerate() {
        tpcs.push(bit.ok_or_else(|| {
            Error::Disproved(format!(
                "no mask bit disables TPC {tpc}: launch descriptors {} of this driver have {} bits, and the device has {} TPCs",
                layout.version,
                layout.mask.tpcs_max(),
                all.len() as u32 / sms_per_tpc
            ))
        })?);
    }
    Ok(tpcs)
}

/// Enables each TPC alone, then growing sets, and checks that blocks run there and nowhere else.
fn confirm(
    mask: &mut LaunchMask,
    layout: &'static QmdLayout,
    census: &Census<'_, '_>,
    tpcs: &[u16],
    sms_per_tpc: u32,
) -> Result<(), Error> {
    let singles = (0..tpcs.len()).map(|tpc| alloc::vec![tpc]);
    // Every second, every third, … TPC: sets that no numbering by GPC or half could match by
    // accident.
    let combs = (2..6).map(|step| (0..tpcs.len()).step_by(step).collect::<Vec<_>>());
    for enabled in singles.chain(combs) {
        let bits: Vec<u16> = enabled.iter().map(|&tpc| tpcs[tpc]).collect();
        mask.set(layout, &words(&bits, true));
        let expected: BTreeSet<u32> = enabled
            .iter()
            .flat_map(|&tpc| (0..sms_per_tpc).map(move |sm| tpc as u32 * sms_per_tpc + sm))
            .collect();
        let mut seen = census.sms()?;
        if seen.is_subset(&expected) {
            // If one census misses some of them, that is not a contradiction.
            seen.extend(census.sms()?);
        }
        if seen != expected {
            return Err(Error::Disproved(format!(
                "with only TPCs {enabled:?} enabled, blocks ran on SMs {seen:?}"
            )));
        }
    }
    Ok(())
}

/// Finds the TPCs that share a GPC, by clusters, which run only inside one GPC.
fn assign_gpcs(
    gpu: &Gpu<'_>,
    mask: &mut LaunchMask,
    layout: &'static QmdLayout,
    probe: &mut Probe,
) -> Result<(), Error> {
    // As far as is known, only descriptors of version 4.0 number bits by GPC.
    if probe.facts.compute_capability != 90 || probe.qmd_version != 0x40 || !runs_clusters(gpu) {
        return Ok(());
    }
    let group = |bit: u16| {
        if bit < HOPPER_SINGLETONS {
            bit / HOPPER_STRIDE
        } else {
            HOPPER_SINGLETONS / HOPPER_STRIDE + bit - HOPPER_SINGLETONS
        }
    };
    let numbers: BTreeSet<u16> = probe.tpcs.iter().map(|tpc| group(tpc.physical)).collect();
    let number = |bit| numbers.iter().position(|&number| number == group(bit)).unwrap_or(0) as u8;
    let groups: Vec<u8> = probe.tpcs.iter().map(|tpc| number(tpc.physical)).collect();
    run_clusters(gpu, mask, layout, probe, &groups)
}

/// Proves by clusters that TPCs of the same number in `groups` share a GPC, for boards whose groups
/// [`probe_with`] did not know. The control interface reports such groups: one number a TPC in
/// logical order. The process's mask is empty afterwards.
///
/// The result is in [`Probe::gpcs_proved`]. If a cluster does not run within its deadline, that
/// stays false and this process's context is lost: nothing more can be launched.
///
/// # Errors
/// Those of the driver; [`Error::Disproved`] if the groups do not have one number for each TPC.
pub fn prove_gpcs(
    gpu: &Gpu<'_>,
    mask: &mut LaunchMask,
    probe: &mut Probe,
    groups: &[u8],
) -> Result<(), Error> {
    if groups.len() != probe.tpcs.len() {
        return Err(Error::Disproved(format!(
            "GPCs are known of {} TPCs, the device has {}",
            groups.len(),
            probe.tpcs.len()
        )));
    }
    let layout = qmd::layout_for(probe.facts.compute_capability, probe.qmd_version)?;
    run_clusters(gpu, mask, layout, probe, groups)?;
    mask.clear();
    probe.launches = mask.launches();
    Ok(())
}

/// Whether the driver launches clusters of blocks on a GPU; a driver that does not know the
/// attribute does not.
#[must_use]
pub fn runs_clusters(gpu: &Gpu<'_>) -> bool {
    let mut value = 0;
    let attribute = partita_abi::attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH;
    // SAFETY: a valid pointer, and the device that `gpu` opened.
    unsafe { gpu.cuda().device_get_attribute(&mut value, attribute, gpu.device()) }.is_ok() && value != 0
}

/// Runs clusters that fill each group, up to the device's largest cluster, each overlapping the one
/// before.
fn run_clusters(
    gpu: &Gpu<'_>,
    mask: &mut LaunchMask,
    layout: &'static QmdLayout,
    probe: &mut Probe,
    groups: &[u8],
) -> Result<(), Error> {
    let mut bits_of: alloc::collections::BTreeMap<u8, Vec<u16>> = alloc::collections::BTreeMap::new();
    for (tpc, &group) in probe.tpcs.iter().zip(groups) {
        bits_of.entry(group).or_default().push(tpc.physical);
    }
    let mut most = (CLUSTER_BLOCKS_MAX / probe.sms_per_tpc).max(2) as usize;
    for bits in bits_of.values().filter(|bits| bits.len() > 1) {
        let mut first = 0;
        loop {
            let size = bits.len().min(most);
            let part = &bits[first.min(bits.len() - size)..][..size];
            mask.set(layout, &words(part, true));
            let blocks = size as u32 * probe.sms_per_tpc;
            let grid = Grid { blocks, threads: 32, cluster_blocks: blocks };
            let census = Census::new(gpu, grid, 1_000)?;
            match census.launch() {
                Ok(()) => {}
                // Not every device has clusters beyond the portable size.
                Err(Error::Call { .. }) if blocks > CLUSTER_BLOCKS_PORTABLE => {
                    most = (CLUSTER_BLOCKS_PORTABLE / probe.sms_per_tpc).max(2) as usize;
                    continue;
                }
                Err(error) => return Err(error),
            }
            match gpu.wait("a cluster of one GPC", CLUSTER_DEADLINE_MS) {
                Ok(()) => {}
                // The groups are wrong for this board, and this process is lost; the caller still
                // has what was proved before.
                Err(Error::Hang { .. }) => {
                    core::mem::forget(census);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            if first + size >= bits.len() {
                break;
            }
            first += size - 1;
        }
    }
    for (tpc, &group) in probe.tpcs.iter_mut().zip(groups) {
        tpc.gpc = group;
    }
    probe.gpcs_proved = true;
    Ok(())
}

/// Disable words with only `bits` disabled, or with all other bits disabled.
fn words(bits: &[u16], only: bool) -> [u32; 8] {
    let mut words = [0; 8];
    for &bit in bits {
        words[usize::from(bit / 32)] |= 1 << (bit % 32);
    }
    if only { words.map(|word: u32| !word) } else { words }
}
