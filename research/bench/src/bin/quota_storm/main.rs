//! A memory quota while many processes of one tenant race for it, are killed, and start.
//!
//! ```text
//! cargo build --profile dist
//! target/dist/quota-storm race  # 64 processes, a million operations
//! target/dist/quota-storm kills  # a thousand SIGKILLs
//! target/dist/quota-storm start  # the start of a program, beside others
//! target/dist/quota-storm race --gpu 0  # the first GPU of this machine
//! ```

mod kills;
mod race;
mod start;
mod worker;

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

/// The granularity of every size here: that of the H200's allocations, so the quota can be met
/// exactly.
const GRAIN_BYTES: u64 = 2 << 20;

#[derive(Parser)]
#[command(about = "Test a memory quota while many processes race for it, are killed, and start")]
struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Many processes allocate and free at once.
    Race(race::Options),
    /// Processes are killed while they allocate.
    Kills(kills::Options),
    /// Programs start beside many others.
    Start(start::Options),
    /// An internal process of the benchmark.
    #[command(hide = true, subcommand)]
    Part(worker::Part),
}

/// Where to run.
#[derive(Args, Clone)]
struct Place {
    /// The GPU, as `partita run` takes it.
    #[arg(long, default_value = "sim:h200")]
    gpu: String,
    /// The `partita` executable [default: beside this one].
    #[arg(long)]
    partita: Option<PathBuf>,
}

impl Place {
    fn partita(&self) -> Result<PathBuf> {
        Ok(match &self.partita {
            Some(path) => path.clone(),
            None => std::env::current_exe()?.with_file_name("partita"),
        })
    }

    /// A part of this program without a tenant.
    fn bare(&self, part: &[String]) -> Result<Command> {
        let mut command = partita_bench::side::bare(&self.partita()?, &self.gpu, &std::env::current_exe()?);
        command.arg("part").args(part);
        Ok(command)
    }

    /// A part of this program as a new tenant with that quota.
    fn tenant(&self, name: &str, quota_bytes: u64, part: &[String]) -> Result<Command> {
        let mut command = Command::new(self.partita()?);
        command.args(["run", "--gpu", &self.gpu, "--name", name, "--isolation", "own"]);
        command.args(["--mem", &format!("{quota_bytes}B")]);
        command.arg("--").arg(std::env::current_exe()?).arg("part").args(part);
        Ok(command)
    }
}

/// A process of this program in the same tenant as the caller.
fn beside(part: &[String]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("part").args(part);
    Ok(command)
}

/// Arguments of a part.
fn words<const N: usize>(words: [&dyn ToString; N]) -> Vec<String> {
    words.map(ToString::to_string).to_vec()
}

fn main() -> Result<()> {
    match Options::parse().what {
        What::Race(options) => race::run(&options),
        What::Kills(options) => kills::run(&options),
        What::Start(options) => start::run(&options),
        What::Part(part) => worker::run(&part),
    }
}
