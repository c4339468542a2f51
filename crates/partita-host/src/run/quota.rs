//! The memory that a request asks for on a GPU.

use partita_ledger::DRIVER_ALLOWANCE_BYTES;

use crate::error::Error;
use crate::limits;
use crate::policy::Kept;
use crate::registry::memory;
use crate::request::RunRequest;

/// What the driver may take for itself in each process, in bytes.
pub(super) fn driver_allowance(request: &RunRequest) -> u64 {
    request.limits.driver_allowance.map_or(DRIVER_ALLOWANCE_BYTES, |allowance| allowance.0)
}

/// The promise of memory that it is to get on a GPU.
///
/// # Errors
/// The GPU cannot have this quota.
pub(super) fn memory_wanted<'a>(
    request: &RunRequest,
    gpu_key: &'a str,
    gpu: &'a str,
    total_bytes: u64,
    kept: &'a [Kept],
) -> Result<memory::Wanted<'a>, Error> {
    let driver_allowance = driver_allowance(request);
    let quota = request.limits.memory;
    let quota = quota.map(|quota| limits::quota_on(quota, gpu, total_bytes, driver_allowance)).transpose()?;
    Ok(memory::Wanted { gpu_key, gpu, total_bytes, quota, driver_allowance, tenant: None, kept })
}
