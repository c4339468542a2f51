//! Processes of one tenant that allocate and free at once.

use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use partita_bench::side::Side;

use crate::{GRAIN_BYTES, Place, beside, words};

/// Options.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    place: Place,
    /// Processes.
    #[arg(long, default_value_t = 64)]
    processes: u64,
    /// Operations of all together, half of them in each of the two rounds.
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
}

/// Two rounds: in the first the processes together may hold exactly the quota, so every refusal is
/// wrong; in the second four times that, so only the quota limits them.
const ROUNDS: [(&str, u64); 2] = [("what they want just fits", 1), ("they want four times as much", 4)];
/// The share of one process in the first round.
const SHARE_BYTES: u64 = 8 * GRAIN_BYTES;

/// Runs both rounds, with a process outside of the tenant that watches the device.
pub fn run(options: &Options) -> Result<()> {
    let quota_bytes = options.processes * SHARE_BYTES;
    let mut observer = Side::start(options.place.bare(&words([&"observe"]))?)?;
    let part = words([&"lead-race", &options.processes, &(options.operations / 2), &quota_bytes]);
    let mut tenant = Side::start(options.place.tenant("quota-race", quota_bytes, &part)?)?;
    println!(
        "{} processes of one tenant on {}, quota {quota_bytes} bytes, {} operations\n",
        options.processes, options.place.gpu, options.operations
    );
    println!(
        "| | operations | refused | most on the device, bytes | over the quota, bytes | looks | seconds |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (name, _) in ROUNDS {
        // Their contexts exist, and no other memory.
        observer.ask("")?;
        let (before, _) = fewest(&observer.ask("")?)?;
        let start = Instant::now();
        let refused = tenant.ask("go")?;
        let seconds = start.elapsed().as_secs_f64();
        let (fewest, looks) = fewest(&observer.ask("")?)?;
        let most = before.saturating_sub(fewest);
        println!(
            "| {name} | {} | {refused} | {most} | {} | {looks} | {seconds:.1} |",
            options.operations / 2,
            most.saturating_sub(quota_bytes),
        );
        // They hold some memory until they have ended.
        tenant.ask("next")?;
    }
    tenant.stop()?;
    observer.stop()
}

fn fewest(answer: &str) -> Result<(u64, u64)> {
    let (bytes, looks) = answer.split_once(' ').context("the observer has ended")?;
    Ok((bytes.parse()?, looks.parse()?))
}

/// In the tenant: starts the racing processes, starts the race on command, and reports refusals.
pub fn lead(processes: u64, operations: u64, quota_bytes: u64) -> Result<()> {
    let mut lines = std::io::stdin().lines();
    let each = operations.div_ceil(processes);
    let start = |round: usize| -> Result<Vec<Side>> {
        let bytes_max = quota_bytes / processes * ROUNDS[round].1;
        (0..processes)
            .map(|i| {
                Side::start(beside(&words([&"race", &each, &bytes_max, &(round as u64 * processes + i)]))?)
            })
            .collect()
    };
    for round in 0..ROUNDS.len() {
        let mut racing = start(round)?;
        // The first answer shows the caller that it may start; later ones end the round before.
        println!("ready");
        if lines.next().transpose()?.is_none() {
            return Ok(());
        }
        racing.iter_mut().try_for_each(|side| side.tell("go"))?;
        let mut refused = 0;
        for side in &mut racing {
            refused += side.line()?.parse::<u64>().context("one that raced has failed")?;
        }
        println!("{refused}");
        lines.next().transpose()?;
        racing.into_iter().try_for_each(Side::stop)?;
    }
    println!("done");
    Ok(())
}
