//! The main job as a picture: the serving tenant's p99 against the neighbour's throughput, a point
//! for each way of sharing.
//!
//! ```text
//! cargo build --profile dist -p partita-bench
//! target/dist/trade-off research/bench/results/main_job.json
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use partita_experiments::plot::Picture;
use partita_experiments::plot::lines::{Panel, Series, scene};
use serde::Deserialize;

/// Draws the trade-off between a serving tenant and its neighbour.
#[derive(Parser)]
struct Options {
    /// The result file of `research/bench/main_job/run.py`.
    result: PathBuf,
    /// The pictures' path, without an extension [default: that of the result].
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Deserialize)]
struct MainJob {
    device: Device,
    date: String,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Device {
    name: String,
    driver: String,
}

#[derive(Deserialize)]
struct Row {
    setting: String,
    neighbour: String,
    p99_ms: Option<f64>,
    neighbour_per_s: Option<f64>,
}

/// Both programs alone, each with the whole GPU: the baseline of every setting.
const SERVE_ALONE: &str = "solo, whole GPU";
const NEIGHBOUR_ALONE: &str = "neighbour solo, whole GPU";

fn main() -> Result<()> {
    let options = Options::parse();
    let text = std::fs::read_to_string(&options.result)
        .with_context(|| format!("cannot read {}", options.result.display()))?;
    let job: MainJob = serde_json::from_str(&text)
        .with_context(|| format!("{} is no result of the main job", options.result.display()))?;
    let alone = |setting: &str, value: fn(&Row) -> Option<f64>| -> BTreeMap<String, f64> {
        let rows = job.rows.iter().filter(|row| row.setting == setting);
        rows.filter_map(|row| Some((row.neighbour.clone(), value(row)?))).collect()
    };
    let serve_ms =
        *alone(SERVE_ALONE, |row| row.p99_ms).get("-").context("no row of the serving program alone")?;
    let panels: Vec<Panel> = alone(NEIGHBOUR_ALONE, |row| row.neighbour_per_s)
        .into_iter()
        .map(|(neighbour, per_s)| Panel {
            title: format!("beside {neighbour}"),
            x: format!("rate of {neighbour}, against alone on the whole GPU"),
            y: "p99 of serve, times that of alone on the whole GPU".to_owned(),
            series: points(&job.rows, &neighbour, serve_ms, per_s),
            is_log: true,
        })
        .collect();
    let title = format!("{}, driver {}, {}", job.device.name, job.device.driver, job.date);
    let file = options.out.unwrap_or_else(|| options.result.with_file_name("main_job_trade_off"));
    Ok(Picture::of("main_job_trade_off", scene(&title, &panels)).save(&file)?)
}

/// The settings in which both programs run.
fn points(rows: &[Row], neighbour: &str, serve_ms: f64, per_s: f64) -> Vec<Series> {
    let both = rows.iter().filter(|row| row.neighbour == neighbour);
    let measured = both.filter_map(|row| Some((row, row.p99_ms?, row.neighbour_per_s?)));
    measured
        .map(|(row, p99_ms, rate)| Series::points(&row.setting, vec![(rate / per_s, p99_ms / serve_ms)]))
        .collect()
}
