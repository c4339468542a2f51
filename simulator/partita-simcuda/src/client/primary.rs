//! The primary contexts of the devices.

use core::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::{Context, check_device, check_flags};
use super::put;
use super::runtime::Runtime;
use crate::shared::place::GPUS_MAX;
use crate::shared::sys::lock;

#[derive(Debug)]
struct Primary {
    context: Option<&'static Context>,
    references: u32,
    flags: u32,
}

/// By ordinal.
static PRIMARY: [Mutex<Primary>; GPUS_MAX as usize] =
    [const { Mutex::new(Primary { context: None, references: 0, flags: 0 }) }; GPUS_MAX as usize];

/// The GPU of an ordinal and its primary context.
fn primary_of(device: CUdevice) -> Result<(&'static Runtime, MutexGuard<'static, Primary>), CuResult> {
    let runtime = check_device(device)?;
    let primary = PRIMARY.get(runtime.ordinal as usize).ok_or(CuResult::INVALID_DEVICE)?;
    Ok((runtime, lock(primary)))
}

/// Makes the primary context, or adds a reference to it.
///
/// # Errors
/// Those of making a context.
pub fn retain(device: CUdevice) -> Result<&'static Context, CuResult> {
    let (runtime, mut primary) = primary_of(device)?;
    let held = match primary.context {
        Some(held) => held,
        None => Context::create(runtime, primary.flags, None, true)?,
    };
    primary.context = Some(held);
    primary.references += 1;
    Ok(held)
}

/// Drops a reference to the primary context; the last one destroys it.
///
/// # Errors
/// `INVALID_CONTEXT` for one reference too many.
pub fn release(device: CUdevice) -> Result<(), CuResult> {
    let (_, mut primary) = primary_of(device)?;
    if primary.references == 0 {
        return Err(CuResult::INVALID_CONTEXT);
    }
    primary.references -= 1;
    if primary.references == 0
        && let Some(context) = primary.context.take()
    {
        return context.destroy();
    }
    Ok(())
}

driver_api! {
    /// Makes the primary context, or adds a reference to it.
    fn cuDevicePrimaryCtxRetain(context, device) {
        check_device(device)?;
        if context.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        put(context, retain(device)?.handle())
    }

    /// Drops a reference to the primary context; the last one destroys it.
    fn cuDevicePrimaryCtxRelease_v2(device) {
        release(device)
    }

    /// As `cuDevicePrimaryCtxRelease_v2`.
    fn cuDevicePrimaryCtxRelease(device) {
        cuDevicePrimaryCtxRelease_v2(device).ok()
    }

    /// Destroys the primary context whatever its references.
    fn cuDevicePrimaryCtxReset_v2(device) {
        let (_, mut primary) = primary_of(device)?;
        primary.references = 0;
        primary.context.take().map_or(Ok(()), Context::destroy)
    }

    /// As `cuDevicePrimaryCtxReset_v2`.
    fn cuDevicePrimaryCtxReset(device) {
        cuDevicePrimaryCtxReset_v2(device).ok()
    }

    /// Sets the flags of the primary context.
    fn cuDevicePrimaryCtxSetFlags_v2(device, flags) {
        let (_, mut primary) = primary_of(device)?;
        primary.flags = check_flags(flags)?;
        if let Some(context) = primary.context {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Flags of the primary context, and whether there is one.
    fn cuDevicePrimaryCtxGetState(device, flags, active) {
        let (_, primary) = primary_of(device)?;
        put(flags, primary.flags)?;
        put(active, c_int::from(primary.context.is_some()))
    }
}
