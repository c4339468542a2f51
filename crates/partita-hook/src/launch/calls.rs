//! Launches, judged at the call by what the partition can run ([`misfit`]).

use core::ffi::{c_int, c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::{
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CUfunction_attribute,
    CUlaunchAttribute, CUlaunchConfig,
};

use crate::account::{locate, tenant};
use crate::driver::stream;
use crate::gate::pass::{self, What};
use crate::holder::fences;
use crate::launch::misfit::{self, Shape, Verdict, volume};
use crate::launch::{fast_path, functions, widen};
use crate::slots::seen;
use crate::sys::report;

/// Runs `launch` in `stream` as the tenant's partition allows for the shape.
fn judged(stream: *mut c_void, shape: impl FnOnce() -> Shape, launch: impl Fn() -> CuResult) -> CuResult {
    let Some(tenant) = tenant::current() else {
        return if tenant::is_refused() { CuResult::NOT_INITIALIZED } else { launch() };
    };
    let gpu = match locate::gpu_of_stream(tenant, stream) {
        Ok(gpu) => gpu,
        Err(code) => return code,
    };
    if stream.addr() == stream::PER_THREAD {
        // Each thread has one, and the number of threads that launch is unknown.
        fast_path::count_streams();
        fences::lose_sight();
    }
    let result = match misfit::judge(tenant, gpu, stream, &shape()) {
        Verdict::Fits => pass::through(tenant, gpu, stream, What::Kernel, || {
            locate::launch_on(tenant, gpu, stream, &launch)
        }),
        Verdict::Widen => pass::through(tenant, gpu, stream, What::Kernel, || {
            widen::run(gpu, || locate::launch_on(tenant, gpu, stream, &launch))
        }),
        Verdict::Refuse(code) => code,
    };
    if result == CuResult::CDP_NOT_SUPPORTED {
        misfit::say_not_under_mps();
    }
    result
}

/// Wraps `cuLaunchKernel`, for a launch that does not go straight to the driver.
#[expect(clippy::too_many_arguments, reason = "the driver's prototype")]
pub unsafe fn kernel(
    real: prototypes::cuLaunchKernel,
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: *mut c_void,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let launch = move || unsafe {
        real(
            function,
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            shared_bytes,
            stream,
            parameters,
            extra,
        )
    };
    if fast_path::is_plain_in(function, stream) {
        return launch();
    }
    judged(stream, || Shape::plain(function), launch)
}

/// Wraps `cuLaunchCooperativeKernel`.
#[expect(clippy::too_many_arguments, reason = "the driver's prototype")]
pub unsafe fn cooperative_kernel(
    real: prototypes::cuLaunchCooperativeKernel,
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: *mut c_void,
    parameters: *mut *mut c_void,
) -> CuResult {
    let shape = || Shape {
        function,
        grid_blocks: volume([grid_x, grid_y, grid_z]),
        block_threads: volume([block_x, block_y, block_z]),
        shared_bytes,
        cluster_blocks: 0,
        cooperative: true,
    };
    // SAFETY: the caller's arguments, passed on.
    judged(stream, shape, move || unsafe {
        real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters)
    })
}

/// Wraps `cuLaunchKernelEx`.
pub unsafe fn kernel_ex(
    real: prototypes::cuLaunchKernelEx,
    config: *const CUlaunchConfig,
    function: *mut c_void,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    unsafe { kernel_ex_in(real, config, |stream| stream, function, parameters, extra) }
}

/// Wraps `cuLaunchKernelEx_ptsz`.
pub unsafe fn kernel_ex_per_thread(
    real: prototypes::cuLaunchKernelEx_ptsz,
    config: *const CUlaunchConfig,
    function: *mut c_void,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    unsafe { kernel_ex_in(real, config, stream::per_thread, function, parameters, extra) }
}

/// `meant` says which stream the configuration's is.
unsafe fn kernel_ex_in(
    real: prototypes::cuLaunchKernelEx,
    config: *const CUlaunchConfig,
    meant: fn(*mut c_void) -> *mut c_void,
    function: *mut c_void,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let launch = move || unsafe { real(config, function, parameters, extra) };
    // SAFETY: the caller's configuration, null or valid.
    match unsafe { config.as_ref() } {
        // SAFETY: the caller's configuration, with as many attributes as it says.
        Some(config) => judged(meant(config.stream.0), || unsafe { shape_of(config, function) }, launch),
        None => launch(),
    }
}

/// What a configuration asks for.
///
/// # Safety
/// `config.attrs` holds `config.num_attrs` attributes.
pub unsafe fn shape_of(config: &CUlaunchConfig, function: *mut c_void) -> Shape {
    let mut shape = Shape {
        function,
        grid_blocks: volume([config.grid_dim_x, config.grid_dim_y, config.grid_dim_z]),
        block_threads: volume([config.block_dim_x, config.block_dim_y, config.block_dim_z]),
        shared_bytes: config.shared_mem_bytes,
        cluster_blocks: 0,
        cooperative: false,
    };
    let attributes: &[CUlaunchAttribute] = if config.attrs.is_null() {
        &[]
    } else {
        // SAFETY: passed on to the caller.
        unsafe { core::slice::from_raw_parts(config.attrs, config.num_attrs as usize) }
    };
    for attribute in attributes {
        match attribute.id {
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                shape.cluster_blocks = volume(attribute.value.as_dim3());
            }
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                shape.cooperative = attribute.value.as_i32() != 0;
            }
            _ => {}
        }
    }
    shape
}

/// Wraps `cuLaunch`, which knows no clusters but those that the function was compiled for.
pub unsafe fn legacy(real: prototypes::cuLaunch, function: *mut c_void) -> CuResult {
    // SAFETY: the caller's function, passed on.
    judged(core::ptr::null_mut(), || Shape::plain(function), move || unsafe { real(function) })
}

/// Wraps `cuLaunchGrid`.
pub unsafe fn legacy_grid(
    real: prototypes::cuLaunchGrid,
    function: *mut c_void,
    width: c_int,
    height: c_int,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    judged(core::ptr::null_mut(), || Shape::plain(function), move || unsafe { real(function, width, height) })
}

/// Wraps `cuLaunchGridAsync`.
pub unsafe fn legacy_grid_async(
    real: prototypes::cuLaunchGridAsync,
    function: *mut c_void,
    width: c_int,
    height: c_int,
    stream: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    judged(stream, || Shape::plain(function), move || unsafe { real(function, width, height, stream) })
}

/// Wraps `cuStreamCreate`.
pub unsafe fn create_stream(
    real: prototypes::cuStreamCreate,
    stream: *mut *mut c_void,
    flags: c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    made_stream(unsafe { real(stream, flags) }, stream, flags)
}

/// Wraps `cuStreamCreateWithPriority`.
pub unsafe fn create_stream_with_priority(
    real: prototypes::cuStreamCreateWithPriority,
    stream: *mut *mut c_void,
    flags: c_uint,
    priority: c_int,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    made_stream(unsafe { real(stream, flags, priority) }, stream, flags)
}

/// Wraps `cuGreenCtxStreamCreate`.
pub unsafe fn create_green_stream(
    real: prototypes::cuGreenCtxStreamCreate,
    stream: *mut *mut c_void,
    context: *mut c_void,
    flags: c_uint,
    priority: c_int,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    made_stream(unsafe { real(stream, context, flags, priority) }, stream, flags)
}

fn made_stream(result: CuResult, stream: *mut *mut c_void, flags: c_uint) -> CuResult {
    if result.is_err() {
        return result;
    }
    if seen::made() {
        fast_path::count_streams();
    }
    // SAFETY: the driver has stored the stream there.
    fences::stream_made(unsafe { *stream }, flags);
    result
}

/// Wraps `cuFuncSetAttribute`, which can give a function a cluster.
pub unsafe fn set_attribute(
    real: prototypes::cuFuncSetAttribute,
    function: *mut c_void,
    attribute: CUfunction_attribute,
    value: c_int,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(function, attribute, value) };
    functions::attribute_changed(attribute);
    result
}

/// Wraps `cuKernelSetAttribute`.
pub unsafe fn set_kernel_attribute(
    real: prototypes::cuKernelSetAttribute,
    attribute: CUfunction_attribute,
    value: c_int,
    kernel: *mut c_void,
    device: c_int,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(attribute, value, kernel, device) };
    functions::attribute_changed(attribute);
    result
}

/// Wraps `cuModuleUnload` and `cuLibraryUnload`: what is loaded next may give
/// another function the same address.
pub unsafe fn unload(real: prototypes::cuModuleUnload, module: *mut c_void) -> CuResult {
    fast_path::forget();
    // SAFETY: the caller's handle, passed on.
    unsafe { real(module) }
}

/// Wraps `cuLaunchCooperativeKernelMultiDevice`, deprecated since CUDA 11.3: a
/// partition lies on one GPU, so a launch over several never fits one.
pub unsafe fn multi_device(
    real: prototypes::cuLaunchCooperativeKernelMultiDevice,
    launches: *mut c_void,
    devices: c_uint,
    flags: c_uint,
) -> CuResult {
    if tenant::current().is_some() || tenant::is_refused() {
        report::once!(
            "{}: a cooperative launch over several GPUs was refused: a partition is on one GPU; launch on each GPU by itself",
            report::program()
        );
        return CuResult::COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real(launches, devices, flags) }
}
