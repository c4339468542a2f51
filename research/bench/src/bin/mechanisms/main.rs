//! The mechanisms that limit launches to some TPCs, side by side: the sets of each, the cost of
//! making and changing a lane, the cost of a launch on it, and the throughput at equal sets.
//!
//! All in one process and one run. The green contexts are made first, because the driver makes none
//! beside a launch callback. Then each round measures every mechanism, and a plain stream for
//! comparison, at every set, in an order that rotates from round to round. The place of a stream's
//! mask, and the board's numbering, come from the calibration, which `partita` makes in child
//! processes.
//!
//! ```text
//! cargo build --profile dist
//! target/dist/mechanisms --gpu 0 --json research/bench/results/mechanisms.json
//! target/dist/mechanisms --elements 16384            # sim:h200, where throughput is the host's
//! ```
//!
//! With `--switch`, instead the cost of moving compute units with each actuator of chains: the
//! call, the time to the first work under the new partition, and the cost of launches and
//! hand-overs from then on. It starts a separate MPS service and stops it; 30 s on an H200, 120 s
//! at most:
//!
//! ```text
//! target/dist/mechanisms --switch --gpu 0 --rounds 20 --out research/bench/results/switch_cost
//! target/dist/mechanisms --switch --rounds 3 --switches 20                 # sim:h200
//! ```

mod actuator;
mod switch;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use partita::calibration::{Cache, Measured};
use partita::gpu::{self, Selector};
use partita::install::Install;
use partita_core::{Samples, Topology, TpcSet};
use partita_driver::green::{Coscheduling, Green, GreenPool, Sizes};
use partita_driver::mechanism::{GreenMechanism, Lane, MaskMechanism, Mechanism, Retarget, StreamMechanism};
use partita_driver::{Buffer, Cuda, Gpu, Grid, Launch, ProcessMasks, StreamField, StreamMasks};
use serde::Serialize;

/// Compares masks, stream masks and green contexts.
#[derive(Parser)]
struct Options {
    /// The GPU, as `partita run` takes it.
    #[arg(long, default_value = "sim:h200")]
    gpu: String,
    /// Rounds over all mechanisms and sets.
    #[arg(long, default_value_t = 15)]
    rounds: u32,
    /// Launches of one burst, whose enqueueing is timed.
    #[arg(long, default_value_t = 200)]
    burst: u32,
    /// Changes of a lane's set in one round.
    #[arg(long, default_value_t = 200)]
    changes: u32,
    /// Elements of the computing kernel; each gets 2048 fused multiply-adds.
    #[arg(long, default_value_t = 8448 * 256)]
    elements: u64,
    /// The `partita` executable [default: beside this one].
    #[arg(long)]
    partita: Option<PathBuf>,
    /// Write the figures here too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure the cost of switches of chains' actuators.
    #[arg(long)]
    switch: bool,
    /// Switches of one round.
    #[arg(long, default_value_t = 100)]
    switches: u32,
    /// When to omit the remaining work, in seconds.
    #[arg(long, default_value_t = 120)]
    deadline_s: u64,
    /// Where `--switch` writes FILE.md and FILE.json, after each round.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Run as the process of one actuator.
    #[arg(long, hide = true, value_enum)]
    actuator: Option<actuator::Kind>,
}

const FMA_ROUNDS: u32 = 2048;
const DEADLINE_MS: u64 = 60_000;
/// Set in the environment of the measuring process.
const INSIDE: &str = "PARTITA_BENCH_INSIDE";

#[derive(Serialize)]
struct Report {
    device: String,
    driver: String,
    cuda_version: u32,
    rounds: u32,
    /// A launch on a plain stream, under the launch callback without a mask.
    plain_launch_ns: Spread,
    /// Sizes of green contexts' groups, in SMs; `None` if the driver makes no green contexts.
    green: Option<GreenSizes>,
    mechanisms: Vec<Figures>,
    /// Missing mechanisms, with reasons.
    absent: Vec<String>,
}

#[derive(Serialize)]
struct GreenSizes {
    kept_least_sms: u32,
    kept_step_sms: u32,
    ignored_least_sms: u32,
    ignored_step_sms: u32,
    /// Splitting the device and finding its groups, with the contexts for that.
    survey_ms: f64,
}

#[derive(Serialize)]
struct Figures {
    name: String,
    least_tpcs: u32,
    step_tpcs: u32,
    any_tpcs: bool,
    /// A new lane.
    create_us: Spread,
    /// Another set for a lane; for green contexts a switch to a prepared one.
    retarget_ns: Spread,
    launch_ns: Spread,
    /// By set, in the order of `sets`.
    gflops: Vec<SetFigure>,
}

#[derive(Serialize)]
struct SetFigure {
    tpcs: u32,
    set: String,
    gflops: Spread,
}

#[derive(Serialize, Clone, Copy)]
struct Spread {
    median: f64,
    p10: f64,
    p90: f64,
    count: usize,
}

impl Spread {
    fn of(values: Vec<f64>) -> Result<Self> {
        let samples = Samples::new(values)?;
        Ok(Self {
            median: samples.median(),
            p10: samples.quantile(100),
            p90: samples.quantile(900),
            count: samples.count(),
        })
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(kind) = options.actuator {
        let amount = actuator::Amount { switches: options.switches, burst: options.burst };
        return actuator::run(kind, amount, Duration::from_secs(options.deadline_s));
    }
    let own = std::env::current_exe()?;
    let partita = options.partita.clone().unwrap_or_else(|| own.with_file_name("partita"));
    let install = Install::of(partita, std::env::var_os("PARTITA_LIB_DIR"));
    let selector: Selector = options.gpu.parse()?;
    let gpu = gpu::select(&install, Some(&selector))?.gpu;
    if options.switch {
        return switch::run(&options, &install, &gpu);
    }
    if std::env::var_os(INSIDE).is_none() {
        // A process finds the driver by the environment at its start.
        let error = Command::new(own)
            .args(std::env::args_os().skip(1))
            .envs(gpu.variables())
            .env("CUDA_MPS_PIPE_DIRECTORY", "/dev/null/no-mps")
            .env(INSIDE, "1")
            .exec();
        return Err(error).context("this program cannot be started again");
    }
    let cache = Cache::open();
    let measured = cache.get(&install, &gpu)?;
    let place = cache.stream_place(&install, &gpu, &measured);
    let offset_bytes = place.map(|place| place.offset_bytes).map_err(|error| error.to_string());
    let report = measure(&options, &measured, offset_bytes, gpu.driver_version.clone())?;
    print(&report);
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    Ok(())
}

/// Sets of several sizes that all mechanisms support: unions of the groups that stay together, with
/// green contexts.
fn sets(topology: &Topology, green: Option<&Green<'_, '_>>) -> Vec<TpcSet> {
    let groups: Vec<TpcSet> = match green {
        Some(green) => green.groups(Coscheduling::Kept).to_vec(),
        None => topology.all().iter().map(TpcSet::single).collect(),
    };
    let count = groups.len();
    let mut sets: Vec<TpcSet> = [1, count.div_ceil(8), count.div_ceil(4), count.div_ceil(2), count]
        .iter()
        .map(|&taken| groups[..taken].iter().fold(TpcSet::EMPTY, |all, group| all | *group))
        .collect();
    sets.dedup();
    sets
}

/// One mechanism in the run, with its measurements.
struct Contender<'g> {
    mechanism: Box<dyn Mechanism<'g> + 'g>,
    create_us: Vec<f64>,
    retarget_ns: Vec<f64>,
    launch_ns: Vec<f64>,
    gflops: Vec<Vec<f64>>,
}

impl<'g> Contender<'g> {
    fn new(mechanism: impl Mechanism<'g> + 'g, sets: usize) -> Self {
        Self {
            mechanism: Box::new(mechanism),
            create_us: Vec::new(),
            retarget_ns: Vec::new(),
            launch_ns: Vec::new(),
            gflops: vec![Vec::new(); sets],
        }
    }
}

fn measure(
    options: &Options,
    measured: &Measured,
    offset_bytes: Result<u32, String>,
    driver: String,
) -> Result<Report> {
    let topology = measured.topology().map_err(anyhow::Error::msg)?;
    let layout = partita_abi::qmd::layout_for(measured.device_class, measured.qmd_version)?;
    let cuda = Cuda::load(None)?;
    let gpu = Gpu::open(&cuda, 0)?;
    let mut absent = Vec::new();

    let begin = Instant::now();
    let green = Green::survey(&gpu, topology.sms_per_tpc());
    let survey_ms = begin.elapsed().as_secs_f64() * 1e3;
    let sets = sets(&topology, green.as_ref().ok());
    let mut contenders = Vec::new();
    let mut sizes = None;
    match green {
        Err(error) => absent.push(format!("green: {error}")),
        Ok(green) => {
            let [kept, ignored]: [Sizes; 2] =
                [green.sizes(Coscheduling::Kept)?, green.sizes(Coscheduling::Ignored)?];
            sizes = Some(GreenSizes {
                kept_least_sms: kept.least_sms(),
                kept_step_sms: kept.step_sms(),
                ignored_least_sms: ignored.least_sms(),
                ignored_step_sms: ignored.step_sms(),
                survey_ms,
            });
            let mechanism = GreenMechanism::new(&gpu, GreenPool::new(green), &topology);
            let mut create_us = Vec::new();
            for set in &sets {
                let begin = Instant::now();
                mechanism.prepare(&[*set])?;
                create_us.push(begin.elapsed().as_secs_f64() * 1e6);
            }
            contenders.push(Contender { create_us, ..Contender::new(mechanism, sets.len()) });
        }
    }
    match offset_bytes
        .and_then(|offset| StreamField::from_cache(&cuda, offset).map_err(|error| error.to_string()))
    {
        Err(reason) => absent.push(format!("stream: {reason}")),
        Ok(field) => {
            let masks = StreamMasks::new(&cuda, field, topology.tpc_count());
            contenders.push(Contender::new(StreamMechanism::new(&gpu, masks, &topology), sets.len()));
        }
    }
    let masks = ProcessMasks::install(&cuda, &topology, layout)?;
    contenders.push(Contender::new(MaskMechanism::new(&gpu, masks), sets.len()));

    let values = gpu.alloc(options.elements as usize * 4)?;
    values.fill(0)?;
    let mut plain_ns = Vec::new();
    for round in 0..options.rounds as usize {
        plain_ns.push(plain_launch_ns(&gpu, options.burst)?);
        for turn in 0..contenders.len() {
            let which = (turn + round) % contenders.len();
            let contender = &mut contenders[which];
            create(contender, &sets)?;
            changes(contender, &sets, options.changes)?;
            for turn in 0..sets.len() {
                let set = (turn + round) % sets.len();
                let lane = contender.mechanism.lane(&sets[set])?;
                if set == round % sets.len() {
                    contender.launch_ns.push(launch_ns(&lane, options.burst)?);
                }
                contender.gflops[set].push(gflops(&lane, options.elements, &values)?);
            }
        }
    }

    let mut mechanisms = vec![];
    for contender in contenders {
        let step = contender.mechanism.step()?;
        let gflops = sets.iter().zip(contender.gflops).map(|(set, values)| {
            Ok(SetFigure { tpcs: set.len(), set: set.to_string(), gflops: Spread::of(values)? })
        });
        mechanisms.push(Figures {
            name: contender.mechanism.name().to_owned(),
            least_tpcs: step.least_tpcs,
            step_tpcs: step.step_tpcs,
            any_tpcs: step.any_tpcs,
            create_us: Spread::of(contender.create_us)?,
            retarget_ns: Spread::of(contender.retarget_ns)?,
            launch_ns: Spread::of(contender.launch_ns)?,
            gflops: gflops.collect::<Result<_>>()?,
        });
    }
    let facts = gpu.facts();
    let report = Report {
        device: facts.name.clone(),
        driver,
        cuda_version: facts.cuda_version,
        rounds: options.rounds,
        plain_launch_ns: Spread::of(plain_ns)?,
        green: sizes,
        mechanisms,
        absent,
    };
    Ok(report)
}

/// Makes lanes. Those of green contexts were made before the run, and are only looked up here.
fn create(contender: &mut Contender<'_>, sets: &[TpcSet]) -> Result<()> {
    if contender.mechanism.retarget() == Retarget::Switch {
        return Ok(());
    }
    for set in sets {
        let begin = Instant::now();
        let lane = contender.mechanism.lane(set)?;
        contender.create_us.push(begin.elapsed().as_secs_f64() * 1e6);
        drop(lane);
    }
    Ok(())
}

/// Changes a lane back and forth.
fn changes(contender: &mut Contender<'_>, sets: &[TpcSet], changes: u32) -> Result<()> {
    let (first, second) = (sets[0], sets[sets.len() / 2]);
    let mut lane = contender.mechanism.lane(&first)?;
    let begin = Instant::now();
    for change in 0..changes {
        lane.retarget(if change % 2 == 0 { &second } else { &first })?;
    }
    contender.retarget_ns.push(begin.elapsed().as_nanos() as f64 / f64::from(changes));
    lane.wait("what the changes queued", DEADLINE_MS)?;
    Ok(())
}

/// Nanoseconds for enqueueing one launch.
fn burst_ns(launch: &mut Launch<'_>, burst: u32) -> Result<f64> {
    launch.launch()?;
    let begin = Instant::now();
    for _ in 0..burst {
        launch.launch()?;
    }
    Ok(begin.elapsed().as_nanos() as f64 / f64::from(burst))
}

fn launch_ns(lane: &Lane<'_>, burst: u32) -> Result<f64> {
    let mut launch = lane.prepare_spin(1, 32, 0)?;
    let ns = lane.within(|_| burst_ns(&mut launch, burst))??;
    lane.wait("a burst", DEADLINE_MS)?;
    Ok(ns)
}

fn plain_launch_ns(gpu: &Gpu<'_>, burst: u32) -> Result<f64> {
    let ns = burst_ns(&mut gpu.prepare_spin(1, 32, 0)?, burst)?;
    gpu.wait("a burst", DEADLINE_MS)?;
    Ok(ns)
}

fn gflops(lane: &Lane<'_>, elements: u64, values: &Buffer<'_>) -> Result<f64> {
    let grid = Grid { blocks: (elements / 256).max(1) as u32, threads: 256, cluster_blocks: 1 };
    let mut launch = lane.prepare_fma(grid, values, FMA_ROUNDS)?;
    lane.within(|_| -> Result<f64> {
        launch.launch()?;
        lane.synchronize()?;
        let begin = Instant::now();
        launch.launch()?;
        launch.launch()?;
        lane.synchronize()?;
        let seconds = begin.elapsed().as_secs_f64();
        if seconds <= 0.0 {
            bail!("a clock that stands still");
        }
        Ok(2.0 * 2.0 * f64::from(FMA_ROUNDS) * elements as f64 / seconds / 1e9)
    })?
}

fn print(report: &Report) {
    println!(
        "{}, driver {}, CUDA {}.{}, {} rounds, interleaved; medians (10th to 90th percentile)\n",
        report.device,
        report.driver,
        report.cuda_version / 1000,
        report.cuda_version % 1000 / 10,
        report.rounds
    );
    let spread = |spread: &Spread, digits: usize| {
        format!("{:.digits$} ({:.digits$} to {:.digits$})", spread.median, spread.p10, spread.p90)
    };
    println!("| mechanism | TPCs | make a lane, µs | change its set, ns | launch, ns |");
    println!("|---|---|---|---|---|");
    for figures in &report.mechanisms {
        let choice = if figures.any_tpcs { "any" } else { "unions of groups" };
        println!(
            "| {} | {} + {}, {choice} | {} | {} | {} |",
            figures.name,
            figures.least_tpcs,
            figures.step_tpcs,
            spread(&figures.create_us, 1),
            spread(&figures.retarget_ns, 0),
            spread(&figures.launch_ns, 0)
        );
    }
    println!("| none | | | | {} |", spread(&report.plain_launch_ns, 0));
    println!("\nThroughput, GFLOP/s:\n");
    let names: Vec<&str> = report.mechanisms.iter().map(|figures| figures.name.as_str()).collect();
    println!("| TPCs | {} |", names.join(" | "));
    println!("|---|{}", "---|".repeat(names.len()));
    let rows = report.mechanisms.first().map_or(0, |figures| figures.gflops.len());
    for row in 0..rows {
        let cells: Vec<String> =
            report.mechanisms.iter().map(|figures| spread(&figures.gflops[row].gflops, 1)).collect();
        println!("| {} | {} |", report.mechanisms[0].gflops[row].tpcs, cells.join(" | "));
    }
    if let Some(green) = &report.green {
        println!(
            "\nGreen contexts: groups of {} SMs and {} more that keep together for clusters, {} and {} without; made out in {:.0} ms.",
            green.kept_least_sms,
            green.kept_step_sms,
            green.ignored_least_sms,
            green.ignored_step_sms,
            green.survey_ms
        );
    }
    for reason in &report.absent {
        println!("\nNot here: {reason}");
    }
}
