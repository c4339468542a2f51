//! The beginning and end of a job on a GPU.

use std::mem::forget;

use partita_driver::{Cuda, Gpu};

/// Opens the first GPU that this process sees and works on it. Everything that
/// the driver gave stays as it is: the process ends, and a driver in trouble
/// hangs in its destructors.
///
/// # Errors
/// Why there is no GPU to work on, or those of the work.
pub fn on_gpu<T>(work: impl FnOnce(&Gpu<'_>) -> Result<T, String>) -> Result<T, String> {
    let cuda = Cuda::load(None).map_err(|error| format!("libcuda.so.1: {error}"))?;
    let gpu = Gpu::open(&cuda, 0).map_err(|error| error.to_string())?;
    let result = work(&gpu);
    forget(gpu);
    result
}
