//! Figure 3: without partitions one kernel takes all SMs and the other waits; with them both start
//! at once.

use partita_sim::DeviceSpec;

use super::{blocks_by_sm, ms, sms, span_ms};
use crate::dialect::Config;
use crate::experiment::{Judgement, Run, Scenario, fitted};
use crate::plot::Picture;

pub(crate) fn expand(configs: Vec<Config>, home: &DeviceSpec, device: &DeviceSpec) -> Vec<Scenario> {
    fitted(configs, home, device)
}

pub(crate) fn judge(runs: &[Run], _device: &DeviceSpec) -> Judgement {
    let mut judgement = Judgement::default();
    let [without, with] = runs else { return judgement };
    let k2 = [span_ms(without, "K2"), span_ms(with, "K2")];
    let release_ms = 10.0;
    let [late, early] = k2.map(|span| span[0] - release_ms);
    judgement.claim(
        "K2 begins, after its release",
        "blocked by K1 without partitions, at once with them",
        format!("{} without, {} with", ms(late), ms(early)),
        late > 100.0 && early < 5.0,
    );
    judgement.claim(
        "K2 ends",
        "earlier with partitions",
        format!("{} without, {} with", ms(k2[0][1]), ms(k2[1][1])),
        k2[1][1] < k2[0][1],
    );
    let (one, two) = (sms(with, "K1"), sms(with, "K2"));
    judgement.claim(
        "SMs that both kernels used",
        "none with partitions",
        format!("{} of {} and {}", one.intersection(&two).count(), one.len(), two.len()),
        one.is_disjoint(&two) && !one.is_empty() && !two.is_empty(),
    );
    judgement
}

pub(crate) fn draw(runs: &[Run], device: &DeviceSpec) -> Vec<Picture> {
    blocks_by_sm(runs, device, "Partitions of SMs")
}
