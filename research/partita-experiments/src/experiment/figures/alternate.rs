//! Figure 4: the meaning of one bit of a mask.

use partita_core::TpcSet;
use partita_sim::DeviceSpec;

use super::{blocks_by_sm, sms};
use crate::dialect::{Config, SmMask};
use crate::experiment::{Judgement, Run, Scenario, fitted};
use crate::plot::Picture;

pub(crate) fn expand(configs: Vec<Config>, home: &DeviceSpec, device: &DeviceSpec) -> Vec<Scenario> {
    let mut scenarios = fitted(configs, home, device);
    if home.id != device.id {
        // Scaling would use parts of the device; the question is about single bits.
        let bits: [TpcSet; 2] =
            [0, 1].map(|odd| (0..device.tpc_count() as u8).filter(|tpc| tpc % 2 == odd).collect());
        for scenario in &mut scenarios {
            for (one, set) in scenario.config.benchmarks.iter_mut().zip(bits) {
                one.sm_mask = Some(SmMask::enabling(set));
            }
        }
    }
    scenarios
}

pub(crate) fn judge(runs: &[Run], device: &DeviceSpec) -> Judgement {
    let mut judgement = Judgement::default();
    let [run] = runs else { return judgement };
    let per_tpc = device.topology.sms_per_tpc();
    let used = ["K1", "K2"].map(|title| sms(run, title));
    for (which, (title, found)) in (0..).zip(["K1", "K2"].into_iter().zip(&used)) {
        let expected = (0..device.sm_count()).filter(|sm| sm / per_tpc % 2 == which).collect();
        let runs_of = |sms: &std::collections::BTreeSet<u32>| {
            sms.iter().take(6).map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        judgement.claim(
            format!("SMs of {title}"),
            format!("every other {per_tpc}: {}, …", runs_of(&expected)),
            format!("{}, … ({} of {})", runs_of(found), found.len(), device.sm_count()),
            *found == expected,
        );
    }
    judgement
}

pub(crate) fn draw(runs: &[Run], device: &DeviceSpec) -> Vec<Picture> {
    blocks_by_sm(runs, device, "Alternating bits of a mask")
}
