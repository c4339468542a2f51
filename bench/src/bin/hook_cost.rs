//! What the hook adds to a kernel launch, or to an allocation of 1 MiB and its release, in nanoseconds.
//!
//! Two processes make the same calls, one bare and one as a tenant with its partition and quota; they take turns of a few hundred
//! microseconds, in an order that flips every round, so that a drift of the machine meets both. Of launches only the enqueueing is timed:
//! each turn is a burst that fits the driver's queue, and the wait for it lies outside. Where a process's memory happens to lie is worth
//! ± 15 ns of a launch for its whole life, so both are started anew many times.
//!
//! ```text
//! cargo build --release && target/release/hook-cost              # sim:h200
//! target/release/hook-cost --gpu 0                               # the first GPU of this machine
//! target/release/hook-cost --of memory --burst 20                # 1 MiB had and given back
//! ```

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use partita_core::Samples;
use partita_driver::{Cuda, Gpu};

/// What is called.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Of {
    /// A kernel launch.
    Launch,
    /// cuMemAlloc of 1 MiB and cuMemFree.
    Memory,
}

impl Of {
    fn name(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::Memory => "memory",
        }
    }
}

/// Measures what the hook adds to a kernel launch or an allocation.
#[derive(Parser)]
struct Options {
    /// What is called.
    #[arg(long, value_enum, default_value = "launch")]
    of: Of,
    /// The GPU, as `partita run` takes it.
    #[arg(long, default_value = "sim:h200")]
    gpu: String,
    /// How often both processes are started.
    #[arg(long, default_value_t = 24)]
    starts: u32,
    /// Rounds of each start; each gives one pair of figures.
    #[arg(long, default_value_t = 60)]
    rounds: u32,
    /// Calls of one burst.
    #[arg(long, default_value_t = 200)]
    burst: u32,
    /// The `partita` executable [default: beside this one].
    #[arg(long)]
    partita: Option<PathBuf>,
    /// Run as one of the two processes.
    #[arg(long, hide = true)]
    child: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if options.child { child(options.of, options.burst) } else { compare(&options) }
}

/// One of the two: a burst for each line read, and its nanoseconds per call written.
fn child(of: Of, burst: u32) -> Result<()> {
    let cuda = Cuda::load(None)?;
    let gpu = Gpu::open(&cuda, 0)?;
    let mut launch = gpu.prepare_spin(1, 32, 0)?;
    let mut turn = || -> Result<f64> {
        let start = Instant::now();
        for _ in 0..burst {
            match of {
                Of::Launch => launch.launch()?,
                // Given back at once.
                Of::Memory => drop(gpu.alloc(1 << 20)?),
            }
        }
        let spent = start.elapsed();
        gpu.synchronize()?;
        Ok(spent.as_nanos() as f64 / f64::from(burst))
    };
    for _ in 0..20 {
        turn()?;
    }
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        line?;
        println!("{}", turn()?);
    }
    Ok(())
}

/// A process that measures on request.
struct Side {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Side {
    fn start(mut command: Command) -> Result<Self> {
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a child")?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("a child without pipes")
        };
        let mut side = Self { process, input, output: BufReader::new(output) };
        if side.line()? != "ready" {
            bail!("a child ended before it was ready: {command:?}");
        }
        Ok(side)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn turn(&mut self) -> Result<f64> {
        writeln!(self.input)?;
        self.line()?.parse().context("a child answered with something else than a figure")
    }

    fn stop(mut self) -> Result<()> {
        drop(self.input);
        if !self.process.wait()?.success() {
            bail!("a child failed");
        }
        Ok(())
    }
}

fn compare(options: &Options) -> Result<()> {
    let own = std::env::current_exe()?;
    let partita = match &options.partita {
        Some(path) => path.clone(),
        None => own.with_file_name("partita"),
    };
    let burst = options.burst.to_string();
    let (mut with, mut without, mut medians) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.starts {
        let mut bare = Side::start(bare_command(options, &partita, &own, &burst))?;
        let mut hooked = Side::start(hooked_command(options, &partita, &own, &burst))?;
        let from = with.len();
        for round in 0..options.rounds {
            if round % 2 == 0 {
                without.push(bare.turn()?);
                with.push(hooked.turn()?);
            } else {
                with.push(hooked.turn()?);
                without.push(bare.turn()?);
            }
        }
        bare.stop()?;
        hooked.stop()?;
        let added: Vec<f64> = with[from..].iter().zip(&without[from..]).map(|(a, b)| a - b).collect();
        medians.push(Samples::new(added)?.p50());
    }

    let added: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
    let calls = match options.of {
        Of::Launch => "launches of partita_spin",
        Of::Memory => "cuMemAlloc of 1 MiB and cuMemFree",
    };
    println!(
        "{calls} on {}: {} starts of both processes, {} rounds each, bursts of {}, interleaved\n",
        options.gpu, options.starts, options.rounds, options.burst
    );
    let count = u64::from(options.starts) * u64::from(options.rounds) * u64::from(options.burst);
    println!("{count} each way\n");
    println!("| | median ns | 95 % interval of the median | p10 | p90 | count |");
    println!("|---|---|---|---|---|---|");
    let rows = [
        ("bare", without),
        ("as a tenant", with),
        ("added, by pairs", added),
        ("added, medians of the starts", medians),
    ];
    for (name, values) in rows {
        let samples = Samples::new(values)?;
        let (low, high) = samples.median_interval();
        println!(
            "| {name} | {:.1} | {low:.1} to {high:.1} | {:.1} | {:.1} | {} |",
            samples.p50(),
            samples.quantile(100),
            samples.quantile(900),
            samples.count()
        );
    }
    Ok(())
}

/// The program as it is. Both sides start in the environment that `partita` makes, so the driver under them is the same.
fn bare_command(options: &Options, partita: &Path, own: &Path, burst: &str) -> Command {
    let script = if options.gpu.starts_with("sim:") {
        format!("eval \"$('{}' sim env --gpu {})\" && exec \"$0\" \"$@\"", partita.display(), options.gpu)
    } else {
        "exec \"$0\" \"$@\"".to_owned()
    };
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(own).args(["--child", "--of", options.of.name(), "--burst", burst]);
    command
}

/// The program with limits.
fn hooked_command(options: &Options, partita: &Path, own: &Path, burst: &str) -> Command {
    let mut command = Command::new(partita);
    command.args([
        "run",
        "--gpu",
        &options.gpu,
        "--name",
        "hook-cost",
        "--sm",
        "50%",
        "--mem",
        "1GiB",
        "--isolation",
        "own",
        "--",
    ]);
    command.arg(own).args(["--child", "--of", options.of.name(), "--burst", burst]);
    command
}
