//! The cost of the launch callback and a mask for a launch: three ways of launching in one process,
//! in turns.
//!
//! The callback is off, on without a mask, and on with one. Each turn is a burst that fits the
//! driver's queue; only the enqueueing is timed. One process, one stream, one kernel: the placement
//! of memory is the same for all three. `hook-cost` measures the interposer's cost around a launch.
//!
//! ```text
//! cargo build --profile dist -p partita-bench && target/dist/mask-overhead
//! eval "$(partita sim env --gpu sim:h200)"; target/dist/mask-overhead  # the simulated driver
//! ```

use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use partita_abi::qmd;
use partita_core::Samples;
use partita_driver::{Cuda, Gpu, LaunchMask, probe_with};

/// Measures the cost of the launch callback and a mask for a launch.
#[derive(Parser)]
struct Options {
    /// Turns of each way.
    #[arg(long, default_value_t = 2500)]
    turns: u32,
    /// Launches of one turn.
    #[arg(long, default_value_t = 500)]
    burst: u32,
}

const WAYS: [&str; 3] = ["bare", "callback, no mask", "callback, mask of half the TPCs"];

fn main() -> Result<()> {
    let options = Options::parse();
    let cuda = Cuda::load(None)?;
    let gpu = Gpu::open(&cuda, 0)?;
    let mut mask = LaunchMask::install(&cuda)?;
    let found = probe_with(&gpu, &mut mask)?;
    let layout = qmd::layout_for(found.facts.compute_capability, found.qmd_version)?;
    let mut disable = [0; 8];
    for tpc in found.tpcs.iter().step_by(2) {
        disable[usize::from(tpc.physical / 32)] |= 1 << (tpc.physical % 32);
    }
    let mut launch = gpu.prepare_spin(1, 32, 0)?;
    let mut burst = |mask: &mut LaunchMask, way: usize| -> Result<f64> {
        mask.call(way > 0)?;
        if way == 2 {
            mask.set(layout, &disable);
        } else {
            mask.clear();
        }
        let before = mask.launches();
        let start = Instant::now();
        for _ in 0..options.burst {
            launch.launch()?;
        }
        let spent = start.elapsed();
        gpu.synchronize()?;
        // A comparison of three equal things would look as good.
        let called = mask.launches() - before;
        anyhow::ensure!(called == if way > 0 { u64::from(options.burst) } else { 0 }, "{called} callbacks");
        Ok(spent.as_nanos() as f64 / f64::from(options.burst))
    };
    for way in 0..3 {
        for _ in 0..20 {
            burst(&mut mask, way)?;
        }
    }
    let mut spent = [const { Vec::new() }; 3];
    for turn in 0..options.turns as usize {
        for way in 0..3 {
            let way = (way + turn) % 3;
            spent[way].push(burst(&mut mask, way)?);
        }
    }

    let launches = u64::from(options.turns) * u64::from(options.burst);
    println!(
        "{}: {launches} launches each way, {} turns of {}, interleaved\n",
        found.facts.name, options.turns, options.burst
    );
    println!("| ns a launch | median | p10 | p90 | added to bare: median | 95 % interval of the median |");
    println!("|---|---|---|---|---|---|");
    for (way, name) in WAYS.into_iter().enumerate() {
        let samples = Samples::new(spent[way].clone())?;
        let added: Vec<f64> = spent[way].iter().zip(&spent[0]).map(|(with, bare)| with - bare).collect();
        let added = Samples::new(added)?;
        let (low, high) = added.median_interval();
        print!(
            "| {name} | {:.1} | {:.1} | {:.1} |",
            samples.median(),
            samples.quantile(100),
            samples.quantile(900)
        );
        if way == 0 {
            println!(" | |")
        } else {
            println!(" {:+.1} | {low:+.1} to {high:+.1} |", added.median())
        }
    }
    Ok(())
}
