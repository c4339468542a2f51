//! The entry points of contexts.

use core::ffi::c_int;
use std::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::{
    Context, check_device, check_flags, context_or_current, current, default_limits, with_stack,
};
use super::gpus::runtime;
use super::object::object;
use super::runtime::Runtime;
use super::{get, list, memory, memory_api, put, put_if};
use crate::shared::protocol::AllocKind;
use crate::shared::sys::lock;

/// The result of `cuCtxGetApiVersion` for contexts of the current interface.
const API_VERSION: u32 = 3020;

/// The SM count that an affinity list requests.
///
/// # Safety
/// The pointer is null or points to `count` entries.
unsafe fn affinity(
    runtime: &Runtime,
    params: *const CUexecAffinityParam,
    count: c_int,
) -> Result<Option<u32>, CuResult> {
    // SAFETY: by the caller's word.
    let params = unsafe { list(params, usize::try_from(count).map_err(|_| CuResult::INVALID_VALUE)?)? };
    let Some(last) = params.last() else { return Ok(None) };
    if params.iter().any(|param| param.kind != CU_EXEC_AFFINITY_TYPE_SM_COUNT) || last.sm_count == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    // Measured on an H200: refused without MPS; under it 2 gives 8, and odd numbers are rounded up.
    if runtime.mps.is_none() || runtime.is_before_volta() {
        return Err(CuResult::UNSUPPORTED_EXEC_AFFINITY);
    }
    Ok(Some(last.sm_count.next_multiple_of(2).max(8)))
}

fn create_and_push(
    runtime: &'static Runtime,
    context: *mut CUcontext,
    flags: u32,
    sms: Option<u32>,
) -> Result<(), CuResult> {
    if context.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let made = Context::create(runtime, check_flags(flags)?, sms, false)?;
    with_stack(|stack| stack.push(made));
    // SAFETY: not null, so valid by the program's word.
    unsafe { put(context, made.handle()) }
}

/// `CU_LIMIT_PRINTF_FIFO_SIZE`.
const LIMIT_PRINTF: u32 = 1;
/// `CU_LIMIT_MALLOC_HEAP_SIZE`.
const LIMIT_HEAP: u32 = 2;

/// Allocates the memory for a context's limit above its initial value, and replaces the previous
/// allocation.
///
/// # Errors
/// `OUT_OF_MEMORY`; then nothing changes.
fn set_buffer(context: &'static Context, limit: u32, value: usize) -> Result<(), CuResult> {
    let mut buffers = lock(&context.buffers);
    let buffer = buffers.get_mut(limit as usize).ok_or(CuResult::UNSUPPORTED_LIMIT)?;
    let beyond = value.saturating_sub(default_limits()[limit as usize]) as u64;
    let made = match beyond {
        0 => 0,
        bytes => memory_api::allocate(context, bytes, AllocKind::Device)?,
    };
    if *buffer != 0 {
        memory::free(context.home().runtime, *buffer)?;
    }
    *buffer = made;
    Ok(())
}

driver_api! {
    /// Makes a context and makes it current.
    fn cuCtxCreate_v2(context, flags, device) {
        create_and_push(check_device(device)?, context, flags, None)
    }

    /// As `cuCtxCreate_v2`.
    fn cuCtxCreate(context, flags, device) {
        cuCtxCreate_v2(context, flags, device).ok()
    }

    /// Creates a context that can use only some SMs.
    fn cuCtxCreate_v3(context, params, count, flags, device) {
        let runtime = check_device(device)?;
        create_and_push(runtime, context, flags, affinity(runtime, params, count)?)
    }

    /// Makes a context, with an optional list of wishes.
    fn cuCtxCreate_v4(context, params, flags, device) {
        let runtime = check_device(device)?;
        let sms = if params.is_null() {
            None
        } else {
            let params = get(params)?;
            if !params.cig_params.is_null() {
                return Err(CuResult::NOT_SUPPORTED);
            }
            affinity(runtime, params.exec_affinity_params, params.num_exec_affinity_params)?
        };
        create_and_push(runtime, context, flags, sms)
    }

    /// Destroys a context.
    fn cuCtxDestroy_v2(context) {
        runtime()?;
        let context: &'static Context = object(context.0)?;
        if context.primary || context.green().is_some() {
            return Err(CuResult::INVALID_CONTEXT);
        }
        with_stack(|stack| {
            if stack.last().is_some_and(|top| std::ptr::eq(*top, context)) {
                stack.pop();
            }
        });
        context.destroy()
    }

    /// As `cuCtxDestroy_v2`.
    fn cuCtxDestroy(context) {
        cuCtxDestroy_v2(context).ok()
    }

    /// Makes a context current, on top of the one that is.
    fn cuCtxPushCurrent_v2(context) {
        runtime()?;
        let context: &'static Context = object(context.0)?;
        with_stack(|stack| stack.push(context));
        Ok(())
    }

    /// Makes the context below the current one current.
    fn cuCtxPopCurrent_v2(context) {
        runtime()?;
        let popped = with_stack(Vec::pop).ok_or(CuResult::INVALID_CONTEXT)?;
        put_if(context, popped.handle());
        Ok(())
    }

    /// Replaces the current context; null removes it.
    fn cuCtxSetCurrent(context) {
        runtime()?;
        let new: Option<&'static Context> = if context.is_null() { None } else { Some(object(context.0)?) };
        with_stack(|stack| {
            stack.pop();
            stack.extend(new);
        });
        Ok(())
    }

    /// The current context, or null.
    fn cuCtxGetCurrent(context) {
        runtime()?;
        let top = with_stack(|stack| stack.last().copied());
        put(context, top.map_or(CUcontext::NULL, |context| context.handle()))
    }

    /// The current context's device.
    fn cuCtxGetDevice(device) {
        put(device, current()?.runtime.ordinal)
    }

    /// Waits for all work of the current context.
    fn cuCtxSynchronize() {
        current()?.synchronize()
    }

    /// Waits for all work of a context.
    fn cuCtxSynchronize_v2(context) {
        context_or_current(context)?.synchronize()
    }

    /// Sets a limit of the current context.
    fn cuCtxSetLimit(limit, value) {
        let context = current()?;
        let mut limits = lock(&context.limits);
        let found = limits.get_mut(limit as usize).ok_or(CuResult::UNSUPPORTED_LIMIT)?;
        if matches!(limit, LIMIT_PRINTF | LIMIT_HEAP) {
            set_buffer(context, limit, value)?;
        }
        *found = value;
        Ok(())
    }

    /// Reads a limit of the current context.
    fn cuCtxGetLimit(value, limit) {
        let context = current()?;
        let found = *lock(&context.limits).get(limit as usize).ok_or(CuResult::UNSUPPORTED_LIMIT)?;
        put(value, found)
    }

    /// The interface that a context was made with.
    fn cuCtxGetApiVersion(context, version) {
        context_or_current(context)?;
        put(version, API_VERSION)
    }

    /// The least and the most urgent stream priority.
    fn cuCtxGetStreamPriorityRange(least, greatest) {
        current()?;
        let scheduler = &runtime()?.spec.scheduler;
        put_if(least, scheduler.priority_least);
        put_if(greatest, scheduler.priority_greatest);
        Ok(())
    }

    /// Drops a reference to the current context; the last one destroys it.
    fn cuCtxDetach(context) {
        let found = context_or_current(context)?;
        if found.attached.fetch_sub(1, Ordering::Relaxed) > 1 {
            return Ok(());
        }
        cuCtxDestroy_v2(found.handle()).ok()
    }

    /// The SM count that the context was made with.
    fn cuCtxGetExecAffinity(param, kind) {
        let context = current()?;
        if kind != CU_EXEC_AFFINITY_TYPE_SM_COUNT {
            return Err(CuResult::UNSUPPORTED_EXEC_AFFINITY);
        }
        let sm_count = context.affinity.unwrap_or(context.sms);
        put(param, CUexecAffinityParam { kind, sm_count })
    }
}
