//! Launches that may leave the partition: misfits of a tenant that may run such work on the whole
//! GPU (`--on-misfit widen`).

use partita_abi::CuResult;

use crate::account::gpu::Gpu;
use crate::launch::noted::{self, Call};
use crate::sys::report;

/// Runs a launch on the whole GPU and counts it.
pub fn run(gpu: &Gpu, launch: impl FnOnce() -> CuResult) -> CuResult {
    let call = Call { unmasked: true, carried: None, mask: None };
    // Masked, the launch would wait for ever.
    let result = noted::within(&call, launch).unwrap_or(CuResult::LAUNCH_OUT_OF_RESOURCES);
    count(gpu, result)
}

/// Counts a launch that ran on the whole GPU.
pub fn count(gpu: &Gpu, result: CuResult) -> CuResult {
    if result.is_ok() {
        gpu.slot.count_widened();
        report::once!(
            "a launch that cannot fit this partition runs on the whole GPU (--on-misfit widen); `partita ps` counts them"
        );
    }
    result
}
