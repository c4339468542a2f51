//! The hook's cost for a kernel launch, a copy, or an allocation of 1 MiB and its release, in
//! nanoseconds.
//!
//! Two processes make the same calls, one bare and one as a tenant with its partition and quota;
//! they take turns of a few hundred microseconds, in an order that flips every round, so that a
//! drift of the machine affects both. Of launches only the enqueueing is timed: each turn is a
//! burst that fits the driver's queue, and the wait for it is outside. The placement of a process's
//! memory changes a launch by ± 15 ns for its whole life, so both are restarted many times. Peers'
//! libraries take their turns in the same rounds.
//!
//! ```text
//! cargo build --profile dist && target/dist/hook-cost              # sim:h200
//! target/dist/hook-cost --gpu 0                               # the first GPU of this machine
//! target/dist/hook-cost --of memory --burst 20                # 1 MiB had and given back
//! target/dist/hook-cost --time 99%  # launches that are measured for a share of time
//! target/dist/hook-cost --low  # of low priority, beside one of high priority that rests
//! target/dist/hook-cost --gpu 0 --peer hami-core=/usr/local/vgpu/libvgpu.so
//! target/dist/hook-cost --build before=/tmp/before  # another build, beside this one
//! ```

use std::ffi::OsString;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use partita_bench::peer::Peer;
use partita_bench::scratch::Scratch;
use partita_bench::side::{Side, bare};
use partita_core::Samples;
use partita_driver::{Copies, Cuda, Gpu};

/// The measured call.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Of {
    /// A kernel launch.
    Launch,
    /// cuMemAlloc of 1 MiB and cuMemFree.
    Memory,
    /// A copy of 4 KiB inside the device, by a client of MPS, whose copies are counted.
    Copy,
}

impl Of {
    fn name(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::Memory => "memory",
            Self::Copy => "copy",
        }
    }
}

/// Measures the hook's cost for a kernel launch, a copy or an allocation.
#[derive(Parser)]
struct Options {
    /// The measured call.
    #[arg(long, value_enum, default_value = "launch")]
    of: Of,
    /// The GPU, as `partita run` takes it.
    #[arg(long, default_value = "sim:h200")]
    gpu: String,
    /// The number of starts of all processes.
    #[arg(long, default_value_t = 24)]
    starts: u32,
    /// Rounds of each start; each gives one pair of figures.
    #[arg(long, default_value_t = 60)]
    rounds: u32,
    /// Calls of one burst.
    #[arg(long, default_value_t = 200)]
    burst: u32,
    /// The tenant's share of the GPU's time, as `partita run --time` takes it [default: none].
    #[arg(long)]
    time: Option<String>,
    /// Give the tenant low priority, beside one of high priority that has launched and rests:
    /// launches then have waits before them.
    #[arg(long)]
    low: bool,
    /// The `partita` executable [default: beside this one].
    #[arg(long)]
    partita: Option<PathBuf>,
    /// A peer's library to measure in the same run, NAME=PATH, as
    /// hami-core=/usr/local/vgpu/libvgpu.so; may be repeated.
    #[arg(long, value_name = "NAME=PATH")]
    peer: Vec<Peer>,
    /// Libraries of another build to measure in the same run, NAME=DIRECTORY; may be repeated.
    #[arg(long, value_name = "NAME=DIRECTORY", value_parser = parse_build)]
    build: Vec<(String, PathBuf)>,
    /// Run as one of the processes.
    #[arg(long, hide = true)]
    child: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if options.child { child(options.of, options.burst) } else { compare(&options) }
}

/// Bytes of a copy.
const COPIED: usize = 4096;

/// One of the two: a burst for each line of input; writes its nanoseconds per call.
fn child(of: Of, burst: u32) -> Result<()> {
    let cuda = Cuda::load(None)?;
    let gpu = Gpu::open(&cuda, 0)?;
    let mut launch = gpu.prepare_spin(1, 32, 0)?;
    let copies = Copies::new(&gpu, COPIED)?;
    let mut turn = || -> Result<f64> {
        let start = Instant::now();
        for _ in 0..burst {
            match of {
                Of::Launch => launch.launch()?,
                // Freed at once.
                Of::Memory => drop(gpu.alloc(1 << 20)?),
                Of::Copy => copies.within(COPIED, gpu.stream())?,
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

fn parse_build(text: &str) -> Result<(String, PathBuf), String> {
    let (name, directory) = text.split_once('=').ok_or("name a build and its directory: NAME=DIRECTORY")?;
    Ok((name.to_owned(), directory.into()))
}

/// The core limit of peers, in percent.
const CORE_PERCENT: u32 = 50;

/// How to run the program.
enum How {
    Bare,
    /// As a tenant with these options beside its partition.
    Tenant(Tenant),
    /// Behind these words.
    Under(Vec<OsString>),
}

struct Tenant {
    name: String,
    options: &'static [&'static str],
    /// The libraries of another build, if not this one's.
    libraries: Option<PathBuf>,
}

impl Tenant {
    fn new(name: &str, options: &'static [&'static str]) -> Self {
        Self { name: name.to_owned(), options, libraries: None }
    }
}

/// A way to run the program, with its times.
struct Way {
    name: String,
    how: How,
    /// Of each round.
    ns: Vec<f64>,
}

impl Way {
    fn new(name: impl Into<String>, how: How) -> Self {
        Self { name: name.into(), how, ns: Vec::new() }
    }

    fn start(&self, options: &Options) -> Result<Side> {
        let own = std::env::current_exe()?;
        let partita = options.partita.clone().unwrap_or_else(|| own.with_file_name("partita"));
        let mut command = match &self.how {
            How::Bare => bare(&partita, &options.gpu, &own),
            How::Tenant(tenant) => {
                let mut command = Command::new(&partita);
                command.args(["run", "--gpu", &options.gpu, "--name", &tenant.name]);
                command.args(["--sm", &format!("{}%", 50 / (1 + options.build.len())), "--mem", "1GiB"]);
                if options.of != Of::Copy {
                    command.args(["--isolation", "own"]);
                }
                command.args(tenant.options);
                if let Some(libraries) = &tenant.libraries {
                    command.env("PARTITA_LIB_DIR", libraries);
                }
                if let Some(time) = &options.time {
                    command.args(["--time", time]);
                }
                command.arg("--").arg(&own);
                command
            }
            // `partita`'s own queries of the driver do not use the peer.
            How::Under(words) => {
                let (program, rest) = words.split_first().context("a peer without a command")?;
                let mut command = bare(&partita, &options.gpu, Path::new(program));
                command.args(rest).arg(&own);
                command
            }
        };
        command.args(["--child", "--of", options.of.name(), "--burst", &options.burst.to_string()]);
        Side::start(command)
    }
}

fn compare(options: &Options) -> Result<()> {
    let scratch = Scratch::new("hook-cost")?;
    let tenant: &[&str] = if options.low { &["--priority", "low"] } else { &[] };
    let own = Tenant::new("hook-cost", tenant);
    let mut ways = vec![Way::new("bare", How::Bare), Way::new("as a tenant", How::Tenant(own))];
    for (name, directory) in &options.build {
        let mut other = Tenant::new(&format!("hook-cost-{name}"), tenant);
        other.libraries = Some(directory.clone());
        ways.push(Way::new(name, How::Tenant(other)));
    }
    // It launches before it is ready, so it has a lane; it waits for that, so the lane is open.
    let high = Way::new("", How::Tenant(Tenant::new("hook-cost-high", &["--priority", "high"])));
    let high = options.low.then(|| high.start(options)).transpose()?;
    for peer in &options.peer {
        ways.push(Way::new(
            format!("under {}", peer.name),
            How::Under(peer.words(scratch.path(), CORE_PERCENT)?),
        ));
    }
    // The cost of each in each round, and the median of that in each start; `None` for the bare
    // way.
    let (mut added, mut medians) = (vec![Vec::new(); ways.len()], vec![Vec::new(); ways.len()]);
    for _ in 0..options.starts {
        let mut sides: Vec<Side> = ways.iter().map(|way| way.start(options)).collect::<Result<_>>()?;
        let from = ways[0].ns.len();
        for round in 0..options.rounds {
            let mut order: Vec<usize> = (0..ways.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for at in order {
                let figure = sides[at].ask("")?;
                let figure = figure.parse().context("a child answered with something else than a figure")?;
                ways[at].ns.push(figure);
            }
        }
        sides.into_iter().try_for_each(Side::stop)?;
        for at in 1..ways.len() {
            let pairs = ways[at].ns[from..].iter().zip(&ways[0].ns[from..]);
            let of_start: Vec<f64> = pairs.map(|(with, without)| with - without).collect();
            medians[at].push(Samples::new(of_start.clone())?.p50());
            added[at].extend(of_start);
        }
    }

    high.map_or(Ok(()), Side::stop)?;

    let calls = match options.of {
        Of::Launch => "launches of partita_spin",
        Of::Memory => "cuMemAlloc of 1 MiB and cuMemFree",
        Of::Copy => "copies of 4 KiB inside the device",
    };
    println!(
        "{calls} on {}: {} starts of every process, {} rounds each, bursts of {}, interleaved\n",
        options.gpu, options.starts, options.rounds, options.burst
    );
    let count = u64::from(options.starts) * u64::from(options.rounds) * u64::from(options.burst);
    println!("{count} each way\n");
    if options.low {
        println!("The tenant has low priority, beside one of high priority that rests.\n");
    }
    println!("| | median ns | 95 % interval of the median | p10 | p90 | count |");
    println!("|---|---|---|---|---|---|");
    for (at, way) in ways.into_iter().enumerate() {
        row(&way.name, way.ns)?;
        if at > 0 {
            let whose = if at == 1 { String::new() } else { format!("{}: ", way.name) };
            row(&format!("{whose}added, by pairs"), std::mem::take(&mut added[at]))?;
            row(&format!("{whose}added, medians of the starts"), std::mem::take(&mut medians[at]))?;
        }
    }
    Ok(())
}

fn row(name: &str, values: Vec<f64>) -> Result<()> {
    let samples = Samples::new(values)?;
    let (low, high) = samples.median_interval();
    println!(
        "| {name} | {:.1} | {low:.1} to {high:.1} | {:.1} | {:.1} | {} |",
        samples.p50(),
        samples.quantile(100),
        samples.quantile(900),
        samples.count()
    );
    Ok(())
}
