//! Violent deaths of tenants with work in flight, many at once, beside a victim.
//!
//! In each round a victim computes, tenants of one TPC start beside it, and die at once: every
//! way to die, with finite work, with copies and with a kernel that never ends. The victim must not
//! notice. Tenants with finite work or copies must be gone when it has ended; those with endless
//! work must be shown by `ps`, and be gone when the victim has left.
//!
//! ```text
//! cargo build --profile dist && target/dist/deaths            # sim:h200
//! target/dist/deaths --gpu 0 --rounds 50 --at-once 36 --out research/bench/results/deaths.md
//! target/dist/deaths --gpu 0 --rounds 5 --at-once 18 --program torch
//! ```
//!
//! With `--holder off` the same deaths happen without a holder. `cc` compiles the programs.
//! The program ends with an error if a victim broke, or a tenant was not shown or not released.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use partita_bench::scratch::Scratch;
use partita_bench::side::Side;
use partita_bench::tenants::Tenants;
use partita_core::Samples;

/// The victim of the benchmark of neighbours.
const VICTIM: &str = include_str!("../neighbours/neighbour.c");
const FLOODS: &str = include_str!("../neighbours/floods.ptx");
/// The programs that die.
const DEATHS: &str = include_str!("../../../../../crates/partita-cli/tests/hook/deaths.c");
const CENSUS_HEADER: &str = include_str!("../../../../../crates/partita-cli/tests/hook/census.h");
const HEADER: &str = include_str!("../../../../../crates/partita-cli/tests/hook/cuda.h");
const TORCH: &str = include_str!("dies.py");

const WAYS: [&str; 6] = ["kill", "segv", "abort", "_exit", "return", "exec"];
const WORK: [&str; 3] = ["finite", "endless", "copies"];
const AT_ONCE_MAX: usize = 36;
/// A process that hangs is killed after this time.
const LIMIT_S: u32 = 120;
/// The time after which a tenant counts as not shown or not released.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the victim is measured at a time, in milliseconds: longer than the finite work.
const MEASURED_MS: &str = "1500";

/// The program that dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Program {
    /// C, through the driver's functions.
    C,
    /// Python with PyTorch, which must be installed.
    Torch,
}

/// Kills tenants beside a victim.
#[derive(Parser)]
struct Options {
    /// The GPU, as `partita run` takes it.
    #[arg(long, default_value = "sim:h200")]
    gpu: String,
    /// The number of rounds.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// The number of tenants that die in a round: a multiple of 18, and at most 36. A service takes
    /// 48 clients.
    #[arg(long, default_value_t = 18)]
    at_once: usize,
    /// The program that dies.
    #[arg(long, value_enum, default_value_t = Program::C)]
    program: Program,
    /// `PARTITA_HOLDER` of the tenants that die.
    #[arg(long, default_value = "on", value_parser = ["on", "off"])]
    holder: String,
    /// How long the programs stand still before they die, in seconds.
    #[arg(long, default_value_t = 0.0)]
    pause_s: f64,
    /// The programs die right behind their last launch, and not some time after it.
    #[arg(long)]
    sudden: bool,
    /// The memory of each tenant.
    #[arg(long, default_value = "1GiB")]
    mem: String,
    /// Starts no new round after this time, in seconds.
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
    /// The `partita` executable [default: beside this one].
    #[arg(long)]
    partita: Option<PathBuf>,
    /// The file for the result [default: standard output].
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What was seen of one way to die with one sort of work.
#[derive(Default)]
struct Row {
    deaths: usize,
    /// Tenants that were not shown, or not released.
    missed: usize,
    /// From the death to the tenant's end, in seconds.
    released: Vec<f64>,
    /// From the death until `ps` showed it, in seconds.
    shown: Vec<f64>,
    /// From the victim's end to the tenant's, in seconds.
    after: Vec<f64>,
}

type Rows = BTreeMap<(&'static str, &'static str), Row>;

struct Bench {
    options: Options,
    tenants: Tenants,
    scratch: Scratch,
}

/// A tenant that dies.
struct Dying {
    name: String,
    work: &'static str,
    way: &'static str,
}

fn main() -> Result<()> {
    let bench = Bench::prepare(Options::parse())?;
    // Those of an earlier run that ended early.
    bench.tenants.clear(&[])?;
    let mut rows = Rows::new();
    let begin = Instant::now();
    let (mut rounds, mut broken) = (0, 0);
    while rounds < bench.options.rounds && begin.elapsed().as_secs() < bench.options.seconds {
        let is_broken = bench.round(&mut rows).with_context(|| bench.said())?;
        if is_broken {
            eprintln!("{}", bench.said());
        }
        eprintln!("round {rounds}: {}", if is_broken { "the victim broke" } else { "the victim goes on" });
        rounds += 1;
        broken += usize::from(is_broken);
    }
    let text = bench.page(rounds, broken, &rows)?;
    match &bench.options.out {
        Some(path) => fs::write(path, &text).with_context(|| path.display().to_string())?,
        None => print!("{text}"),
    }
    let missed: usize = rows.values().map(|row| row.missed).sum();
    if broken + missed > 0 && bench.options.holder == "on" {
        bail!(
            "the victim broke in {broken} of {rounds} rounds; {missed} tenants were not shown or not released"
        );
    }
    Ok(())
}

impl Bench {
    fn prepare(options: Options) -> Result<Self> {
        let cases = WAYS.len() * WORK.len();
        if !(cases..=AT_ONCE_MAX).contains(&options.at_once) || !options.at_once.is_multiple_of(cases) {
            bail!(
                "--at-once {}: give a multiple of {cases}, one for each way to die and work, up to \
                 {AT_ONCE_MAX}",
                options.at_once
            );
        }
        let partita = match &options.partita {
            Some(path) => path.clone(),
            None => std::env::current_exe()?.with_file_name("partita"),
        };
        let scratch = Scratch::new("deaths")?;
        let dir = scratch.path();
        fs::write(dir.join("kernels.ptx"), partita_abi::kernels::PTX_MODULE.to_bytes())?;
        fs::write(dir.join("workloads.ptx"), partita_abi::workloads::WORKLOADS_MODULE.to_bytes())?;
        fs::write(dir.join("floods.ptx"), FLOODS)?;
        fs::write(dir.join("cuda.h"), HEADER)?;
        fs::write(dir.join("census.h"), CENSUS_HEADER)?;
        fs::write(dir.join("dies.py"), TORCH)?;
        compile(dir, "victim", VICTIM)?;
        compile(dir, "deaths", DEATHS)?;
        let tenants = Tenants(partita);
        Ok(Self { options, tenants, scratch })
    }

    /// `partita run` of a program of this benchmark.
    fn command(&self, name: &str, sm: &str, words: &[&str]) -> Result<Command> {
        let mut command = Command::new("timeout");
        command.args(["-k", "5"]).arg(LIMIT_S.to_string()).arg(&self.tenants.0);
        command.args([
            "run",
            "--gpu",
            &self.options.gpu,
            "--name",
            name,
            "--sm",
            sm,
            "--mem",
            &self.options.mem,
        ]);
        // A thousand deaths would fill the terminal with what tenants say of them.
        let log = File::options().create(true).append(true).open(self.log())?;
        command.arg("--").args(words).current_dir(self.scratch.path()).stderr(log);
        Ok(command)
    }

    /// What the programs of a round wrote to standard error.
    fn log(&self) -> PathBuf {
        self.scratch.path().join("log")
    }

    fn victim(&self) -> Result<Side> {
        let words = ["./victim", "kernels.ptx", "floods.ptx", "victim", "1000000", "8", "1"];
        Side::start(self.command("victim", "4tpc", &words)?).context("the victim does not start")
    }

    fn dying(&self, number: usize) -> Result<(Dying, Side)> {
        let (way, work) = (WAYS[number % WAYS.len()], WORK[number / WAYS.len() % WORK.len()]);
        let name = format!("dies{number}");
        let told = if self.options.sudden { format!("sudden-{work}") } else { work.to_owned() };
        let words: &[&str] = match self.options.program {
            Program::C => &["./deaths", "workloads.ptx", &told, way],
            Program::Torch => &["python3", "dies.py", &told, way],
        };
        let mut command = self.command(&name, "1tpc", words)?;
        command.env("PARTITA_HOLDER", &self.options.holder);
        let side = Side::start(command)?;
        Ok((Dying { name, work, way }, side))
    }

    /// The end of the log.
    fn said(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!("the programs said last:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"))
    }

    /// Starts all that die. Their starts overlap.
    fn all_dying(&self) -> Result<(Vec<Dying>, Vec<Side>)> {
        std::thread::scope(|scope| {
            let starts: Vec<_> =
                (0..self.options.at_once).map(|number| scope.spawn(move || self.dying(number))).collect();
            starts.into_iter().map(|start| start.join().expect("no start panics")).collect()
        })
    }

    /// Returns whether the victim broke.
    fn round(&self, rows: &mut Rows) -> Result<bool> {
        let mut victim = self.victim()?;
        let (dying, mut sides) = self.all_dying()?;
        std::thread::sleep(Duration::try_from_secs_f64(self.options.pause_s)?);
        victim.tell(MEASURED_MS)?;
        let begin = Instant::now();
        for side in &mut sides {
            side.tell("die")?;
        }
        let mut is_broken = works(&mut victim).is_err();
        self.follow(begin, &dying, rows)?;
        is_broken |= victim.tell("100").is_err() || works(&mut victim).is_err();
        let _ = victim.stop();
        // Most have died badly, as they were told; those that executed another program end with
        // their input.
        sides.into_iter().for_each(|side| drop(side.stop()));
        let left = Instant::now();
        let mut remain: Vec<&Dying> = dying.iter().filter(|one| one.work == "endless").collect();
        while !remain.is_empty() && left.elapsed() < PATIENCE {
            let there = self.tenants.problems()?;
            remain.retain(|one| {
                let is_there = there.contains_key(&one.name);
                if !is_there {
                    row(rows, one).after.push(left.elapsed().as_secs_f64());
                }
                is_there
            });
        }
        remain.iter().for_each(|one| row(rows, one).missed += 1);
        dying.iter().for_each(|one| row(rows, one).deaths += 1);
        self.tenants.clear(&[])?;
        Ok(is_broken)
    }

    /// Until every tenant without endless work is gone, and every one with endless work is shown.
    fn follow(&self, begin: Instant, dying: &[Dying], rows: &mut Rows) -> Result<()> {
        // After `exec` the program lives; its tenant does, too, until its input ends.
        let mut open: Vec<&Dying> =
            dying.iter().filter(|one| one.way != "exec" || one.work == "endless").collect();
        while !open.is_empty() && begin.elapsed() < PATIENCE {
            let there = self.tenants.problems()?;
            let now = begin.elapsed().as_secs_f64();
            open.retain(|one| {
                let problem = there.get(&one.name);
                if one.work != "endless" && problem.is_none() {
                    row(rows, one).released.push(now);
                } else if one.work == "endless" && problem.is_some_and(|said| said.contains("has not ended"))
                {
                    row(rows, one).shown.push(now);
                } else {
                    return true;
                }
                false
            });
        }
        open.iter().for_each(|one| row(rows, one).missed += 1);
        Ok(())
    }

    fn page(&self, rounds: usize, broken: usize, rows: &Rows) -> Result<String> {
        let Options { gpu, at_once, program, holder, sudden, .. } = &self.options;
        let when = if *sudden { ", right behind the last launch" } else { "" };
        let mut text = format!(
            "# Violent deaths beside a victim\n\n`{gpu}`, {program:?}, holder {holder}{when}: {rounds} \
             rounds of {at_once} deaths at once. Times in seconds: median (most).\n\n\
             | work | death | deaths | not shown or not released | released after \
             the death | shown after the death | released after the victim's end \
             |\n|---|---|---|---|---|---|---|\n"
        );
        for ((work, way), row) in rows {
            let Row { deaths, missed, released, shown, after } = row;
            writeln!(
                text,
                "| {work} | {way} | {deaths} | {missed} | {} | {} | {} |",
                spread(released)?,
                spread(shown)?,
                spread(after)?
            )?;
        }
        let deaths: usize = rows.values().map(|row| row.deaths).sum();
        writeln!(text, "\n{deaths} deaths; the victim broke in {broken} of {rounds} rounds.")?;
        Ok(text)
    }
}

fn row<'rows>(rows: &'rows mut Rows, one: &Dying) -> &'rows mut Row {
    rows.entry((one.work, one.way)).or_default()
}

/// Waits for the victim's next times; an error if it failed.
fn works(victim: &mut Side) -> Result<()> {
    let line = victim.line()?;
    if line.starts_with("error") {
        bail!("the victim: {line}");
    }
    Ok(())
}

fn spread(times: &[f64]) -> Result<String> {
    if times.is_empty() {
        return Ok("–".to_owned());
    }
    let samples = Samples::new(times.to_vec())?;
    Ok(format!("{:.2} ({:.2})", samples.p50(), samples.quantile(1000)))
}

fn compile(dir: &Path, name: &str, source: &str) -> Result<()> {
    let file = dir.join(name).with_extension("c");
    fs::write(&file, source)?;
    let built = Command::new("cc")
        .args(["-O1", "-w", "-o"])
        .arg(dir.join(name))
        .arg(&file)
        .arg("-ldl")
        .status()
        .context("cc compiles the programs of this benchmark")?;
    if !built.success() {
        bail!("cc failed on {}", file.display());
    }
    Ok(())
}
