//! Calibrations for programs that mask themselves through the C library.
//!
//! That library runs in other people's processes, so it proves nothing there: where nothing is kept
//! it asks this program to prove and keep it, and reads what it says.

use serde::{Deserialize, Serialize};

use super::streams::StreamPlace;
use super::{Cache, Measured};
use crate::gpu;
use crate::install::Install;

/// The name of the job.
pub const JOB: &str = "keep-calibration";

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The GPU's UUID; `None` for the simulated one of this environment.
    pub gpu: Option<String>,
    /// Whether the place of stream masks is wanted too.
    pub streams: bool,
}

/// The cached findings.
#[derive(Debug, Serialize, Deserialize)]
pub struct Kept {
    /// The GPU.
    pub gpu_uuid: String,
    /// Its calibration.
    pub measured: Measured,
    /// The place of stream masks, if it was asked for.
    pub place: Option<StreamPlace>,
}

/// The job: proves what is not cached yet, and caches it.
///
/// # Errors
/// Why it is not proved.
pub fn keep_here(request: &Request) -> Result<Kept, String> {
    let describe = |error: crate::Error| error.to_string();
    let install = Install::of_this_program().map_err(describe)?;
    let selector = request.gpu.as_deref().map(str::parse).transpose().map_err(describe)?;
    let gpu = gpu::select(&install, selector.as_ref()).map_err(describe)?.gpu;
    let cache = Cache::open();
    let measured = cache.get(&install, &gpu).map_err(describe)?;
    let place = match request.streams {
        true => Some(cache.stream_place(&install, &gpu, &measured).map_err(describe)?),
        false => None,
    };
    Ok(Kept { gpu_uuid: gpu.facts.uuid.clone(), measured, place })
}
