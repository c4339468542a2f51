//! What a victim loses beside each kind of bad neighbour, by setting.
//!
//! The victim runs kernels of 1 ms, one after the other, and times each, or several in a row with
//! `--kernels`. It also says where the time passed: before, in, or after the kernels.
//!
//! In each round and setting it runs alone first, and then beside each neighbour, in a random
//! order; every figure is compared with the victim alone in the same round and setting. A victim
//! that a neighbour has broken is counted and restarted.
//!
//! ```text
//! cargo build --profile dist && target/dist/neighbours            # sim:h200
//! target/dist/neighbours --gpu 0 --rounds 3 --out research/bench/results/neighbours.md
//! target/dist/neighbours --gpu 0 --kinds streams-128,streams-1000 --settings masks
//! target/dist/neighbours --gpu 0 --kinds printf,managed-new --settings masks --kernels 10
//! ```
//!
//! `neighbour.c` has the kinds; `cc` compiles it unless `--worker` names a compiled one. Each
//! process has a time limit. On the simulated GPU the kernels of `floods.ptx` do nothing.

mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use partita_bench::scratch::Scratch;
use partita_bench::side::{Side, bare};
use partita_bench::tenants::Tenants;
use report::{Cell, Outcome};

const SOURCE: &str = include_str!("neighbour.c");
const FLOODS: &str = include_str!("floods.ptx");
const HEADER: &str = include_str!("../../../../../crates/partita-cli/tests/hook/cuda.h");
/// The time of a victim's kernels, in nanoseconds, and the blocks of each.
const UNIT_NS: u64 = 1_000_000;
const BLOCKS: u64 = 64;
/// A process that hangs is killed after this time.
const LIMIT: Duration = Duration::from_secs(90);

/// How victim and neighbour share the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Setting {
    /// Without Partita: time slicing.
    Nothing,
    /// Tenants with half of the TPCs each.
    Masks,
    /// The same, the victim with high priority and the neighbour with low.
    Priority,
    /// Tenants with the whole GPU and half of the time each.
    Turns,
}

impl Setting {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Masks => "masks",
            Self::Priority => "masks and priority",
            Self::Turns => "turns",
        }
    }

    /// The options of `partita run`; `None` for a program without a tenant.
    fn limits(self, is_victim: bool) -> Option<&'static [&'static str]> {
        match (self, is_victim) {
            (Self::Nothing, _) => None,
            (Self::Masks, _) => Some(&["--sm", "50%"]),
            (Self::Priority, true) => Some(&["--sm", "50%", "--priority", "high"]),
            (Self::Priority, false) => Some(&["--sm", "50%", "--priority", "low"]),
            (Self::Turns, _) => Some(&["--via", "time", "--time", "50%"]),
        }
    }
}

/// Measures a victim beside bad neighbours.
#[derive(Parser)]
struct Options {
    /// The GPU, as `partita run` takes it.
    #[arg(long, default_value = "sim:h200")]
    gpu: String,
    /// The kinds of neighbours [default: all].
    #[arg(long, value_delimiter = ',')]
    kinds: Vec<String>,
    /// The settings.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Setting::value_variants().to_vec())]
    settings: Vec<Setting>,
    /// The victim waits once for so many kernels, which take 1 ms together.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    kernels: u64,
    /// The number of repetitions of everything.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The time of each measurement, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    ms: u32,
    /// The memory of each tenant.
    #[arg(long, default_value = "36GiB")]
    mem: String,
    /// The random order of neighbours.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The `partita` executable [default: beside this one].
    #[arg(long)]
    partita: Option<PathBuf>,
    /// The compiled `neighbour.c` [default: compiled by cc].
    #[arg(long)]
    worker: Option<PathBuf>,
    /// The file for the result [default: standard output].
    #[arg(long)]
    out: Option<PathBuf>,
}

struct Bench {
    options: Options,
    tenants: Tenants,
    worker: PathBuf,
    scratch: Scratch,
}

fn main() -> Result<()> {
    let bench = Bench::prepare(Options::parse())?;
    let kinds = bench.kinds()?;
    let mut cells = Vec::new();
    let measured = bench.measure(&kinds, &mut cells);
    let text = report::page(&bench.heading(), &kinds, &bench.settings(), &cells)?;
    match &bench.options.out {
        Some(path) => fs::write(path, text).with_context(|| path.display().to_string())?,
        None => print!("{text}"),
    }
    measured
}

impl Bench {
    fn prepare(options: Options) -> Result<Self> {
        let partita = match &options.partita {
            Some(path) => path.clone(),
            None => std::env::current_exe()?.with_file_name("partita"),
        };
        let scratch = Scratch::new("neighbours")?;
        fs::write(scratch.path().join("kernels.ptx"), partita_abi::kernels::PTX_MODULE.to_bytes())?;
        fs::write(scratch.path().join("floods.ptx"), FLOODS)?;
        let worker = match &options.worker {
            Some(path) => path.clone(),
            None => compile(scratch.path())?,
        };
        Ok(Self { options, tenants: Tenants(partita), worker, scratch })
    }

    fn heading(&self) -> String {
        let Options { gpu, rounds, ms, mem, kernels, .. } = &self.options;
        format!(
            "`{gpu}`; {rounds} rounds, {ms} ms a measurement; the victim waits for {kernels} kernels of \
             {BLOCKS} blocks, which take 1 ms together; tenants have {mem}. A cell is the p99 beside the \
             neighbour over the p99 alone, in the same round and setting: median (least to most)."
        )
    }

    fn settings(&self) -> Vec<&'static str> {
        self.options.settings.iter().map(|setting| setting.name()).collect()
    }

    /// The kinds to measure: those of the program, or those that the user named.
    fn kinds(&self) -> Result<Vec<String>> {
        let output = Command::new(&self.worker).arg("kinds").output().context("the worker")?;
        let known: Vec<String> = String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
        if let Some(unknown) = self.options.kinds.iter().find(|kind| !known.contains(kind)) {
            bail!("--kinds {unknown}: no such kind; the kinds are {}", known.join(", "));
        }
        Ok(if self.options.kinds.is_empty() { known } else { self.options.kinds.clone() })
    }

    /// Adds a cell for each measurement. After an error those before it are there.
    fn measure(&self, kinds: &[String], cells: &mut Vec<Cell>) -> Result<()> {
        let mut random = fastrand::Rng::with_seed(self.options.seed);
        for round in 0..self.options.rounds {
            let mut settings = self.options.settings.clone();
            random.shuffle(&mut settings);
            for setting in settings {
                let mut victim = self.victim(setting)?;
                let alone = match self.ask(&mut victim)? {
                    Outcome::Times(times) => times,
                    Outcome::Broken(why) => bail!("{}: the victim alone: {why}", setting.name()),
                };
                let mut order: Vec<&String> = kinds.iter().collect();
                random.shuffle(&mut order);
                // Its compute units stay taken as long as the victim lives.
                order.sort_by_key(|kind| *kind == "endless");
                for kind in order {
                    let (outcome, end);
                    (outcome, end, victim) = self.beside(setting, kind, victim)?;
                    let after = end.as_deref().unwrap_or_default();
                    eprintln!(
                        "round {round}, {}, {kind}: {}{after}",
                        setting.name(),
                        outcome.against(&alone)
                    );
                    cells.push(Cell { setting: setting.name(), kind: kind.clone(), alone, outcome, end });
                }
                victim.stop()?;
                // What never ends goes with the last client of its service.
                self.tenants.clear(&[])?;
            }
        }
        Ok(())
    }

    /// Measures the victim beside a neighbour. Returns also what broke it after the neighbour's
    /// end, and a victim that works.
    fn beside(
        &self,
        setting: Setting,
        kind: &str,
        mut victim: Side,
    ) -> Result<(Outcome, Option<String>, Side)> {
        let outcome = match Side::start(self.command(setting, false, &[kind])?) {
            Ok(neighbour) => {
                let outcome = self.ask(&mut victim)?;
                // A neighbour that ends badly is what is measured here.
                let _ = neighbour.stop();
                outcome
            }
            Err(error) => Outcome::Broken(format!("no neighbour: {error}")),
        };
        if kind != "endless"
            && let Err(error) = self.tenants.clear(&["victim"])
        {
            eprintln!("after {kind}: {error}");
        }
        let Outcome::Broken(why) = self.ask(&mut victim)? else { return Ok((outcome, None, victim)) };
        let end = matches!(outcome, Outcome::Times(_)).then(|| format!("; after its end: {why}"));
        let _ = victim.stop();
        Ok((outcome, end, self.victim(setting)?))
    }

    fn victim(&self, setting: Setting) -> Result<Side> {
        let kernels = self.options.kernels;
        let [each, blocks, count] = [UNIT_NS / kernels, BLOCKS, kernels].map(|word| word.to_string());
        let words = ["victim", &each, &blocks, &count];
        Side::start(self.command(setting, true, &words)?).context("the victim does not start")
    }

    /// Times of a victim; `Broken` if it has failed or hangs.
    fn ask(&self, victim: &mut Side) -> Result<Outcome> {
        let answer = match victim.ask(&self.options.ms.to_string()) {
            Ok(answer) => answer,
            Err(error) => return Ok(Outcome::Broken(format!("the victim ended: {error}"))),
        };
        answer.parse()
    }

    fn command(&self, setting: Setting, is_victim: bool, words: &[&str]) -> Result<Command> {
        let program = match setting.limits(is_victim) {
            None => bare(&self.tenants.0, &self.options.gpu, &self.worker),
            Some(limits) => {
                let name = if is_victim { "victim" } else { "neighbour" };
                let mut command = Command::new(&self.tenants.0);
                command.args(["run", "--gpu", &self.options.gpu, "--name", name, "--mem", &self.options.mem]);
                command.args(limits).arg("--").arg(&self.worker);
                command
            }
        };
        let mut command = Command::new("timeout");
        let limit = if is_victim { LIMIT * 60 } else { LIMIT };
        command.args(["-k", "5"]).arg(limit.as_secs().to_string());
        command.arg(program.get_program()).args(program.get_args());
        command.args([self.scratch.path().join("kernels.ptx"), self.scratch.path().join("floods.ptx")]);
        command.args(words);
        Ok(command)
    }
}

fn compile(dir: &Path) -> Result<PathBuf> {
    fs::write(dir.join("cuda.h"), HEADER)?;
    fs::write(dir.join("neighbour.c"), SOURCE)?;
    let worker = dir.join("neighbour");
    let built = Command::new("cc")
        .args(["-O1", "-w", "-o"])
        .arg(&worker)
        .arg(dir.join("neighbour.c"))
        .arg("-ldl")
        .status()
        .context("cc compiles the programs that are measured; name compiled ones with --worker")?;
    if !built.success() {
        bail!("cc failed");
    }
    Ok(worker)
}
