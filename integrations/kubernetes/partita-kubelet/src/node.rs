//! The GPUs of this node, as [`Board`]s.

use partita::calibration::Cache;
use partita::control::admission::Capacity;
use partita::gpu::Gpu;
use partita::gpus::{self, Selectors};
use partita::install::Install;

use crate::device::Board;

/// Reads the GPUs, and calibrates those that were not. The second value says which GPUs are not
/// offered, and why.
///
/// # Errors
/// Why the GPUs cannot be listed.
pub fn read(install: &Install, selectors: &Selectors) -> Result<(Vec<Board>, Vec<String>), String> {
    let gpus = gpus::select(install, Some(selectors)).map_err(|error| error.to_string())?.gpus;
    let cache = Cache::open();
    let (mut boards, mut left_out) = (Vec::new(), Vec::new());
    for gpu in gpus {
        match board(install, &cache, &gpu) {
            Ok(board) => boards.push(board),
            Err(reason) => left_out.push(format!("{}: {reason}", gpu.label())),
        }
    }
    Ok((boards, left_out))
}

fn board(install: &Install, cache: &Cache, gpu: &Gpu) -> Result<Board, String> {
    if gpu.facts.mig_enabled == Some(true) {
        return Err("MIG is on, and masks are not proved in MIG instances".to_owned());
    }
    let measured = cache.get(install, gpu).map_err(|error| error.to_string())?;
    let topology = measured.topology()?;
    Ok(Board {
        uuid: gpu.facts.uuid.clone(),
        selector: gpu.selector().to_string(),
        product: gpu.facts.name.clone(),
        pci: gpu.facts.pci.clone(),
        driver: gpu.driver_version.clone(),
        cuda: gpu.cuda_version,
        compute_capability: gpu.facts.compute_capability,
        sms_per_tpc: topology.sms_per_tpc(),
        tpcs: topology.tpc_count(),
        gpcs: measured.gpcs_proved.then(|| topology.gpcs().len() as u32),
        memory_bytes: measured.memory_total_bytes,
        // Right for every version of the service.
        clients: Capacity::of(gpu.facts.compute_capability, None).contexts_max,
        is_simulated: gpu.sim().is_some(),
        fault: None,
    })
}

/// The boards that the node offers now: those that were read, and those that were there before,
/// with a fault. A device that has claims does not vanish without a word.
#[must_use]
pub fn merge(before: &[Board], read: Vec<Board>) -> Vec<Board> {
    let mut now = read;
    for old in before {
        if !now.iter().any(|board| board.uuid == old.uuid) {
            let fault =
                Some("the driver does not report it any more, or it failed its calibration".to_owned());
            now.push(Board { fault, ..old.clone() });
        }
    }
    now.sort_by(|a, b| a.uuid.cmp(&b.uuid));
    now
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tests::h200;

    #[test]
    fn what_vanished_stays_with_a_fault_and_heals() {
        let both = merge(&[], vec![h200(1), h200(0)]);
        assert_eq!(both, [h200(0), h200(1)]);
        let one = merge(&both, vec![h200(1)]);
        assert!(one[0].fault.is_some() && one[0].uuid == h200(0).uuid);
        assert_eq!(one[1], h200(1));
        assert_eq!(merge(&one, vec![h200(0), h200(1)]), both);
    }
}
