//! Table III: a network beside a faulty one, without and with partitions.

use partita_core::Samples;
use partita_sim::DeviceSpec;

use super::slide::{SHARED_TPCS, put};
use super::{iterations_ms, ms};
use crate::dialect::Config;
use crate::experiment::{Judgement, Run, Scenario};
use crate::plot::{self, Picture};

/// Streams of the faulty network's launches. The paper says «many abnormal kernels» without a
/// number; with three the unprotected network's time is nearest to the paper's.
const FAULTY_STREAMS: usize = 3;
/// The paper's rows: mean, deviation, least and most, in milliseconds.
const PAPER: [[f64; 4]; 4] = [
    [24.0, 0.99, 22.0, 27.0],
    [40.0, 1.09, 38.0, 44.0],
    [82.0, 15.5, 62.0, 119.0],
    [44.0, 8.36, 39.0, 102.0],
];
const SUBJECT: &str = "YOLOv2";

pub(crate) fn expand(configs: Vec<Config>, _home: &DeviceSpec, device: &DeviceSpec) -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for (index, mut config) in configs.into_iter().enumerate() {
        let is_faulty = index >= 2;
        let (own, others) = if index == 3 {
            (0..SHARED_TPCS / 2, SHARED_TPCS / 2..SHARED_TPCS)
        } else {
            (0..SHARED_TPCS, 0..SHARED_TPCS)
        };
        put(&mut config, 0, own, device);
        if config.benchmarks.len() > 1 {
            put(&mut config, 1, others, device);
            config.benchmarks[1].max_iterations = Some(0);
            for stream in 1..if is_faulty { FAULTY_STREAMS } else { 1 } {
                let mut more = config.benchmarks[1].clone();
                more.label = Some(format!("competitor {}", stream + 1));
                more.log_name = more.label.as_ref().map(|label| format!("{label}.json"));
                config.benchmarks.push(more);
            }
        }
        scenarios.push(Scenario::at(config, index as f64));
    }
    scenarios
}

fn samples(run: &Run) -> Option<Samples> {
    Samples::new(iterations_ms(run, SUBJECT)).ok()
}

pub(crate) fn judge(runs: &[Run], _device: &DeviceSpec) -> Judgement {
    let mut judgement = Judgement::default();
    let all: Option<Vec<Samples>> = runs.iter().map(samples).collect();
    let Some([alone, normal, faulty, protected]) = all.as_deref() else { return judgement };
    let rows = [alone, normal, faulty, protected];
    let ratio = |row: usize| rows[row].mean() / rows[1].mean();
    let paper = |row: usize| PAPER[row][0] / PAPER[1][0];
    // The model was fitted to the time alone on the paper's device; other devices have other times,
    // so ratios are compared.
    let text =
        |row: usize, ratio: f64| format!("{} ({ratio:.2} × case 2)", ms(PAPER[row][0]).replace(".00", ""));
    let here = |row: usize| {
        let found = rows[row];
        format!("{:.1} ms ({:.2} ×), {:.1} to {:.1}", found.mean(), ratio(row), found.min(), found.max())
    };
    judgement.claim("case 1: alone", text(0, paper(0)), here(0), (ratio(0) / paper(0) - 1.0).abs() < 0.25);
    judgement.claim("case 2: beside another, no partitions", text(1, 1.0), here(1), ratio(0) < 1.0);
    judgement.claim(
        "case 3: beside a faulty one, no partitions",
        text(2, paper(2)),
        here(2),
        (ratio(2) / paper(2) - 1.0).abs() < 0.25,
    );
    judgement.claim(
        "case 4: beside a faulty one, with partitions",
        text(3, paper(3)),
        here(3),
        (ratio(3) / paper(3) - 1.0).abs() < 0.25,
    );
    judgement.claim(
        "with partitions against without, beside the faulty one",
        format!("{:.2} ×", PAPER[3][0] / PAPER[2][0]),
        format!("{:.2} ×", protected.mean() / faulty.mean()),
        protected.mean() < 0.75 * faulty.mean(),
    );
    judgement
}

pub(crate) fn draw(runs: &[Run], device: &DeviceSpec) -> Vec<Picture> {
    let series = runs
        .iter()
        .filter_map(|run| Some(plot::lines::Series::cdf(&run.scenario.config.name, &samples(run)?)));
    let panel = plot::lines::Panel {
        title: format!("Time of a pass — {}", device.name),
        x: "milliseconds".to_owned(),
        y: "part of the passes".to_owned(),
        series: series.collect(),
        is_log: false,
    };
    vec![Picture::of("times", plot::lines::scene("YOLOv2 beside a competitor", &[panel]))]
}
