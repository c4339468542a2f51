//! One chain as processes, and its log.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use partita::gpu::Gpu;
use partita_bench::scratch::Scratch;
use partita_chain_host::{Algorithm, Period, Phase, read_log};
use partita_core::Samples;
use partita_experiments::chains::{ChainSet, Kind, PAPER_SMS, Size};
use serde::{Deserialize, Serialize};

use crate::{Run, Sizes};

/// The time limit for a chain's start, and for a division to take effect.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time limit for its end before it is killed.
const END: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);
/// Periods that are not counted after a manual division: it takes effect in the first.
const SETTLE_PERIODS: usize = 2;
/// The same before a look at one, and the periods of the look.
const LOOK_SETTLE_PERIODS: usize = 1;
const LOOK_PERIODS: usize = 2;
/// Elements of a row for each block of a side, as in the paper's table 1.
const ELEMENTS_PER_BLOCK: u32 = 30;

/// What divides the compute units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// An algorithm, or none.
    Algorithm(Algorithm),
    /// The best division that was found.
    Best(Vec<u32>),
}

/// The result.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Frames a second, mean of the counted periods.
    pub frames_per_s: f64,
    /// How many times another division was applied, including returns to earlier ones.
    pub changes: usize,
    /// Tried divisions, each counted once, without the initial one.
    pub trials: usize,
    /// The time of the last change, in seconds after the order; 0 for none.
    pub settled_s: f64,
    /// Whether the search ended in time.
    pub has_ended: bool,
    /// The last division.
    pub tpcs: Vec<u32>,
}

/// A chain that can be started.
pub struct Chain<'o> {
    run: &'o Run<'o>,
    scratch: Scratch,
    name: String,
    text: String,
}

/// Elements of a row of a size's matrix.
fn width(size: Size, sizes: Sizes, sms: u32) -> u32 {
    match sizes {
        Sizes::Printed => size.width(),
        Sizes::Scaled => {
            let blocks = f64::from(size.blocks_printed()) * f64::from(sms) / f64::from(PAPER_SMS);
            ELEMENTS_PER_BLOCK * (blocks.sqrt().round() as u32).max(1)
        }
    }
}

impl<'o> Chain<'o> {
    /// The chain of a set, with its kernels repeated this often.
    pub fn new(run: &'o Run<'o>, gpu: &Gpu, set: &ChainSet, repeat: u32) -> Result<Self> {
        let stage = run.partita.with_file_name("partita-stage");
        ensure!(stage.exists(), "{} is not there: build partita-chain", stage.display());
        let name = format!("live-{}", set.name.to_lowercase());
        let scratch = Scratch::new("chain-live")?;
        let topology = partita::calibration::Cache::open()
            .get(
                &partita::install::Install::of(run.partita.clone(), std::env::var_os("PARTITA_LIB_DIR")),
                gpu,
            )?
            .topology()
            .map_err(anyhow::Error::msg)?;
        let sms = topology.all().len() * topology.sms_per_tpc();
        let mut widths = Vec::new();
        for kind in set.components {
            let Kind::Product(size) = kind else { bail!("{}: no program does {kind}", set.name) };
            widths.push((width(*size, run.options.sizes, sms) / run.options.shrink.max(1)).max(1));
        }
        // Two matrices of the largest size.
        let widest = u64::from(widths.iter().copied().max().unwrap_or(1));
        let frame_kib = (widest * widest * 8).div_ceil(4096) * 4;
        let mut text = format!(
            "name = \"{name}\"\nframe = \"{frame_kib}KiB\"\nframes = 24\ncapacity = 4\nperiod_ms = {}\nalgorithm = \"none\"\n",
            run.options.period_ms
        );
        for (number, width) in widths.iter().enumerate() {
            writeln!(
                text,
                "[[component]]\nname = \"c{number}\"\ncommand = [{stage:?}, \"matrix\", \"{width}:{repeat}\"]"
            )?;
        }
        Ok(Self { run, scratch, name, text })
    }

    fn partita(&self, arguments: &[&str]) -> Result<()> {
        let output =
            Command::new(&self.run.partita).args(arguments).output().context("partita cannot be started")?;
        ensure!(
            output.status.success(),
            "partita {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Starts it without an algorithm, and waits for its first frames.
    pub fn start(&self) -> Result<Living<'_>> {
        let (file, log) = (self.scratch.path().join("chain.toml"), self.scratch.path().join("log.jsonl"));
        let _ = fs::remove_file(&log);
        fs::write(&file, &self.text)?;
        let mut command = Command::new(&self.run.partita);
        command
            .args(["chain", "start"])
            .arg(&file)
            .args(["--gpu", &self.run.options.gpu])
            .arg("--log")
            .arg(&log);
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("partita cannot be started")?;
        let mut living = Living { chain: self, process, log };
        let begin = Instant::now();
        // The log starts with the first line.
        while living.periods().map_or(true, |periods| periods.len() < SETTLE_PERIODS) {
            if let Some(status) = living.process.try_wait()? {
                bail!("{} ended before a frame was through: {status}", self.name);
            }
            ensure!(begin.elapsed() < PATIENCE, "{}: no frame came through in {PATIENCE:?}", self.name);
            self.run.check_time()?;
            std::thread::sleep(LOOK);
        }
        Ok(living)
    }
}

/// A chain that runs.
pub struct Living<'c> {
    chain: &'c Chain<'c>,
    process: Child,
    log: PathBuf,
}

impl Living<'_> {
    /// Its log, from the first frame on.
    fn periods(&self) -> Result<Vec<Period>> {
        let periods = read_log(&self.log)?.periods;
        Ok(periods.into_iter().skip_while(|period| period.throughput_fps == 0.0).collect())
    }

    /// Its TPCs.
    pub fn all(&self) -> Result<u32> {
        let periods = self.periods()?;
        Ok(periods.last().context("a chain without periods")?.tpcs_of_chain)
    }

    /// Sets what divides, and returns the number of periods before.
    fn steer(&self, order: &Order) -> Result<usize> {
        let before = self.periods()?.len();
        let (option, value) = match order {
            Order::Algorithm(algorithm) => {
                let name = serde_json::to_value(algorithm)?;
                ("--algorithm", name.as_str().unwrap_or_default().to_owned())
            }
            Order::Best(tpcs) => ("--tpcs", tpcs.iter().map(u32::to_string).collect::<Vec<_>>().join(",")),
        };
        self.chain.partita(&["chain", "steer", &self.chain.name, option, &value])?;
        Ok(before)
    }

    /// Waits until a check of the periods since `before` has a result.
    fn wait<R>(
        &self,
        before: usize,
        patience: Duration,
        mut look: impl FnMut(&[Period]) -> Option<R>,
    ) -> Result<Option<R>> {
        let begin = Instant::now();
        loop {
            let periods = self.periods()?;
            if let Some(found) = look(periods.get(before..).unwrap_or_default()) {
                return Ok(Some(found));
            }
            if begin.elapsed() > patience {
                return Ok(None);
            }
            self.chain.run.check_time()?;
            std::thread::sleep(LOOK);
        }
    }

    /// Divides the compute units by hand, and returns the counted periods with that division, after
    /// those in which the chain settles.
    fn with(&self, order: &Order, tpcs: &[u32], settle: usize, counted: usize) -> Result<Vec<Period>> {
        let before = self.steer(order)?;
        let found = self.wait(before, PATIENCE, |periods| {
            let since = periods.iter().rev().take_while(|period| period.tpcs.as_deref() == Some(tpcs));
            let count = since.count();
            (count >= settle + counted).then(|| periods[periods.len() - counted..].to_vec())
        })?;
        found.with_context(|| format!("{}: {tpcs:?} was not taken up", self.chain.name))
    }

    /// Frames a second with a division, by a short look.
    pub fn look(&self, tpcs: &[u32]) -> Result<f64> {
        mean(&self.with(&Order::Best(tpcs.to_vec()), tpcs, LOOK_SETTLE_PERIODS, LOOK_PERIODS)?)
    }

    /// Measures a division.
    pub fn hold(&self, tpcs: &[u32]) -> Result<Measured> {
        self.hold_as(&Order::Best(tpcs.to_vec()), tpcs)
    }

    fn hold_as(&self, order: &Order, tpcs: &[u32]) -> Result<Measured> {
        let options = self.chain.run.options;
        let counted = (options.counted_s * 1e3 / f64::from(options.period_ms)).ceil().max(1.0) as usize;
        let periods = self.with(order, tpcs, SETTLE_PERIODS, counted)?;
        Ok(Measured {
            frames_per_s: mean(&periods)?,
            changes: 0,
            trials: 0,
            settled_s: 0.0,
            has_ended: true,
            tpcs: tpcs.to_vec(),
        })
    }

    /// Applies a division, starting from the whole GPU for all, and measures it.
    pub fn obey(&self, order: &Order) -> Result<Measured> {
        let all = self.all()?;
        let components = self.periods()?.last().and_then(|period| period.tpcs.as_ref().map(Vec::len));
        let everything = vec![all; components.context("a chain that was not divided")?];
        match order {
            Order::Best(tpcs) => self.hold_as(order, tpcs),
            Order::Algorithm(Algorithm::None) => self.hold_as(order, &everything),
            Order::Algorithm(_) => {
                let none = Order::Algorithm(Algorithm::None);
                self.with(&none, &everything, SETTLE_PERIODS, 1)?;
                self.search(order)
            }
        }
    }

    /// Lets an algorithm search, and counts after its end, or at the end of its time.
    fn search(&self, order: &Order) -> Result<Measured> {
        let options = self.chain.run.options;
        let begin =
            self.periods()?.pop().with_context(|| format!("{} has counted nothing", self.chain.name))?;
        let before = self.steer(order)?;
        let limit = Duration::from_secs_f64(options.seconds + options.counted_s);
        let ended = self.wait(before, limit, |periods| has_ended(periods, options.counted_s))?;
        let periods = self.periods()?.split_off(before);
        let last = periods.last().with_context(|| format!("{} has counted nothing", self.chain.name))?;
        let counted: Vec<Period> =
            periods.iter().filter(|period| period.at_s > last.at_s - options.counted_s).cloned().collect();
        let changes: Vec<f64> = periods
            .windows(2)
            .filter(|two| two[0].tpcs != two[1].tpcs)
            .map(|two| two[1].at_s - begin.at_s)
            .collect();
        let tried: BTreeSet<&Vec<u32>> = periods.iter().filter_map(|period| period.tpcs.as_ref()).collect();
        Ok(Measured {
            frames_per_s: mean(&counted)?,
            changes: changes.len(),
            trials: tried.into_iter().filter(|tpcs| Some(*tpcs) != begin.tpcs.as_ref()).count(),
            settled_s: changes.last().copied().unwrap_or(0.0),
            has_ended: ended.is_some(),
            tpcs: last.tpcs.clone().unwrap_or_default(),
        })
    }

    /// Ends it.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if self.process.try_wait()?.is_some() {
            return Ok(());
        }
        let stopped = self.chain.partita(&["chain", "stop", &self.chain.name]);
        let begin = Instant::now();
        while self.process.try_wait()?.is_none() {
            if begin.elapsed() > END {
                let _ = self.chain.partita(&["kill", &self.chain.name]);
                self.process.kill()?;
                self.process.wait()?;
                bail!("{} did not end in {END:?}, and was killed", self.chain.name);
            }
            std::thread::sleep(LOOK);
        }
        stopped
    }
}

impl Drop for Living<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("{}: {error:#}", self.chain.name);
        }
    }
}

/// Whether a search ran in these periods and has been over for this long, with one division.
fn has_ended(periods: &[Period], counted_s: f64) -> Option<()> {
    let last = periods.last()?;
    let searched = periods.iter().rposition(|period| period.phase == Phase::Searching)?;
    let quiet = &periods[searched + 1..];
    let first = quiet.first()?;
    let is_one = quiet.iter().all(|period| period.tpcs == last.tpcs);
    (is_one && last.at_s - first.at_s >= counted_s).then_some(())
}

fn mean(periods: &[Period]) -> Result<f64> {
    let rates: Vec<f64> = periods.iter().map(|period| period.throughput_fps).collect();
    Ok(Samples::new(rates)?.mean())
}
