//! One chain as processes, and what its log says.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use partita::chain::{Algorithm, Period, read_log};
use partita_bench::scratch::Scratch;
use partita_core::Samples;
use partita_experiments::chains::{ChainSet, Kind};

use crate::Options;

/// How long a chain may take to begin, or to end.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// Who divides the compute units, in the order of the first round.
pub const DIVISIONS: [Algorithm; 3] = [Algorithm::None, Algorithm::Published, Algorithm::Steady];

/// What a chain did.
#[derive(Debug, Clone)]
pub struct Run {
    /// Frames a second, mean of the counted periods.
    pub frames_per_s: f64,
    /// Divisions that were tried.
    pub trials: usize,
    /// When the last one was, in seconds after the first frame; 0 for none.
    pub settled_s: f64,
    /// The last division.
    pub tpcs: Vec<u32>,
}

/// A chain that can be started.
pub struct Chain<'o> {
    options: &'o Options,
    partita: PathBuf,
    scratch: Scratch,
    name: String,
    text: String,
}

impl<'o> Chain<'o> {
    /// The chain of a set, its kernels repeated so often.
    pub fn new(options: &'o Options, set: &ChainSet, repeat: u32) -> Result<Self> {
        let own = std::env::current_exe()?;
        let partita = options.partita.clone().unwrap_or_else(|| own.with_file_name("partita"));
        let stage = partita.with_file_name("partita-stage");
        ensure!(stage.exists(), "{} is not there: build partita-chain", stage.display());
        let name = format!("live-{}", set.name.to_lowercase());
        let scratch = Scratch::new("chain-live")?;
        // Two matrices of the largest class.
        let mut text = format!("name = \"{name}\"\nframe = \"2MiB\"\nframes = 16\n");
        for (number, kind) in set.components.iter().enumerate() {
            let Kind::Product(size) = kind else { bail!("{}: no program does {kind}", set.name) };
            writeln!(
                text,
                "[[component]]\nname = \"c{number}\"\ncommand = [{stage:?}, \"matrix\", \"{size}:{repeat}\"]"
            )?;
        }
        Ok(Self { options, partita, scratch, name, text })
    }

    fn partita(&self, arguments: &[&str]) -> Result<()> {
        let output =
            Command::new(&self.partita).args(arguments).output().context("partita cannot be started")?;
        ensure!(
            output.status.success(),
            "partita {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Starts it.
    pub fn start(&self, division: Algorithm) -> Result<Living<'_>> {
        let (file, log) = (self.scratch.path().join("chain.toml"), self.scratch.path().join("log.jsonl"));
        let _ = fs::remove_file(&log);
        fs::write(&file, format!("algorithm = {}\n{}", serde_json::to_string(&division)?, self.text))?;
        let mut command = Command::new(&self.partita);
        command.args(["chain", "start"]).arg(&file).args(["--gpu", &self.options.gpu]).arg("--log").arg(&log);
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("partita cannot be started")?;
        let mut living = Living { chain: self, process, log };
        let begin = Instant::now();
        // Until the first line is written there is no log.
        while living.periods().map_or(true, |periods| periods.is_empty()) {
            if let Some(status) = living.process.try_wait()? {
                bail!("{} ended before a frame was through: {status}", self.name);
            }
            ensure!(begin.elapsed() < PATIENCE, "{}: no frame came through in {PATIENCE:?}", self.name);
            std::thread::sleep(LOOK);
        }
        Ok(living)
    }

    /// Runs it for the time that the options say.
    pub fn run(&self, division: Algorithm) -> Result<Run> {
        let living = self.start(division)?;
        std::thread::sleep(Duration::from_secs_f64(self.options.seconds));
        let periods = living.stop()?;
        let first_s = periods.first().map_or(0.0, |period| period.at_s);
        let last_s = periods.last().map_or(0.0, |period| period.at_s);
        let counted = periods.iter().filter(|period| period.at_s > last_s - self.options.counted_s);
        let frames = Samples::new(counted.map(|period| period.throughput_fps).collect::<Vec<_>>())
            .with_context(|| format!("{} has counted nothing", self.name))?;
        let changes: Vec<f64> = periods
            .windows(2)
            .filter(|two| two[0].tpcs != two[1].tpcs)
            .map(|two| two[1].at_s - first_s)
            .collect();
        Ok(Run {
            frames_per_s: frames.mean(),
            trials: changes.len(),
            settled_s: changes.last().copied().unwrap_or(0.0),
            tpcs: last_division(&periods),
        })
    }
}

/// The division that a log ends with; empty where there was none.
pub fn last_division(periods: &[Period]) -> Vec<u32> {
    periods.last().and_then(|period| period.tpcs.clone()).unwrap_or_default()
}

/// A chain that runs.
pub struct Living<'c> {
    chain: &'c Chain<'c>,
    process: Child,
    log: PathBuf,
}

impl Living<'_> {
    /// Its log, from the first frame on.
    pub fn periods(&self) -> Result<Vec<Period>> {
        let periods = read_log(&self.log)?.periods;
        Ok(periods.into_iter().skip_while(|period| period.throughput_fps == 0.0).collect())
    }

    /// Divides the compute units, and says what comes out of that: the mean of three periods, the first after it left out.
    pub fn try_division(&self, tpcs: &[u32]) -> Result<f64> {
        let list: Vec<String> = tpcs.iter().map(u32::to_string).collect();
        self.chain.partita(&["chain", "steer", &self.chain.name, "--tpcs", &list.join(",")])?;
        let begin = Instant::now();
        loop {
            let periods = self.periods()?;
            let after = periods.iter().rev().take_while(|period| period.tpcs.as_deref() == Some(tpcs));
            let mut rates: Vec<f64> = after.map(|period| period.throughput_fps).collect();
            if rates.len() > 3 {
                // The newest come first.
                rates.truncate(3);
                return Ok(Samples::new(rates)?.mean());
            }
            ensure!(begin.elapsed() < PATIENCE, "{}: {tpcs:?} was not taken up", self.chain.name);
            std::thread::sleep(LOOK);
        }
    }

    /// Ends it. Returns its whole log.
    pub fn stop(mut self) -> Result<Vec<Period>> {
        let periods = self.periods()?;
        self.chain.partita(&["chain", "stop", &self.chain.name])?;
        let begin = Instant::now();
        while self.process.try_wait()?.is_none() {
            ensure!(begin.elapsed() < PATIENCE, "{} does not end", self.chain.name);
            std::thread::sleep(LOOK);
        }
        Ok(periods)
    }
}

impl Drop for Living<'_> {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            let _ = self.chain.partita(&["chain", "stop", &self.chain.name]);
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}
