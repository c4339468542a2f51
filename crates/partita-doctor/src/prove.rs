//! `partita prove`: random masks, with a record of every block's SM.
//!
//! A child process without MPS writes the masks, on a board that the calibration has identified.
//! [`partita_driver::prove`] describes the method.

use std::io::Write;
use std::mem::forget;
use std::time::{Duration, Instant};

use partita_driver::prove::{MASKS_IN_FLIGHT_MAX, Proof, ProofRequest, Route, Routes};
use partita_driver::{Cuda, Gpu as Device, prove as driver};
use partita_host::calibration::{Cache, Measured, without_mps};
use partita_host::child::Job;
use partita_host::error::Error;
use partita_host::gpu::Gpu;
use partita_host::install::Install;
use serde::{Deserialize, Serialize};

/// The name of the job that proves.
pub const JOB: &str = "prove";

/// The prefix of a line of the job with its progress.
const PROGRESS: &str = "partita-job-progress ";
/// The interval between two reports of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// Blocks and masks without `--blocks` and `--masks`: seconds on a GPU.
const GPU_DEFAULTS: (u64, u32) = (100_000_000, 2_000);
/// The same on the simulated GPU, whose model takes about 0.2 µs a block.
const SIM_DEFAULTS: (u64, u32) = (1_000_000, 400);

/// The extent of a proof.
#[derive(Debug, Clone, Default)]
pub struct ProveRequest {
    /// Blocks to run at least; `None` for so many as run in seconds.
    pub blocks: Option<u64>,
    /// Masks to try at least; `None` for so many as the blocks need.
    pub masks: Option<u32>,
    /// The seed of the masks and of the order of launches.
    pub seed: u64,
    /// Names of routes; empty for all.
    pub routes: Vec<String>,
    /// Masks whose launches are in flight together; `None` for as many as the proof has room for.
    pub masks_in_flight: Option<u32>,
    /// A test of the proof itself: for every so many masks, one TPC more is enabled than the check
    /// expects; 0 for never.
    pub fault_every: u32,
}

/// The result of a proof.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The GPU's short name.
    pub gpu: String,
    /// Its UUID.
    pub gpu_uuid: String,
    /// The driver's build.
    pub driver_version: String,
    /// The seed.
    pub seed: u64,
    /// The counts.
    #[serde(flatten)]
    pub found: Found,
    /// How long it took, in seconds.
    pub duration_s: f64,
}

/// The counts of a proof.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Blocks that ran; each counted itself at its SM.
    pub blocks: u64,
    /// Masks that were tried.
    pub masks: u32,
    /// Launches in all.
    pub launches: u64,
    /// Times that the mask changed while launches of another mask were in flight.
    pub changes_under_load: u32,
    /// Launches and blocks by route.
    pub routes: Vec<RouteRow>,
    /// SMs that ran a block.
    pub sms_used: u32,
    /// SMs of the device.
    pub sms: u32,
    /// Blocks that ran outside their set.
    pub escaped_blocks: u64,
    /// The first of them, with their SMs.
    pub escapes: Vec<EscapeRow>,
    /// With 95 % confidence, the probability that a block escapes is below this, by the rule of
    /// three. `None` if one escaped.
    pub escape_bound_per_block: Option<f64>,
    /// The same for a mask: that a block of its launches escapes. Blocks of one launch share a
    /// mask, so they are not independent; masks are.
    pub escape_bound_per_mask: Option<f64>,
}

impl Found {
    /// Whether no block ran outside its set.
    pub fn holds(&self) -> bool {
        self.escaped_blocks == 0
    }
}

/// The launches by one route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteRow {
    /// The route.
    pub route: String,
    /// Its launches; 0 if this GPU or driver does not have the route.
    pub launches: u64,
    /// Their blocks.
    pub blocks: u64,
}

/// Blocks of one launch on one SM outside its set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EscapeRow {
    /// The mask's number, from 1.
    pub mask: u32,
    /// The TPCs that it enables, logical, as ranges.
    pub tpcs: String,
    /// The SM.
    pub sm: u32,
    /// How many blocks ran there.
    pub blocks: u32,
    /// How the kernel was launched.
    pub route: String,
}

/// The progress of a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Blocks that have run.
    pub blocks: u64,
    /// Blocks to run in all.
    pub blocks_wanted: u64,
    /// Masks that have been tried.
    pub masks: u32,
    /// Blocks that ran outside their set.
    pub escaped_blocks: u64,
}

/// The parameters of the job.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProofJob {
    measured: Measured,
    blocks: u64,
    masks: u32,
    seed: u64,
    routes: Vec<String>,
    masks_in_flight: u32,
    fault_every: u32,
}

/// Proves the masks of `gpu`; `progress` is called a few times a second.
///
/// # Errors
/// [`Error::Unproved`], with the reason, if nothing can be proved; [`Error::Interrupted`]. Blocks
/// outside their set are not an error: see [`Found::holds`].
pub fn prove(
    install: &Install,
    gpu: &Gpu,
    request: &ProveRequest,
    mut progress: impl FnMut(&Progress),
) -> Result<Report, Error> {
    partita_host::signals::end_in_order().map_err(Error::io("signal handlers"))?;
    let measured = Cache::open().get(install, gpu)?;
    let (blocks, masks) = if gpu.sim().is_some() { SIM_DEFAULTS } else { GPU_DEFAULTS };
    let job = ProofJob {
        measured,
        blocks: request.blocks.unwrap_or(blocks),
        masks: request.masks.unwrap_or(masks),
        seed: request.seed,
        routes: request.routes.clone(),
        masks_in_flight: request.masks_in_flight.unwrap_or(MASKS_IN_FLIGHT_MAX),
        fault_every: request.fault_every,
    };
    // Far below the rate of any GPU and of the model.
    let rate = if gpu.sim().is_some() { 100_000 } else { 1_000_000 };
    let limit = Duration::from_secs(300 + job.blocks / rate + u64::from(job.masks) / 50);
    let job = Job::new(install, JOB, &job)?.envs(gpu.variables()).envs(without_mps()).limit(limit);
    let begin = Instant::now();
    let found = job.start()?.finish_hearing(PROGRESS, |line| {
        if let Ok(now) = serde_json::from_str(line) {
            progress(&now);
        }
    });
    let found: Found = found.map_err(|error| {
        error.or(|reason| Error::Unproved { driver: gpu.driver_version.clone(), gpu: gpu.label(), reason })
    })?;
    Ok(Report {
        gpu: gpu.label(),
        gpu_uuid: gpu.facts.uuid.clone(),
        driver_version: gpu.driver_version.clone(),
        seed: request.seed,
        found,
        duration_s: begin.elapsed().as_secs_f64(),
    })
}

/// The job: proves the masks of the first GPU that this process sees.
///
/// # Errors
/// Why nothing was proved.
pub(crate) fn prove_here(job: &ProofJob) -> Result<Found, String> {
    let topology = job.measured.topology()?;
    let cuda = Cuda::load(None).map_err(|error| format!("libcuda.so.1: {error}"))?;
    let gpu = Device::open(&cuda, 0).map_err(|error| error.to_string())?;
    let request = ProofRequest {
        blocks: job.blocks,
        masks: job.masks,
        seed: job.seed,
        routes: match job.routes.as_slice() {
            [] => Routes::ALL,
            named => {
                Route::ALL.into_iter().filter(|route| named.iter().any(|name| name == route.key())).collect()
            }
        },
        masks_in_flight: job.masks_in_flight,
        fault_every: job.fault_every,
    };
    let mut told = Instant::now();
    let proof = driver::prove(&gpu, &topology, job.measured.gpcs_proved, &request, |proof| {
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            report_progress(job, proof);
        }
    });
    // After a launch that hangs, calls to the driver could wait forever.
    forget(gpu);
    proof.map(|proof| found(proof, topology.sm_count())).map_err(|error| error.to_string())
}

fn report_progress(job: &ProofJob, proof: &Proof) {
    let now = Progress {
        blocks: proof.blocks,
        blocks_wanted: job.blocks,
        masks: proof.masks,
        escaped_blocks: proof.escaped_blocks,
    };
    let mut out = std::io::stdout();
    // Progress is optional: a closed pipe is not an error.
    if let Ok(line) = serde_json::to_string(&now) {
        let _ = writeln!(out, "{PROGRESS}{line}").and_then(|()| out.flush());
    }
}

fn found(proof: Proof, sms: u32) -> Found {
    let bound = |trials| (proof.escaped_blocks == 0).then(|| Proof::rule_of_three(trials));
    Found {
        blocks: proof.blocks,
        masks: proof.masks,
        launches: proof.routes.iter().map(|tally| tally.launches).sum(),
        changes_under_load: proof.changes_under_load,
        sms_used: proof.sms_used,
        sms,
        escaped_blocks: proof.escaped_blocks,
        escape_bound_per_block: bound(proof.blocks),
        escape_bound_per_mask: bound(u64::from(proof.masks)),
        routes: (proof.routes.iter())
            .map(|tally| RouteRow {
                route: tally.route.to_string(),
                launches: tally.launches,
                blocks: tally.blocks,
            })
            .collect(),
        escapes: (proof.escapes.iter())
            .map(|escape| EscapeRow {
                mask: escape.mask,
                tpcs: escape.set.to_string(),
                sm: escape.sm,
                blocks: escape.blocks,
                route: escape.route.to_string(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_that_of_no_escape() {
        let proof = Proof { blocks: 3_000_000_000, masks: 10_000, ..Proof::default() };
        let clean = found(proof.clone(), 132);
        assert_eq!((clean.escape_bound_per_block, clean.escape_bound_per_mask), (Some(1e-9), Some(3e-4)));
        assert!(clean.holds());
        let dirty = found(Proof { escaped_blocks: 1, ..proof }, 132);
        assert_eq!((dirty.escape_bound_per_block, dirty.escape_bound_per_mask), (None, None));
        assert!(!dirty.holds());
        assert_eq!(Proof::rule_of_three(0), 1.0);
    }
}
