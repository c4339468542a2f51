//! The JSON dialect of cuda_scheduling_examiner: configurations in, logs out.
//!
//! The format is the original's, so that its configurations run here and its viewers read the logs.
//! Written from the format alone. Additions:
//!
//! | key | where | meaning |
//! |---|---|---|
//! | `partition` | benchmark | a share, as `partita run --sm` takes it: `30%`, `40sm`, `20tpc`, `gpc:0-2`, `tpc:0-4` |
//! | `placement` | benchmark | `packed` (default) or `spread`: how a share that is a number lies over the GPCs |
//! | `record_blocks` | benchmark | `false` keeps no times and SMs of blocks; the default is `true` |
//! | `mps` | top | whether processes share one MPS server; by default if one of them has `mps_thread_percentage` |
//! | `sm_mask` | benchmark | more than 16 digits: every TPC by itself ([`SmMask`]) |

mod mask;
mod node;
mod plugin;
mod read;
mod write;

use partita_core::{Placement, Share};
use serde_json::Value;

pub use mask::SmMask;
pub use node::DialectError;
pub use plugin::{Action, ActionKind, CopyRoute, Plugin, QueuedKernel, SHARED_WORDS, Spin, Task};

/// Threads of a block at most, on every device.
pub const BLOCK_THREADS_MAX: u32 = 1024;

/// A scenario: benchmarks that run at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub name: String,
    /// Iterations of each benchmark by default; 0 for no limit.
    pub max_iterations: u64,
    /// Seconds after which benchmarks start no further iteration, by default; 0 for no limit.
    pub max_time_s: f64,
    /// CUDA's number of the device. `--gpu` decides here; the number is preserved.
    pub cuda_device: u32,
    /// A process for each benchmark instead of a thread.
    pub use_processes: bool,
    /// The place of the logs; `--out` decides here, and the name is preserved.
    pub base_result_directory: Option<String>,
    /// Spread over CPU cores.
    pub pin_cpus: bool,
    /// Unrecorded iterations first.
    pub do_warmup: bool,
    /// All benchmarks start each iteration together.
    pub sync_every_iteration: bool,
    /// Whether processes share one MPS server; `None`: if one of them has a thread percentage.
    pub mps: Option<bool>,
    /// Anything, ignored.
    pub comment: Option<Value>,
    pub benchmarks: Vec<Benchmark>,
}

/// The work of one thread or process.
#[derive(Clone, Debug, PartialEq)]
pub struct Benchmark {
    /// The plugin's file as written.
    pub filename: String,
    /// Its action.
    pub task: Task,
    /// The log's file name; `/dev/null` writes none.
    pub log_name: Option<String>,
    /// A name for readers.
    pub label: Option<String>,
    /// Threads of a block along x, y and z.
    pub thread_count: Dims,
    /// Blocks along x, y and z.
    pub block_count: Dims,
    pub data_size_bytes: u64,
    /// Iterations instead of the scenario's.
    pub max_iterations: Option<u64>,
    /// Seconds instead of the scenario's.
    pub max_time_s: Option<f64>,
    /// When it ends, the others end after their iteration.
    pub terminator: bool,
    /// Seconds between its initialisation and its first iteration.
    pub release_time_s: Option<f64>,
    /// The core that it runs on.
    pub cpu_core: Option<u32>,
    /// Its stream's priority, CUDA's numbering.
    pub stream_priority: Option<i32>,
    /// Its MPS active thread percentage.
    pub mps_thread_percentage: Option<f64>,
    /// Its stream's mask.
    pub sm_mask: Option<SmMask>,
    pub partition: Option<Share>,
    /// The placement of the partition, if it is a number.
    pub placement: Placement,
    /// Whether each block's times and SM are recorded.
    pub record_blocks: bool,
    /// Anything, ignored.
    pub comment: Option<Value>,
}

/// Up to three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims(pub [u32; 3]);

impl Dims {
    /// One dimension.
    pub const fn flat(x: u32) -> Self {
        Self([x, 1, 1])
    }

    /// The product.
    pub fn count(self) -> u64 {
        self.0.iter().map(|&n| u64::from(n)).fold(1, u64::saturating_mul)
    }
}

impl Config {
    /// Reads a configuration.
    ///
    /// # Errors
    /// The wrong field, its line, and the valid values.
    pub fn parse(text: &str) -> Result<Self, DialectError> {
        read::config(&node::Node::root(text)?)
    }

    /// Reads one configuration, or an array of them.
    ///
    /// # Errors
    /// As [`Config::parse`].
    pub fn parse_all(text: &str) -> Result<Vec<Self>, DialectError> {
        let root = node::Node::root(text)?;
        if !root.is_array() {
            return Ok(vec![read::config(&root)?]);
        }
        let all = root.array()?;
        if all.is_empty() {
            Err(root.fail("there are no configurations"))
        } else {
            all.iter().map(read::config).collect()
        }
    }

    /// The configuration as JSON, which [`Config::parse`] reads again.
    pub fn to_json(&self) -> Value {
        write::config(self)
    }

    /// Whether processes share an MPS server.
    pub fn runs_under_mps(&self) -> bool {
        let has_percentage = || self.benchmarks.iter().any(|one| one.mps_thread_percentage.is_some());
        self.use_processes && self.mps.unwrap_or_else(has_percentage)
    }
}

impl Benchmark {
    /// Its name in plots: its label, else the plugin's name.
    pub fn title(&self) -> &str {
        self.label.as_deref().unwrap_or_else(|| self.task.plugin().name())
    }

    /// The log's name: as given, else from the plugin and the place in the list.
    pub fn log_file(&self, index: usize) -> String {
        self.log_name.clone().unwrap_or_else(|| format!("{}_{index}.json", self.task.plugin().name()))
    }

    /// Whether the log is discarded, with the blocks.
    pub fn is_discarded(&self) -> bool {
        self.log_name.as_deref() == Some("/dev/null")
    }
}
