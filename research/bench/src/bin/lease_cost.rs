//! The cost of a lease of the keeper's memory, against an own allocation, and the service's load
//! limit.
//!
//! One process leases and returns, and allocates and frees, in turns whose order flips every round:
//! through the socket, one lease per request; through the socket, a batch per request; through the
//! client's cache; and bare `cuMemAlloc` and `cuMemFree`. Meanwhile a number of other leases are
//! open. Then several connections together request a number of allocations a second, each at a
//! fixed time whether the last one was answered or not; the result is the time from that moment to
//! the answer and the return.
//!
//! ```text
//! cargo build --profile dist && target/dist/lease-cost             # sim:h200
//! target/dist/lease-cost --gpu 0                              # the first GPU of this machine
//! ```

use std::hint::black_box;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use partita_bench::scratch::Scratch;
use partita_bench::side::{Side, bare};
use partita_core::Samples;
use partita_driver::{Cuda, Gpu};
use partita_memory::client::{self, Client, Connection};
use partita_memory::keeper;
use partita_memory::pool::LeaseId;

/// The timeout of every wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures the cost of a lease.
#[derive(Parser)]
struct Options {
    /// The GPU, as `partita run` takes it.
    #[arg(long, default_value = "sim:h200")]
    gpu: String,
    /// Bytes of each.
    #[arg(long, default_value_t = 1 << 20)]
    bytes: u64,
    /// Leases that are open meanwhile.
    #[arg(long, default_value_t = 1000)]
    open: u32,
    /// Rounds; each gives one figure of each kind.
    #[arg(long, default_value_t = 400)]
    rounds: u32,
    /// Calls of one turn.
    #[arg(long, default_value_t = 32)]
    burst: u32,
    /// Requested allocations a second.
    #[arg(long, default_value_t = 10_000)]
    rate: u32,
    /// Connections that request them together.
    #[arg(long, default_value_t = 4)]
    connections: u32,
    /// The time of these requests, in seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// The `partita` executable [default: beside this one].
    #[arg(long)]
    partita: Option<PathBuf>,
    /// Run as the keeper of this socket.
    #[arg(long, hide = true)]
    keep: Option<PathBuf>,
    /// Run as the client of this socket.
    #[arg(long, hide = true)]
    client: Option<PathBuf>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    match (&options.keep, &options.client) {
        (Some(socket), _) => keep(socket),
        (_, Some(socket)) => measure(&options, socket),
        _ => start(&options),
    }
}

/// Starts the keeper and its client on the GPU.
fn start(options: &Options) -> Result<()> {
    let own = std::env::current_exe()?;
    let partita = options.partita.clone().unwrap_or_else(|| own.with_file_name("partita"));
    let scratch = Scratch::new("lease-cost")?;
    let socket = scratch.path().join("keeper");
    let mut command = bare(&partita, &options.gpu, &own);
    command.arg("--keep").arg(&socket);
    let keeper = Side::start(command).context("the keeper")?;
    let mut command = bare(&partita, &options.gpu, &own);
    command.arg("--client").arg(&socket).args(["--gpu", &options.gpu]);
    for (name, value) in [
        ("--bytes", options.bytes),
        ("--open", options.open.into()),
        ("--rounds", options.rounds.into()),
        ("--burst", options.burst.into()),
        ("--rate", options.rate.into()),
        ("--connections", options.connections.into()),
        ("--seconds", options.seconds.into()),
    ] {
        command.arg(name).arg(value.to_string());
    }
    let status = command.status()?;
    Connection::connect(&socket, None, PATIENCE)?.end_keeper(true)?;
    keeper.stop()?;
    ensure!(status.success(), "the client failed: {status}");
    Ok(())
}

fn keep(socket: &Path) -> Result<()> {
    let cuda = Cuda::load(None)?;
    let options = keeper::Options::new(socket.to_owned());
    let waiting = socket.to_owned();
    std::thread::spawn(move || {
        while Connection::connect(&waiting, None, PATIENCE).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        println!("ready");
    });
    keeper::run(&cuda, 0, &options)?;
    Ok(())
}

/// A way to get memory, with the times of its turns, in nanoseconds for one allocation.
struct Way {
    name: &'static str,
    turns_ns: Vec<f64>,
    each_ns: Vec<f64>,
}

impl Way {
    fn new(name: &'static str) -> Self {
        Self { name, turns_ns: Vec::new(), each_ns: Vec::new() }
    }

    /// Records a turn, in which each call took this long for `share` allocations.
    fn note(&mut self, calls_ns: &[f64], share: f64) {
        self.turns_ns.push(calls_ns.iter().sum::<f64>() / calls_ns.len() as f64 / share);
        self.each_ns.extend(calls_ns.iter().map(|ns| ns / share));
    }
}

/// Leases as a program does that works on the memory, and returns.
fn open(client: &Client<'_>, bytes: u64) -> Result<()> {
    let lease = client.lease(bytes)?;
    black_box(lease.span()?.address());
    Ok(())
}

/// Times one call.
fn timed(call: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    call()?;
    Ok(start.elapsed().as_nanos() as f64)
}

fn measure(options: &Options, socket: &Path) -> Result<()> {
    let cuda = Cuda::load(None)?;
    let gpu = Gpu::open(&cuda, 0)?;
    let tenant = "lease-cost".parse()?;
    let connect = || Connection::connect(socket, Some(tenant), PATIENCE);
    let mut holder = connect()?;
    let held = hold(&mut holder, options)?;

    let (mut one, mut many) = (connect()?, connect()?);
    let cached = Client::connect(&gpu, socket, tenant, &client::Options::default())?;
    let uncached_options = client::Options { kept_bytes_max: 0, ..client::Options::default() };
    let uncached = Client::connect(&gpu, socket, tenant, &uncached_options)?;
    let (bytes, burst) = (options.bytes, options.burst);
    let mut ways = [
        Way::new("cuMemAlloc and cuMemFree"),
        Way::new("through the socket"),
        Way::new("through the socket, open for use"),
        Way::new("through the socket, a batch"),
        Way::new("through the client's cache"),
    ];
    // The first of each kind makes slabs and opens them.
    let warm_up = 5;
    for round in 0..warm_up + options.rounds {
        let mut order: Vec<usize> = (0..ways.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for way in order {
            let turn: Vec<f64> = match way {
                0 => (0..burst)
                    .map(|_| {
                        timed(|| {
                            drop(gpu.alloc(bytes as usize)?);
                            Ok(())
                        })
                    })
                    .collect::<Result<_>>()?,
                1 => (0..burst)
                    .map(|_| {
                        timed(|| {
                            let lease = one.lease(None, bytes, 1, 0)?;
                            one.free(&[lease[0].id])?;
                            Ok(())
                        })
                    })
                    .collect::<Result<_>>()?,
                2 => (0..burst).map(|_| timed(|| open(&uncached, bytes))).collect::<Result<_>>()?,
                3 => vec![timed(|| {
                    let leases = many.lease(None, bytes, burst, 0)?;
                    many.free(&leases.iter().map(|lease| lease.id).collect::<Vec<_>>())?;
                    Ok(())
                })?],
                _ => (0..burst).map(|_| timed(|| open(&cached, bytes))).collect::<Result<_>>()?,
            };
            if round >= warm_up {
                ways[way].note(&turn, if way == 3 { f64::from(burst) } else { 1.0 });
            }
        }
    }
    print_ways(options, &gpu.facts().name, &ways)?;
    drop((one, many, cached, uncached));
    load(options, socket, tenant)?;

    holder.free(&held)?;
    let totals = Connection::connect(socket, None, PATIENCE)?.status()?.totals;
    println!(
        "\nIn the end: {} leases given, {} given back, {} slabs made for them.",
        totals.leased_ever, totals.given_back_ever, totals.slabs_made_ever
    );
    ensure!(totals.leased_ever == totals.given_back_ever, "leases are lost");
    Ok(())
}

/// The leases that are open meanwhile.
fn hold(holder: &mut Connection, options: &Options) -> Result<Vec<LeaseId>> {
    let mut held = Vec::new();
    let most = holder.welcome().batch_max;
    while held.len() < options.open as usize {
        let count = (options.open - held.len() as u32).min(most);
        held.extend(holder.lease(None, options.bytes, count, 0)?.iter().map(|lease| lease.id));
    }
    Ok(held)
}

fn print_ways(options: &Options, device: &str, ways: &[Way]) -> Result<()> {
    println!(
        "{} ({device}), {} bytes each, {} other leases open, {} rounds of {} calls each way:\n",
        options.gpu, options.bytes, options.open, options.rounds, options.burst
    );
    println!(
        "| one had and given back | median ns | p10 | p90 | p99 | count | ratio to the first, by rounds | 95 % interval |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for way in ways {
        let each = Samples::new(way.each_ns.clone())?;
        let ratio = Samples::ratios(&way.turns_ns, &ways[0].turns_ns)?;
        let (low, high) = ratio.median_interval();
        println!(
            "| {} | {:.0} | {:.0} | {:.0} | {:.0} | {} | {:.3} | {low:.3} to {high:.3} |",
            way.name,
            each.median(),
            each.quantile(100),
            each.quantile(900),
            each.p99(),
            each.count(),
            ratio.median(),
        );
    }
    Ok(())
}

/// Requests this many a second, however fast the answers come.
fn load(options: &Options, socket: &Path, tenant: partita_memory::TenantName) -> Result<()> {
    let each = options.rate / options.connections.max(1);
    let count = each * options.seconds;
    let interval = Duration::from_secs(1) / each.max(1);
    let start = Instant::now() + Duration::from_millis(50);
    let workers: Vec<_> = (0..options.connections)
        .map(|number| {
            let (socket, bytes) = (socket.to_owned(), options.bytes);
            std::thread::spawn(move || -> Result<Vec<[f64; 2]>> {
                let mut connection = Connection::connect(&socket, Some(tenant), PATIENCE)?;
                // Not all at the same instants.
                let first = start + interval * number / 4;
                let mut latencies_us = Vec::with_capacity(count as usize);
                for turn in 0..count {
                    let due = first + interval * turn;
                    if let Some(left) = due.checked_duration_since(Instant::now()) {
                        std::thread::sleep(left);
                    }
                    let asked = Instant::now();
                    let lease = connection.lease(None, bytes, 1, 0)?;
                    connection.free(&[lease[0].id])?;
                    latencies_us.push([due, asked].map(|from| from.elapsed().as_nanos() as f64 / 1e3));
                }
                Ok(latencies_us)
            })
        })
        .collect();
    let mut latencies_us = Vec::new();
    for worker in workers {
        latencies_us.extend(worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))??);
    }
    let took_s = start.elapsed().as_secs_f64();
    println!(
        "\nAsked for {} allocations a second by {} connections for {} s, {} other leases open: {:.0} a second were had and given back.\n",
        options.rate,
        options.connections,
        options.seconds,
        options.open,
        latencies_us.len() as f64 / took_s
    );
    println!("| one had and given back | p50 µs | p90 | p99 | p99.9 | highest | count |");
    println!("|---|---|---|---|---|---|---|");
    for (number, from) in ["from when it was due", "from when it was asked for"].into_iter().enumerate() {
        let samples = Samples::new(latencies_us.iter().map(|pair| pair[number]).collect::<Vec<_>>())?;
        println!(
            "| {from} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {} |",
            samples.p50(),
            samples.quantile(900),
            samples.p99(),
            samples.quantile(999),
            samples.max(),
            samples.count()
        );
    }
    std::io::stdout().flush()?;
    Ok(())
}
