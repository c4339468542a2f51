//! Figure 11: overlapping partitions, and the order of arrival.

use partita_sim::DeviceSpec;

use super::{blocks_by_sm, ms, span_ms};
use crate::dialect::Config;
use crate::experiment::{Judgement, Run, Scenario, fitted};
use crate::plot::Picture;

pub(crate) fn expand(configs: Vec<Config>, home: &DeviceSpec, device: &DeviceSpec) -> Vec<Scenario> {
    fitted(configs, home, device)
}

pub(crate) fn judge(runs: &[Run], _device: &DeviceSpec) -> Judgement {
    let mut judgement = Judgement::default();
    let [first, second] = runs else { return judgement };
    let end = |run| span_ms(run, "K1")[1].max(span_ms(run, "K2")[1]);
    let [behind, before] = [span_ms(first, "K2"), span_ms(second, "K2")];
    judgement.claim(
        "K2, whose SMs K1 may use as well, with K1 first",
        "waits for K1, though K1 has SMs of its own",
        format!("ends at {}, K1 at {}", ms(behind[1]), ms(span_ms(first, "K1")[1])),
        behind[1] > 1.5 * before[1],
    );
    judgement.claim(
        "K2 with K2 first",
        "both run at the same time",
        format!("K1 begins at {}, K2 ends at {}", ms(span_ms(second, "K1")[0]), ms(before[1])),
        span_ms(second, "K1")[0] < before[1],
    );
    judgement.claim(
        "all ended",
        "depends on who came first",
        format!("{} with K1 first, {} with K2 first", ms(end(first)), ms(end(second))),
        end(first) > 1.5 * end(second),
    );
    judgement
}

pub(crate) fn draw(runs: &[Run], device: &DeviceSpec) -> Vec<Picture> {
    blocks_by_sm(runs, device, "Greedy dispatch with overlapping partitions")
}
