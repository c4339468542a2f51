//! The preloaded library's cost for the start of a program without CUDA, in microseconds.
//!
//! Each round starts the program once in every way, in an order that rotates by one each round, so
//! that a drift of the machine affects all ways alike: alone, with the library preloaded, with that
//! and the variable that names a tenant, and with another library, which shows the cost of any
//! preloaded library. A start is the time from the call that makes the process to the end of the
//! process.
//!
//! ```text
//! cargo build --profile dist && target/dist/start-cost
//! target/dist/start-cost --rounds 1000 -- python3 -c pass
//! ```

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use partita_core::Samples;

/// Measures the library's cost for the start of a program.
#[derive(Parser)]
struct Options {
    /// Starts in each way.
    #[arg(long, default_value_t = 500)]
    rounds: usize,
    /// The library [default: libpartita.so beside this program].
    #[arg(long)]
    preload: Option<PathBuf>,
    /// Another library, to compare with.
    #[arg(long, default_value = "libm.so.6")]
    other: PathBuf,
    /// The program, with its arguments [default: /bin/true].
    #[arg(last = true)]
    program: Vec<OsString>,
}

/// One way to start the program.
struct Way {
    name: &'static str,
    preload: Option<PathBuf>,
    ledger: bool,
    us: Vec<f64>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let library = match options.preload {
        Some(library) => library,
        None => std::env::current_exe()?.with_file_name("libpartita.so"),
    };
    ensure!(library.is_file(), "{} is not there; name the library with --preload", library.display());
    let program = if options.program.is_empty() { vec!["/bin/true".into()] } else { options.program };
    let way = |name, preload: Option<PathBuf>, ledger| Way { name, preload, ledger, us: Vec::new() };
    let mut ways = [
        way("alone", None, false),
        way("library", Some(library.clone()), false),
        way("library and PARTITA_LEDGER", Some(library), true),
        way("another library", Some(options.other), false),
    ];
    // The first starts read files that are not cached yet.
    const UNCOUNTED: usize = 10;
    for round in 0..options.rounds + UNCOUNTED {
        for step in 0..ways.len() {
            let way = &mut ways[(round + step) % 4];
            let us = start_us(&program, way)?;
            if round >= UNCOUNTED {
                way.us.push(us);
            }
        }
    }

    println!("{:?}: {} starts in each way, interleaved, in µs\n", program, options.rounds);
    println!("| | median | p10 | p90 | added, median of pairs | 95 % interval |");
    println!("|---|---|---|---|---|---|");
    let alone = ways[0].us.clone();
    for way in &ways {
        let added: Vec<f64> = way.us.iter().zip(&alone).map(|(us, alone)| us - alone).collect();
        let (all, added) = (Samples::new(way.us.clone())?, Samples::new(added)?);
        let (low, high) = added.median_interval();
        println!(
            "| {} | {:.0} | {:.0} | {:.0} | {:.0} | {low:.0} to {high:.0} |",
            way.name,
            all.median(),
            all.quantile(100),
            all.quantile(900),
            added.median()
        );
    }
    Ok(())
}

fn start_us(program: &[OsString], way: &Way) -> Result<f64> {
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).env_remove("LD_PRELOAD").env_remove("PARTITA_LEDGER");
    command.envs(way.preload.as_ref().map(|library| ("LD_PRELOAD", library)));
    if way.ledger {
        // The directory is not checked before a program uses CUDA.
        command.env("PARTITA_LEDGER", "/nowhere");
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let begin = Instant::now();
    let status = command.status().with_context(|| format!("{} cannot be started", program[0].display()))?;
    let us = begin.elapsed().as_secs_f64() * 1e6;
    ensure!(status.success(), "{}: {status}", program[0].display());
    Ok(us)
}
