//! Figure 12: a kernel in its own partition, starved by urgent kernels of another, and the two
//! remedies.

use partita_sim::DeviceSpec;

use super::{blocks_by_sm, ms, span_ms};
use crate::dialect::{Config, Dims};
use crate::experiment::{Judgement, Run, Scenario, capacity, fitted};
use crate::plot::Picture;

/// Waves of the crowd: in the paper's experiment 32 blocks of half an SM's threads on four SMs,
/// four to an SM.
const CROWD_WAVES: u64 = 2;

pub(crate) fn expand(configs: Vec<Config>, home: &DeviceSpec, device: &DeviceSpec) -> Vec<Scenario> {
    let mut scenarios = fitted(configs, home, device);
    let slots = device.scheduler.task_slots;
    for (index, scenario) in scenarios.iter_mut().enumerate() {
        let Some(mut one) = scenario.config.benchmarks.pop() else { continue };
        // Including K33 that is one kernel more than slots, and in the first remedy as many as
        // slots.
        let crowd = if index == 1 { slots - 1 } else { slots };
        let set = one.sm_mask.map_or(device.topology.all(), |mask| mask.enabled(&device.topology));
        let places = capacity(one.thread_count.count() as u32, set, device);
        let blocks = (CROWD_WAVES * places).div_ceil(u64::from(slots)).max(1);
        one.block_count = Dims::flat(blocks as u32);
        for number in 1..=crowd {
            let mut one = one.clone();
            one.label = Some(format!("K{}", number + u32::from(number >= 33)));
            one.log_name = one.label.as_ref().map(|label| format!("{label}.json"));
            scenario.config.benchmarks.push(one);
        }
    }
    scenarios
}

/// From the release of the crowd to its first end, in milliseconds, and blocks of K33 started in
/// that time.
fn meanwhile(run: &Run) -> (f64, f64, usize) {
    let mut crowd = run.record.benchmarks.iter().filter(|one| one.title != "K33").peekable();
    if crowd.peek().is_none() {
        return (f64::NAN, f64::NAN, 0);
    }
    let spans: Vec<[u64; 2]> = crowd.filter_map(|one| one.span_ns()).collect();
    let begin = spans.iter().map(|span| span[0]).min().unwrap_or(0);
    let end = spans.iter().map(|span| span[1]).min().unwrap_or(0);
    let own = super::find(run, "K33").into_iter().flat_map(|one| one.kernels());
    let blocks = own.flat_map(|kernel| &kernel.blocks);
    // A wave that ends at the arrival of the crowd may still be followed by the next.
    let settled = begin + 1_000_000;
    let begun = blocks.filter(|block| (settled..end).contains(&block.start_ns)).count();
    (begin as f64 / 1e6, end as f64 / 1e6, begun)
}

pub(crate) fn judge(runs: &[Run], device: &DeviceSpec) -> Judgement {
    let mut judgement = Judgement::default();
    let [starved, fewer, equal] = runs else { return judgement };
    let (begin, end, begun) = meanwhile(starved);
    let urgent = starved.record.benchmarks.len() - 1;
    judgement.claim(
        "blocks of K33 that begin while every task slot is taken",
        "none, though its SMs are free",
        format!("{begun} from {} to {}, beside {urgent} urgent kernels", ms(begin), ms(end)),
        begun == 0,
    );
    let took = |run| {
        let [begin, end] = span_ms(run, "K33");
        end - begin
    };
    // Its time alone: its waves.
    let blocks = runs[0].scenario.config.benchmarks[0].block_count.count();
    let set = runs[0].scenario.config.benchmarks[0].sm_mask;
    let set = set.map_or(device.topology.all(), |mask| mask.enabled(&device.topology));
    let alone = blocks.div_ceil(capacity(1024, set, device).max(1)) as f64 * 75.0;
    judgement.claim(
        "K33 from begin to end",
        format!("longer than the {} that it takes alone", ms(alone)),
        ms(took(starved)),
        took(starved) > 1.2 * alone,
    );
    for (what, run) in [("fewer streams than task slots", fewer), ("no priorities", equal)] {
        judgement.claim(
            format!("K33 with the remedy «{what}»"),
            "as alone",
            format!("{} ({:.2} ×)", ms(took(run)), took(run) / alone),
            took(run) < 1.02 * alone,
        );
    }
    judgement
}

pub(crate) fn draw(runs: &[Run], device: &DeviceSpec) -> Vec<Picture> {
    blocks_by_sm(runs, device, "All task slots taken by urgent kernels")
}
