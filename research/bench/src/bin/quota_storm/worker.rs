//! The processes of the tenant, and the one outside that watches the device.

use std::io::BufRead;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Subcommand;
use fastrand::Rng;
use partita_abi::CuResult;
use partita_driver::{Buffer, Cuda, Error, Gpu};

use crate::{GRAIN_BYTES, kills, race, start};

/// The task of a process of the benchmark.
#[derive(Subcommand)]
pub enum Part {
    /// Outside of the tenant: reports the free bytes of the device's memory, the fewest since the
    /// last report.
    Observe,
    /// Starts and leads the racing processes.
    LeadRace {
        /// Their number.
        processes: u64,
        /// Operations of all together.
        operations: u64,
        /// The tenant's quota in bytes.
        quota_bytes: u64,
    },
    /// Allocates and frees.
    Race {
        /// Operations.
        operations: u64,
        /// The most that it holds, in bytes.
        bytes_max: u64,
        /// For its choices.
        seed: u64,
    },
    /// Kills others and requests their memory.
    LeadKills {
        /// The tenant's quota in bytes.
        quota_bytes: u64,
        /// Whether there is no quota, except in the benchmark's own arithmetic.
        #[arg(action = clap::ArgAction::Set)]
        is_bare: bool,
    },
    /// Allocates and frees until it is killed or its input ends, and reports the time of its
    /// longest operation.
    Churn {
        /// The most that it holds, in bytes.
        bytes_max: u64,
        /// For its choices.
        seed: u64,
    },
    /// Starts programs beside others.
    LeadStart {
        /// Pairs of programs for each number of others.
        pairs: u32,
        /// The numbers of others, one after another.
        others: Vec<u64>,
    },
    /// Initialises the driver, prints a line, and on request reports how much memory its device
    /// has, from its view.
    Start,
}

/// Runs the task.
pub fn run(part: &Part) -> Result<()> {
    match *part {
        Part::Observe => observe(),
        Part::LeadRace { processes, operations, quota_bytes } => {
            race::lead(processes, operations, quota_bytes)
        }
        Part::Race { operations, bytes_max, seed } => race(operations, bytes_max, seed),
        Part::LeadKills { quota_bytes, is_bare } => kills::lead(quota_bytes, is_bare),
        Part::Churn { bytes_max, seed } => churn(bytes_max, seed),
        Part::LeadStart { pairs, ref others } => start::lead(pairs, others),
        Part::Start => {
            let cuda = Cuda::load(None)?;
            cuda.device_uuids()?;
            println!("ready");
            for line in std::io::stdin().lines() {
                line?;
                println!("{}", cuda.memory_bytes(0)?);
            }
            Ok(())
        }
    }
}

/// The lines of the input, for tasks with other work meanwhile.
fn incoming() -> Receiver<std::io::Result<String>> {
    let (asked, lines) = channel();
    std::thread::spawn(move || std::io::stdin().lock().lines().try_for_each(|line| asked.send(line)));
    lines
}

fn observe() -> Result<()> {
    let cuda = Cuda::load(None)?;
    let gpu = Gpu::open(&cuda, 0)?;
    let lines = incoming();
    println!("ready");
    let (mut fewest, mut looks) = (u64::MAX, 0u64);
    loop {
        fewest = fewest.min(gpu.memory_bytes()?.0);
        looks += 1;
        match lines.try_recv() {
            Ok(line) => {
                line?;
                println!("{fewest} {looks}");
                (fewest, looks) = (u64::MAX, 0);
            }
            Err(TryRecvError::Disconnected) => return Ok(()),
            // It shares two cores with the processes that it watches.
            Err(TryRecvError::Empty) => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// Allocates and frees at random within a bound.
pub struct Hoarder<'g, 'a> {
    gpu: &'g Gpu<'a>,
    random: Rng,
    held: Vec<Buffer<'a>>,
    held_bytes: u64,
    bytes_max: u64,
    /// The longest operation.
    pub longest: Duration,
    /// Allocations that the quota refused.
    pub refused: u64,
}

impl<'g, 'a> Hoarder<'g, 'a> {
    pub fn new(gpu: &'g Gpu<'a>, bytes_max: u64, seed: u64) -> Self {
        Self {
            gpu,
            random: Rng::with_seed(seed),
            held: Vec::new(),
            held_bytes: 0,
            bytes_max,
            longest: Duration::ZERO,
            refused: 0,
        }
    }

    /// One operation.
    pub fn step(&mut self) -> Result<()> {
        let room = (self.bytes_max - self.held_bytes) / GRAIN_BYTES;
        let start = Instant::now();
        if room > 0 && (self.held.is_empty() || self.random.bool()) {
            let bytes = GRAIN_BYTES * self.random.u64(1..=room);
            match self.gpu.alloc(bytes as usize) {
                Ok(buffer) => {
                    self.held.push(buffer);
                    self.held_bytes += bytes;
                }
                Err(Error::Call { code: CuResult::OUT_OF_MEMORY, .. }) => self.refused += 1,
                Err(other) => return Err(other.into()),
            }
        } else {
            let which = self.random.usize(..self.held.len());
            let buffer = self.held.swap_remove(which);
            self.held_bytes -= buffer.bytes() as u64;
            drop(buffer);
        }
        self.longest = self.longest.max(start.elapsed());
        Ok(())
    }
}

fn race(operations: u64, bytes_max: u64, seed: u64) -> Result<()> {
    let cuda = Cuda::load(None)?;
    let gpu = Gpu::open(&cuda, 0)?;
    println!("ready");
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line)? == 0 {
        bail!("no worker leads");
    }
    let mut hoarder = Hoarder::new(&gpu, bytes_max, seed);
    for _ in 0..operations {
        hoarder.step()?;
    }
    println!("{}", hoarder.refused);
    Ok(())
}

fn churn(bytes_max: u64, seed: u64) -> Result<()> {
    let cuda = Cuda::load(None)?;
    let gpu = Gpu::open(&cuda, 0)?;
    let lines = incoming();
    let mut hoarder = Hoarder::new(&gpu, bytes_max, seed);
    println!("ready");
    let mut steps = 0u64;
    loop {
        hoarder.step()?;
        steps += 1;
        match lines.try_recv() {
            Ok(line) => {
                line?;
                println!("{} {} {steps}", hoarder.longest.as_nanos(), hoarder.refused);
                hoarder.longest = Duration::ZERO;
            }
            Err(TryRecvError::Disconnected) => return Ok(()),
            Err(TryRecvError::Empty) => {}
        }
    }
}
