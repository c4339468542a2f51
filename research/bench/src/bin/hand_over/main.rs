//! Handing frames over: throughput against the length of the chain, and the time of one hand-over
//! against the size of the frame.
//!
//! As figure 3 of Luo and Wei (2023): chains of 2 to 8 components, each with the kernel of class S
//! (a grid of 4 × 4 blocks of 32 × 32 threads), whose frames go by copy over UDP, by handle over
//! UDP as in the paper, by handle over Unix sockets with a cache, and by the shared ring that
//! `partita-chain` uses. All of one round in one run, interleaved; each cell of the tables is the
//! median of the rounds.
//!
//! ```text
//! cargo build --profile dist
//! target/dist/hand-over --out research/bench/results  # sim:h200
//! target/dist/hand-over --gpu 0 --work matrix --out research/bench/results  # the first GPU
//! target/dist/hand-over --gpu 0 --work matrix --lengths 2,5,8 --ways
//! udp-copy,unix-handle,ring,ring-on-host --frame-mib-max 1 --deadline-s 120
//! ```

mod conduct;
mod report;
mod worker;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use partita_bench::scratch::Scratch;

/// Measures hand-overs.
#[derive(Parser, Clone)]
pub struct Options {
    /// The GPU, as `partita run` takes it.
    #[arg(long, default_value = "sim:h200")]
    gpu: String,
    /// How often everything is measured.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How long each chain runs, in milliseconds.
    #[arg(long, default_value_t = 600)]
    time_ms: u64,
    /// Components of the chains.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 3, 4, 5, 6, 7, 8])]
    lengths: Vec<u8>,
    /// Ways to hand over, of: udp-copy, udp-handle, unix-handle, ring, ring-on-host.
    #[arg(long, value_delimiter = ',', value_parser = Kind::parse, default_value = "udp-copy,udp-handle,unix-handle,ring,ring-on-host")]
    ways: Vec<Kind>,
    /// When to omit the remaining measurements, in seconds.
    #[arg(long, default_value_t = 600)]
    deadline_s: u64,
    /// The work of a component.
    #[arg(long, value_enum, default_value = "spin")]
    work: Work,
    /// The largest frame, in MiB.
    #[arg(long, default_value_t = 256)]
    frame_mib_max: u64,
    /// The directory of `hand_over.md`, `.svg` and `.png`; without it no file is written.
    #[arg(long)]
    out: Option<PathBuf>,
    /// The `partita` executable [default: beside this one].
    #[arg(long)]
    partita: Option<PathBuf>,
    /// Run as the tenant, in this directory.
    #[arg(long, hide = true)]
    child: Option<PathBuf>,
    /// Run as a component: kind, role, roles, frames, bytes of a frame, in this directory.
    #[arg(long, hide = true, num_args = 5)]
    component: Option<Vec<String>>,
}

/// A component's work on a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// None.
    None,
    /// As many blocks as the product of two matrices of class S, each for 10 µs. For the simulator,
    /// which would compute the product on the cores that all processes share.
    Spin,
    /// The product of two matrices of class S.
    Matrix,
}

/// How frames are handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Its bytes over UDP.
    UdpCopy,
    /// Its handle over UDP, opened at each hand-over.
    UdpHandle,
    /// Its handle over a Unix socket, kept open.
    UnixHandle,
    /// Its number in shared memory, ordered by the default method.
    Ring,
    /// The same, but delayed until the GPU is done with it.
    RingOnHost,
}

impl Kind {
    /// Every way.
    pub const ALL: [Self; 5] =
        [Self::UdpCopy, Self::UdpHandle, Self::UnixHandle, Self::Ring, Self::RingOnHost];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::UdpCopy => "UDP, copy",
            Self::UdpHandle => "UDP, handle (paper)",
            Self::UnixHandle => "Unix datagram, handle kept open",
            Self::Ring => "shared ring",
            Self::RingOnHost => "shared ring, held back on the host",
        }
    }

    /// As one word on a command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::UdpCopy => "udp-copy",
            Self::UdpHandle => "udp-handle",
            Self::UnixHandle => "unix-handle",
            Self::Ring => "ring",
            Self::RingOnHost => "ring-on-host",
        }
    }

    /// As an argument.
    fn parse(word: &str) -> Result<Self, String> {
        Self::from_word(word).ok_or_else(|| {
            let words: Vec<_> = Self::ALL.iter().map(|kind| kind.word()).collect();
            format!("there are {}", words.join(", "))
        })
    }

    /// The way of that word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// Bytes of a matrix of class S, of `f32`.
pub const SMALL_BYTES: u64 = 120 * 120 * 4;

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(component) = &options.component {
        return worker::run(&options, component);
    }
    if let Some(directory) = &options.child {
        return conduct::run(&options, directory);
    }
    let own = std::env::current_exe()?;
    let partita = options.partita.clone().unwrap_or_else(|| own.with_file_name("partita"));
    let scratch = Scratch::new("hand-over")?;
    let mut command = Command::new(partita);
    command.args(["run", "--gpu", &options.gpu, "--name", "hand-over", "--"]);
    command.arg(&own).args(std::env::args_os().skip(1)).arg("--child").arg(scratch.path());
    let status = command.status().context("partita cannot be started")?;
    ensure!(status.success(), "the tenant failed: {status}");
    Ok(())
}
