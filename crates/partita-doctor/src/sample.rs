//! Sample programs for tenants: ordinary users of the driver, in the calling process.

use std::time::{Duration, Instant};

use partita_driver::{Census, Grid};
use partita_host::gpu_job::on_gpu;
use serde::Serialize;

use crate::doctor::jobs;
pub use crate::doctor::jobs::CensusResult;

/// How long each block of [`burn`] spins, in nanoseconds.
const BLOCK_NS: u64 = 200_000;

/// Runs kernels that cover the GPU and returns the SMs of their blocks.
///
/// # Errors
/// Why not, in one line.
pub fn census() -> Result<CensusResult, String> {
    jobs::census(4)
}

/// The result of [`burn`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Burnt {
    /// How many kernels have run.
    pub kernels: u64,
    /// How many SMs their blocks ran on.
    pub sms: usize,
    /// For how long, in milliseconds.
    pub duration_ms: u64,
}

/// Keeps every SM that it gets busy for a time, and holds device memory meanwhile.
///
/// # Errors
/// Why not, in one line; out of memory is the driver's error.
pub fn burn(duration: Duration, memory_bytes: usize) -> Result<Burnt, String> {
    on_gpu(|gpu| {
        let told = |error: partita_driver::Error| error.to_string();
        let held = (memory_bytes > 0).then(|| gpu.alloc(memory_bytes)).transpose().map_err(told)?;
        let grid = Grid { blocks: gpu.facts().sms * 4, threads: 1024, cluster_blocks: 1 };
        let census = Census::new(gpu, grid, BLOCK_NS).map_err(told)?;
        let (begin, mut kernels, mut sms) = (Instant::now(), 0, std::collections::BTreeSet::new());
        while begin.elapsed() < duration {
            sms.extend(census.sms().map_err(told)?);
            kernels += 1;
        }
        drop(held);
        let duration_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(Burnt { kernels, sms: sms.len(), duration_ms })
    })
}
