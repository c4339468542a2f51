//! What share of the GPU a program gets, of what it is promised.
//!
//! One program launches without a pause. It runs bare, with a share of time (`partita run --time`;
//! its kernels record when they ran by the GPU's own clock) or of the compute units (`--of mask`:
//! `partita run --sm`; the number of kernels that end in a second, each of many blocks), and with
//! the library of each named peer, for kernels of several lengths and for graphs; the settings take
//! turns, in another order each round. The result is the achieved share of the bare program's
//! throughput in the same round.
//!
//! ```text
//! cargo build --profile dist && target/dist/time-share             # sim:h200
//! target/dist/time-share --of mask
//! target/dist/time-share --of laws                 # token bucket, budget and mask in one run
//! target/dist/time-share --gpu 0 --peer hami=/opt/hami/libvgpu.so --out
//! research/bench/results/time_share.md
//! ```
//!
//! The program is that of the tests, `crates/partita-cli/tests/hook/time.c`, compiled by `cc`
//! unless `--worker` names one.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use partita_bench::peer::Peer;
use partita_bench::scratch::Scratch;
use partita_bench::side::{Side, bare};
use partita_core::Samples;

const SOURCE: &str = include_str!("../../../../crates/partita-cli/tests/hook/time.c");
const HEADER: &str = include_str!("../../../../crates/partita-cli/tests/hook/cuda.h");

/// A share of time by HAMi's law, by the budget, and a share of the compute units.
const TOKENS: &str = "token bucket";
const BUDGET: &str = "budget";
const MASK: &str = "mask";

/// The promised resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Of {
    /// A share of time.
    Time,
    /// A share of the compute units.
    Mask,
    /// Time by HAMi's token bucket, time by the budget, and compute units by mask, in one run.
    Laws,
}

impl Of {
    /// The launch, as an argument of the program, and as a description. For masks: blocks, and how
    /// long two of them fill an SM; eight rounds of them on 132 SMs take the whole given time.
    fn forms(self) -> [(&'static str, &'static str); 4] {
        match self {
            Self::Time => [
                ("kernel 50000", "kernels of 50 µs"),
                ("kernel 1000000", "kernels of 1 ms"),
                ("kernel 10000000", "kernels of 10 ms"),
                ("graph 500000", "graphs of four kernels of 0.5 ms"),
            ],
            Self::Mask | Self::Laws => [
                ("kernel 2112 6250", "kernels of 50 µs"),
                ("kernel 2112 125000", "kernels of 1 ms"),
                ("kernel 2112 1250000", "kernels of 10 ms"),
                ("graph 2112 62500", "graphs of four kernels of 0.5 ms"),
            ],
        }
    }
}

/// Measures the share of the GPU that a program gets.
#[derive(Parser)]
struct Options {
    /// The promised resource.
    #[arg(long, value_enum, default_value = "time")]
    of: Of,
    /// The GPU, as `partita run` takes it.
    #[arg(long, default_value = "sim:h200")]
    gpu: String,
    /// Shares, in percent.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 25, 50, 75])]
    shares: Vec<u32>,
    /// A peer's library to measure in the same run, NAME=PATH, as
    /// hami-core=/usr/local/vgpu/libvgpu.so; may be repeated.
    #[arg(long = "peer", value_name = "NAME=PATH")]
    peers: Vec<Peer>,
    /// The number of repetitions of everything.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The time before the measurement, in milliseconds.
    #[arg(long, default_value_t = 500)]
    skip_ms: u32,
    /// The time of the measurement, in milliseconds.
    #[arg(long, default_value_t = 2000)]
    ms: u32,
    /// Compute units of the tenant: with `all` it has the whole GPU in turns (--via time).
    #[arg(long, default_value = "all")]
    sm: String,
    /// The `partita` executable [default: beside this one].
    #[arg(long)]
    partita: Option<PathBuf>,
    /// The compiled program [default: compiled by cc].
    #[arg(long)]
    worker: Option<PathBuf>,
    /// The file for the result [default: standard output].
    #[arg(long)]
    out: Option<PathBuf>,
}

/// How a share is enforced.
#[derive(Clone, Copy)]
enum By<'a> {
    Driver,
    Partita,
    Law(&'static str),
    Peer(&'a Peer),
}

impl By<'_> {
    fn name(&self) -> &str {
        match self {
            By::Driver => "bare",
            By::Partita => "partita",
            By::Law(name) => name,
            By::Peer(peer) => &peer.name,
        }
    }
}

struct Bench {
    options: Options,
    partita: PathBuf,
    worker: PathBuf,
    kernels: PathBuf,
    scratch: Scratch,
}

/// One measurement.
struct Cell {
    form: usize,
    by: String,
    percent: u32,
    /// The part of the bare program's throughput in the same round, in percent.
    achieved: f64,
}

fn main() -> Result<()> {
    let bench = Bench::prepare(Options::parse())?;
    let cells = bench.measure()?;
    let text = bench.report(&cells)?;
    match &bench.options.out {
        Some(path) => fs::write(path, text).with_context(|| path.display().to_string()),
        None => {
            print!("{text}");
            Ok(())
        }
    }
}

impl Bench {
    fn prepare(options: Options) -> Result<Self> {
        let partita = match &options.partita {
            Some(path) => path.clone(),
            None => std::env::current_exe()?.with_file_name("partita"),
        };
        let scratch = Scratch::new("time-share")?;
        let kernels = scratch.path().join("kernels.ptx");
        fs::write(&kernels, partita_abi::kernels::PTX_MODULE.to_bytes())?;
        let worker = match &options.worker {
            Some(path) => path.clone(),
            None => compile(scratch.path())?,
        };
        Ok(Self { options, partita, worker, kernels, scratch })
    }

    fn measure(&self) -> Result<Vec<Cell>> {
        let mut cells = Vec::new();
        let limited = self.limited();
        for round in 0..self.options.rounds {
            for (form, (what, _)) in self.options.of.forms().iter().enumerate() {
                let whole = self.share(By::Driver, 100, what)?;
                let mut settings: Vec<(By<'_>, u32)> = (self.options.shares.iter())
                    .flat_map(|&percent| limited.iter().map(move |&by| (by, percent)))
                    .collect();
                let count = settings.len();
                settings.rotate_left(round * count / self.options.rounds % count.max(1));
                for (by, percent) in settings {
                    let achieved = self.share(by, percent, what)? / whole * 100.0;
                    eprintln!("round {round}: {what}, {} at {percent} %: {achieved:.1} %", by.name());
                    cells.push(Cell { form, by: by.name().to_owned(), percent, achieved });
                }
            }
        }
        Ok(cells)
    }

    fn limited(&self) -> Vec<By<'_>> {
        let own: &[By<'_>] = match self.options.of {
            Of::Laws => &[By::Law(TOKENS), By::Law(BUDGET), By::Law(MASK)],
            Of::Time | Of::Mask => &[By::Partita],
        };
        own.iter().copied().chain(self.options.peers.iter().map(By::Peer)).collect()
    }

    /// The share of the time in which kernels ran, of 1; for masks the kernels in a second.
    fn share(&self, by: By<'_>, percent: u32, what: &str) -> Result<f64> {
        let mut side = Side::start(self.command(by, percent)?)?;
        let Options { skip_ms, ms, .. } = self.options;
        let order = if self.options.of == Of::Time { "share" } else { "rate" };
        let answer = side.ask(&format!("{order} {what} {skip_ms} {ms}"))?;
        let done = side.line()?;
        side.stop()?;
        let permille = answer.split(' ').next().and_then(|permille| permille.parse::<f64>().ok());
        match permille {
            Some(permille) if permille > 0.0 && done == "done" => Ok(permille / 1000.0),
            _ => bail!("{what}: the program answered {answer:?}, {done:?}"),
        }
    }

    fn command(&self, by: By<'_>, percent: u32) -> Result<Command> {
        let gpu = &self.options.gpu;
        let mut command = match by {
            By::Driver => bare(&self.partita, gpu, &self.worker),
            By::Partita | By::Law(_) => {
                let mut command = Command::new(&self.partita);
                command.args(["run", "--gpu", gpu, "--name", "time-share", "--isolation", "own"]);
                let percent = format!("{percent}%");
                let by_mask = matches!(by, By::Law(MASK)) || self.options.of == Of::Mask;
                match self.options.sm.as_str() {
                    _ if by_mask => command.args(["--sm", &percent]),
                    "all" => command.args(["--via", "time", "--time", &percent]),
                    share => command.args(["--sm", share, "--time", &percent]),
                };
                if matches!(by, By::Law(TOKENS)) {
                    command.args(["--time-policy", "tokens"]);
                }
                command.arg("--").arg(&self.worker);
                command
            }
            By::Peer(peer) => {
                let words = peer.words(self.scratch.path(), percent)?;
                let (program, rest) = words.split_first().context("a peer without a command")?;
                let mut command = bare(&self.partita, gpu, Path::new(program));
                command.args(rest).arg(&self.worker);
                command
            }
        };
        command.arg(&self.kernels);
        Ok(command)
    }

    fn report(&self, cells: &[Cell]) -> Result<String> {
        let mut text = String::from("# Share of the GPU, of what was promised\n\n");
        let Options { gpu, rounds, skip_ms, ms, sm, of, .. } = &self.options;
        let how = match of {
            Of::Time => format!("share of time of a tenant with {sm} compute units, by the GPU's own clock"),
            Of::Mask => "share of the compute units, by kernels that ended in a second".to_owned(),
            Of::Laws => format!(
                "{TOKENS} and {BUDGET}: share of time of a tenant with {sm} compute units; {MASK}: share of the \
                 compute units; by kernels of 2112 blocks that ended in a second"
            ),
        };
        writeln!(
            text,
            "`{gpu}`, {how}; {rounds} rounds, {ms} ms each after {skip_ms} ms, settings interleaved. Achieved: of what the bare program got in \
             the same round; medians of the rounds, then their range.\n"
        )?;
        let limited = self.limited();
        let enforcers: Vec<&str> = limited.iter().map(By::name).collect();
        write!(text, "| launches | promised |")?;
        enforcers.iter().try_for_each(|name| write!(text, " {name} |"))?;
        writeln!(text, "\n|---|---|{}", "---|".repeat(enforcers.len()))?;
        for (form, (_, name)) in of.forms().iter().enumerate() {
            for &percent in &self.options.shares {
                write!(text, "| {name} | {percent} % |")?;
                for by in &enforcers {
                    let achieved = cells
                        .iter()
                        .filter(|cell| (cell.form, cell.by.as_str(), cell.percent) == (form, *by, percent));
                    let samples = Samples::new(achieved.map(|cell| cell.achieved).collect::<Vec<_>>())?;
                    let (low, high) = (samples.quantile(0), samples.quantile(1000));
                    write!(text, " {:.1} % ({low:.1} to {high:.1}) |", samples.p50())?;
                }
                writeln!(text)?;
            }
        }
        writeln!(text)?;
        for by in &enforcers {
            let errors = cells.iter().filter(|cell| cell.by == *by);
            let errors = Samples::new(
                errors.map(|cell| (cell.achieved - f64::from(cell.percent)).abs()).collect::<Vec<_>>(),
            )?;
            writeln!(
                text,
                "{by}: mean absolute error {:.2} points, largest {:.2} points, of {} measurements.",
                errors.mean(),
                errors.quantile(1000),
                errors.count()
            )?;
        }
        Ok(text)
    }
}

fn compile(scratch: &Path) -> Result<PathBuf> {
    fs::write(scratch.join("cuda.h"), HEADER)?;
    fs::write(scratch.join("time.c"), SOURCE)?;
    let worker = scratch.join("time");
    let built = Command::new("cc")
        .args(["-O1", "-o"])
        .arg(&worker)
        .arg(scratch.join("time.c"))
        .arg("-ldl")
        .status()
        .context("cc compiles the program that is measured; name a compiled one with --worker")?;
    if !built.success() {
        bail!("cc failed");
    }
    Ok(worker)
}
