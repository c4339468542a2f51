//! Launches, judged at the call by what the partition can run ([`misfit`]).

use core::ffi::{c_int, c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::{
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CUfunction_attribute,
    CUlaunchAttribute, CUlaunchConfig,
};

use crate::account::locate;
use crate::account::tenant::{self, Tenant};
use crate::driver::stream;
use crate::gate::pass::{self, What};
use crate::holder::fences;
use crate::launch::misfit::{self, Shape, Verdict, volume};
use crate::launch::{borrow, counter, fast_path, functions, widen};
use crate::persistent::function;
use crate::persistent::prepare::{self, Asked, Prepared};
use crate::slots::{rest, seen};
use crate::sys::report;

/// A launch by the calls that set its shape and parameters one by one.
const LEGACY: &str = "a launch by cuLaunch or cuLaunchGrid";

/// Runs `launch`, of so many blocks, in `stream` as the tenant's partition allows for the shape.
fn judged(
    stream: *mut c_void,
    blocks: u64,
    shape: impl FnOnce() -> Shape,
    launch: impl Fn() -> CuResult,
) -> CuResult {
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
        rest::lose_sight();
    }
    let result = match misfit::judge(tenant, gpu, stream, &shape()) {
        Verdict::Fits => pass::through(tenant, gpu, stream, What::Kernel(blocks), || {
            borrow::through(tenant, gpu, stream, || locate::launch_on(tenant, gpu, stream, &launch))
        }),
        Verdict::Widen => pass::through(tenant, gpu, stream, What::Kernel(blocks), || {
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
    if let Some(tenant) = tenant::persistent() {
        let asked = Asked {
            function,
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes,
            parameters,
            extra,
            captured: tenant.is_captured(stream),
        };
        let launch = |made: &Prepared| {
            let (x, y, z) = (block_x, block_y, block_z);
            // SAFETY: the caller's arguments, and those of the rewritten kernel.
            unsafe {
                real(
                    function,
                    made.blocks,
                    1,
                    1,
                    x,
                    y,
                    z,
                    shared_bytes,
                    stream,
                    made.parameters(),
                    made.extra(),
                )
            }
        };
        // SAFETY: the caller's launch.
        return unsafe { persistently(tenant, stream, &asked, launch) };
    }
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
    judged(stream, volume([grid_x, grid_y, grid_z]), || Shape::plain(function), launch)
}

/// Launches a rewritten kernel. The driver has copied its parameters when the call returns.
///
/// # Safety
/// As for the launch that is asked for.
unsafe fn persistently(
    tenant: &Tenant,
    stream: *mut c_void,
    asked: &Asked,
    launch: impl Fn(&Prepared) -> CuResult,
) -> CuResult {
    let gpu = match locate::gpu_of_stream(tenant, stream) {
        Ok(gpu) => gpu,
        Err(code) => return code,
    };
    // SAFETY: the caller guarantees it.
    let made = match locate::in_context_of(tenant, stream, || unsafe { prepare::prepare(tenant, gpu, asked) })
    {
        Ok(Ok(made)) => made,
        Ok(Err(code)) | Err(code) => return code,
    };
    let result = judged(stream, volume(asked.grid), || Shape::plain(asked.function), || launch(&made));
    match result.is_ok() {
        true => gpu.slot.count_launch_in(counter::of_this_thread()),
        false => made.give_back(),
    }
    result
}

/// The code for a launch that persistent blocks cannot run, and a line that names it.
fn not_persistently(what: &str, code: CuResult) -> CuResult {
    report::line(format_args!(
        "{}: {what} was refused: the kernels of this tenant are persistent blocks, which take the \
         grid's blocks one after the other; use --via mask",
        report::program()
    ));
    code
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
    if tenant::persistent().is_some() {
        return not_persistently("a cooperative launch", CuResult::COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    let shape = || Shape {
        function,
        grid_blocks: volume([grid_x, grid_y, grid_z]),
        block_threads: volume([block_x, block_y, block_z]),
        shared_bytes,
        cluster_blocks: 0,
        cooperative: true,
    };
    // SAFETY: the caller's arguments, passed on.
    judged(stream, volume([grid_x, grid_y, grid_z]), shape, move || unsafe {
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
    if let (Some(tenant), Some(config)) = (tenant::persistent(), unsafe { config.as_ref() }) {
        // SAFETY: the caller's configuration, with as many attributes as it says.
        let shape = unsafe { shape_of(config, function) };
        if shape.cooperative {
            return not_persistently("a cooperative launch", CuResult::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        if shape.cluster_blocks > 1 {
            return not_persistently("a launch with clusters", CuResult::INVALID_CLUSTER_SIZE);
        }
        let stream = meant(config.stream.0);
        let asked = Asked {
            function,
            grid: [config.grid_dim_x, config.grid_dim_y, config.grid_dim_z],
            block: [config.block_dim_x, config.block_dim_y, config.block_dim_z],
            shared_bytes: config.shared_mem_bytes,
            parameters,
            extra,
            captured: tenant.is_captured(stream),
        };
        let launch = |made: &Prepared| {
            let config = CUlaunchConfig { grid_dim_x: made.blocks, grid_dim_y: 1, grid_dim_z: 1, ..*config };
            // SAFETY: the caller's arguments, and those of the rewritten kernel.
            unsafe { real(&config, function, made.parameters(), made.extra()) }
        };
        // SAFETY: the caller's launch.
        return unsafe { persistently(tenant, stream, &asked, launch) };
    }
    // SAFETY: the caller's configuration, null or valid.
    match unsafe { config.as_ref() } {
        Some(config) => {
            let blocks = volume([config.grid_dim_x, config.grid_dim_y, config.grid_dim_z]);
            // SAFETY: the caller's configuration, with as many attributes as it says.
            judged(meant(config.stream.0), blocks, || unsafe { shape_of(config, function) }, launch)
        }
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
    if tenant::persistent().is_some() {
        return not_persistently(LEGACY, CuResult::INVALID_VALUE);
    }
    // SAFETY: the caller's function, passed on.
    judged(core::ptr::null_mut(), 1, || Shape::plain(function), move || unsafe { real(function) })
}

/// Wraps `cuLaunchGrid`.
pub unsafe fn legacy_grid(
    real: prototypes::cuLaunchGrid,
    function: *mut c_void,
    width: c_int,
    height: c_int,
) -> CuResult {
    if tenant::persistent().is_some() {
        return not_persistently(LEGACY, CuResult::INVALID_VALUE);
    }
    let (blocks, shape) = (legacy_blocks(width, height), || Shape::plain(function));
    // SAFETY: the caller's arguments, passed on.
    judged(core::ptr::null_mut(), blocks, shape, move || unsafe { real(function, width, height) })
}

/// Wraps `cuLaunchGridAsync`.
pub unsafe fn legacy_grid_async(
    real: prototypes::cuLaunchGridAsync,
    function: *mut c_void,
    width: c_int,
    height: c_int,
    stream: *mut c_void,
) -> CuResult {
    if tenant::persistent().is_some() {
        return not_persistently(LEGACY, CuResult::INVALID_VALUE);
    }
    let (blocks, shape) = (legacy_blocks(width, height), || Shape::plain(function));
    // SAFETY: the caller's arguments, passed on.
    judged(stream, blocks, shape, move || unsafe { real(function, width, height, stream) })
}

fn legacy_blocks(width: c_int, height: c_int) -> u64 {
    volume([width, height, 1].map(|blocks| c_uint::try_from(blocks).unwrap_or(0)))
}

/// Wraps `cuStreamCreate`.
pub unsafe fn create_stream(
    real: prototypes::cuStreamCreate,
    stream: *mut *mut c_void,
    flags: c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    made_stream(unsafe { real(stream, flags) }, stream, flags, false)
}

/// Wraps `cuStreamCreateWithPriority`.
pub unsafe fn create_stream_with_priority(
    real: prototypes::cuStreamCreateWithPriority,
    stream: *mut *mut c_void,
    flags: c_uint,
    priority: c_int,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    made_stream(unsafe { real(stream, flags, priority) }, stream, flags, false)
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
    made_stream(unsafe { real(stream, context, flags, priority) }, stream, flags, true)
}

fn made_stream(result: CuResult, stream: *mut *mut c_void, flags: c_uint, is_green: bool) -> CuResult {
    if result.is_err() {
        return result;
    }
    if seen::made() {
        fast_path::count_streams();
    }
    // SAFETY: the driver has stored the stream there.
    let made = unsafe { *stream };
    fences::stream_made(made, flags, is_green);
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
    function::forget();
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
            "{}: a cooperative launch over several GPUs was refused: a partition is on one GPU; \
             launch on each GPU by itself",
            report::program()
        );
        return CuResult::COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real(launches, devices, flags) }
}
