//! One actuator of chains, in a separate process: `partita_chain`'s own code, as in a component.
//!
//! It prints `ready`, prepares at the line `prepare`, measures one round at each line `round`, and
//! answers each with a line of JSON. It ends with its input, or by itself after its time limit,
//! whatever it waits for.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use partita_chain::{AffinityContexts, GreenContexts, Masks, Steer};
use partita_core::TpcSet;
use partita_driver::ipc::SharedEvent;
use partita_driver::{Census, Cuda, Gpu, Grid, Launch, Place, Stream, StreamRef};
use serde::{Deserialize, Serialize};

use crate::DEADLINE_MS;

/// One block, with as little work as possible.
const SMALL: Grid = Grid { blocks: 1, threads: 32, cluster_blocks: 1 };
/// How long the blocks of a census spin, so that they cover every SM before the first ends.
const CENSUS_NS: u64 = 20_000;
/// Censuses that may miss an SM, as is possible beside other processes.
const CENSUSES_MAX: usize = 8;

/// The actuators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// None: launches are unchanged.
    None,
    /// A mask in every launch.
    Masks,
    /// A pool of green contexts.
    Green,
    /// A pool of contexts of MPS with execution affinity.
    Contexts,
}

impl Kind {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::Masks => "masks",
            Self::Green => "green contexts",
            Self::Contexts => "contexts of MPS",
        }
    }

    /// As one word on a command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Masks => "masks",
            Self::Green => "green",
            Self::Contexts => "contexts",
        }
    }
}

/// The result of preparing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Prepared {
    /// The GPU.
    pub device: String,
    /// CUDA version of the driver: major × 1000 + minor × 10.
    pub cuda_version: u32,
    /// SMs of the partitions in turn; those of the device for [`Kind::None`].
    pub sms: Vec<u32>,
    /// The first switch to each partition, which makes the context that later ones reuse, in
    /// milliseconds.
    pub make_ms: Vec<f64>,
}

/// The result of one round.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Round {
    /// The call that changes the partition, in nanoseconds.
    pub switch_ns: Vec<f64>,
    /// From that call to the end of the first work under the new partition, seen by the host, in
    /// microseconds.
    pub first_work_us: Vec<f64>,
    /// The same work without a switch.
    pub same_work_us: Vec<f64>,
    /// Enqueueing one launch, on average of a burst, in nanoseconds.
    pub launch_ns: Vec<f64>,
    /// The cost of passing a frame on beyond that of every component: the order between contexts,
    /// in nanoseconds.
    pub pass_on_ns: Vec<f64>,
    /// Switches with a census of the SMs on which blocks run.
    pub checked: u64,
    /// Those of them with another number of SMs than the partition's.
    pub wrong: u64,
}

/// The size of one round.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    /// Timed switches.
    pub switches: u32,
    /// Launches of a burst.
    pub burst: u32,
}

/// An actuator as [`Steer`], with data that [`Steer`] does not have.
enum Actuator<'g> {
    None,
    Masks(Masks),
    Green(GreenContexts<'g>),
    Contexts(AffinityContexts<'g>),
}

impl<'g> Actuator<'g> {
    fn apply(&mut self, gpu: &'g Gpu<'g>, set: &TpcSet) -> Result<()> {
        match self {
            Self::None => (),
            Self::Masks(masks) => masks.apply(gpu, set)?,
            Self::Green(pool) => pool.apply(gpu, set)?,
            Self::Contexts(pool) => pool.apply(gpu, set)?,
        }
        Ok(())
    }

    fn join(&self, stream: StreamRef<'_>) -> Result<bool> {
        Ok(match self {
            Self::None => false,
            Self::Masks(masks) => masks.join(stream)?,
            Self::Green(pool) => pool.join(stream)?,
            Self::Contexts(pool) => pool.join(stream)?,
        })
    }

    /// The present stream for launches.
    fn place(&self, gpu: &'g Gpu<'g>, own: StreamRef<'g>) -> Result<Place<'g>> {
        Ok(match self {
            Self::None | Self::Masks(_) => gpu.place(own),
            Self::Green(pool) => pool.current().map_or_else(|| gpu.place(own), |context| context.place()),
            Self::Contexts(pool) => match pool.current() {
                Some(context) => context.place()?,
                None => gpu.place(own),
            },
        })
    }

    /// SMs of the partition in force, which this set requested.
    fn sms(&self, gpu: &Gpu<'_>, set: &TpcSet) -> u32 {
        match self {
            Self::None => gpu.facts().sms,
            Self::Masks(_) => set.len() * 2,
            Self::Green(pool) => pool.current().map_or(0, |context| context.sms()),
            Self::Contexts(pool) => pool.current().map_or(0, |context| context.sms()),
        }
    }
}

/// One of the partitions in turn.
struct Partition<'g> {
    set: TpcSet,
    sms: u32,
    place: Place<'g>,
    launch: Launch<'g>,
    census: Census<'g, 'g>,
}

struct Bench<'g> {
    gpu: &'g Gpu<'g>,
    own: StreamRef<'g>,
    event: SharedEvent<'g>,
    actuator: Actuator<'g>,
    partitions: Vec<Partition<'g>>,
    /// The one in force.
    now: usize,
}

fn us(from: Instant) -> f64 {
    from.elapsed().as_secs_f64() * 1e6
}

impl<'g> Bench<'g> {
    /// Opens everything and makes the partitions: a quarter and three quarters of the device.
    fn prepare(gpu: &'g Gpu<'g>, kind: Kind) -> Result<(Self, Prepared)> {
        let own: &'g Stream<'g> = Box::leak(Box::new(Stream::new(gpu.cuda())?));
        let facts = gpu.facts();
        let mut bench = Self {
            gpu,
            own: own.as_ref(),
            event: SharedEvent::of_this_process(gpu.cuda())?,
            actuator: match kind {
                Kind::None => Actuator::None,
                Kind::Masks => Actuator::Masks(Masks::default()),
                Kind::Green => Actuator::Green(GreenContexts::new()),
                Kind::Contexts => Actuator::Contexts(AffinityContexts::new()),
            },
            partitions: Vec::new(),
            now: 0,
        };
        let tpcs = facts.sms / 2;
        let mut make_ms = Vec::new();
        for share in [1, 3] {
            let set = TpcSet::first((tpcs * share / 4).max(1));
            let begin = Instant::now();
            bench.actuator.apply(gpu, &set)?;
            make_ms.push(us(begin) / 1e3);
            let place = bench.actuator.place(gpu, bench.own)?;
            let everywhere = Grid { blocks: facts.sms * 4, threads: 1024, cluster_blocks: 1 };
            bench.partitions.push(Partition {
                set,
                sms: bench.actuator.sms(gpu, &set),
                place,
                launch: gpu.prepare_spin_at(place, SMALL, 0)?,
                census: Census::at(gpu, place, everywhere, CENSUS_NS)?,
            });
        }
        bench.now = bench.partitions.len() - 1;
        let sms = bench.partitions.iter().map(|partition| partition.sms).collect();
        let prepared =
            Prepared { device: facts.name.clone(), cuda_version: facts.cuda_version, sms, make_ms };
        Ok((bench, prepared))
    }

    /// The next partition, in order after the work of the one before, as a component of a chain
    /// applies a suggestion. Returns the time of the call alone.
    fn switch(&mut self) -> Result<f64> {
        let next = (self.now + 1) % self.partitions.len();
        let before = self.partitions[self.now].place.stream();
        let is_elsewhere = self.actuator.join(self.own)?;
        let begin = Instant::now();
        self.actuator.apply(self.gpu, &self.partitions[next].set)?;
        let switch_ns = us(begin) * 1e3;
        self.now = next;
        let after = self.partitions[next].place.stream();
        if before != after {
            self.event.record(if is_elsewhere { self.own } else { before })?;
            self.event.hold(after)?;
        }
        Ok(switch_ns)
    }

    fn work(&mut self) -> Result<()> {
        let partition = &mut self.partitions[self.now];
        partition.launch.launch()?;
        Ok(self.gpu.wait_on(partition.place.stream(), "a small kernel", DEADLINE_MS)?)
    }

    fn is_as_wide_as_it_says(&self) -> Result<bool> {
        let partition = &self.partitions[self.now];
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..CENSUSES_MAX {
            seen.extend(partition.census.sms()?);
            if seen.len() as u32 >= partition.sms {
                break;
            }
        }
        Ok(seen.len() as u32 == partition.sms)
    }

    fn round(&mut self, amount: Amount) -> Result<Round> {
        let mut round = Round::default();
        self.work()?;
        for _ in 0..amount.switches {
            let begin = Instant::now();
            self.work()?;
            round.same_work_us.push(us(begin));
            let begin = Instant::now();
            let switch_ns = self.switch()?;
            self.work()?;
            round.first_work_us.push(us(begin));
            round.switch_ns.push(switch_ns);
        }
        for _ in 0..self.partitions.len() {
            self.switch()?;
            round.checked += 1;
            round.wrong += u64::from(!self.is_as_wide_as_it_says()?);
            let partition = &mut self.partitions[self.now];
            let begin = Instant::now();
            for _ in 0..amount.burst {
                partition.launch.launch()?;
            }
            round.launch_ns.push(us(begin) * 1e3 / f64::from(amount.burst));
            self.gpu.wait_on(partition.place.stream(), "a burst", DEADLINE_MS)?;
            let begin = Instant::now();
            for _ in 0..amount.burst {
                self.actuator.join(self.own)?;
            }
            round.pass_on_ns.push(us(begin) * 1e3 / f64::from(amount.burst));
            self.gpu.wait_on(self.own, "the order of two contexts", DEADLINE_MS)?;
        }
        Ok(round)
    }
}

fn say(text: &str) -> Result<()> {
    println!("{text}");
    Ok(std::io::stdout().flush()?)
}

/// Runs as the process of an actuator.
///
/// # Errors
/// The driver's, and the actuator's if it is not available here.
pub fn run(kind: Kind, amount: Amount, deadline: Duration) -> Result<()> {
    // A call of the driver that does not return must not block the whole measurement.
    std::thread::spawn(move || {
        std::thread::sleep(deadline);
        eprintln!("{}: not done after {deadline:?}", kind.name());
        std::process::exit(124);
    });
    say("ready")?;
    let cuda = Cuda::load(None)?;
    let gpu = Gpu::open(&cuda, 0)?;
    let mut bench = None;
    for line in std::io::stdin().lines() {
        match (line?.as_str(), &mut bench) {
            ("prepare", bench @ None) => {
                let (made, prepared) = Bench::prepare(&gpu, kind)?;
                ensure!(kind != Kind::Contexts || gpu.facts().under_mps, "no client of MPS");
                *bench = Some(made);
                say(&serde_json::to_string(&prepared)?)?;
            }
            ("round", Some(bench)) => {
                let round = bench.round(amount).with_context(|| kind.name())?;
                say(&serde_json::to_string(&round)?)?;
            }
            (other, _) => bail!("{other:?} is no order"),
        }
    }
    Ok(())
}
