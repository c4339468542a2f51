//! The paper's chain sets as processes on a GPU: figure 4 of Luo and Wei (2023), by `partita
//! chain`.
//!
//! Each set runs as one chain, started once. Its compute units are undivided (every component has
//! all of them, as under default MPS), divided by the published algorithm, and divided by
//! Partita's, one after the other, in another order each round; each starts with the whole GPU for
//! all components. The count is of the frames finished by the last component, by the chain's own
//! log, once the search has ended. After the first round, trials search for the best division
//! (`--search-s`, the module `best`), which takes part in the later rounds: a search of all
//! divisions is for the model (`chain-sets`).
//!
//! The regimes: matrices as printed or scaled to the device (`--sizes`), and kernels as they are or
//! repeated until a component is limited by the GPU (`--repeat`). The program measures which of the
//! two a row is: by the throughput when every component has a quarter of the TPCs.
//!
//! ```text
//! cargo build --profile dist
//! O="--repeat 16 --deadline-s 170 --out research/bench/results/chain_live"
//! target/dist/chain-live --gpu 0 --sets 1,2,3 $O     # about 2 min on an H200
//! target/dist/chain-live --gpu 0 --sets 4,5,6 $O     # adds its rows
//! target/dist/chain-live --sets 3 --repeat 1 --rounds 1 --search-s 3 --shrink 8   # sim:h200
//! ```
//!
//! FILE.json has every row as soon as it is measured; a later run replaces the rows that it
//! measures again and keeps the others, and `--draw` shows the present ones.

mod best;
mod live;
mod report;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::{Parser, ValueEnum};
use partita::gpu::{self, Gpu, Selector};
use partita::install::Install;
use partita_chain_host::Algorithm;
use partita_experiments::chains::{CHAIN_SETS, ChainSet};
use serde::{Deserialize, Serialize};

use live::{Chain, Living, Order};
use report::{Report, Row};

/// Runs the paper's chain sets on a GPU.
#[derive(Parser)]
pub struct Options {
    /// The GPU, as `partita run` takes it.
    #[arg(long, default_value = "sim:h200")]
    gpu: String,
    /// Which of the nine sets, by their numbers in the paper's table 2, from 1.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3, 4, 5, 6, 7, 8, 9])]
    sets: Vec<usize>,
    /// Matrices as in the paper, or scaled to the same part of this GPU.
    #[arg(long, value_enum, default_value = "scaled")]
    sizes: Sizes,
    /// Divides the matrices' widths, for the simulator: it computes their products on the host.
    #[arg(long, default_value_t = 1)]
    shrink: u32,
    /// How often each kernel is repeated for a frame, a regime for each number.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16])]
    repeat: Vec<u32>,
    /// How often everything is measured.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// The optimizer's period, in milliseconds.
    #[arg(long, default_value_t = 100)]
    period_ms: u32,
    /// An algorithm's time for its search, in seconds. Measurements of one that has not ended then
    /// are stored, and not counted.
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// How long is counted, in seconds.
    #[arg(long, default_value_t = 1.5)]
    counted_s: f64,
    /// Time for trying divisions to find the best one of each row, in seconds; 0 for none.
    #[arg(long, default_value_t = 14.0)]
    search_s: f64,
    /// When to stop, in seconds: remaining rows are omitted, and the rest of the present one.
    #[arg(long, default_value_t = 540)]
    deadline_s: u64,
    /// The `partita` executable, beside which is `partita-stage` [default: beside this one].
    #[arg(long)]
    partita: Option<PathBuf>,
    /// Write FILE.json and FILE.md after each row, and FILE.svg and FILE.png at the end; the table
    /// goes to standard output in any case.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print and draw a FILE.json again instead of running.
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    draw: Option<PathBuf>,
}

/// Which matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sizes {
    /// Table 1's: 4, 8, 12 and 16 blocks to a side.
    Printed,
    /// The number of blocks to a side that is nearest to the part of this GPU's SMs that the
    /// printed ones had of the paper's.
    Scaled,
}

impl Sizes {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Printed => "printed",
            Self::Scaled => "scaled",
        }
    }
}

/// Data for every part of a run.
pub struct Run<'o> {
    /// The command line.
    pub options: &'o Options,
    /// `partita`.
    pub partita: PathBuf,
    /// When it ends.
    pub deadline: Instant,
}

impl Run<'_> {
    /// Fails once the deadline has passed.
    pub fn check_time(&self) -> Result<()> {
        ensure!(Instant::now() < self.deadline, "the {} s are over", self.options.deadline_s);
        Ok(())
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(path) = &options.draw {
        return Report::read(path)?.show(Some(&path.with_extension("")));
    }
    let begin = Instant::now();
    let mut sets = Vec::new();
    for &number in &options.sets {
        match number.checked_sub(1).and_then(|at| CHAIN_SETS.get(at)) {
            Some(set) => sets.push(set),
            None => bail!("there is no set {number}: they are 1 to {}", CHAIN_SETS.len()),
        }
    }
    let own = std::env::current_exe()?;
    let partita = options.partita.clone().unwrap_or_else(|| own.with_file_name("partita"));
    let install = Install::of(partita.clone(), std::env::var_os("PARTITA_LIB_DIR"));
    let selector: Selector = options.gpu.parse()?;
    let gpu = gpu::select(&install, Some(&selector))?.gpu;
    let deadline = begin + Duration::from_secs(options.deadline_s);
    let run = Run { options: &options, partita, deadline };
    let mut report = Report::begin(&options, &gpu)?;
    'all: for &repeat in &options.repeat {
        for &set in &sets {
            let left = run.deadline.saturating_duration_since(Instant::now());
            // A shorter time does not suffice for a start and a measurement.
            if left < Duration::from_secs(15) {
                eprintln!("{} × {repeat} and what follows is left out: {left:.0?} are left", set.name);
                break 'all;
            }
            let row = measure(&run, &gpu, set, repeat);
            eprintln!("{:.0} s: {}", begin.elapsed().as_secs_f64(), row.line());
            report.put(row);
            report.write(&options)?;
        }
    }
    report.show(options.out.as_deref())
}

/// Measures a set in a regime. The row records an error, with the measurements before it.
fn measure(run: &Run<'_>, gpu: &Gpu, set: &ChainSet, repeat: u32) -> Row {
    let mut row = Row::new(set, run.options.sizes, repeat);
    let measured = Chain::new(run, gpu, set, repeat).and_then(|chain| {
        let living = chain.start()?;
        let measured = rounds(run, &living, &mut row);
        // Its end says nothing about the measurements.
        if let Err(error) = living.stop() {
            eprintln!("{}: {error:#}", set.name);
        }
        measured
    });
    row.failure = measured.err().map(|error| format!("{error:#}"));
    row
}

fn rounds(run: &Run<'_>, living: &Living<'_>, row: &mut Row) -> Result<()> {
    let all = living.all()?;
    let components = row.components();
    row.quarter_fps = Some(living.hold(&vec![(all / 4).max(1); components])?.frames_per_s);
    for round in 0..run.options.rounds {
        let mut orders = vec![
            Order::Algorithm(Algorithm::None),
            Order::Algorithm(Algorithm::Published),
            Order::Algorithm(Algorithm::Steady),
        ];
        orders.extend(row.best.as_ref().map(|best| Order::Best(best.tpcs.clone())));
        let count = orders.len();
        orders.rotate_left(round % count);
        for order in orders {
            let measured = living.obey(&order)?;
            row.add(&order, measured);
        }
        if round == 0 && run.options.search_s > 0.0 {
            let best = best::best(run, living, row)?;
            // Once more, like everything else: the highest of many looks was partly chance.
            let measured = living.obey(&Order::Best(best.tpcs.clone()))?;
            row.best = Some(best.clone());
            row.add(&Order::Best(best.tpcs), measured);
        }
    }
    Ok(())
}
