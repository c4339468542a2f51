//! Tables and the picture.

use std::fmt::Write;

use anyhow::{Context, Result};
use partita_core::Samples;
use partita_experiments::plot::Picture;
use partita_experiments::plot::lines::{Panel, Series, scene};

use crate::{Kind, Options, Work};

/// One chain's throughput in one round.
pub struct Throughput {
    pub kind: Kind,
    pub length: u8,
    pub frames_per_s: f64,
}

/// The times of one chain's hand-overs in one round, in nanoseconds.
pub struct Latency {
    pub kind: Kind,
    pub bytes: u64,
    pub samples: Samples,
}

fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// The rounds of one chain.
fn rounds(throughputs: &[Throughput], kind: Kind, length: u8) -> Vec<f64> {
    let those = throughputs.iter().filter(|run| run.kind == kind && run.length == length);
    those.map(|run| run.frames_per_s).collect()
}

/// All hand-overs of all rounds.
fn together(latencies: &[Latency], kind: Kind, bytes: u64) -> Option<Samples> {
    let those = latencies.iter().filter(|run| run.kind == kind && run.bytes == bytes);
    Samples::new(those.flat_map(|run| run.samples.sorted().iter().copied()).collect::<Vec<_>>()).ok()
}

fn unique<T: Ord + Copy>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}

pub fn write(options: &Options, throughputs: &[Throughput], latencies: &[Latency]) -> Result<()> {
    let lengths = unique(throughputs.iter().map(|run| run.length));
    let sizes = unique(latencies.iter().map(|run| run.bytes));
    let mut text = String::new();
    writeln!(text, "### Throughput\n")?;
    writeln!(
        text,
        "Frames per second at the last component, median of {} rounds (lowest to highest); in brackets the median of the rounds' ratios to UDP, copy.\n",
        options.rounds
    )?;
    let heads: Vec<_> = options.ways.iter().map(|kind| kind.name()).collect();
    writeln!(text, "| components | {} |\n|---|{}", heads.join(" | "), "---|".repeat(heads.len()))?;
    for &length in &lengths {
        write!(text, "| {length} |")?;
        let base = rounds(throughputs, Kind::UdpCopy, length);
        for &kind in &options.ways {
            let runs = rounds(throughputs, kind, length);
            let ratio = Samples::ratios(&runs, &base).map_or(f64::NAN, |ratios| ratios.p50());
            // There was no time left.
            let Ok(samples) = Samples::new(runs) else {
                text.push_str(" |");
                continue;
            };
            write!(
                text,
                " {:.0} ({:.0} to {:.0}) [{ratio:.2}] |",
                samples.p50(),
                samples.min(),
                samples.max()
            )?;
        }
        writeln!(text)?;
    }
    writeln!(text, "\n### One hand-over\n")?;
    writeln!(
        text,
        "Microseconds from when a component begins to let go of a frame that the GPU is done with until the next one can launch on it: p50 / p99, \
         count. Two components, one frame at a time, no work.\n"
    )?;
    writeln!(text, "| frame | {} |\n|---|{}", heads.join(" | "), "---|".repeat(heads.len()))?;
    for &bytes in &sizes {
        write!(text, "| {} |", size(bytes))?;
        for &kind in &options.ways {
            match together(latencies, kind, bytes) {
                Some(all) => {
                    let (p50, p99) = (all.p50() / 1e3, all.quantile(990) / 1e3);
                    write!(text, " {p50:.1} / {p99:.1}, {} |", all.count())?;
                }
                None => write!(text, " none came through in time |")?,
            }
        }
        writeln!(text)?;
    }
    println!("{text}");
    let Some(out) = &options.out else { return Ok(()) };
    std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let path = out.join("hand_over.md");
    std::fs::write(&path, page(options, &text)).with_context(|| path.display().to_string())?;
    picture(options, throughputs, latencies, &lengths, &sizes)
}

fn page(options: &Options, tables: &str) -> String {
    let is_simulated = options.gpu.starts_with("sim:");
    let device = if is_simulated {
        format!(
            "Simulated driver ({}), on two cores that other work kept busy. What the host does is real: sockets, system calls, processes, the ring. What the \
             driver and the GPU take is the simulator's: an open of memory is a message to its board, and a copy is one of host memory. So these \
             numbers rank the ways; they are no prediction for a GPU.",
            options.gpu
        )
    } else {
        format!("GPU {}.", options.gpu)
    };
    let work = match options.work {
        Work::None => "Components do no work.",
        Work::Spin => {
            "A component launches 16 blocks of 1024 threads for 10 µs each, the grid of class S; the simulator would compute the product itself on the \
             cores that everybody shares. The first component copies 57,600 bytes in, the last copies them out."
        }
        Work::Matrix => {
            "A component multiplies two matrices of class S (120 × 120). The first copies one in, the last copies the result out."
        }
    };
    format!(
        "# Handing frames over\n\n\
         Figure 3 of Luo and Wei (2023): chains of 2 to {} components, by each way to hand a frame over. Target on an H200: the ring at least 2 × UDP copy at \
         two components and 5 × at five, and a hand-over of at most 5 µs at p50 whatever the size.\n\n\
         {device}\n\n{work}\n\n\
         `hand-over --gpu {} --rounds {} --time-ms {}`; all ways in each round, one after the other. {} ms for each chain.\n\n{tables}\n\
         ![Throughput by length, hand-over by size](hand_over.png)\n",
        options.lengths.iter().max().unwrap_or(&2),
        options.gpu,
        options.rounds,
        options.time_ms,
        options.time_ms
    )
}

fn picture(
    options: &Options,
    throughputs: &[Throughput],
    latencies: &[Latency],
    lengths: &[u8],
    sizes: &[u64],
) -> Result<()> {
    let Some(out) = &options.out else { return Ok(()) };
    let series = |points: &dyn Fn(Kind) -> Vec<(f64, f64)>| -> Vec<Series> {
        options.ways.iter().map(|&kind| Series::dots(kind.name(), points(kind))).collect()
    };
    let by_length = series(&|kind| {
        let at = |length: &u8| {
            let samples = Samples::new(rounds(throughputs, kind, *length)).ok()?;
            Some((f64::from(*length), samples.p50()))
        };
        lengths.iter().filter_map(at).collect()
    });
    let by_size = series(&|kind| {
        let at = |bytes: &u64| {
            let all = together(latencies, kind, *bytes)?;
            Some(((*bytes as f64).log2(), all.p50() / 1e3))
        };
        sizes.iter().filter_map(at).collect()
    });
    let panels = [
        Panel {
            title: "Throughput".into(),
            x: "components".into(),
            y: "frames per second".into(),
            series: by_length,
            is_log: false,
        },
        Panel {
            title: "One hand-over, median".into(),
            x: "size of the frame, log2 of bytes".into(),
            y: "microseconds".into(),
            series: by_size,
            is_log: true,
        },
    ];
    let title = format!("Handing frames over, {}", options.gpu);
    Ok(Picture::of("hand_over", scene(&title, &panels)).save(&out.join("hand_over"))?)
}
