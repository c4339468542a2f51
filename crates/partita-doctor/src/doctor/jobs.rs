//! The GPU work of the checks, each in a separate process.

use std::mem::forget;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use partita_driver::{Census, Grid, KERNEL_DEADLINE_MS, now_ns};
use partita_host::gpu_job::on_gpu;
use serde::{Deserialize, Serialize};

/// The names of the jobs.
pub const CENSUS: &str = "census";
pub const QUOTA: &str = "quota";
pub const BEATS: &str = "beats";

/// What blocks of a masked process reported.
#[derive(Debug, Serialize, Deserialize)]
pub struct CensusResult {
    /// Every SM that a block ran on, ascending.
    pub sms: Vec<u32>,
    /// How many blocks ran.
    pub blocks: u64,
}

/// Runs kernels that cover the GPU and returns the SMs of their blocks.
pub fn census(rounds: u32) -> Result<CensusResult, String> {
    on_gpu(|gpu| {
        let grid = Grid { blocks: gpu.facts().sms * 4, threads: 1024, cluster_blocks: 1 };
        let census = Census::new(gpu, grid, 20_000).map_err(|error| error.to_string())?;
        let mut sms = std::collections::BTreeSet::new();
        for _ in 0..rounds {
            match census.sms() {
                Ok(seen) => sms.extend(seen),
                Err(error) => {
                    forget(census);
                    return Err(error.to_string());
                }
            }
        }
        Ok(CensusResult {
            sms: sms.into_iter().collect(),
            blocks: u64::from(grid.blocks) * u64::from(rounds),
        })
    })
}

/// What a process with a quota could allocate.
#[derive(Debug, Serialize, Deserialize)]
pub struct QuotaResult {
    /// Total memory as CUDA reports it, in bytes.
    pub total_bytes: u64,
    /// Free memory before any allocation, in bytes.
    pub free_bytes: u64,
    /// Whether an allocation of the whole quota succeeded.
    pub whole_fits: bool,
    /// Whether an allocation of one byte more then failed as out of memory.
    pub one_more_refused: bool,
    /// Whether the whole quota could be allocated again after it was freed.
    pub comes_back: bool,
}

/// Allocates up to the last byte of a quota, and one byte beyond.
pub fn quota(quota_bytes: u64) -> Result<QuotaResult, String> {
    let bytes = usize::try_from(quota_bytes).map_err(|error| error.to_string())?;
    on_gpu(|gpu| {
        let (free_bytes, total_bytes) = gpu.memory_bytes().map_err(|error| error.to_string())?;
        let whole = gpu.alloc(bytes);
        let one_more_refused = gpu.alloc(1).err().is_some_and(|error| is_out_of_memory(&error));
        let whole_fits = whole.is_ok();
        drop(whole);
        let again = gpu.alloc(bytes);
        Ok(QuotaResult { total_bytes, free_bytes, whole_fits, one_more_refused, comes_back: again.is_ok() })
    })
}

fn is_out_of_memory(error: &partita_driver::Error) -> bool {
    // Beyond the quota, only CUDA_ERROR_OUT_OF_MEMORY is correct.
    matches!(error, partita_driver::Error::Call { code, .. } if *code == partita_abi::CuResult::OUT_OF_MEMORY)
}

/// The times of the beats.
#[derive(Debug, Serialize, Deserialize)]
pub struct BeatsRequest {
    /// Beats begin when this file exists.
    pub go: PathBuf,
    /// For how long, in milliseconds.
    pub duration_ms: u64,
}

/// The start and stop of one block after the other, in nanoseconds of the GPU's clock.
pub type Beats = Vec<(u64, u64)>;

/// Kernels in the queue at once: so many that the pauses in which the host polls and launches are
/// short by comparison.
const BEATS_QUEUED: usize = 64;
/// How long one runs: short compared with a time slice, long compared with a launch.
const BEAT_NS: u64 = 200_000;

/// Runs short kernels of one block back to back.
pub fn beats(request: &BeatsRequest) -> Result<Beats, String> {
    on_gpu(|gpu| {
        let describe = |error: partita_driver::Error| error.to_string();
        let grid = Grid { blocks: 1, threads: 32, cluster_blocks: 1 };
        let kernels: Vec<Census<'_, '_>> = (0..BEATS_QUEUED)
            .map(|_| Census::new(gpu, grid, BEAT_NS))
            .collect::<Result<_, _>>()
            .map_err(describe)?;
        // The first launch loads code.
        for kernel in &kernels {
            kernel.sms().map_err(describe)?;
        }
        ready();
        while !request.go.exists() {
            thread::sleep(Duration::from_micros(200));
        }
        let mut beats = Beats::new();
        let end_ns = now_ns() + request.duration_ms * 1_000_000;
        while now_ns() < end_ns {
            for kernel in &kernels {
                kernel.launch().map_err(describe)?;
            }
            gpu.wait("kernels of one block", KERNEL_DEADLINE_MS).map_err(describe)?;
            for kernel in &kernels {
                let records = kernel.records().map_err(describe)?;
                beats.extend(records.iter().map(|record| (record.start_ns, record.stop_ns)));
            }
        }
        forget(kernels);
        Ok(beats)
    })
}

/// What [`ready`] prints.
pub const READY: &str = "partita-job-ready";

/// Tells the parent that the slow part of the start is done.
pub fn ready() {
    use std::io::Write;
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{READY}").and_then(|()| out.flush());
}
