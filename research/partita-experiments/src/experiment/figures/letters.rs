//! Figure 10: a partition for each kernel, on two streams.

use std::collections::BTreeSet;

use partita_sim::DeviceSpec;

use super::blocks_by_sm;
use crate::dialect::{Config, Task};
use crate::experiment::{Judgement, Run, Scenario, fitted};
use crate::plot::Picture;

pub(crate) fn expand(configs: Vec<Config>, home: &DeviceSpec, device: &DeviceSpec) -> Vec<Scenario> {
    fitted(configs, home, device)
}

pub(crate) fn judge(runs: &[Run], device: &DeviceSpec) -> Judgement {
    let mut judgement = Judgement::default();
    let [run] = runs else { return judgement };
    let mut masks = BTreeSet::new();
    let (mut kernels, mut inside, mut in_order, mut holes) = (0, 0, 0, 0);
    let mut spans = Vec::new();
    for (one, record) in run.scenario.config.benchmarks.iter().zip(&run.record.benchmarks) {
        let Task::Multikernel { kernels: launched } = &one.task else { continue };
        let mut ended = 0;
        for (asked, found) in launched.iter().zip(record.kernels()) {
            kernels += 1;
            let Some(mask) = asked.sm_mask else { continue };
            let set = mask.enabled(&device.topology);
            masks.insert(set);
            holes += u32::from(set.runs().count() > 1);
            let per_tpc = device.topology.sms_per_tpc();
            let is_inside = |sm: u32| u8::try_from(sm / per_tpc).is_ok_and(|tpc| set.contains(tpc));
            let all = !found.blocks.is_empty() && found.blocks.iter().all(|block| is_inside(block.sm));
            inside += u32::from(all);
            in_order += u32::from(found.span_ns[0] >= ended);
            ended = found.span_ns[1];
        }
        spans.extend(record.span_ns());
    }
    let streams = spans.len();
    judgement.claim(
        "kernels, partitions, streams",
        "38, 17, 2",
        format!("{kernels}, {}, {streams}", masks.len()),
        (kernels, masks.len(), streams) == (38, 17, 2),
    );
    judgement.claim(
        "kernels that ran in their own partition alone",
        "all",
        format!("{inside} of {kernels}"),
        inside == kernels,
    );
    judgement.claim(
        "kernels that began after the one before them on their stream had ended",
        "all, though their partitions are disjoint",
        format!("{in_order} of {kernels}"),
        in_order == kernels,
    );
    judgement.claim(
        "kernels whose partition has holes",
        "possible",
        format!("{holes} of {kernels}"),
        holes > 0,
    );
    let together = spans.iter().map(|span| span[0]).max() < spans.iter().map(|span| span[1]).min();
    judgement.claim(
        "the two streams ran at the same time",
        "yes",
        if together { "yes" } else { "no" },
        together,
    );
    judgement
}

pub(crate) fn draw(runs: &[Run], device: &DeviceSpec) -> Vec<Picture> {
    blocks_by_sm(runs, device, "38 kernels, 17 partitions, two streams")
}
