//! The number of block events per second that the model of the GPU handles on one core. The start
//! and the end of a block are one event each.
//!
//! Each workload runs on the simulated H200 several times, in turns with the others, including the
//! submission of works. The time is the thread's CPU time: others may share the machine.
//!
//! ```text
//! cargo build --profile dist -p partita-bench && target/dist/model-speed
//! ```

use anyhow::{Context, Result, ensure};
use clap::Parser;
use partita_core::{Samples, TpcSet};
use partita_sim::{DeviceSpec, Engine, GroupKind, KernelWork, Stats, catalogue};
use rustix::time::{ClockId, clock_gettime};

/// Measures how many block events per second the model handles.
#[derive(Parser)]
struct Options {
    /// Rounds; each runs every workload once.
    #[arg(long, default_value_t = 15)]
    rounds: u32,
    /// Blocks that each workload runs, in thousands.
    #[arg(long, default_value_t = 4_000)]
    kiloblocks: u64,
    /// Runs only workloads with this text in their names.
    #[arg(long, default_value = "")]
    only: String,
}

/// A workload: streams of one or more groups, each with kernels that it launches repeatedly.
struct Workload {
    name: &'static str,
    groups: Vec<Vec<Line>>,
}

/// A stream: priority and kernel.
type Line = (i32, KernelWork);

const BLOCK_NS: u64 = 20_000;

fn workloads(spec: &DeviceSpec) -> Vec<Workload> {
    let (all, count) = (spec.topology.all(), spec.tpc_count());
    let grid = KernelWork::new(1_000_000, 256, BLOCK_NS, all);
    let jitter = KernelWork { jitter_permille: 100, ..grid.clone() };
    let on = |enabled: TpcSet, kernel: &KernelWork| KernelWork { enabled, ..kernel.clone() };
    let (low, high) = (TpcSet::first(count / 2), all - TpcSet::first(count / 2));
    let small = KernelWork::new(132, 1024, 5_000, all);
    let memory = KernelWork { bytes_per_block: 400_000, ..grid.clone() };
    // Sixteen streams on overlapping partitions of a quarter of the device, with all six
    // priorities.
    let many = |kernel: &KernelWork| -> Vec<Line> {
        (0..16u32)
            .map(|stream| {
                let first = stream * count / 16;
                let set: TpcSet = (first..first + count / 4).map(|tpc| (tpc % count) as u8).collect();
                (-(stream as i32 % 6), on(set, kernel))
            })
            .collect()
    };
    let medium = KernelWork { jitter_permille: 100, ..KernelWork::new(2_000, 256, BLOCK_NS, all) };
    let one = |name, kernel: &KernelWork| Workload { name, groups: vec![vec![(0, kernel.clone())]] };
    vec![
        one("one big grid of equal blocks", &grid),
        one("one big grid, blocks of differing length", &jitter),
        one("one big grid, every block recorded", &KernelWork { record_blocks: true, ..grid.clone() }),
        one("one big grid of clusters of four", &KernelWork { cluster_blocks: 4, ..jitter.clone() }),
        one("many small kernels on one stream", &small),
        Workload {
            name: "many small kernels on 32 streams",
            groups: vec![vec![(0, KernelWork { grid_blocks: 16, ..small.clone() }); 32]],
        },
        Workload { name: "16 streams, partitions and priorities", groups: vec![many(&medium)] },
        Workload {
            name: "two tenants on disjoint halves",
            groups: vec![vec![(0, on(low, &jitter)), (0, on(high, &jitter))]],
        },
        Workload {
            name: "two groups taking turns",
            groups: vec![vec![(0, jitter.clone())], vec![(0, jitter.clone())]],
        },
        one("bound by memory, equal blocks", &memory),
        one(
            "bound by memory, blocks of differing length",
            &KernelWork { jitter_permille: 100, ..memory.clone() },
        ),
        Workload {
            name: "memory and computing side by side",
            groups: vec![vec![
                (0, on(low, &KernelWork { jitter_permille: 100, ..memory.clone() })),
                (0, on(high, &jitter)),
            ]],
        },
    ]
}

/// This thread's CPU time, in seconds.
fn spent_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs a workload once; returns block events per second, and the counters.
fn run(spec: &DeviceSpec, workload: &Workload, blocks: u64) -> Result<(f64, Stats)> {
    let begin_s = spent_s();
    let mut gpu = Engine::new(spec, 1);
    let lines = workload.groups.iter().map(Vec::len).sum::<usize>() as u64;
    let mut streams = Vec::new();
    for lines in &workload.groups {
        let group = gpu.add_group(GroupKind::Mps);
        for (priority, kernel) in lines {
            streams.push((gpu.add_stream(group, *priority)?, kernel));
        }
    }
    let mut submitted = 0;
    for (stream, kernel) in streams {
        let launches = (blocks / lines).div_ceil(kernel.grid_blocks);
        for _ in 0..launches {
            gpu.submit(stream, kernel.clone())?;
        }
        submitted += launches * kernel.grid_blocks;
    }
    let mut events = Vec::new();
    while let Some(next) = gpu.next_event() {
        events.clear();
        gpu.advance_into(next + 1_000_000, &mut events);
    }
    let seconds = spent_s() - begin_s;
    let stats = gpu.stats();
    ensure!(
        (stats.blocks_started, stats.blocks_done) == (submitted, submitted),
        "{}: of {submitted} blocks {} started and {} ended",
        workload.name,
        stats.blocks_started,
        stats.blocks_done
    );
    Ok(((stats.blocks_started + stats.blocks_done) as f64 / seconds, stats))
}

fn main() -> Result<()> {
    let options = Options::parse();
    let spec = catalogue::device(catalogue::DEFAULT).context("the simulated H200")?;
    let mut workloads = workloads(&spec);
    workloads.retain(|workload| workload.name.contains(&options.only));
    let mut rates = vec![Vec::new(); workloads.len()];
    let mut counted = vec![Stats::default(); workloads.len()];
    for _ in 0..options.rounds {
        for (at, workload) in workloads.iter().enumerate() {
            let (rate, stats) = run(&spec, workload, options.kiloblocks * 1_000)?;
            rates[at].push(rate / 1e6);
            counted[at] = stats;
        }
    }
    println!("{}, simulated; {} rounds, in turns\n", spec.name, options.rounds);
    println!("| workload | M block events | rounds of the distributor | M events/s, median | p10 | p90 |");
    println!("|---|---|---|---|---|---|");
    for ((workload, rates), stats) in workloads.iter().zip(rates).zip(counted) {
        let samples = Samples::new(rates)?;
        println!(
            "| {} | {:.1} | {} | {:.1} | {:.1} | {:.1} |",
            workload.name,
            (stats.blocks_started + stats.blocks_done) as f64 / 1e6,
            stats.rounds,
            samples.median(),
            samples.quantile(100),
            samples.quantile(900)
        );
    }
    Ok(())
}
