//! Blocks by SM over time: a row for each SM, a rectangle for each block, with a height of its part
//! of the SM's threads.

use std::collections::BTreeMap;

use kuva::render::color::Color;
use kuva::render::render::{Scene, TextAnchor};

use crate::log::{BlockSpan, Record};
use partita_plot::canvas::{Frame, color, heading, legend, line, rect, text};

/// One plot.
pub struct Panel<'r> {
    pub title: String,
    pub record: &'r Record,
}

const WIDTH: f64 = 840.0;
const LEFT: f64 = 78.0;
/// For the strips with the SMs' owners.
const STRIPS: f64 = 150.0;
const TOP: f64 = 74.0;
/// Benchmarks in a legend; further ones are counted.
const NAMES_MAX: usize = 12;

/// Panels one above the other, on one scale of time.
pub fn scene(title: &str, panels: &[Panel<'_>]) -> Scene {
    let end = panels.iter().flat_map(|panel| panel.record.benchmarks.iter().filter_map(|one| one.span_ns()));
    let end_ms = end.map(|span| span[1]).max().unwrap_or(1) as f64 / 1e6;
    let heights: Vec<f64> = panels.iter().map(|panel| height(panel.record)).collect();
    let below: Vec<f64> = panels.iter().map(|panel| 66.0 + 18.0 * legend_rows(panel.record)).collect();
    let all: f64 = heights.iter().zip(&below).map(|(height, below)| 34.0 + height + below).sum();
    let mut scene = Scene::new(LEFT + WIDTH + STRIPS, TOP - 34.0 + all);
    heading(&mut scene, 20.0, 28.0, title, 17);
    let mut top = TOP;
    for ((panel, height), below) in panels.iter().zip(heights).zip(below) {
        let sms = f64::from(panel.record.sm_count);
        let frame = Frame { left: LEFT, top, width: WIDTH, height, x: [0.0, end_ms * 1.01], y: [sms, 0.0] };
        draw(&mut scene, &frame, panel);
        top += height + below + 34.0;
    }
    scene
}

fn height(record: &Record) -> f64 {
    let sms = f64::from(record.sm_count);
    (sms * 20.0).clamp(150.0, 460.0)
}

fn legend_rows(record: &Record) -> f64 {
    let names = record.benchmarks.len().min(NAMES_MAX + 1) as f64;
    (names / 9.0).ceil()
}

/// One colour for each benchmark; similar ones under one name share one.
fn colors(record: &Record) -> Vec<Color> {
    (0..record.benchmarks.len()).map(color).collect()
}

fn draw(scene: &mut Scene, frame: &Frame, panel: &Panel<'_>) {
    let record = panel.record;
    frame.x_axis(scene, "time, milliseconds");
    frame.y_name(scene, "SM");
    frame.title(scene, &panel.title);
    let row = frame.height / f64::from(record.sm_count.max(1));
    // As many numbers as are readable.
    let every = ((14.0 / row).ceil() as usize).max(1);
    for sm in (0..record.sm_count).step_by(every) {
        let at = frame.py(f64::from(sm) + 0.5) + 4.0;
        text(scene, frame.left - 7.0, at, &sm.to_string(), 11, TextAnchor::End);
    }
    if row >= 5.0 {
        for sm in 1..record.sm_count {
            let at = frame.py(f64::from(sm));
            line(scene, [frame.left, at], [frame.left + frame.width, at], "#ededed", 1.0);
        }
    }
    let colors = colors(record);
    blocks(scene, frame, record, &colors);
    frame.border(scene);
    strips(scene, frame, record, &colors);
    let mut names: Vec<(String, Color)> =
        record.benchmarks.iter().map(|one| one.title.clone()).zip(colors).collect();
    if names.len() > NAMES_MAX {
        let more = names.len() - NAMES_MAX;
        names.truncate(NAMES_MAX);
        names.push((format!("and {more} more"), "#ffffff".into()));
    }
    let _: f64 = legend(scene, frame.left, frame.top + frame.height + 58.0, frame.width, &names);
}

/// The blocks, each at the lowest free place of its SM's threads while it runs.
fn blocks(scene: &mut Scene, frame: &Frame, record: &Record, colors: &[Color]) {
    let mut by_sm: BTreeMap<u32, Vec<(BlockSpan, u32, usize)>> = BTreeMap::new();
    for (index, one) in record.benchmarks.iter().enumerate() {
        for kernel in one.kernels() {
            for block in &kernel.blocks {
                by_sm.entry(block.sm).or_default().push((*block, kernel.thread_count, index));
            }
        }
    }
    let whole = f64::from(record.sm_threads_max.max(1));
    for (sm, mut list) in by_sm {
        list.sort_by_key(|(block, _, index)| (block.start_ns, *index));
        // Places taken: end, first thread, threads.
        let mut taken: Vec<(u64, u32, u32)> = Vec::new();
        for (block, threads, index) in list {
            taken.retain(|(end, _, _)| *end > block.start_ns);
            taken.sort_by_key(|(_, first, _)| *first);
            let mut first = 0;
            for (_, other, count) in &taken {
                if other - first.min(*other) >= threads {
                    break;
                }
                first = first.max(other + count);
            }
            taken.push((block.stop_ns, first, threads));
            let (left, right) = (frame.px(block.start_ns as f64 / 1e6), frame.px(block.stop_ns as f64 / 1e6));
            let sm = f64::from(sm);
            let from = frame.py(sm + f64::from(first) / whole);
            let to = frame.py(sm + (f64::from(first) + f64::from(threads)) / whole);
            let has_edge = right - left > 3.0 && to - from > 3.0;
            rect(scene, [left, from], [(right - left).max(0.5), to - from], colors[index].clone(), has_edge);
        }
    }
}

/// Beside the rows, for each restricted benchmark: its SMs.
fn strips(scene: &mut Scene, frame: &Frame, record: &Record, colors: &[Color]) {
    let mut left = frame.left + frame.width + 10.0;
    let mut shown: Vec<&str> = Vec::new();
    for (one, color) in record.benchmarks.iter().zip(colors) {
        let Some(sms) = one.sms.as_deref().filter(|sms| !shown.contains(sms)) else { continue };
        if left > frame.left + frame.width + STRIPS - 18.0 {
            break;
        }
        shown.push(sms);
        for run in sms.split(',') {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            let (Ok(first), Ok(last)) = (first.parse::<f64>(), last.parse::<f64>()) else { continue };
            let (from, to) = (frame.py(first), frame.py(last + 1.0));
            rect(scene, [left, from], [9.0, to - from], color.clone(), true);
        }
        left += 14.0;
    }
    if !shown.is_empty() {
        let at = frame.left + frame.width + 10.0;
        text(scene, at, frame.top - 9.0, "SMs allowed", 11, TextAnchor::Start);
    }
}
