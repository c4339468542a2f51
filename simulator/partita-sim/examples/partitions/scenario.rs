//! Small experiments on a GTX 1060 3GB: nine SMs, one in each TPC, so that a mask's bit is an SM.
//!
//! They follow figures 3, 4, 11 and 12 of J. Bakita and J. H. Anderson, «Hardware Compute
//! Partitioning on NVIDIA GPUs». The paper gives the pattern but not each kernel's size; the sizes
//! here show the pattern in few columns.

use partita_core::TpcSet;
use partita_sim::{BlockRecord, Engine, GroupKind, KernelWork, Time, catalogue};

/// A kernel of an experiment.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Its name in the picture: one character.
    pub label: char,
    /// When it is submitted, in nanoseconds.
    pub at_ns: Time,
    /// CUDA's numbering: lower is more urgent.
    pub priority: i32,
    /// Blocks, each as large as an SM.
    pub blocks: u64,
    /// Length of a block in nanoseconds.
    pub block_ns: Time,
    /// Its SMs.
    pub enabled: TpcSet,
}

/// An experiment: launches, each on a separate stream.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// One line for the reader.
    pub title: &'static str,
    /// In order of submission.
    pub launches: Vec<Launch>,
}

/// A block's label and record.
pub type Block = (char, BlockRecord);

const MS: Time = 1_000_000;

fn launch(label: char, blocks: u64, enabled: TpcSet) -> Launch {
    Launch { label, at_ns: 0, priority: 0, blocks, block_ns: 10 * MS, enabled }
}

/// All experiments, in the order of the figures.
pub fn all() -> Vec<Experiment> {
    let whole = TpcSet::first(9);
    let even: TpcSet = (0..9).step_by(2).collect();
    let odd: TpcSet = (1..9).step_by(2).collect();
    let crowd = |priority| {
        let own = launch('K', 12, TpcSet::range(5..9));
        let urgent = ('a'..='z').chain('A'..='F').map(move |label| Launch {
            at_ns: 5 * MS,
            priority,
            ..launch(label, 5, TpcSet::range(0..5))
        });
        std::iter::once(own).chain(urgent).collect()
    };
    vec![
        Experiment {
            title: "figure 3, left: without partitions, 1 takes all SMs and 2 waits",
            launches: vec![launch('1', 27, whole), launch('2', 10, whole)],
        },
        Experiment {
            title: "figure 3, right: partitions of five and four SMs, 2 starts at once and ends earlier",
            launches: vec![launch('1', 27, TpcSet::range(0..5)), launch('2', 10, TpcSet::range(5..9))],
        },
        Experiment {
            title: "figure 4: alternating masks, 1 on the even SMs and 2 on the odd ones",
            launches: vec![launch('1', 15, even), launch('2', 12, odd)],
        },
        Experiment {
            title: "figure 11: overlapping partitions; 1, which has the choice, comes first and takes what 2 needs",
            launches: vec![launch('1', 3, TpcSet::range(0..6)), launch('2', 3, TpcSet::range(0..3))],
        },
        Experiment {
            title: "figure 11: the same kernels, 2 first: both run at once",
            launches: vec![launch('2', 3, TpcSet::range(0..3)), launch('1', 3, TpcSet::range(0..6))],
        },
        Experiment {
            title: "figure 12: 32 urgent kernels on SMs 0-4 fill all task slots; K on SMs 5-8 stops until one has ended",
            launches: crowd(-1),
        },
        Experiment { title: "figure 12, remedy: without priorities K keeps its slot", launches: crowd(0) },
    ]
}

/// Runs an experiment on a device without launch delays: its blocks, in order of their start.
pub fn run(experiment: &Experiment) -> Vec<Block> {
    let mut spec = catalogue::device("gtx1060-3gb").expect("a catalogued device");
    spec.scheduler.launch_ns = 0;
    spec.scheduler.block_start_ns = 0;
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let mut works = Vec::new();
    for launch in &experiment.launches {
        gpu.advance(launch.at_ns);
        let stream = gpu.add_stream(group, launch.priority).expect("the group is there");
        let kernel = KernelWork {
            // 1024 threads of 64 registers: the whole register file of an SM.
            regs_per_thread: 64,
            record_blocks: true,
            ..KernelWork::new(launch.blocks, 1024, launch.block_ns, launch.enabled)
        };
        works.push((launch.label, gpu.submit(stream, kernel).expect("a well-formed launch")));
    }
    gpu.run_to_end();
    let mut blocks: Vec<Block> = works
        .into_iter()
        .flat_map(|(label, work)| {
            gpu.take_blocks(work).unwrap_or_default().into_iter().map(move |record| (label, record))
        })
        .collect();
    blocks.sort_by_key(|&(label, record)| (record.start_ns, record.sm, label));
    blocks
}

/// First start and last end of a kernel's blocks, in milliseconds.
pub fn span_ms(blocks: &[Block], label: char) -> (Time, Time) {
    let mine = || blocks.iter().filter(|block| block.0 == label).map(|block| block.1);
    let start = mine().map(|block| block.start_ns).min().unwrap_or(0);
    let stop = mine().map(|block| block.stop_ns).max().unwrap_or(0);
    (start / MS, stop / MS)
}

/// A row for each SM, a column for each 2.5 ms up to 150 ms: the kernel whose block runs there.
pub fn picture(blocks: &[Block]) -> Vec<String> {
    let step = 2_500_000;
    let end = blocks.iter().map(|block| block.1.stop_ns).max().unwrap_or(0).min(150 * MS);
    (0..9)
        .map(|sm| {
            (0..end / step)
                .map(|column| {
                    let middle = column * step + step / 2;
                    blocks
                        .iter()
                        .find(|(_, block)| {
                            block.sm == sm && (block.start_ns..block.stop_ns).contains(&middle)
                        })
                        .map_or('.', |block| block.0)
                })
                .collect()
        })
        .collect()
}
