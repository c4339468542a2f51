//! The comparison of ECRTS'25: a matrix product against three competitors under each mechanism.

use partita_core::Samples;
use partita_sim::DeviceSpec;

use super::iterations_ms;
use crate::dialect::Config;
use crate::experiment::{Instance, Judgement, Run, Scenario, fitted};
use crate::plot::{self, Picture};

const SUBJECT: &str = "product";
/// Scenarios of each kind of competitor: in turns, MPS, MPS with percentages, masks, MIG.
const KINDS: usize = 5;
const MIG: usize = 4;

/// `4g.20gb` of an A100: 28 of 54 TPCs, half the memory.
fn instance(device: &DeviceSpec) -> Instance {
    Instance { tpcs: (device.tpc_count() * 28 / 54).max(1), memory_eighths: 4 }
}

pub(crate) fn expand(configs: Vec<Config>, home: &DeviceSpec, device: &DeviceSpec) -> Vec<Scenario> {
    let mut scenarios = fitted(configs, home, device);
    for (index, scenario) in scenarios.iter_mut().enumerate() {
        if index > 0 && (index - 1) % KINDS == MIG {
            scenario.instance = Some(instance(device));
            // Instances have separate SMs, caches and memory: the other one's work does not occur
            // in this one's model.
            scenario.config.benchmarks.truncate(1);
        }
    }
    scenarios
}

fn p50(run: &Run) -> f64 {
    Samples::new(iterations_ms(run, SUBJECT)).map_or(f64::NAN, |samples| samples.p50())
}

/// The time of the product alone on this many SMs, from its time alone on all.
fn solo_on(share: f64, alone_ms: f64) -> f64 {
    alone_ms / share
}

pub(crate) fn judge(runs: &[Run], device: &DeviceSpec) -> Judgement {
    let mut judgement = Judgement::default();
    let Some(alone) = runs.first().map(p50) else { return judgement };
    let tpcs = f64::from(device.tpc_count());
    let by_name = |kind: &str, way: &str| {
        runs.iter().find(|run| run.scenario.config.name == format!("{kind}: {way}")).map(p50)
    };
    // 57 % in whole TPCs.
    let share = (0.57 * tpcs).floor() / tpcs;
    for kind in ["compute", "memory"] {
        let ratio = |way, of: f64| by_name(kind, way).map(|time| (time, time / of));
        let text = |(time, ratio): (f64, f64)| format!("{time:.1} ms, {ratio:.2} ×");
        let fair = solo_on(share, alone);
        if let Some(found) = ratio("no partition, in turns", alone) {
            judgement.claim(
                format!("{kind} competitors, no partition, against alone"),
                "slowed by all of them",
                text(found),
                found.1 > 2.0,
            );
        }
        let percentages = ratio("MPS, thread percentages", fair);
        if let Some(found) = percentages {
            judgement.claim(
                format!("{kind} competitors, MPS thread percentages, against alone on 57 %"),
                "a ceiling and no partition: interference remains",
                text(found),
                found.1 > 1.02,
            );
            judgement.because(
                "these four clients, whose percentages sum to 100, ran as if each had SMs of its own; nobody promises that: a network at 50 % beside a \
                 client at 50 % that only computes had a p99 of 1.46 × that of half of the same GPU",
            );
        }
        if let Some(found) = ratio("masks", fair) {
            if kind == "compute" {
                judgement.claim(
                    format!("{kind} competitors, masks, against alone on 57 %"),
                    "as alone",
                    text(found),
                    found.1 < 1.03,
                );
            } else {
                let less = percentages.is_none_or(|(_, other)| found.1 <= other * 1.02);
                judgement.claim(
                    format!("{kind} competitors, masks, against alone on 57 %"),
                    "no worse than MPS; memory bandwidth stays shared",
                    text(found),
                    less,
                );
            }
        }
        let part = f64::from(instance(device).tpcs) / tpcs;
        if let Some(found) = ratio("MIG", solo_on(part, alone)) {
            judgement.claim(
                format!("{kind} competitors, MIG, against alone on {:.0} %", 100.0 * part),
                "as alone, in coarse steps",
                format!("{}, by construction of the model", text(found)),
                found.1 < 1.05,
            );
        }
    }
    judgement
}

pub(crate) fn draw(runs: &[Run], device: &DeviceSpec) -> Vec<Picture> {
    let Some(alone) = runs.first().map(p50) else { return Vec::new() };
    let bars = |kind: &str| {
        let prefix = format!("{kind}: ");
        let bars = runs.iter().filter_map(|run| {
            Some((run.scenario.config.name.strip_prefix(&prefix)?.to_owned(), p50(run) / alone))
        });
        plot::bars::Panel {
            title: format!("{kind} competitors"),
            y: "median time, × alone on the whole GPU".to_owned(),
            bars: bars.collect(),
        }
    };
    let title = format!("A matrix product against three competitors — {}", device.name);
    vec![Picture::of("mechanisms", plot::bars::scene(&title, &[bars("compute"), bars("memory")]))]
}
