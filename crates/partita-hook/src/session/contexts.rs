//! Calls that end contexts, and with them their memory.

use core::cell::Cell;
use core::ffi::{c_int, c_void};

use partita_abi::CuResult;
use partita_abi::prototypes;

use crate::account::locate;
use crate::account::tenant::{self, Tenant};
use crate::driver::quiet;
use crate::gate::lanes;
use crate::holder::fences;
use crate::launch::borrow;
use crate::launch::green::sets;
use crate::memory::holdings;
use crate::persistent::pool;
use crate::slots;
use crate::time::meter;

/// Forgets everything that ended with a context. The caller keeps [`quiet`] and has
/// [`contexts`](holdings::contexts).
fn end(tenant: &Tenant, context: usize) {
    locate::forget_contexts();
    lanes::context_ended();
    borrow::context_ended();
    slots::pools::context_ended(context);
    slots::rest::context_ended(tenant);
    meter::context_ended(context);
    fences::context_ended(context);
    pool::context_ended(context);
    holdings::context_ended(tenant, context);
}

/// Makes a call that may end a context, which `ended` names afterwards.
fn leave(call: impl FnOnce() -> CuResult, ended: impl FnOnce(&Tenant) -> Option<usize>) -> CuResult {
    let tenant = tenant::current();
    let _contexts = tenant.map(|_| holdings::contexts());
    // First: once the driver has freed it, another thread may be given its address on another GPU.
    locate::forget_contexts();
    lanes::context_ends();
    meter::report_last();
    let _quiet = quiet::keep();
    let result = call();
    if result.is_ok()
        && let Some(tenant) = tenant
        && let Some(context) = ended(tenant)
    {
        end(tenant, context);
    }
    result
}

/// Wraps `cuCtxDestroy`, which frees all memory of the context.
pub unsafe fn destroy_context(real: prototypes::cuCtxDestroy, context: *mut c_void) -> CuResult {
    // SAFETY: the caller's handle, passed on.
    leave(|| unsafe { real(context) }, |_| Some(context.addr()))
}

/// Wraps `cuCtxDetach`, which destroys the thread's current context if no other call has attached
/// it.
pub unsafe fn detach_context(real: prototypes::cuCtxDetach, context: *mut c_void) -> CuResult {
    let current = |tenant: &Tenant| Some(tenant.driver().current_context()).filter(|context| *context != 0);
    let before = tenant::current().and_then(current);
    // SAFETY: the caller's handle, passed on.
    leave(|| unsafe { real(context) }, |tenant| before.filter(|_| current(tenant) != before))
}

/// Wraps `cuDevicePrimaryCtxRelease` and `cuDevicePrimaryCtxReset`: when the
/// context is gone afterwards, so is its memory.
pub unsafe fn leave_primary_context(real: prototypes::cuDevicePrimaryCtxReset, device: c_int) -> CuResult {
    let context = Cell::new(None);
    let call = || {
        context.set(tenant::current().and_then(|tenant| primary_context(tenant, device)));
        // SAFETY: the caller's device, passed on.
        unsafe { real(device) }
    };
    leave(call, |tenant| {
        let ended = context.get().filter(|_| !tenant.driver().primary_context_is_active(device));
        ended.inspect(|_| sets::forget_all())
    })
}

/// The handle of a device's primary context while it exists.
fn primary_context(tenant: &Tenant, device: c_int) -> Option<usize> {
    let driver = tenant.driver();
    // Asked only of a context that exists: to retain another would create it.
    driver.primary_context_is_active(device).then(|| driver.primary_context(device)).flatten()
}
