//! Processes of a tenant that are killed while they allocate, and the effect on the others.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use partita_abi::CuResult;
use partita_bench::side::Side;
use partita_core::Samples;
use partita_driver::{Cuda, Error, Gpu};

use crate::{GRAIN_BYTES, Place, beside, words};

/// Options.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    place: Place,
    /// The number of kills; as many end orderly in between.
    #[arg(long, default_value_t = 1000)]
    kills: u64,
}

/// The most that the surviving process holds, and the task of each victim.
const NEIGHBOUR_BYTES: u64 = 8 * GRAIN_BYTES;
const VICTIM_BYTES: u64 = 32 * GRAIN_BYTES;

/// Runs it: in the tenant, and by turns among processes without limits, for the driver's own
/// effects.
pub fn run(options: &Options) -> Result<()> {
    let quota_bytes = NEIGHBOUR_BYTES + VICTIM_BYTES;
    let part = |is_bare: bool| words([&"lead-kills", &quota_bytes, &is_bare]);
    let mut tenant = Side::start(options.place.tenant("quota-kills", quota_bytes, &part(false))?)?;
    let mut bare = Side::start(options.place.bare(&part(true))?)?;
    println!(
        "{} ended by SIGKILL while it allocates, and as many that end orderly, in turns, on {}\n",
        options.kills, options.place.gpu
    );
    for _ in 0..2 * options.kills {
        for side in [&mut tenant, &mut bare] {
            let done = side.ask("turn")?;
            ensure!(done == "done", "a turn ended with {done:?}");
        }
    }
    for side in [tenant, bare] {
        tell(side)?;
    }
    Ok(())
}

/// Reads a side's measurements.
fn tell(mut side: Side) -> Result<()> {
    side.tell("end")?;
    loop {
        match side.line()?.as_str() {
            "end" => return side.stop(),
            line => println!("{line}"),
        }
    }
}

/// The effects of one end.
#[derive(Default)]
struct Ends {
    /// Until the victim's process was gone, in µs.
    gone_us: Vec<f64>,
    /// From then until all of its possible memory was available, in µs.
    had_again_us: Vec<f64>,
    /// The longest operation of the neighbour meanwhile, in µs.
    neighbour_us: Vec<f64>,
    /// Refused attempts, because memory was not released yet.
    refusals: u64,
}

/// Starts the victims one after another, one for each line, ends them, and requests all of their
/// possible memory. In the tenant, or without limits.
pub fn lead(quota_bytes: u64, is_bare: bool) -> Result<()> {
    let cuda = Cuda::load(None)?;
    let gpu = Gpu::open(&cuda, 0)?;
    let mut neighbour = Side::start(beside(&words([&"churn", &NEIGHBOUR_BYTES, &1]))?)?;
    println!("ready");
    let mut random = fastrand::Rng::with_seed(2);
    let [mut killed, mut ended] = [Ends::default(), Ends::default()];
    let mut turn = 0u64;
    for line in std::io::stdin().lines() {
        if line? != "turn" {
            break;
        }
        let by_kill = turn.is_multiple_of(2);
        let victim = Side::start(beside(&words([&"churn", &VICTIM_BYTES, &(turn + 3)]))?)?;
        std::thread::sleep(Duration::from_micros(random.u64(..5000)));
        neighbour.ask("")?;
        let start = Instant::now();
        if by_kill {
            victim.kill()?
        } else {
            victim.stop()?
        }
        let gone = start.elapsed();
        let ends = if by_kill { &mut killed } else { &mut ended };
        let all = loop {
            match gpu.alloc(VICTIM_BYTES as usize) {
                Ok(buffer) => break buffer,
                Err(Error::Call { code: CuResult::OUT_OF_MEMORY, .. }) => ends.refusals += 1,
                Err(other) => return Err(other.into()),
            }
            if start.elapsed() > Duration::from_secs(10) {
                bail!("end {turn}: what the victim held was never given back: bytes are lost");
            }
        };
        let us = |time: Duration| time.as_nanos() as f64 / 1e3;
        ends.gone_us.push(us(gone));
        ends.had_again_us.push(us(start.elapsed() - gone));
        drop(all);
        let answer = neighbour.ask("")?;
        let mut words = answer.split_whitespace().map(str::parse::<u64>);
        let (Some(longest), Some(refused)) = (words.next().transpose()?, words.next().transpose()?) else {
            bail!("the neighbour has ended")
        };
        if refused > 0 {
            bail!("end {turn}: the neighbour was refused {refused} times what fits");
        }
        ends.neighbour_us.push(longest as f64 / 1e3);
        turn += 1;
        println!("done");
    }
    neighbour.stop()?;
    if is_bare {
        println!("\nThe same without limits, by turns with the above:\n");
    } else {
        // Exact to the byte: all of it is available at once.
        let lost = (0..quota_bytes / GRAIN_BYTES)
            .find(|lost| gpu.alloc((quota_bytes - lost * GRAIN_BYTES) as usize).is_ok())
            .context("nothing of the quota is left")?;
        println!("bytes lost in {turn} ends: {}\n", lost * GRAIN_BYTES);
    }
    report(&killed, &ended)?;
    println!("end");
    Ok(())
}

fn report(killed: &Ends, ended: &Ends) -> Result<()> {
    println!("| | median µs | p99 µs | longest µs | over 10 ms | count |");
    println!("|---|---|---|---|---|---|");
    let rows = [
        ("SIGKILL: until the process is gone", &killed.gone_us),
        ("from then until its memory can be had", &killed.had_again_us),
        ("the neighbour's longest operation meanwhile", &killed.neighbour_us),
        ("an orderly end: until the process is gone", &ended.gone_us),
        ("from then until its memory can be had", &ended.had_again_us),
        ("the neighbour's longest operation meanwhile", &ended.neighbour_us),
    ];
    for (name, values) in rows {
        let samples = Samples::new(values.clone())?;
        let long = values.iter().filter(|&&us| us > 10_000.0).count();
        println!(
            "| {name} | {:.1} | {:.1} | {:.1} | {long} | {} |",
            samples.p50(),
            samples.quantile(990),
            samples.max(),
            samples.count()
        );
    }
    println!("refused before it was given back: {} and {} tries", killed.refusals, ended.refusals);
    Ok(())
}
