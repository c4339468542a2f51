//! The GPUs of this node, as [`Board`]s.

use partita::calibration::Cache;
use partita::control::admission::Capacity;
use partita::gpu::Gpu;
use partita::gpus::{self, LeftOut, Selectors};
use partita::install::Install;
use partita::mig;
use partita::registry::Registry;
use partita::run::check_usable;

use crate::device::{Board, Mig};

/// Of every GPU that has MIG.
const SMS_PER_TPC: u32 = 2;

/// What the GPUs are now.
#[derive(Debug, Default)]
pub struct Found {
    /// GPUs without MIG, and the instances of those with MIG.
    pub boards: Vec<Board>,
    /// The GPUs with MIG whose instances were read, `GPU-…`.
    pub divided: Vec<String>,
    /// Which GPUs are not offered, and why.
    pub left_out: Vec<LeftOut>,
}

impl Found {
    /// What a look found that failed.
    #[must_use]
    pub fn nothing(error: &str) -> Self {
        let reason = format!("the GPUs cannot be listed: {error}");
        Self { left_out: vec![LeftOut { uuid: None, reason }], ..Self::default() }
    }

    /// Why a GPU that was there is not there now.
    fn fault(&self, gpu: &str) -> String {
        let of = |uuid: Option<&str>| {
            let is_it = |one: &&LeftOut| one.uuid.as_deref().map(str::to_ascii_lowercase).as_deref() == uuid;
            let reasons: Vec<&str> = self.left_out.iter().filter(is_it).map(|one| &*one.reason).collect();
            (!reasons.is_empty()).then(|| reasons.join("; "))
        };
        let known = of(Some(&gpu.to_ascii_lowercase()));
        // It may be one of those of which no UUID is known.
        let known = known.or_else(|| of(None));
        known.unwrap_or_else(|| "the driver does not report it any more".to_owned())
    }
}

/// Reads the GPUs, calibrates those that were not, and reads the instances of those with MIG.
///
/// # Errors
/// Why the GPUs cannot be listed.
pub fn read(install: &Install, selectors: &Selectors) -> Result<Found, String> {
    let listed = gpus::list(install, selectors).map_err(|error| error.to_string())?;
    let cache = Cache::open();
    let mut found = Found { left_out: listed.left_out, ..Found::default() };
    for gpu in listed.gpus {
        let read = match gpu.facts.mig_enabled {
            Some(true) => instances(install, &gpu).inspect(|_| found.divided.push(gpu.facts.uuid.clone())),
            _ => board(install, &cache, &gpu).map(|board| vec![board]),
        };
        match read {
            Ok(all) => found.boards.extend(all),
            Err(reason) => found.left_out.push(LeftOut {
                uuid: Some(gpu.facts.uuid.clone()),
                reason: format!("{}: {reason}", gpu.label()),
            }),
        }
    }
    Ok(found)
}

/// The instances of a GPU with MIG.
fn instances(install: &Install, gpu: &Gpu) -> Result<Vec<Board>, String> {
    let registry = Registry::open().map_err(|error| error.to_string())?;
    let report = mig::show(install, &registry, gpu).map_err(|error| error.to_string())?;
    let present = report.instances.ok_or("only root may list its MIG instances")?;
    let mut all = Vec::new();
    for instance in present {
        let profile = report.profiles.iter().find(|profile| profile.name == instance.profile);
        let profile = profile.ok_or_else(|| format!("the profile {} is not known", instance.profile))?;
        for compute in instance.compute_instances {
            let sms = profile.sms * compute.slices / profile.slices.max(1);
            all.push(Board {
                uuid: compute.uuid,
                sms_per_tpc: SMS_PER_TPC,
                tpcs: sms / SMS_PER_TPC,
                memory_bytes: profile.memory_bytes,
                mig: Some(Mig { parent: gpu.facts.uuid.clone(), profile: profile.name.clone() }),
                ..known(gpu)
            });
        }
    }
    Ok(all)
}

fn board(install: &Install, cache: &Cache, gpu: &Gpu) -> Result<Board, String> {
    let fault = check_usable(gpu).err().map(|error| error.to_string());
    // What cannot be used cannot be measured either, and that is the reason.
    let measured =
        cache.get(install, gpu).map_err(|error| fault.clone().unwrap_or_else(|| error.to_string()))?;
    let topology = measured.topology()?;
    Ok(Board {
        sms_per_tpc: topology.sms_per_tpc(),
        tpcs: topology.tpc_count(),
        gpcs: measured.gpcs_proved.then(|| topology.gpcs().len() as u32),
        memory_bytes: measured.memory_total_bytes,
        // Right for every version of the service.
        clients: Capacity::of(gpu.facts.compute_capability, None).contexts_max,
        fault,
        ..known(gpu)
    })
}

/// What the driver reports of a GPU, without its size.
fn known(gpu: &Gpu) -> Board {
    Board {
        uuid: gpu.facts.uuid.clone(),
        selector: gpu.selector().to_string(),
        product: gpu.facts.name.clone(),
        pci: gpu.facts.pci.clone(),
        driver: gpu.driver_version.clone(),
        cuda: gpu.cuda_version,
        compute_capability: gpu.facts.compute_capability,
        sms_per_tpc: 0,
        tpcs: 0,
        gpcs: None,
        memory_bytes: 0,
        clients: 0,
        is_simulated: gpu.sim().is_some(),
        fault: None,
        mig: None,
    }
}

/// The boards that the node offers now: those that were found, and those that were there before,
/// with a fault. A device that has claims does not vanish without a word. But instances come and go
/// while their GPU is there.
#[must_use]
pub fn merge(before: &[Board], found: &Found) -> Vec<Board> {
    let mut now = found.boards.clone();
    for old in before {
        let gpu = old.mig.as_ref().map_or(&old.uuid, |mig| &mig.parent);
        let is_there = |board: &Board| board.uuid == old.uuid || board.uuid == *gpu;
        if !found.divided.contains(gpu) && !now.iter().any(is_there) {
            now.push(Board { fault: Some(found.fault(gpu)), ..old.clone() });
        }
    }
    now.sort_by(|a, b| a.uuid.cmp(&b.uuid));
    now
}

#[cfg(test)]
mod tests {
    use partita::facts::GpuFacts;

    use super::*;
    use crate::device::tests::{h200, instance};

    fn found(boards: &[Board]) -> Found {
        let mut divided: Vec<String> =
            boards.iter().filter_map(|board| Some(board.mig.as_ref()?.parent.clone())).collect();
        divided.dedup();
        Found { boards: boards.to_vec(), divided, left_out: Vec::new() }
    }

    #[test]
    fn what_vanished_stays_with_a_fault_and_heals() {
        let both = merge(&[], &found(&[h200(1), h200(0)]));
        assert_eq!(both, [h200(0), h200(1)]);
        let one = merge(&both, &found(&[h200(1)]));
        assert!(one[0].fault.as_ref().unwrap().contains("not report it"));
        assert_eq!(one[0].uuid, h200(0).uuid);
        assert_eq!(one[1], h200(1));
        assert_eq!(merge(&one, &found(&[h200(0), h200(1)])), both);
    }

    #[test]
    fn a_fault_says_why() {
        let both = [h200(0), h200(1)];
        let fault = |uuid: Option<String>, reason: &str| {
            let left_out = vec![
                LeftOut { uuid: Some("GPU-other".to_owned()), reason: "of another".to_owned() },
                LeftOut { uuid, reason: reason.to_owned() },
            ];
            let found = Found { left_out, ..found(&[h200(1)]) };
            merge(&both, &found)[0].fault.clone().unwrap()
        };
        let uuid = h200(0).uuid.to_ascii_uppercase();
        assert_eq!(fault(Some(uuid), "its calibration failed"), "its calibration failed");
        assert_eq!(fault(None, "GPU 0 cannot be read"), "GPU 0 cannot be read");
        let all = merge(&[h200(0), instance(0)], &Found::nothing("no driver"));
        assert!(all.iter().all(|one| one.fault.as_deref() == Some("the GPUs cannot be listed: no driver")));
    }

    #[test]
    fn a_gpu_whose_compute_mode_is_prohibited_has_that_fault() {
        let facts = GpuFacts { compute_mode: "prohibited".to_owned(), ..GpuFacts::example() };
        let install = Install::of("/nowhere/partita".into(), None);
        let reason = board(&install, &Cache::open(), &Gpu::of(facts, "1", 13000)).unwrap_err();
        assert!(reason.contains("compute mode is PROHIBITED"), "{reason}");
    }

    #[test]
    fn instances_come_and_go_while_their_gpu_is_there() {
        let both = [instance(0), instance(1)];
        // MIG is turned on, instances change, all are destroyed, and MIG is turned off.
        assert_eq!(merge(&[h200(9)], &found(&both)), both);
        assert_eq!(merge(&both, &found(&[instance(2)])), [instance(2)]);
        let none = Found { divided: vec![h200(9).uuid], ..Found::default() };
        assert_eq!(merge(&both, &none), []);
        assert_eq!(merge(&both, &found(&[h200(9)])), [h200(9)]);
        let gone = merge(&both, &found(&[h200(0)]));
        assert_eq!(gone.iter().filter(|board| board.fault.is_some()).count(), 2);
        assert_eq!(merge(&gone, &found(&[h200(0), instance(0), instance(1)])).len(), 3);
    }
}
