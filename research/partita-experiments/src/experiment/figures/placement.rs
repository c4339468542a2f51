//! Figure 13: speed against the number of TPCs, packed by GPC and spread over GPCs.

use partita_core::{Placement, Samples, Share};
use partita_sim::DeviceSpec;

use super::iterations_ms;
use crate::dialect::Config;
use crate::experiment::{Judgement, Run, Scenario, fitted};
use crate::plot::{self, Picture};

const PLACEMENTS: [(Placement, &str); 2] = [(Placement::Packed, "packed"), (Placement::Spread, "spread")];

pub(crate) fn expand(configs: Vec<Config>, home: &DeviceSpec, device: &DeviceSpec) -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    let Some(base) = fitted(configs, home, device).pop() else { return scenarios };
    for (placement, name) in PLACEMENTS {
        for tpcs in 1..=device.tpc_count() {
            let mut config = base.config.clone();
            config.name = format!("{name}, {tpcs} TPCs");
            config.benchmarks[0].partition = Some(Share::Tpcs(tpcs));
            config.benchmarks[0].placement = placement;
            scenarios.push(Scenario::at(config, f64::from(tpcs)));
        }
    }
    scenarios
}

/// Iterations in a second by their median, by TPCs, one list for each placement. One iteration in
/// hundreds is disturbed from outside.
fn series(runs: &[Run]) -> [Vec<(f64, f64)>; 2] {
    PLACEMENTS.map(|(placement, _)| {
        let mine = runs.iter().filter(|run| run.scenario.config.benchmarks[0].placement == placement);
        mine.map(|run| (run.scenario.x, 1_000.0 / median_ms(run))).collect()
    })
}

fn median_ms(run: &Run) -> f64 {
    Samples::new(iterations_ms(run, "product")).map_or(f64::NAN, |samples| samples.median())
}

pub(crate) fn judge(runs: &[Run], _device: &DeviceSpec) -> Judgement {
    let mut judgement = Judgement::default();
    let [packed, spread] = series(runs);
    // A hundredth is noise.
    let slower = |list: &[(f64, f64)]| {
        let worst = list.windows(2).map(|pair| pair[1].1 / pair[0].1).fold(f64::INFINITY, f64::min);
        (worst, worst >= 0.99)
    };
    for (name, list) in [("packed", &packed), ("spread", &spread)] {
        let (worst, holds) = slower(list);
        judgement.claim(
            format!("one TPC more, {name}"),
            "never slower",
            format!("{worst:.3} × at worst"),
            holds && list.len() > 1,
        );
    }
    let apart = packed.iter().zip(&spread).map(|(a, b)| (b.1 / a.1 - 1.0).abs()).fold(0.0, f64::max);
    judgement.claim(
        "spread against packed",
        "no difference from the same number of TPCs",
        format!("{:.1} % apart at most", 100.0 * apart),
        apart < 0.05,
    );
    judgement
}

pub(crate) fn draw(runs: &[Run], device: &DeviceSpec) -> Vec<Picture> {
    let [packed, spread] = series(runs);
    let panel = plot::lines::Panel {
        title: format!("Product of 1024 × 1024 matrices — {}", device.name),
        x: "TPCs of the partition".to_owned(),
        y: "products per second".to_owned(),
        series: vec![
            plot::lines::Series::dots("packed by GPC", packed),
            plot::lines::Series::dots("spread over GPCs", spread),
        ],
        is_log: false,
    };
    vec![Picture::of("scaling", plot::lines::scene("Speed against TPCs", &[panel]))]
}
