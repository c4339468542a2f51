//! The cost of waits inside graphs for a tenant of low priority, without work of high priority.
//!
//! Graphs of kernels of one length, in one branch or several side by side, whose nodes are made
//! level by level or branch by branch, as a program that captures one stream after the other makes
//! them. Three processes launch the same graphs in turns, in an order that flips every round: one
//! without limits, and two tenants of low priority, of which one has launched kernels of that
//! length before, so that their length is known when the graphs are made executable.
//!
//! ```text
//! cargo build --profile dist && target/dist/gate-graphs --gpu 0  # the first GPU of this machine
//! target/dist/gate-graphs --rounds 3 --kernels 64                # sim:h200
//! ```

use std::io::BufRead;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use partita_bench::side::{Side, bare};
use partita_core::Samples;
use partita_driver::{Cuda, Gpu, SpinGraph};

/// Measures the cost of waits inside graphs.
#[derive(Parser)]
struct Options {
    /// The GPU, as `partita run` takes it.
    #[arg(long, default_value = "sim:h200")]
    gpu: String,
    /// How often each graph is launched by each process.
    #[arg(long, default_value_t = 30)]
    rounds: u32,
    /// Kernels of a graph.
    #[arg(long, default_value_t = 256)]
    kernels: usize,
    /// How long each is, in microseconds.
    #[arg(long, default_value_t = 20)]
    us: u64,
    /// The `partita` executable [default: beside this one].
    #[arg(long)]
    partita: Option<PathBuf>,
    /// Run as one of the processes, which first launches this many kernels.
    #[arg(long, hide = true, value_name = "KERNELS")]
    child: Option<u32>,
}

/// Kernels that a process launches before it makes its graphs, so that their length is known: about
/// a second of them, during which clocks rise.
const MEASURED: u32 = 40_000;

/// A graph by its shape.
#[derive(Debug, Clone, Copy)]
struct Shape {
    branches: usize,
    /// Whether all of a branch is made before the next one.
    by_branch: bool,
}

const SHAPES: [Shape; 5] = [
    Shape { branches: 1, by_branch: false },
    Shape { branches: 2, by_branch: false },
    Shape { branches: 2, by_branch: true },
    Shape { branches: 4, by_branch: false },
    Shape { branches: 4, by_branch: true },
];

impl Shape {
    /// The predecessor of each, in the order of their creation.
    fn after(self, kernels: usize) -> Vec<Option<usize>> {
        let (width, depth) = (self.branches, kernels / self.branches);
        (0..width * depth)
            .map(|at| {
                let (level, step) = if self.by_branch { (at % depth, 1) } else { (at / width, width) };
                (level > 0).then(|| at - step)
            })
            .collect()
    }

    fn name(self) -> String {
        let order = if self.by_branch { "branch by branch" } else { "level by level" };
        if self.branches == 1 { "1".to_owned() } else { format!("{}, {order}", self.branches) }
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    match options.child {
        Some(kernels) => child(&options, kernels),
        None => compare(&options),
    }
}

/// Launches the graph with the number in each line, and answers with the microseconds until its end
/// and of the call.
fn child(options: &Options, first: u32) -> Result<()> {
    let cuda = Cuda::load(None)?;
    let gpu = Gpu::open(&cuda, 0)?;
    let spin_ns = options.us * 1000;
    let mut launch = gpu.prepare_spin(1, 32, spin_ns)?;
    for number in 0..first {
        launch.launch()?;
        // The measurement must not include the driver's full queue.
        if number % 200 == 199 {
            gpu.synchronize()?;
        }
    }
    gpu.synchronize()?;
    let graphs: Vec<SpinGraph<'_, '_>> = SHAPES
        .iter()
        .map(|shape| SpinGraph::new(&gpu, spin_ns, &shape.after(options.kernels)))
        .collect::<Result<_, _>>()?;
    for graph in &graphs {
        graph.launch()?;
        gpu.synchronize()?;
    }
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let graph = graphs.get(line?.parse::<usize>()?).context("no such graph")?;
        let start = Instant::now();
        graph.launch()?;
        let call = start.elapsed();
        gpu.synchronize()?;
        let whole = start.elapsed();
        println!("{} {}", whole.as_nanos() as f64 / 1e3, call.as_nanos() as f64 / 1e3);
    }
    Ok(())
}

/// One process's times for one graph, in microseconds.
#[derive(Default)]
struct Took {
    whole: Vec<f64>,
    call: Vec<f64>,
}

fn compare(options: &Options) -> Result<()> {
    if options.kernels < SHAPES.iter().map(|shape| shape.branches).max().unwrap_or(1) || options.rounds == 0 {
        bail!("too few kernels for that many branches, or no rounds: give --kernels 256 --rounds 30");
    }
    let mut sides = [
        start(options, None, 0)?,
        start(options, Some("graphs-new"), 0)?,
        start(options, Some("graphs-known"), MEASURED)?,
    ];
    let mut took: Vec<[Took; 3]> = SHAPES.iter().map(|_| Default::default()).collect();
    for round in 0..options.rounds {
        for (at, took) in took.iter_mut().enumerate() {
            let mut order = [0, 1, 2];
            if round % 2 == 1 {
                order.reverse();
            }
            for side in order {
                let answer = sides[side].ask(&at.to_string())?;
                let mut figures = answer.split_whitespace().map(str::parse::<f64>);
                let (Some(whole), Some(call)) = (figures.next().transpose()?, figures.next().transpose()?)
                else {
                    bail!("a process answered {answer:?}")
                };
                took[side].whole.push(whole);
                took[side].call.push(call);
            }
        }
    }
    sides.into_iter().try_for_each(Side::stop)?;
    println!(
        "Graphs of {} kernels of {} us on {}, {} launches of each by each process, in turns. Medians (10th to 90th percentile).\n",
        options.kernels, options.us, options.gpu, options.rounds
    );
    println!(
        "| branches | without limits, us | low priority, against it | the same, lengths measured before | the call without, us | low | lengths measured |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (shape, took) in SHAPES.iter().zip(took) {
        let [bare, new, known] = took;
        let ratio = |of: &Took| -> Result<String> {
            let pairs: Vec<f64> =
                of.whole.iter().zip(&bare.whole).map(|(with, without)| with / without).collect();
            let ratios = Samples::new(pairs)?;
            Ok(format!("{:.2} ({:.2} to {:.2})", ratios.p50(), ratios.quantile(100), ratios.quantile(900)))
        };
        let median = |values: &[f64]| -> Result<f64> { Ok(Samples::new(values.to_vec())?.p50()) };
        println!(
            "| {} | {:.0} | {} | {} | {:.1} | {:.1} | {:.1} |",
            shape.name(),
            median(&bare.whole)?,
            ratio(&new)?,
            ratio(&known)?,
            median(&bare.call)?,
            median(&new.call)?,
            median(&known.call)?,
        );
    }
    Ok(())
}

/// Starts a process: without limits, or as a tenant of low priority.
fn start(options: &Options, tenant: Option<&str>, first: u32) -> Result<Side> {
    let own = std::env::current_exe()?;
    let partita = options.partita.clone().unwrap_or_else(|| own.with_file_name("partita"));
    let mut command = match tenant {
        None => bare(&partita, &options.gpu, &own),
        Some(name) => {
            let mut command = Command::new(&partita);
            command.args([
                "run",
                "--gpu",
                &options.gpu,
                "--name",
                name,
                "--via",
                "time",
                "--priority",
                "low",
            ]);
            command.arg("--").arg(&own);
            command
        }
    };
    command.args(["--child", &first.to_string(), "--kernels", &options.kernels.to_string()]);
    command.args(["--us", &options.us.to_string()]);
    Side::start(command)
}
