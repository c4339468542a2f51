//! The paper's figures and tables, one a file: runs, expected results, drawing.

pub(crate) mod alternate;
pub(crate) mod chain;
pub(crate) mod faulty;
pub(crate) mod greedy;
pub(crate) mod letters;
pub(crate) mod mechanisms;
pub(crate) mod placement;
pub(crate) mod sharing;
pub(crate) mod slide;
pub(crate) mod split;
pub(crate) mod starve;

use std::collections::BTreeSet;

use partita_core::Samples;
use partita_sim::DeviceSpec;

use crate::experiment::Run;
use crate::log::BenchmarkRecord;
use crate::plot::{self, Picture};

const MS: f64 = 1e6;

fn find<'r>(run: &'r Run, title: &str) -> Option<&'r BenchmarkRecord> {
    run.record.benchmarks.iter().find(|one| one.title == title)
}

/// First start and last end of a benchmark's kernels, in milliseconds; NaN without kernels.
fn span_ms(run: &Run, title: &str) -> [f64; 2] {
    let span = find(run, title).and_then(BenchmarkRecord::span_ns);
    span.map_or([f64::NAN; 2], |span| span.map(|ns| ns as f64 / MS))
}

/// The SMs that a benchmark's blocks ran on.
fn sms(run: &Run, title: &str) -> BTreeSet<u32> {
    let blocks = find(run, title).into_iter().flat_map(BenchmarkRecord::kernels);
    blocks.flat_map(|kernel| &kernel.blocks).map(|block| block.sm).collect()
}

/// The times of a benchmark's iterations, in milliseconds.
fn iterations_ms(run: &Run, title: &str) -> Vec<f64> {
    let iterations = find(run, title).map_or(&[][..], |one| &one.iterations);
    iterations.iter().map(|iteration| iteration.execute_time_ns() as f64 / MS).collect()
}

/// Their mean; NaN without iterations.
fn mean_ms(run: &Run, title: &str) -> f64 {
    Samples::new(iterations_ms(run, title)).map_or(f64::NAN, |samples| samples.mean())
}

/// Blocks by SM of every run, one above the other.
fn blocks_by_sm(runs: &[Run], device: &DeviceSpec, title: &str) -> Vec<Picture> {
    let panels = runs
        .iter()
        .map(|run| plot::blocks::Panel { title: run.scenario.config.name.clone(), record: &run.record });
    let title = format!("{title} — {}", device.name);
    vec![Picture::of("blocks", plot::blocks::scene(&title, &panels.collect::<Vec<_>>()))]
}

/// Milliseconds for a table.
fn ms(value: f64) -> String {
    if value < 10.0 { format!("{value:.2} ms") } else { format!("{value:.0} ms") }
}
