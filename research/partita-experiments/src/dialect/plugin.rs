//! The plugins and their parameters in `additional_info`.

mod action;

use serde_json::{Value, json};

use super::mask::SmMask;
use super::node::{DialectError, Node};

pub use action::{Action, ActionKind, CopyRoute};

/// Shared memory of the spinning kernels' plugins, in 32-bit words.
pub const SHARED_WORDS: [u32; 4] = [0, 4096, 8192, 10240];

macro_rules! plugins {
    ($($(#[$doc:meta])* $name:ident = $file:literal, $title:literal;)*) => {
        /// A plugin of the original.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Plugin {
            $($(#[$doc])* $name,)*
        }

        impl Plugin {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its file's name without `.so`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $file,)* }
            }

            /// Its own name in logs.
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }
        }
    };
}

plugins! {
    /// Blocks that take a fixed time.
    TimerSpin = "timer_spin", "Timer Spin";
    /// The same on the default stream.
    TimerSpinDefaultStream = "timer_spin_default_stream", "Timer Spin (default stream)";
    /// Blocks with a fixed amount of work.
    CounterSpin = "counter_spin", "Counter Spin";
    /// Blocks that take a fixed time and hold shared memory.
    SharedmemTimerSpin = "sharedmem_timer_spin", "Timer Spin (shared memory)";
    /// The Mandelbrot set.
    Mandelbrot = "mandelbrot", "Mandelbrot Set";
    /// A product of square matrices.
    MatrixMultiply = "matrix_multiply", "Matrix Multiply";
    /// A pointer chase.
    RandomWalk = "random_walk", "Random Walk";
    /// A sweep.
    InorderWalk = "inorder_walk", "In-order Walk";
    /// Several spinning kernels on one stream.
    Multikernel = "multikernel", "Multikernel submission";
    /// Any sequence of operations on one stream.
    StreamAction = "stream_action", "Stream Action";
    /// A sweep by the CPU.
    CpuInorderWalk = "cpu_inorder_walk", "In-order Walk (CPU)";
    /// A pointer chase by the CPU.
    CpuRandomWalk = "cpu_random_walk", "Random Walk (CPU)";
    /// The original's own, nested: not run here.
    TaskHost = "task_host", "Task Host";
}

impl Plugin {
    /// The plugin of a file name: the last part of the path, with or without `.so`.
    pub fn of_file(filename: &str) -> Option<Self> {
        let file = filename.rsplit('/').next().unwrap_or(filename);
        let name = file.strip_suffix(".so").unwrap_or(file);
        Self::ALL.iter().copied().find(|plugin| plugin.name() == name)
    }
}

/// How long a spinning block spins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// A time.
    Timer {
        /// In nanoseconds.
        ns: u64,
    },
    /// A number of loops.
    Counter {
        /// The number.
        loops: u64,
    },
}

/// One kernel of a `multikernel`.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuedKernel {
    /// Its name.
    pub label: String,
    /// How long each block takes, in nanoseconds.
    pub duration_ns: u64,
    pub block_count: u32,
    /// Threads of a block.
    pub thread_count: u32,
    /// Seconds that the host waits before it launches it.
    pub delay_s: f64,
    /// The mask of this launch alone.
    pub sm_mask: Option<SmMask>,
    /// Shared memory of a block, in 32-bit words.
    pub shared_words: u32,
    /// Bytes copied to the device before it.
    pub copy_in_bytes: u64,
    /// Bytes copied from the device after it.
    pub copy_out_bytes: u64,
}

/// A plugin and its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    TimerSpin {
        ns: u64,
        on_default_stream: bool,
    },
    CounterSpin {
        loops: u64,
    },
    SharedmemTimerSpin {
        ns: u64,
        shared_words: u32,
    },
    Mandelbrot {
        max_iterations: u64,
    },
    MatrixMultiply {
        width: u32,
        skips_copies: bool,
    },
    RandomWalk {
        accesses: u64,
    },
    InorderWalk {
        accesses: u64,
    },
    Multikernel {
        kernels: Vec<QueuedKernel>,
    },
    StreamAction {
        uses_null_stream: bool,
        actions: Vec<Action>,
    },
    CpuWalk {
        random: bool,
        accesses: u64,
    },
    /// The nested configuration, unread.
    TaskHost {
        info: Value,
    },
}

/// The walks' defaults.
const ACCESSES: u64 = 1_000_000;
/// Default loops for one pixel.
const MANDELBROT_ITERATIONS: u64 = 1_000;
/// A square of `f32` of this width has 4 TiB.
const MATRIX_WIDTH_MAX: u64 = 1 << 20;
/// Longest spin, in nanoseconds: an hour.
const SPIN_NS_MAX: u64 = 3_600_000_000_000;
const LOOPS_MAX: u64 = 1 << 48;

impl Task {
    pub fn plugin(&self) -> Plugin {
        match self {
            Self::TimerSpin { on_default_stream: false, .. } => Plugin::TimerSpin,
            Self::TimerSpin { on_default_stream: true, .. } => Plugin::TimerSpinDefaultStream,
            Self::CounterSpin { .. } => Plugin::CounterSpin,
            Self::SharedmemTimerSpin { .. } => Plugin::SharedmemTimerSpin,
            Self::Mandelbrot { .. } => Plugin::Mandelbrot,
            Self::MatrixMultiply { .. } => Plugin::MatrixMultiply,
            Self::RandomWalk { .. } => Plugin::RandomWalk,
            Self::InorderWalk { .. } => Plugin::InorderWalk,
            Self::Multikernel { .. } => Plugin::Multikernel,
            Self::StreamAction { .. } => Plugin::StreamAction,
            Self::CpuWalk { random: false, .. } => Plugin::CpuInorderWalk,
            Self::CpuWalk { random: true, .. } => Plugin::CpuRandomWalk,
            Self::TaskHost { .. } => Plugin::TaskHost,
        }
    }

    /// Reads `additional_info`; `owner` is the benchmark, for errors about missing values.
    pub(super) fn read(
        plugin: Plugin,
        info: Option<&Node<'_>>,
        owner: &Node<'_>,
    ) -> Result<Self, DialectError> {
        let need = |what: &str| {
            info.ok_or_else(|| {
                owner.fail(format!("additional_info is missing: {} takes {what}", plugin.name()))
            })
        };
        let accesses = || info.map_or(Ok(ACCESSES), |info| info.whole(1, LOOPS_MAX));
        Ok(match plugin {
            Plugin::TimerSpin | Plugin::TimerSpinDefaultStream => Self::TimerSpin {
                ns: need("the nanoseconds that a block spins")?.whole(0, SPIN_NS_MAX)?,
                on_default_stream: plugin == Plugin::TimerSpinDefaultStream,
            },
            Plugin::CounterSpin => {
                Self::CounterSpin { loops: need("the loops that a block counts")?.whole(0, LOOPS_MAX)? }
            }
            Plugin::SharedmemTimerSpin => {
                let mut object = need("{duration, shared_memory_size}")?.object()?;
                let ns = object.need("duration", "nanoseconds that a block spins")?.whole(0, SPIN_NS_MAX)?;
                let shared_words = shared_words(&object.need("shared_memory_size", "32-bit words")?)?;
                object.finish()?;
                Self::SharedmemTimerSpin { ns, shared_words }
            }
            Plugin::Mandelbrot => Self::Mandelbrot {
                max_iterations: info.map_or(Ok(MANDELBROT_ITERATIONS), |info| info.whole(1, 1 << 32))?,
            },
            Plugin::MatrixMultiply => {
                let mut object = need("{matrix_width, skip_copy}")?.object()?;
                let width =
                    object.need("matrix_width", "elements of a row")?.whole(1, MATRIX_WIDTH_MAX)? as u32;
                let skips_copies = object.get("skip_copy").map_or(Ok(false), |skip| skip.bool())?;
                object.finish()?;
                Self::MatrixMultiply { width, skips_copies }
            }
            Plugin::RandomWalk => Self::RandomWalk { accesses: accesses()? },
            Plugin::InorderWalk => Self::InorderWalk { accesses: accesses()? },
            Plugin::CpuInorderWalk => Self::CpuWalk { random: false, accesses: accesses()? },
            Plugin::CpuRandomWalk => Self::CpuWalk { random: true, accesses: accesses()? },
            Plugin::Multikernel => {
                let kernels = need("an array of kernels")?.array()?;
                let kernels = kernels.iter().map(queued).collect::<Result<Vec<_>, _>>()?;
                if kernels.is_empty() {
                    return Err(need("")?.fail("there are no kernels: at least one"));
                }
                Self::Multikernel { kernels }
            }
            Plugin::StreamAction => action::read(need("{use_null_stream, actions}")?)?,
            Plugin::TaskHost => Self::TaskHost { info: info.map(Node::value).unwrap_or_default() },
        })
    }

    /// Writes `additional_info` again.
    pub(super) fn write(&self) -> Value {
        match self {
            Self::TimerSpin { ns, .. } => json!(ns),
            Self::CounterSpin { loops } => json!(loops),
            Self::SharedmemTimerSpin { ns, shared_words } => {
                json!({"duration": ns, "shared_memory_size": shared_words})
            }
            Self::Mandelbrot { max_iterations } => json!(max_iterations),
            Self::MatrixMultiply { width, skips_copies } => {
                json!({"matrix_width": width, "skip_copy": skips_copies})
            }
            Self::RandomWalk { accesses }
            | Self::InorderWalk { accesses }
            | Self::CpuWalk { accesses, .. } => {
                json!(accesses)
            }
            Self::Multikernel { kernels } => kernels.iter().map(write_queued).collect(),
            Self::StreamAction { uses_null_stream, actions } => action::write(*uses_null_stream, actions),
            Self::TaskHost { info } => info.clone(),
        }
    }
}

fn shared_words(node: &Node<'_>) -> Result<u32, DialectError> {
    let accepted = "0, 4096, 8192 or 10240 words of 32 bits";
    let words = node.whole(0, u64::from(u32::MAX)).map_err(|_| node.refuse(accepted))? as u32;
    if SHARED_WORDS.contains(&words) { Ok(words) } else { Err(node.refuse(accepted)) }
}

pub(super) fn mask(node: &Node<'_>) -> Result<SmMask, DialectError> {
    let text = node.string().ok();
    text.as_deref().and_then(SmMask::parse).ok_or_else(|| {
        node.refuse("a mask, \"0x1f\" with a bit for each TPC that is off, or \"~0x1f\" for each that is on; at most 64 digits")
    })
}

fn queued(node: &Node<'_>) -> Result<QueuedKernel, DialectError> {
    let mut object = node.object()?;
    let kernel = QueuedKernel {
        label: object.need("kernel_label", "a name")?.string()?,
        duration_ns: object.need("duration", "nanoseconds that a block spins")?.whole(0, SPIN_NS_MAX)?,
        block_count: object.need("block_count", "blocks, 1 and above")?.whole(1, i32::MAX as u64)? as u32,
        thread_count: object
            .need("thread_count", "threads of a block, 1 to 1024")?
            .whole(1, u64::from(super::BLOCK_THREADS_MAX))? as u32,
        delay_s: object.get("delay").map_or(Ok(0.0), |delay| delay.number("seconds"))?,
        sm_mask: object.get("sm_mask").as_ref().map(mask).transpose()?,
        shared_words: object.get("shared_memory_size").as_ref().map_or(Ok(0), shared_words)?,
        copy_in_bytes: object.get("copy_in_count").map_or(Ok(0), |bytes| bytes.whole(0, 1 << 48))?,
        copy_out_bytes: object.get("copy_out_count").map_or(Ok(0), |bytes| bytes.whole(0, 1 << 48))?,
    };
    object.get("comment");
    object.finish()?;
    Ok(kernel)
}

fn write_queued(kernel: &QueuedKernel) -> Value {
    let mut value = json!({
        "kernel_label": kernel.label,
        "duration": kernel.duration_ns,
        "block_count": kernel.block_count,
        "thread_count": kernel.thread_count,
    });
    if kernel.delay_s > 0.0 {
        value["delay"] = json!(kernel.delay_s);
    }
    if let Some(mask) = kernel.sm_mask {
        value["sm_mask"] = json!(mask.to_string());
    }
    for (key, number) in [
        ("shared_memory_size", u64::from(kernel.shared_words)),
        ("copy_in_count", kernel.copy_in_bytes),
        ("copy_out_count", kernel.copy_out_bytes),
    ] {
        if number > 0 {
            value[key] = json!(number);
        }
    }
    value
}
