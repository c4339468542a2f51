//! The primary context of the device.

use core::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_abi::types::{CUcontext, CUdevice};

use super::context::{Context, check_device, check_flags};
use super::put;
use super::runtime::lock;

#[derive(Debug)]
struct Primary {
    context: Option<&'static Context>,
    references: u32,
    flags: u32,
}

static PRIMARY: Mutex<Primary> = Mutex::new(Primary { context: None, references: 0, flags: 0 });

/// Makes the primary context, or adds a reference to it.
///
/// # Errors
/// Those of making a context.
pub fn retain(device: CUdevice) -> Result<&'static Context, CuResult> {
    check_device(device)?;
    let mut primary = lock(&PRIMARY);
    let held = match primary.context {
        Some(held) => held,
        None => Context::create(primary.flags, None, true)?,
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
    check_device(device)?;
    let mut primary = lock(&PRIMARY);
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
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) {
        check_device(device)?;
        if context.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        put(context, retain(device)?.handle())
    }

    /// Drops a reference to the primary context; the last one destroys it.
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) {
        release(device)
    }

    /// As `cuDevicePrimaryCtxRelease_v2`.
    fn cuDevicePrimaryCtxRelease(device: CUdevice) {
        cuDevicePrimaryCtxRelease_v2(device).ok()
    }

    /// Destroys the primary context whatever its references.
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice) {
        check_device(device)?;
        let mut primary = lock(&PRIMARY);
        primary.references = 0;
        primary.context.take().map_or(Ok(()), Context::destroy)
    }

    /// As `cuDevicePrimaryCtxReset_v2`.
    fn cuDevicePrimaryCtxReset(device: CUdevice) {
        cuDevicePrimaryCtxReset_v2(device).ok()
    }

    /// Sets the flags of the primary context.
    fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: u32) {
        check_device(device)?;
        let mut primary = lock(&PRIMARY);
        primary.flags = check_flags(flags)?;
        if let Some(context) = primary.context {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    }

    /// As `cuDevicePrimaryCtxSetFlags_v2`.
    fn cuDevicePrimaryCtxSetFlags(device: CUdevice, flags: u32) {
        cuDevicePrimaryCtxSetFlags_v2(device, flags).ok()
    }

    /// Flags of the primary context, and whether there is one.
    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut u32, active: *mut c_int) {
        check_device(device)?;
        let primary = lock(&PRIMARY);
        put(flags, primary.flags)?;
        put(active, c_int::from(primary.context.is_some()))
    }
}
