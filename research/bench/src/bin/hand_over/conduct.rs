//! Runs the chains, one after the other.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use partita_bench::side::Side;
use partita_chain::{Chain, ChainPlan, Policy};
use partita_core::Samples;

use crate::report::{self, Latency, Throughput};
use crate::{Kind, Options, SMALL_BYTES, Work};

/// Frames of a chain in a throughput measurement.
const FRAMES: u32 = 16;
/// Largest number of frames that wait between two components.
const QUEUE: u32 = 4;
/// Sizes of frames, in bytes, up to the requested one.
const SIZES: [u64; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20];

/// The result of a chain.
struct Run {
    frames_per_s: f64,
    hand_overs_ns: Vec<f64>,
    /// How frames were ordered at each component, in words; empty for other ways than the ring.
    waits: String,
}

pub fn run(options: &Options, directory: &Path) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(options.deadline_s);
    let is_over = || Instant::now() >= deadline;
    let sizes: Vec<u64> = SIZES.into_iter().filter(|bytes| *bytes <= options.frame_mib_max << 20).collect();
    let mut throughputs: Vec<Throughput> = Vec::new();
    let mut latencies: Vec<Latency> = Vec::new();
    // What failed does not lose what was measured.
    let mut failed: Vec<String> = Vec::new();
    let mut noted = |run: Result<Run>, what: String| {
        run.inspect_err(|error| {
            eprintln!("{what}: {error:#}");
            failed.push(format!("{what} ({error:#})"));
        })
        .ok()
    };
    for round in 0..options.rounds {
        for &length in &options.lengths {
            for &kind in &options.ways {
                if is_over() {
                    continue;
                }
                let run = chain(options, directory, kind, length, FRAMES, 2 * SMALL_BYTES, options.work);
                let Some(run) = noted(run, format!("{length} components, {}", kind.name())) else { continue };
                eprintln!(
                    "round {round}: {length} components, {}: {:.0} frames/s{}",
                    kind.name(),
                    run.frames_per_s,
                    run.waits
                );
                throughputs.push(Throughput { kind, length, frames_per_s: run.frames_per_s });
            }
        }
        for &bytes in &sizes {
            for &kind in &options.ways {
                if is_over() {
                    continue;
                }
                // One frame at a time: it never waits for another one.
                let run = chain(options, directory, kind, 2, 1, bytes, Work::None);
                let Some(run) = noted(run, format!("{bytes} bytes, {}", kind.name())) else { continue };
                let Ok(samples) = Samples::new(run.hand_overs_ns) else { continue };
                eprintln!("round {round}: {bytes} bytes, {}: {:.1} us", kind.name(), samples.p50() / 1e3);
                latencies.push(Latency { kind, bytes, samples });
            }
        }
    }
    report::write(options, &throughputs, &latencies)?;
    ensure!(failed.is_empty(), "{} not measured: {}", failed.len(), failed.join("; "));
    Ok(())
}

fn chain(
    options: &Options,
    directory: &Path,
    kind: Kind,
    length: u8,
    frames: u32,
    frame_bytes: u64,
    work: Work,
) -> Result<Run> {
    let directory = directory.join("run");
    // Of a chain that failed.
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir(&directory)?;
    let plan = ChainPlan {
        name: "hand-over".into(),
        roles: (0..length).map(|role| format!("role-{role}")).collect(),
        frame_bytes,
        frames,
        queue_max: QUEUE,
        policy: Policy::Wait,
        role_gpus: Vec::new(),
    };
    Chain::create(&directory.join("chain"), &plan)?;
    let work = match work {
        Work::None => "none",
        Work::Spin => "spin",
        Work::Matrix => "matrix",
    };
    let start = |role: u8| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--work", work, "--child"]).arg(&directory).arg("--component");
        command.args([
            kind.word(),
            &role.to_string(),
            &length.to_string(),
            &frames.to_string(),
            &frame_bytes.to_string(),
        ]);
        Side::start(command)
    };
    let mut sides = (0..length).map(start).collect::<Result<Vec<_>>>()?;
    let each = |sides: &mut Vec<Side>, text: &str| -> Result<Vec<String>> {
        sides.iter_mut().try_for_each(|side| side.tell(text))?;
        sides.iter_mut().map(Side::line).collect()
    };
    each(&mut sides, "meet")?;
    let go = format!("go {}", options.time_ms);
    sides.iter_mut().try_for_each(|side| side.tell(&go))?;
    let mut answers = Vec::new();
    for (at, side) in sides.iter_mut().enumerate() {
        if at > 0 {
            side.tell("the component before has ended")?;
        }
        answers.push(side.line()?);
    }
    sides.into_iter().try_for_each(Side::stop)?;
    std::fs::remove_dir_all(&directory)?;
    let told = answers.iter().filter_map(|answer| answer.split_once(" waits "));
    let told: Vec<&str> = told.map(|(_, waits)| waits).collect();
    let waits = match told.is_empty() {
        true => String::new(),
        false => format!("; ready/polled/held: {}", told.join(" ")),
    };
    let last = answers.last().context("a chain without components")?;
    let mut words = last.split(' ');
    let (count, span_ns): (u64, u64) =
        (words.next().unwrap_or_default().parse()?, words.next().context("no time in an answer")?.parse()?);
    ensure!(
        !matches!(kind, Kind::Ring | Kind::RingOnHost) || count > 0,
        "no frame came through: {answers:?}"
    );
    let frames_per_s = if span_ns == 0 { 0.0 } else { count as f64 * 1e9 / span_ns as f64 };
    let hand_overs = words.next().unwrap_or_default().split(',').filter(|time| !time.is_empty());
    let hand_overs_ns = hand_overs.map(str::parse).collect::<Result<_, _>>()?;
    Ok(Run { frames_per_s, hand_overs_ns, waits })
}
