//! The two actors. Each is a job in a tenant's process and plays one scene for each request.

use std::io::{BufRead, Write};
use std::mem::forget;
use std::thread;
use std::time::Duration;

use partita_driver::{BlockRecord, Census, Cuda, Error, Gpu, Grid, KERNEL_DEADLINE_MS, now_ns};
use serde::{Deserialize, Serialize};

/// The name of the job.
pub const JOB: &str = "actor";
/// The line that an actor prints when it is ready.
pub const READY: &str = "partita-actor-ready";
/// The prefix of the line with a performance.
pub const PERFORMED: &str = "partita-actor-performed ";

/// Two blocks of so many threads fill an SM of every device since Pascal.
const THREADS: u32 = 1024;
const BLOCKS_PER_SM: u32 = 2;

/// The interval between two requests, in nanoseconds.
const PERIOD_NS: u64 = 4_000_000;
/// How long the kernel of a request runs on an idle GPU.
const REQUEST_NS: u64 = 300_000;

/// How long a block of `greedy` runs.
const GREEDY_BLOCK_NS: u64 = 500_000;
/// How many times a kernel of `greedy` fills the whole GPU.
const GREEDY_WAVES: u32 = 12;
/// How many kernels `greedy` keeps in the queue.
const GREEDY_QUEUE: usize = 6;

/// The role of an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Answers requests.
    Serve,
    /// Fills the GPU.
    Greedy,
}

/// The parameters of an actor.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ActorRequest {
    /// Its role.
    pub role: Role,
    /// The number of SMs on which its kernels fit at once.
    pub sms: u32,
}

/// The time of a scene, on the monotonic clock in nanoseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Cue {
    begin_ns: u64,
    end_ns: u64,
    /// The start of the drawn part.
    window_ns: u64,
    window_end_ns: u64,
}

impl Cue {
    /// A scene that begins so many milliseconds from now, and whose middle is drawn.
    pub fn in_ms(cue_ms: u64, scene_ms: u64, window_ms: u64) -> Self {
        let begin_ns = now_ns() + cue_ms * 1_000_000;
        let window_ns = begin_ns + scene_ms * 500_000;
        Self {
            begin_ns,
            end_ns: begin_ns + scene_ms * 1_000_000,
            window_ns,
            window_end_ns: window_ns + window_ms * 1_000_000,
        }
    }

    /// The start of the drawn part, on the monotonic clock in nanoseconds.
    pub fn window_ns(&self) -> u64 {
        self.window_ns
    }

    fn draws(&self, launched_ns: u64, ended_ns: u64) -> bool {
        // Kernels that cross an edge belong to the picture.
        ended_ns >= self.window_ns && launched_ns <= self.window_end_ns
    }
}

/// What an actor did in a scene.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Performance {
    /// From each request to its answer, in nanoseconds.
    pub latencies_ns: Vec<u64>,
    /// Kernels that completed.
    pub kernels: u64,
    /// The blocks of the drawn part: SM, start and stop by the GPU's clock in nanoseconds.
    pub blocks: Vec<(u32, u64, u64)>,
    /// Add this to a time of the GPU's clock to get a time of the monotonic clock, in nanoseconds.
    /// It is an upper bound, and a close one.
    pub clock_offset_ns: i64,
    /// Whether SM numbers are those of MPS instead of the device's.
    pub under_mps: bool,
}

impl Performance {
    fn keep(&mut self, records: &[BlockRecord]) {
        self.blocks.extend(records.iter().map(|record| (record.sm, record.start_ns, record.stop_ns)));
    }
}

/// Plays scenes until its standard input ends.
///
/// # Errors
/// The driver's message.
pub fn act(request: ActorRequest) -> Result<(), String> {
    let cuda = Cuda::load(None).map_err(|error| format!("libcuda.so.1: {error}"))?;
    let gpu = Gpu::open(&cuda, 0).map_err(|error| error.to_string())?;
    let result = perform_all(&gpu, request);
    // The process ends; a driver in trouble could hang in its destructors.
    forget(gpu);
    result
}

fn perform_all(gpu: &Gpu<'_>, request: ActorRequest) -> Result<(), String> {
    let describe = |error: Error| error.to_string();
    let (kernels, blocks, duration_ns) = match request.role {
        Role::Serve => (1, request.sms, REQUEST_NS),
        Role::Greedy => (GREEDY_QUEUE, request.sms * BLOCKS_PER_SM * GREEDY_WAVES, GREEDY_BLOCK_NS),
    };
    let grid = Grid { blocks, threads: THREADS, cluster_blocks: 1 };
    let kernels: Vec<Census<'_, '_>> = (0..kernels)
        .map(|_| Census::new(gpu, grid, duration_ns))
        .collect::<Result<_, _>>()
        .map_err(describe)?;
    // The first launch loads code and allocates memory.
    for kernel in &kernels {
        kernel.sms().map_err(describe)?;
    }
    let clock_offset_ns = clock_offset_ns(gpu).map_err(describe)?;
    let mut out = std::io::stdout();
    let mut say =
        |line: &str| writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| error.to_string());
    say(READY)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let cue: Cue = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        sleep_until(cue.begin_ns);
        let mut performance = match request.role {
            Role::Serve => serve(gpu, &kernels[0], &cue),
            Role::Greedy => hog(gpu, &kernels, &cue),
        }
        .map_err(describe)?;
        performance.clock_offset_ns = clock_offset_ns;
        performance.under_mps = gpu.facts().under_mps;
        let json = serde_json::to_string(&performance).map_err(|error| error.to_string())?;
        say(&format!("{PERFORMED}{json}"))?;
    }
    forget(kernels);
    Ok(())
}

/// The offset between the clocks: the smallest delay with which the host saw a kernel's end.
fn clock_offset_ns(gpu: &Gpu<'_>) -> Result<i64, Error> {
    const LOOKS: u32 = 32;
    let kernel = Census::new(gpu, Grid { blocks: 1, threads: 32, cluster_blocks: 1 }, 1_000)?;
    let mut nearest_ns = i64::MAX;
    for _ in 0..LOOKS {
        kernel.launch()?;
        gpu.wait("a kernel of one block", KERNEL_DEADLINE_MS)?;
        let seen_ns = now_ns();
        for record in kernel.records()? {
            nearest_ns = nearest_ns.min(seen_ns.wrapping_sub(record.stop_ns).cast_signed());
        }
    }
    Ok(nearest_ns)
}

/// Sends a request at every period, or as soon as the previous one is answered.
fn serve(gpu: &Gpu<'_>, kernel: &Census<'_, '_>, cue: &Cue) -> Result<Performance, Error> {
    let mut performance = Performance::default();
    let mut due_ns = cue.begin_ns;
    while due_ns < cue.end_ns {
        sleep_until(due_ns);
        let begin_ns = now_ns();
        kernel.launch()?;
        gpu.wait("a request", KERNEL_DEADLINE_MS)?;
        let end_ns = now_ns();
        performance.latencies_ns.push(end_ns - begin_ns);
        performance.kernels += 1;
        if cue.draws(begin_ns, end_ns) {
            performance.keep(&kernel.records()?);
        }
        due_ns = (due_ns + PERIOD_NS).max(now_ns());
    }
    Ok(performance)
}

/// Keeps a few long kernels in the queue.
fn hog(gpu: &Gpu<'_>, kernels: &[Census<'_, '_>], cue: &Cue) -> Result<Performance, Error> {
    let mut performance = Performance::default();
    while now_ns() < cue.end_ns {
        let begin_ns = now_ns();
        for kernel in kernels {
            kernel.launch()?;
        }
        gpu.wait("kernels that fill the GPU", KERNEL_DEADLINE_MS)?;
        let end_ns = now_ns();
        performance.kernels += kernels.len() as u64;
        if cue.draws(begin_ns, end_ns) {
            for kernel in kernels {
                performance.keep(&kernel.records()?);
            }
        }
    }
    Ok(performance)
}

fn sleep_until(time_ns: u64) {
    let left_ns = time_ns.saturating_sub(now_ns());
    if left_ns > 0 {
        thread::sleep(Duration::from_nanos(left_ns));
    }
}
