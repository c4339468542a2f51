//! Executable graphs: how they are instantiated, launched and destroyed.
//!
//! Before a launch or an upload, the hook compares the mask in the executable's kernels with the
//! tenant's. If they differ, the hook arms the executable again, kernel by kernel; the driver then
//! calls back for each kernel, and the current mask enters its descriptor. If the limits then stand
//! for some launches, another executable takes its place ([`Again`]). An unchanged launch costs
//! three more loads, or a lock where another one is in its place. An executable cannot be armed if
//! the program has destroyed a node of its graph. It may run while the tenant owns the TPCs of its
//! last upload, and is refused after that.

use alloc::sync::Arc;
use core::ffi::{c_char, c_int, c_void};

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::CUDA_GRAPH_INSTANTIATE_PARAMS;
use partita_ledger::Limits;

use crate::account::gpu::Gpu;
use crate::account::tenant::{self, Tenant};
use crate::account::{graph_gpus, locate};
use crate::driver::calls::GraphCalls;
use crate::driver::capture;
use crate::driver::stream::key_of;
use crate::gate::inside::{self, Waits};
use crate::gate::lanes;
use crate::gate::pass::{self, What};
use crate::graph::again::Again;
use crate::graph::executables::{self, Armed, Destroy, Executable};
use crate::graph::{edits, nodes, width};
use crate::holder::fences;
use crate::launch::carried::Carried;
use crate::launch::misfit::{self, Verdict};
use crate::launch::noted::{self, Call};
use crate::launch::{fast_path, green, widen};
use crate::memory::graph_memory;
use crate::persistent::graphs;
use crate::sys::report;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const FLAG_UPLOAD: u64 = 2;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`.
const FLAG_DEVICE_LAUNCH: u64 = 4;
/// `CUDA_GRAPH_INSTANTIATE_SUCCESS`.
const INSTANTIATE_SUCCESS: u32 = 0;
/// `CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED`.
const INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED: u32 = 3;

/// Wraps `cuGraphLaunch`.
pub unsafe fn launch(
    real: prototypes::cuGraphLaunch,
    executable: *mut c_void,
    stream: *mut c_void,
) -> CuResult {
    fences::count_other();
    // SAFETY: the caller's arguments, passed on.
    ready_or_prepared(executable, stream, true, move |executable| unsafe { real(executable, stream) })
}

/// Wraps `cuGraphUpload`.
pub unsafe fn upload(
    real: prototypes::cuGraphUpload,
    executable: *mut c_void,
    stream: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    ready_or_prepared(executable, stream, false, move |executable| unsafe { real(executable, stream) })
}

/// Runs `call`, a launch or an upload of an executable or of the one in its place, armed for the
/// tenant's limits.
#[inline]
fn ready_or_prepared(
    executable: *mut c_void,
    stream: *mut c_void,
    is_launch: bool,
    call: impl Fn(*mut c_void) -> CuResult,
) -> CuResult {
    let Some(tenant) = tenant::current() else {
        return if tenant::is_refused() { CuResult::NOT_INITIALIZED } else { call(executable) };
    };
    let epoch_of = |index: usize| tenant.gpus().get(index).map(|gpu| gpu.limits.epoch());
    let ready = executables::ready_on(executable as usize, epoch_of);
    match ready.and_then(|(index, width)| Some((tenant.gpus().get(index)?, width))) {
        Some((gpu, width)) if is_launch => {
            let call = || locate::on(tenant, gpu, || call(executable));
            pass::through(tenant, gpu, stream, What::Graph(width), call)
        }
        Some((gpu, _)) => locate::on(tenant, gpu, || call(executable)),
        None => prepared(tenant, executable, stream, is_launch, call),
    }
}

#[cold]
fn prepared(
    tenant: &'static Tenant,
    executable: *mut c_void,
    stream: *mut c_void,
    is_launch: bool,
    call: impl Fn(*mut c_void) -> CuResult,
) -> CuResult {
    let Prepared { real, gpu, epoch, wide, width, carried } =
        match prepare(tenant, executable, stream, is_launch) {
            Ok(Some(prepared)) => prepared,
            // Not an executable of this process: the driver says so.
            Ok(None) => return call(executable),
            Err(code) => return code,
        };
    let armed = || {
        let call = || call(real);
        let Some(carried) = carried.as_deref() else { return locate::on(tenant, gpu, call) };
        let noted = Call { unmasked: wide, carried: Some(carried), mask: None };
        locate::on(tenant, gpu, || noted::within(&noted, call)).unwrap_or(CuResult::LAUNCH_OUT_OF_RESOURCES)
    };
    let result =
        if is_launch { pass::through(tenant, gpu, stream, What::Graph(width), armed) } else { armed() };
    // Each kernel was uploaded with the mask of its own moment.
    if result.is_err() || gpu.limits.epoch() != epoch {
        executables::forget_ready(executable as usize);
        if let Some(executable) = executables::lock().get(executable as usize) {
            (executable.armed, executable.ready) = (Armed::Unknown, None);
        }
    }
    if wide && is_launch { widen::count(gpu, result) } else { result }
}

/// What a launch or an upload goes on with.
struct Prepared<'t> {
    /// The executable for the driver.
    real: *mut c_void,
    /// The GPU that it runs on.
    gpu: &'t Gpu,
    /// The epoch of the limits that the executable was armed for.
    epoch: u64,
    /// Whether some of its kernels leave the partition.
    wide: bool,
    /// How many of its kernels run at once, at most.
    width: u32,
    /// What its descriptors carry; `None` if none of them is uploaded.
    carried: Option<Arc<Carried>>,
}

/// Judges an executable by the limits of this moment and arms it for them; `None` for one that is
/// unknown.
fn prepare<'t>(
    tenant: &'t Tenant,
    handle: *mut c_void,
    stream: *mut c_void,
    is_launch: bool,
) -> Result<Option<Prepared<'t>>, CuResult> {
    let mut table = executables::lock();
    let (Some(executable), Some(driver)) = (table.get(handle as usize), tenant.graph_calls()) else {
        return Ok(None);
    };
    let gpu = locate::gpu_of_device(tenant, executable.gpu.into())?;
    let (epoch, limits) = gpu.limits.load().map_err(|_| CuResult::LAUNCH_OUT_OF_RESOURCES)?;
    if gpu.mask.is_none() {
        executables::note_ready(handle as usize, gpu.index, executable.width, epoch);
        let width = executable.width;
        return Ok(Some(Prepared {
            real: handle,
            gpu,
            epoch,
            wide: false,
            width,
            carried: Some(Arc::clone(&executable.carried)),
        }));
    }
    if executable.ready == Some(epoch) {
        let (real, width) = (executable.again.real(handle), executable.width);
        return Ok(Some(Prepared { real, gpu, epoch, wide: false, width, carried: None }));
    }
    let real = executable.again.real(handle);
    let wide = judge(tenant, driver, &limits, real, executable)?;
    let wanted = Armed::Masked(limits.qmd_disable);
    if executable.armed != wanted || executable.wide != wide {
        let is_fresh = executable.armed == Armed::Fresh;
        match locate::on(tenant, gpu, || arm(driver, real, stream, executable, wide)) {
            Ok(()) => {
                (executable.armed, executable.wide) = (wanted, wide);
                executable.again.armed(!is_fresh && !wide && executable.waits.is_none());
            }
            Err(_) => run_on(executable, &limits, wide)?,
        }
    }
    let executable = match is_launch && executable.armed == wanted && executable.again.is_counting() {
        true => {
            let graph = executable.graph();
            let destroyed = table.destroyed(graph);
            let Some(executable) = table.get(handle as usize) else { return Ok(None) };
            make_again(tenant, gpu, driver, stream, executable, destroyed);
            executable
        }
        false => executable,
    };
    let is_ready = !wide && executable.armed == wanted && !executable.again.is_counting();
    executable.ready = is_ready.then_some(epoch);
    if is_ready && !executable.again.is_replaced() {
        executables::note_ready(handle as usize, gpu.index, executable.width, epoch);
    }
    let (real, width) = (executable.again.real(handle), executable.width);
    Ok(Some(Prepared { real, gpu, epoch, wide, width, carried: Some(Arc::clone(&executable.carried)) }))
}

/// Makes an executable again whose kernels were armed one by one, if it is time. The launch that
/// follows uploads every kernel with the tenant's mask.
fn make_again(
    tenant: &Tenant,
    gpu: &Gpu,
    driver: &GraphCalls,
    stream: *mut c_void,
    executable: &mut Executable,
    destroyed: Option<u64>,
) {
    let key = key_of(stream.addr(), || tenant.driver().current_context());
    if tenant.is_captured(stream) || !executable.again.is_due(key) {
        return;
    }
    let graph = executable.graph();
    let make = || executable.again.make(tenant, driver, graph, stream, destroyed);
    if locate::on(tenant, gpu, || capture::relaxed(make)) {
        executable.carried = Arc::new(Carried::new());
    }
}

/// Marks the kernels that do not fit the partition; whether there are any.
///
/// # Errors
/// The code for one that may not run outside of it.
fn judge(
    tenant: &Tenant,
    driver: &GraphCalls,
    limits: &Limits,
    handle: *mut c_void,
    executable: &mut Executable,
) -> Result<bool, CuResult> {
    let mut wide = false;
    for kernel in executable.kernels.iter_mut().filter(|kernel| kernel.is_demanding()) {
        let judge = |limits: &Limits| misfit::judge_by(tenant, limits, &kernel.needs, &kernel.shape);
        let verdict = green::limits_in_each(limits)
            .map(|limits| judge(&limits))
            .find(|verdict| *verdict != Verdict::Fits)
            .unwrap_or_else(|| judge(limits));
        // What the program has disabled runs nowhere.
        kernel.misfit = verdict != Verdict::Fits
            && (kernel.owed || driver.is_enabled(handle, kernel.node as *mut c_void).unwrap_or(true));
        match verdict {
            Verdict::Refuse(code) if kernel.misfit => return Err(code),
            _ => wide |= kernel.misfit,
        }
    }
    Ok(wide)
}

/// Has the next launch call back for every kernel, and for nothing but the misfits if there are
/// some: the others are uploaded before, so that only the misfits go without the mask.
fn arm(
    driver: &GraphCalls,
    handle: *mut c_void,
    stream: *mut c_void,
    executable: &mut Executable,
    wide: bool,
) -> Result<(), CuResult> {
    if !executable.complete {
        return Err(CuResult::INVALID_VALUE);
    }
    let fresh = executable.armed == Armed::Fresh;
    for kernel in executable.kernels.iter_mut().filter(|kernel| !fresh || kernel.misfit || kernel.owed) {
        let node = kernel.node as *mut c_void;
        if !kernel.owed {
            if !driver.is_enabled(handle, node)? {
                // It is uploaded when the program enables it.
                continue;
            }
            driver.set_enabled(handle, node, false)?;
            kernel.owed = true;
        }
        if !kernel.misfit {
            driver.set_enabled(handle, node, true)?;
            kernel.owed = false;
        }
    }
    if wide {
        let noted = Call { unmasked: false, carried: Some(&executable.carried), mask: None };
        noted::within(&noted, || driver.upload(handle, stream))
            .unwrap_or(Err(CuResult::LAUNCH_OUT_OF_RESOURCES))?;
        for kernel in executable.kernels.iter_mut().filter(|kernel| kernel.misfit) {
            driver.set_enabled(handle, kernel.node as *mut c_void, true)?;
            kernel.owed = false;
        }
    }
    Ok(())
}

/// Lets an executable that could not be armed run with its old masks, if they lie inside the
/// tenant's set.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` and a message if they do not, or if they are unknown.
fn run_on(executable: &mut Executable, limits: &Limits, wide: bool) -> Result<(), CuResult> {
    let now = &limits.qmd_disable;
    match executable.armed {
        Armed::Masked(then)
            if !wide
                && !executable.wide
                && executable.kernels.iter().all(|kernel| !kernel.owed)
                && now.iter().zip(then).all(|(now, then)| now & !then == 0) =>
        {
            // Some kernels may have been armed: every one has these disabled.
            executable.armed = Armed::Masked(core::array::from_fn(|word| now[word] & then[word]));
            Ok(())
        }
        _ => {
            report::once!(
                "an executable graph cannot be held to the tenant's new limits (the program has destroyed nodes of \
                 its graph) and is refused; instantiate it again"
            );
            Err(CuResult::INVALID_VALUE)
        }
    }
}

/// Makes an executable by `real` and records it. What a tenant of low priority makes has waits
/// inside, if the driver takes them.
///
/// # Safety
/// `executable` is where `real` puts the new handle, null or valid.
unsafe fn made(
    executable: *mut *mut c_void,
    graph: *mut c_void,
    flags: u64,
    real: impl Fn() -> CuResult,
) -> CuResult {
    let Some(tenant) = tenant::current() else {
        return if tenant::is_refused() { CuResult::NOT_INITIALIZED } else { real() };
    };
    if flags & FLAG_DEVICE_LAUNCH != 0 && (tenant.is_masked() || pass::is_any()) {
        // Launched by a kernel, it would keep its mask for ever and never be judged.
        report::once!(
            "{}: a graph for launch from the device was refused: no mask and no gate reaches what the GPU launches by itself; run it \
             without a partition and a priority (--via time --time SHARE), or have the host launch the graph",
            report::program()
        );
        return CuResult::INVALID_VALUE;
    }
    let gpu = match graph_gpu(tenant, graph as usize) {
        Ok(gpu) => gpu,
        Err(code) => return code,
    };
    if let Err(code) = graphs::instantiate(graph as usize) {
        return code;
    }
    let _order = graph_memory::order();
    let before = gpu.limits.disable_words();
    let edits = edits::count();
    let carried = Arc::new(Carried::new());
    let noted = Call { unmasked: false, carried: Some(&carried), mask: None };
    let make = || locate::on(tenant, gpu, || noted::within(&noted, &real)).unwrap_or(CuResult::OUT_OF_MEMORY);
    let inserted = lanes::of(gpu).and_then(|gate| inside::insert(gate, tenant, gpu, graph));
    let mut plan = inserted.as_ref().map(|inserted| inserted.plan);
    let mut result = make();
    // From here on the graph is the program's own again.
    drop(inserted);
    if result.is_err() && plan.take().is_some() {
        let code = result;
        result = make();
        if result.is_ok() {
            inside::refused(code);
        }
    }
    if result.is_err() {
        return result;
    }
    // SAFETY: the driver has just written through it.
    let handle = unsafe { *executable };
    let Some(kernels) = nodes::kernels(tenant, graph as usize) else {
        report::line(format_args!(
            "a graph whose kernels the driver does not tell cannot be held to a partition that may change, and is refused"
        ));
        if let Some(driver) = tenant.graph_calls() {
            driver.destroy_executable(handle);
        }
        return CuResult::INVALID_VALUE;
    };
    let armed = match before {
        _ if flags & FLAG_UPLOAD == 0 => Armed::Fresh,
        Ok((epoch, disable)) if gpu.limits.epoch() == epoch => Armed::Masked(disable),
        _ => Armed::Unknown,
    };
    let mut made = Executable::new(graph as usize, gpu.index, kernels, armed, carried);
    made.waits = plan.map(Waits::from);
    made.again = Again::of(tenant, graph as usize, flags, edits);
    made.width = width::of(tenant, graph as usize).unwrap_or(made.kernels.len() as u32);
    if made.width > 1 {
        fast_path::count_streams();
    }
    let unused = executables::lock().insert(handle as usize, made);
    if let (Some(graph), Some(driver)) = (unused, tenant.graph_calls()) {
        driver.destroy(graph);
        graph_memory::ended(tenant, graph);
    }
    result
}

/// The GPU of a graph's kernels: where they were captured or added, else that of the current
/// context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a graph with kernels of several, and a line that says so.
fn graph_gpu(tenant: &Tenant, graph: usize) -> Result<&Gpu, CuResult> {
    if tenant.places().is_none() {
        return Ok(tenant.first());
    }
    match nodes::gpus(tenant, graph) {
        0 => locate::gpu_now(tenant),
        gpus if gpus.is_power_of_two() => locate::gpu_of_device(tenant, gpus.trailing_zeros() as c_int),
        _ => {
            report::line(format_args!(
                "a graph with kernels for several GPUs cannot be held to their partitions, and is refused; make one for each GPU"
            ));
            Err(CuResult::INVALID_VALUE)
        }
    }
}

/// Wraps `cuGraphInstantiate` of CUDA 10 and 11.
pub unsafe fn instantiate(
    real: prototypes::cuGraphInstantiate,
    executable: *mut *mut c_void,
    graph: *mut c_void,
    bad_node: *mut *mut c_void,
    log: *mut c_char,
    log_bytes: usize,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    unsafe { made(executable, graph, 0, || real(executable, graph, bad_node, log, log_bytes)) }
}

/// Wraps `cuGraphInstantiateWithFlags`.
pub unsafe fn instantiate_with_flags(
    real: prototypes::cuGraphInstantiateWithFlags,
    executable: *mut *mut c_void,
    graph: *mut c_void,
    flags: u64,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    unsafe { made(executable, graph, flags, || real(executable, graph, flags)) }
}

/// Wraps `cuGraphInstantiateWithParams`.
pub unsafe fn instantiate_with_params(
    real: prototypes::cuGraphInstantiateWithParams,
    executable: *mut *mut c_void,
    graph: *mut c_void,
    parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> CuResult {
    // SAFETY: the caller's parameters, null or valid.
    let flags = unsafe { parameters.as_ref() }.map_or(0, |parameters| parameters.flags);
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { made(executable, graph, flags, || real(executable, graph, parameters)) };
    // SAFETY: as above.
    if let Some(parameters) = unsafe { parameters.as_mut() }
        && result.is_err()
        && parameters.result_out == INSTANTIATE_SUCCESS
    {
        parameters.result_out = INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED;
    }
    result
}

/// Wraps `cuGraphExecDestroy`.
pub unsafe fn destroy_executable(real: prototypes::cuGraphExecDestroy, executable: *mut c_void) -> CuResult {
    let Some(tenant) = tenant::current() else {
        // SAFETY: the caller's handle, passed on.
        return unsafe { real(executable) };
    };
    let _order = graph_memory::order();
    // Forgotten first: once the driver has freed it, another thread may be given its address.
    executables::forget_ready(executable as usize);
    let removed = executables::lock().remove(executable as usize);
    // SAFETY: the caller's handle, passed on.
    let result = unsafe { real(executable) };
    if let (Some((executable, graph)), Some(driver)) = (removed, tenant.graph_calls()) {
        if result.is_ok() {
            executable.again.destroy(driver);
        }
        if let Some(graph) = graph {
            driver.destroy(graph);
            graph_memory::ended(tenant, graph);
        }
    }
    result
}

/// Wraps `cuGraphDestroy`: a graph with executables ends with the last of them, because they are
/// armed through its nodes.
pub unsafe fn destroy_graph(real: prototypes::cuGraphDestroy, graph: *mut c_void) -> CuResult {
    let _order = graph_memory::order();
    let end = tenant::current().map(|_| executables::lock().destroy(graph as usize));
    graph_gpus::forget(graph as usize);
    graphs::destroyed(graph as usize);
    match end {
        Some(Destroy::Later) => CuResult::SUCCESS,
        Some(Destroy::Twice) => CuResult::INVALID_VALUE,
        Some(Destroy::Now) | None => {
            // SAFETY: the caller's handle, passed on.
            let result = unsafe { real(graph) };
            if let Some(tenant) = tenant::current().filter(|_| result.is_ok()) {
                graph_memory::ended(tenant, graph as usize);
            }
            result
        }
    }
}
