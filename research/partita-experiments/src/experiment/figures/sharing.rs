//! Figure 1: tasks in turns, and tasks side by side.

use partita_sim::DeviceSpec;

use super::{blocks_by_sm, ms};
use crate::dialect::Config;
use crate::experiment::{Judgement, Run, Scenario, fitted};
use crate::plot::Picture;

pub(crate) fn expand(configs: Vec<Config>, home: &DeviceSpec, device: &DeviceSpec) -> Vec<Scenario> {
    fitted(configs, home, device)
}

/// From the first start to the last end: the GPU is busy throughout.
fn busy_ms(run: &Run) -> f64 {
    let spans = || run.record.benchmarks.iter().filter_map(|one| one.span_ns());
    let begin = spans().map(|span| span[0]).min().unwrap_or(0);
    let end = spans().map(|span| span[1]).max().unwrap_or(0);
    (end - begin) as f64 / 1e6
}

pub(crate) fn judge(runs: &[Run], _device: &DeviceSpec) -> Judgement {
    let mut judgement = Judgement::default();
    let [turns, together] = runs else { return judgement };
    let (long, short) = (busy_ms(turns), busy_ms(together));
    let saved = 100.0 * (1.0 - short / long);
    judgement.claim(
        "busy time of the GPU with partitions against taking turns",
        "more than 60 % less",
        format!("{saved:.0} % less ({} instead of {})", ms(short), ms(long)),
        saved > 60.0,
    );
    judgement
}

pub(crate) fn draw(runs: &[Run], device: &DeviceSpec) -> Vec<Picture> {
    blocks_by_sm(runs, device, "Time sharing against spatial sharing")
}
