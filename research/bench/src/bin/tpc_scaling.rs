//! Throughput of one program alone against the number of its TPCs, packed into few GPCs and spread
//! over all of them: figure 13 of Bakita and Anderson, *Hardware Compute Partitioning on NVIDIA
//! GPUs* (RTAS 2023), for a kernel that computes and one that copies.
//!
//! The GPU is calibrated first, in this process. Then each round measures every number of TPCs,
//! packed and spread in turns, in an order that flips from round to round. A point is the median of
//! its rounds.
//!
//! ```text
//! cargo build --profile dist -p partita-bench && target/dist/tpc-scaling --out
//! research/bench/results/tpc_scaling
//! ```
//!
//! The simulated driver runs these kernels on the host's processor: there one can try the program,
//! not measure with it.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use partita_abi::qmd;
use partita_core::{Samples, Topology, Tpc, TpcSet};
use partita_driver::{Cuda, Gpu, Grid, LaunchMask, probe_with};
use partita_experiments::plot::Picture;
use partita_experiments::plot::lines::{Panel, Series, scene};
use serde::{Deserialize, Serialize};

/// Measures throughput against the number of TPCs.
#[derive(Parser)]
struct Options {
    /// Elements of the computing kernel; each gets 2048 fused multiply-adds.
    #[arg(long, default_value_t = 8448 * 256)]
    elements: u64,
    /// MiB that the copying kernel reads, and writes.
    #[arg(long, default_value_t = 256)]
    copy_mib: usize,
    /// Rounds over all points.
    #[arg(long, default_value_t = 9)]
    rounds: u32,
    /// TPCs from point to point.
    #[arg(long, default_value_t = 1)]
    step: u32,
    /// Write FILE.json, FILE.svg and FILE.png.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Draw a FILE.json again instead of measuring.
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    draw: Option<PathBuf>,
}

const FMA_ROUNDS: u32 = 2048;

#[derive(Serialize, Deserialize)]
struct Report {
    device: String,
    cuda_version: u32,
    tpcs: u32,
    rounds: u32,
    curves: Vec<Curve>,
}

#[derive(Serialize, Deserialize)]
struct Curve {
    kernel: String,
    unit: String,
    place: String,
    points: Vec<Point>,
}

#[derive(Serialize, Deserialize)]
struct Point {
    tpcs: u32,
    median: f64,
    p10: f64,
    p90: f64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(path) = &options.draw {
        let report = serde_json::from_slice(&std::fs::read(path)?).context("not a report of this program")?;
        return picture(&report, &path.with_extension(""));
    }
    let report = measure(&options)?;
    print(&report);
    if let Some(path) = &options.out {
        std::fs::write(path.with_extension("json"), serde_json::to_string_pretty(&report)? + "\n")?;
        picture(&report, path)?;
    }
    Ok(())
}

/// The TPCs in the order in which a growing partition gets them.
fn orders(topology: &Topology) -> [(&'static str, Vec<u8>); 2] {
    let gpcs: Vec<Vec<u8>> = topology.gpcs().iter().map(|gpc| gpc.tpcs.iter().collect()).collect();
    let longest = gpcs.iter().map(Vec::len).max().unwrap_or(0);
    let spread = (0..longest).flat_map(|row| gpcs.iter().filter_map(move |gpc| gpc.get(row).copied()));
    [("packed", gpcs.iter().flatten().copied().collect()), ("spread", spread.collect())]
}

fn measure(options: &Options) -> Result<Report> {
    let cuda = Cuda::load(None)?;
    let gpu = Gpu::open(&cuda, 0)?;
    let mut mask = LaunchMask::install(&cuda)?;
    let found = probe_with(&gpu, &mut mask)?;
    let tpcs = found.tpcs.iter().map(|tpc| Tpc { gpc: tpc.gpc, physical: tpc.physical });
    let topology = Topology::new(found.sms_per_tpc, tpcs.collect::<Vec<_>>())?;
    let layout = qmd::layout_for(found.facts.compute_capability, found.qmd_version)?;

    let values = gpu.alloc(options.elements as usize * 4)?;
    values.fill(0)?;
    let (from, to) = (gpu.alloc(options.copy_mib << 20)?, gpu.alloc(options.copy_mib << 20)?);
    from.fill(1)?;
    // Several waves of blocks at every size, so that the last one weighs little.
    let fma = Grid { blocks: (options.elements / 256).max(1) as u32, threads: 256, cluster_blocks: 1 };
    let copy = Grid { blocks: found.facts.sms * 32, threads: 512, cluster_blocks: 1 };
    let flops = 2.0 * f64::from(FMA_ROUNDS) * options.elements as f64;
    let mut kernels = [
        ("computes", "TFLOP/s", flops / 1e12, gpu.prepare_fma(fma, &values, FMA_ROUNDS)?),
        ("copies", "GB/s", 2.0 * from.bytes() as f64 / 1e9, gpu.prepare_copy(copy, &to, &from)?),
    ];

    let orders = orders(&topology);
    let counts: Vec<u32> = (1..=topology.tpc_count())
        .filter(|count| (count - 1) % options.step == 0 || *count == topology.tpc_count())
        .collect();
    let mut rates = vec![vec![vec![Vec::new(); counts.len()]; orders.len()]; kernels.len()];
    for round in 0..options.rounds {
        for (index, &count) in counts.iter().enumerate() {
            for turn in 0..orders.len() {
                let place = (turn + round as usize + index) % orders.len();
                let set: TpcSet = orders[place].1[..count as usize].iter().copied().collect();
                mask.set(layout, &topology.disable_words(&set));
                for (kernel, (_, _, work, launch)) in kernels.iter_mut().enumerate() {
                    launch.launch()?;
                    gpu.synchronize()?;
                    let start = Instant::now();
                    launch.launch()?;
                    launch.launch()?;
                    gpu.synchronize()?;
                    rates[kernel][place][index].push(2.0 * *work / start.elapsed().as_secs_f64());
                }
            }
        }
    }
    mask.clear();

    let mut curves = Vec::new();
    for ((kernel, unit, ..), by_place) in kernels.iter().zip(rates) {
        for ((place, _), by_count) in orders.iter().zip(by_place) {
            let points = counts.iter().zip(by_count).map(|(&tpcs, rates)| {
                let samples = Samples::new(rates)?;
                Ok(Point {
                    tpcs,
                    median: samples.median(),
                    p10: samples.quantile(100),
                    p90: samples.quantile(900),
                })
            });
            curves.push(Curve {
                kernel: (*kernel).to_owned(),
                unit: (*unit).to_owned(),
                place: (*place).to_owned(),
                points: points.collect::<Result<_>>()?,
            });
        }
    }
    Ok(Report {
        device: found.facts.name,
        cuda_version: found.facts.cuda_version,
        tpcs: topology.tpc_count(),
        rounds: options.rounds,
        curves,
    })
}

/// The throughput in proportion to the whole device.
fn ideal(curve: &Curve, tpcs: f64, all: u32) -> f64 {
    curve.points.last().map_or(0.0, |last| last.median * tpcs / f64::from(all))
}

fn print(report: &Report) {
    println!("{}, {} TPCs, median of {} rounds\n", report.device, report.tpcs, report.rounds);
    println!(
        "| TPCs | computes packed, TFLOP/s (of ideal) | spread | copies packed, GB/s (of ideal) | spread |"
    );
    println!("|---|---|---|---|---|");
    let rows = report.curves.first().map_or(0, |curve| curve.points.len());
    for row in 0..rows {
        print!("| {} |", report.curves[0].points[row].tpcs);
        for curve in &report.curves {
            let point = &curve.points[row];
            let share = point.median / ideal(curve, f64::from(point.tpcs), report.tpcs);
            print!(" {:.2} ({:.0} %) |", point.median, 100.0 * share);
        }
        println!();
    }
}

fn picture(report: &Report, file: &std::path::Path) -> Result<()> {
    let mut panels: Vec<Panel> = Vec::new();
    for curve in &report.curves {
        let title = format!("a kernel that {}", curve.kernel);
        if panels.last().is_none_or(|panel| panel.title != title) {
            let ends = [0.0, f64::from(report.tpcs)].map(|tpcs| (tpcs, ideal(curve, tpcs, report.tpcs)));
            panels.push(Panel {
                title,
                x: "TPCs enabled".to_owned(),
                y: curve.unit.clone(),
                is_log: false,
                series: vec![Series::reference("in proportion to the whole GPU", ends.to_vec())],
            });
        }
        if let Some(panel) = panels.last_mut() {
            let name = format!("{} by GPC", curve.place).replace("spread by GPC", "spread over GPCs");
            let points = curve.points.iter().map(|point| (f64::from(point.tpcs), point.median));
            panel.series.push(Series::dots(&name, points.collect()));
        }
    }
    let title = format!("Alone on part of an {}", report.device);
    Ok(Picture::of("tpc_scaling", scene(&title, &panels)).save(file)?)
}
