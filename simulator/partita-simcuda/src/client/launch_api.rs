//! Launches' entry points.

use core::ffi::c_void;
use std::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::stream::{Stream, resolve};
use super::function::Function;
use super::launch::{Launch, ParamBuffer, configured};
use super::object::object;
use super::{callback, capture, gpus, module};
use crate::shared::command::KIND_LAUNCH;
use crate::shared::qmd;

/// Launches, or adds a node to the capture.
///
/// # Safety
/// As for [`ParamBuffer::gather`].
#[inline]
unsafe fn launch(
    function: CUfunction,
    launch: &Launch,
    stream: CUstream,
    per_thread: bool,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<(), CuResult> {
    gpus::runtime()?;
    let function: &'static Function = match module::kernel_as_function(function) {
        Some(function) => function?,
        // SAFETY: handles by the caller's word.
        None => unsafe { object(function.0)? },
    };
    // SAFETY: as above.
    let stream: &'static Stream = unsafe { resolve(stream, per_thread)? };
    let runtime = stream.runtime();
    function.check_device(runtime)?;
    launch.check(runtime, function)?;
    // SAFETY: by the caller's word.
    let params = unsafe { ParamBuffer::gather(function, params, extra)? };
    if capture::captures(stream)? {
        return capture::add_kernel(stream, function, launch, params.bytes());
    }
    let confines = stream.confines()?;
    // On hardware the call hangs before the callback: no launch is counted (H100, 2026-11-22).
    let server_stuck = &runtime.channel.head().server_stuck.0;
    runtime.wait(|| server_stuck.load(Ordering::Relaxed) == 0)?;
    let mut image = launch.describe(runtime, function, &confines, stream.priority.load(Ordering::Relaxed))?;
    callback::show(&mut image);
    let head = launch.head(runtime, params.bytes().len());
    let parts = [head.as_bytes(), qmd::bytes(&image, runtime.qmd), params.bytes()];
    runtime.publish(stream, KIND_LAUNCH, &parts).map(drop)
}

driver_api! {
    /// Launches a kernel.
    fn cuLaunchKernel | cuLaunchKernel_ptsz [per_thread] (
        function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, params,
        extra,
    ) {
        let wanted = Launch {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic_shared: shared_bytes,
            cluster: [1; 3],
            cooperative: false,
            priority: None,
        };
        callback::show_launch_call();
        let result = launch(function, &wanted, stream, per_thread, params, extra);
        callback::show_launch_call();
        result
    }

    /// Launches a kernel with attributes.
    fn cuLaunchKernelEx | cuLaunchKernelEx_ptsz [per_thread] (config, function, params, extra) {
        let (wanted, stream) = configured(config)?;
        launch(function, &wanted, stream, per_thread, params, extra)
    }

    /// Launches a kernel whose blocks must all be resident at once.
    fn cuLaunchCooperativeKernel | cuLaunchCooperativeKernel_ptsz [per_thread] (
        function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, params,
    ) {
        let wanted = Launch {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic_shared: shared_bytes,
            cluster: [1; 3],
            cooperative: true,
            priority: None,
        };
        launch(function, &wanted, stream, per_thread, params, std::ptr::null_mut())
    }
}
