//! The paper's chain sets as processes on a GPU: figure 4 of Luo and Wei (2023), by `partita chain`.
//!
//! Each set runs with nobody dividing the compute units (default MPS), with the published algorithm and with Partita's, one after the other in an
//! order that is another one each round, with its kernels as printed and repeated until a component is bound by the GPU. What is counted is what comes
//! out of the last component, by the chain's own log, once it has had time to settle. The best division that can be found by hand comes from a climb
//! from the best of the three (`--search-s`): an exhaustive search is for the model (`chain-sets`).
//!
//! ```text
//! cargo build --release && target/release/chain-live --gpu 0 --out bench/results/chain_live
//! target/release/chain-live --only MC-1 --repeat 1 --rounds 1 --seconds 2      # sim:h200
//! ```

mod climb;
mod live;
mod report;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Parser;
use partita_experiments::chains::CHAIN_SETS;

use live::{Chain, DIVISIONS};
use report::Row;

/// Runs the paper's chain sets on a GPU.
#[derive(Parser)]
pub struct Options {
    /// The GPU, as `partita run` takes it.
    #[arg(long, default_value = "sim:h200")]
    gpu: String,
    /// Runs only sets whose names have this in them.
    #[arg(long, default_value = "")]
    only: String,
    /// How often each kernel is repeated for a frame, a regime for each number.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16])]
    repeat: Vec<u32>,
    /// How often everything is measured.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// How long each chain runs, in seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// The part of that at its end that is counted, in seconds.
    #[arg(long, default_value_t = 2.0)]
    counted_s: f64,
    /// How long is searched for the best division of each set and regime, in seconds; 0 for not at all.
    #[arg(long, default_value_t = 10.0)]
    search_s: f64,
    /// The `partita` executable, beside which is `partita-stage` [default: beside this one].
    #[arg(long)]
    partita: Option<PathBuf>,
    /// Write FILE.md, FILE.svg and FILE.png; the table goes to standard output in any case.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let sets: Vec<_> = CHAIN_SETS.iter().filter(|set| set.name.contains(&options.only)).collect();
    if sets.is_empty() {
        let names: Vec<_> = CHAIN_SETS.iter().map(|set| set.name).collect();
        bail!("no set has {:?} in its name; they are {}", options.only, names.join(", "));
    }
    if options.counted_s >= options.seconds {
        bail!(
            "--counted-s {} leaves nothing of --seconds {} to settle in",
            options.counted_s,
            options.seconds
        );
    }
    let mut rows = Vec::new();
    for &repeat in &options.repeat {
        for &set in &sets {
            rows.push(measure(&options, set, repeat)?);
            eprintln!("{}", rows.last().map(Row::line).unwrap_or_default());
        }
    }
    report::write(&options, &rows)
}

fn measure(options: &Options, set: &partita_experiments::chains::ChainSet, repeat: u32) -> Result<Row> {
    let chain = Chain::new(options, set, repeat)?;
    let mut row = Row::new(set, repeat);
    for round in 0..options.rounds {
        let mut divisions = DIVISIONS;
        divisions.rotate_left(round % DIVISIONS.len());
        for division in divisions {
            row.add(division, chain.run(division)?);
        }
    }
    if options.search_s > 0.0 {
        row.best = Some(climb::best(options, &chain, &row)?);
    }
    Ok(row)
}
