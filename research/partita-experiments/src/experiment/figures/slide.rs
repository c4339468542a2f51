//! Figure 14: two networks, and a split of eight TPCs that moves from one to the other.

use partita_core::{Samples, Share, TpcSet};
use partita_sim::DeviceSpec;

use super::chain::{YOLO_V2, kernels};
use super::{iterations_ms, mean_ms, ms};
use crate::dialect::{Config, Task};
use crate::experiment::{Judgement, Run, Scenario};
use crate::plot::{self, Picture};

/// TPCs that the two share: the same number on every device, as a network's layers do not grow with
/// it.
pub(crate) const SHARED_TPCS: u16 = 8;

/// A benchmark's network, on these TPCs.
pub(crate) fn put(config: &mut Config, index: usize, tpcs: std::ops::Range<u16>, device: &DeviceSpec) {
    let one = &mut config.benchmarks[index];
    one.task = Task::Multikernel { kernels: kernels(&YOLO_V2, device) };
    one.record_blocks = false;
    one.partition = Some(Share::Exact(TpcSet::range(tpcs)));
}

pub(crate) fn expand(configs: Vec<Config>, _home: &DeviceSpec, device: &DeviceSpec) -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    let Some(base) = configs.into_iter().next() else { return scenarios };
    for tpcs in 1..SHARED_TPCS {
        let mut config = base.clone();
        config.name = format!("{tpcs} of {SHARED_TPCS} for A");
        put(&mut config, 0, 0..tpcs, device);
        put(&mut config, 1, tpcs..SHARED_TPCS, device);
        // B continues while A is measured, and then A has to continue for B: each runs its
        // iterations.
        config.benchmarks[0].terminator = false;
        scenarios.push(Scenario::at(config, f64::from(tpcs)));
    }
    scenarios
}

fn series(runs: &[Run], title: &str) -> Vec<(f64, f64)> {
    runs.iter().map(|run| (run.scenario.x, mean_ms(run, title))).collect()
}

pub(crate) fn judge(runs: &[Run], _device: &DeviceSpec) -> Judgement {
    let mut judgement = Judgement::default();
    let (a, b) = (series(runs, "A"), series(runs, "B"));
    let [(_, one), (_, two), .., (_, six), (_, seven)] = a[..] else { return judgement };
    judgement.claim(
        "time of A from one TPC to two",
        "about half",
        format!("{} to {} ({:.2} ×)", ms(one), ms(two), two / one),
        (0.42..0.58).contains(&(two / one)),
    );
    judgement.claim(
        "what the last TPC gives to A",
        "little",
        format!("{} to {} (−{:.0} %)", ms(six), ms(seven), 100.0 * (1.0 - seven / six)),
        seven / six > 0.8,
    );
    let falls = a.windows(2).all(|pair| pair[1].1 <= pair[0].1 * 1.01);
    let rises = b.windows(2).all(|pair| pair[1].1 >= pair[0].1 * 0.99);
    judgement.claim(
        "the split moves time from one to the other",
        "smoothly",
        format!("A {} to {}, B {} to {}", ms(one), ms(seven), ms(b[0].1), ms(b[6].1)),
        falls && rises,
    );
    judgement
}

pub(crate) fn draw(runs: &[Run], device: &DeviceSpec) -> Vec<Picture> {
    let dots = |name, title| plot::lines::Series::dots(name, series(runs, title));
    let panel = plot::lines::Panel {
        title: format!("Mean time of a pass — {}", device.name),
        x: format!("TPCs of A; B has the others of {SHARED_TPCS}"),
        y: "milliseconds".to_owned(),
        series: vec![dots("A", "A"), dots("B", "B")],
        is_log: false,
    };
    let cdf = |run: &Run| {
        let samples = Samples::new(iterations_ms(run, "A")).ok()?;
        Some(plot::lines::Series::cdf(&run.scenario.config.name, &samples))
    };
    let times = plot::lines::Panel {
        title: "Distribution of A's passes".to_owned(),
        x: "milliseconds".to_owned(),
        y: "part of the passes".to_owned(),
        series: runs.iter().filter_map(cdf).collect(),
        is_log: false,
    };
    vec![Picture::of("split", plot::lines::scene("Two YOLOv2 side by side", &[panel, times]))]
}
