//! A benchmark's steps in one iteration: the same for the model and for a GPU.

use crate::dialect::{ActionKind, Benchmark, CopyRoute, Dims, SmMask, Spin, Task};

/// A kernel to launch.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelStep {
    /// Its name in logs; empty for the benchmark's label.
    pub name: String,
    /// Its blocks.
    pub grid: Dims,
    /// Threads of a block.
    pub block: Dims,
    /// Shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The mask of this launch only.
    pub sm_mask: Option<SmMask>,
    /// Its computation.
    pub code: Code,
}

/// The computation of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Code {
    /// None, for a time or for a number of loops.
    Spin(Spin),
    /// A picture of so many points, with at most so many rounds for each.
    Mandelbrot {
        /// Points.
        pixels: u64,
        /// Rounds of a point inside the set.
        rounds_max: u64,
    },
    /// A product of square matrices of `f32`.
    MatrixMultiply {
        /// Elements of a row.
        width: u32,
    },
    /// Dependent reads of memory.
    Walk {
        /// Whether they jump.
        is_random: bool,
        /// Reads of each thread.
        accesses: u64,
        /// Length of the memory, in bytes.
        bytes: u64,
    },
}

/// One step of the host.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It sleeps, in nanoseconds.
    Sleep(u64),
    /// It launches a kernel and continues.
    Kernel(KernelStep),
    /// It queues a copy and continues.
    Copy {
        /// Its direction.
        route: CopyRoute,
        /// The number of bytes.
        bytes: u64,
    },
    /// It queues a fill and continues.
    Fill {
        /// The number of bytes.
        bytes: u64,
    },
    /// It reads its own memory.
    CpuWalk {
        /// Whether the reads jump.
        is_random: bool,
        /// Reads.
        accesses: u64,
        /// Length of the memory, in bytes.
        bytes: u64,
    },
    /// It waits for all its queued work.
    Synchronize,
}

/// One iteration. Each part ends when all its queued work has ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Copying in.
    pub copy_in: Vec<Step>,
    /// The work.
    pub execute: Vec<Step>,
    /// Copying out.
    pub copy_out: Vec<Step>,
}

/// A benchmark that does not run here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{filename} is not run here: put the benchmarks of its own configuration into the list")]
pub struct NotRun {
    /// The plugin as written.
    pub filename: String,
}

/// Seconds as nanoseconds.
pub(crate) fn ns_of(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

impl Program {
    /// The program of a benchmark.
    ///
    /// # Errors
    /// A nested configuration, which is not run.
    pub fn of(one: &Benchmark) -> Result<Self, NotRun> {
        let spin = |spin, words: u32| KernelStep {
            name: String::new(),
            grid: Dims::flat(u32::try_from(one.block_count.count()).unwrap_or(u32::MAX)),
            block: Dims::flat(one.thread_count.count() as u32),
            shared_bytes: words * 4,
            sm_mask: None,
            code: Code::Spin(spin),
        };
        let alone = |kernel| Self { execute: vec![Step::Kernel(kernel)], ..Self::default() };
        let bytes = one.data_size_bytes;
        Ok(match &one.task {
            Task::TimerSpin { ns, .. } => alone(spin(Spin::Timer { ns: *ns }, 0)),
            Task::CounterSpin { loops } => alone(spin(Spin::Counter { loops: *loops }, 0)),
            Task::SharedmemTimerSpin { ns, shared_words } => {
                alone(spin(Spin::Timer { ns: *ns }, *shared_words))
            }
            Task::Mandelbrot { max_iterations } => {
                // A byte for each pixel, a thread for each pixel; block_count is ignored.
                let pixels = bytes.max(1);
                let blocks = pixels.div_ceil(one.thread_count.count());
                let mut kernel = spin(Spin::Timer { ns: 0 }, 0);
                kernel.grid = Dims::flat(u32::try_from(blocks).unwrap_or(u32::MAX));
                kernel.code = Code::Mandelbrot { pixels, rounds_max: *max_iterations };
                let mut program = alone(kernel);
                program.copy_out.push(Step::Copy { route: CopyRoute::DeviceToHost, bytes: pixels });
                program
            }
            Task::MatrixMultiply { width, skips_copies } => matrix_multiply(one, *width, *skips_copies),
            Task::RandomWalk { accesses } | Task::InorderWalk { accesses } => {
                let is_random = matches!(one.task, Task::RandomWalk { .. });
                let mut kernel = spin(Spin::Timer { ns: 0 }, 0);
                kernel.code = Code::Walk { is_random, accesses: *accesses, bytes };
                alone(kernel)
            }
            Task::Multikernel { kernels } => {
                let mut program = Self::default();
                for kernel in kernels {
                    if kernel.delay_s > 0.0 {
                        program.execute.push(Step::Sleep(ns_of(kernel.delay_s)));
                    }
                    if kernel.copy_in_bytes > 0 {
                        let route = CopyRoute::HostToDevice;
                        program.execute.push(Step::Copy { route, bytes: kernel.copy_in_bytes });
                    }
                    program.execute.push(Step::Kernel(KernelStep {
                        name: kernel.label.clone(),
                        grid: Dims::flat(kernel.block_count),
                        block: Dims::flat(kernel.thread_count),
                        shared_bytes: kernel.shared_words * 4,
                        sm_mask: kernel.sm_mask,
                        code: Code::Spin(Spin::Timer { ns: kernel.duration_ns }),
                    }));
                    if kernel.copy_out_bytes > 0 {
                        let route = CopyRoute::DeviceToHost;
                        program.execute.push(Step::Copy { route, bytes: kernel.copy_out_bytes });
                    }
                }
                program
            }
            Task::StreamAction { actions, .. } => {
                let mut program = Self::default();
                for action in actions {
                    if action.delay_s > 0.0 {
                        program.execute.push(Step::Sleep(ns_of(action.delay_s)));
                    }
                    act(&action.kind, &action.label, one, &mut program.execute);
                }
                program
            }
            Task::CpuWalk { random, accesses } => Self {
                execute: vec![Step::CpuWalk { is_random: *random, accesses: *accesses, bytes }],
                ..Self::default()
            },
            Task::TaskHost { .. } => return Err(NotRun { filename: one.filename.clone() }),
        })
    }

    pub fn kernels(&self) -> impl Iterator<Item = &KernelStep> {
        let steps = self.copy_in.iter().chain(&self.execute).chain(&self.copy_out);
        steps.filter_map(|step| if let Step::Kernel(kernel) = step { Some(kernel) } else { None })
    }
}

fn matrix_multiply(one: &Benchmark, width: u32, skips_copies: bool) -> Program {
    // One thread for each element; a block of one dimension becomes a square, as the original
    // documents.
    let [x, y, _] = one.thread_count.0;
    let [x, y] = if y == 1 { [32, 32] } else { [x, y] };
    let kernel = KernelStep {
        name: "matrix_multiply".to_owned(),
        grid: Dims([width.div_ceil(x), width.div_ceil(y), 1]),
        block: Dims([x, y, 1]),
        shared_bytes: 0,
        sm_mask: None,
        code: Code::MatrixMultiply { width },
    };
    let bytes = u64::from(width) * u64::from(width) * 4;
    let mut program = Program { execute: vec![Step::Kernel(kernel)], ..Program::default() };
    if !skips_copies {
        let copy_in = Step::Copy { route: CopyRoute::HostToDevice, bytes };
        program.copy_in = vec![copy_in.clone(), copy_in];
        program.copy_out = vec![Step::Copy { route: CopyRoute::DeviceToHost, bytes }];
    }
    program
}

fn act(kind: &ActionKind, label: &str, one: &Benchmark, steps: &mut Vec<Step>) {
    match *kind {
        ActionKind::Kernel { spin, shared_words, block_count, thread_count, sm_mask } => {
            let blocks = u32::try_from(one.block_count.count()).unwrap_or(u32::MAX);
            steps.push(Step::Kernel(KernelStep {
                name: label.to_owned(),
                grid: Dims::flat(block_count.unwrap_or(blocks)),
                block: Dims::flat(thread_count.unwrap_or(one.thread_count.count() as u32)),
                shared_bytes: shared_words * 4,
                sm_mask,
                code: Code::Spin(spin),
            }));
        }
        // Allocating and freeing device memory waits for the device; page-locked host memory
        // likewise.
        ActionKind::Malloc { .. } | ActionKind::Free { .. } => steps.push(Step::Synchronize),
        ActionKind::Memset { is_async, bytes } => {
            steps.push(Step::Fill { bytes });
            steps.extend((!is_async).then_some(Step::Synchronize));
        }
        ActionKind::Memcpy { is_async, bytes, route } => {
            steps.push(Step::Copy { route, bytes });
            steps.extend((!is_async).then_some(Step::Synchronize));
        }
        // The whole device of this thread's context: here it can see only its own stream of it.
        ActionKind::Synchronize { .. } => steps.push(Step::Synchronize),
    }
}
