//! The hook's cost for the start of a program of a tenant that already has many others.

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use partita_bench::side::Side;
use partita_core::Samples;

use crate::{GRAIN_BYTES, Place, beside, words};

/// Options.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    place: Place,
    /// Pairs of a program with the hook and one without, for each number of others.
    #[arg(long, default_value_t = 100)]
    pairs: u32,
    /// The number of other processes of the tenant.
    #[arg(long, value_delimiter = ',', default_value = "0,10,100,1000")]
    others: Vec<u64>,
}

/// Runs it.
pub fn run(options: &Options) -> Result<()> {
    let mut part = words([&"lead-start", &options.pairs]);
    part.extend(options.others.iter().map(ToString::to_string));
    let mut tenant = Side::start(options.place.tenant("quota-start", GRAIN_BYTES, &part)?)?;
    println!(
        "from the start of a program to the end of its cuInit, on {}, with the hook and without, in turns; {} pairs each\n",
        options.place.gpu, options.pairs
    );
    println!(
        "| other processes of the tenant | bare, median ms | in the tenant, median ms | added: median ms | 95 % interval | p90 |"
    );
    println!("|---|---|---|---|---|---|");
    tenant.tell("go")?;
    for _ in &options.others {
        println!("{}", tenant.line()?);
    }
    tenant.stop()?;

    // The whole command, of which the hook is a part.
    let (mut bare, mut whole) = (Vec::new(), Vec::new());
    for _ in 0..options.pairs {
        bare.push(started_ms(options.place.bare(&words([&"start"]))?, false)?);
        let tenant = options.place.tenant("quota-start", GRAIN_BYTES, &words([&"start"]))?;
        whole.push(started_ms(tenant, true)?);
    }
    println!("\n`partita run` itself: {}", row("a new tenant", &bare, &whole)?);
    Ok(())
}

/// Milliseconds until it has initialised the driver, which reports the tenant's memory or the
/// GPU's.
fn started_ms(command: Command, in_tenant: bool) -> Result<f64> {
    let start = Instant::now();
    let mut side = Side::start(command)?;
    let spent = start.elapsed();
    let memory_bytes: u64 = side.ask("")?.parse()?;
    if (memory_bytes == GRAIN_BYTES) != in_tenant {
        bail!(
            "a program that should have the hook has not, or the other way round: it sees {memory_bytes} bytes"
        );
    }
    side.stop()?;
    Ok(spent.as_secs_f64() * 1e3)
}

fn row(name: &str, bare: &[f64], with: &[f64]) -> Result<String> {
    let added: Vec<f64> = with.iter().zip(bare).map(|(with, bare)| with - bare).collect();
    let [bare, with, added] = [bare.to_vec(), with.to_vec(), added].map(Samples::new);
    let (bare, with, added) = (bare?, with?, added?);
    let (low, high) = added.median_interval();
    Ok(format!(
        "| {name} | {:.2} | {:.2} | {:.2} | {low:.2} to {high:.2} | {:.2} |",
        bare.p50(),
        with.p50(),
        added.p50(),
        added.quantile(900)
    ))
}

/// In the tenant: adds more and more others, and starts pairs of programs beside them.
pub fn lead(pairs: u32, others: &[u64]) -> Result<()> {
    println!("ready");
    std::io::stdin().lines().next().transpose()?;
    let mut beside_them: Vec<Side> = Vec::new();
    for &count in others {
        while (beside_them.len() as u64) < count {
            beside_them.push(Side::start(beside(&words([&"start"]))?)?);
        }
        let (mut bare, mut with) = (Vec::new(), Vec::new());
        for pair in 0..pairs {
            let mut run_bare = || -> Result<()> {
                let mut command = beside(&words([&"start"]))?;
                // Everything that makes it a process of the tenant.
                command.env_remove("LD_PRELOAD");
                bare.push(started_ms(command, false)?);
                Ok(())
            };
            if pair % 2 == 0 {
                run_bare()?;
            }
            with.push(started_ms(beside(&words([&"start"]))?, true)?);
            if pair % 2 == 1 {
                run_bare()?;
            }
        }
        println!("{}", row(&count.to_string(), &bare, &with)?);
    }
    beside_them.into_iter().try_for_each(Side::stop)
}
