//! One function more that is called for every launch: that of a program which
//! masks its own launches.
//!
//! The driver takes one subscriber a process, and in a tenant that is the hook.
//! So the hook calls a second one itself, before the tenant's mask is united
//! with what that leaves in the descriptor: a program can narrow its partition
//! this way, and cannot leave it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use partita_abi::callback::CallbackFn;

use crate::is_tenant;

/// Null until there is one.
static SUBSCRIBER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static ARGUMENT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Has `subscriber` called with `argument` for every later launch, for ever
/// (`partita_driver::CHAIN_SYMBOL`).
///
/// Returns 0; 1 in a process that is no tenant's, where the driver's own
/// subscription is free; 2 if there is one already.
///
/// # Safety
/// `argument` stays valid for the life of the process, and `subscriber` may be
/// called with it on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn partita_chain_launches(subscriber: CallbackFn, argument: *mut c_void) -> c_int {
    if !is_tenant() {
        return 1;
    }
    if TAKEN.swap(true, Ordering::AcqRel) {
        return 2;
    }
    ARGUMENT.store(argument, Ordering::Relaxed);
    SUBSCRIBER.store(subscriber as *mut (), Ordering::Release);
    0
}

/// Calls it, if there is one, with the driver's own arguments.
///
/// # Safety
/// The arguments are those with which the driver called the hook.
#[inline]
pub unsafe fn call(domain: c_int, id: c_int, parameters: *const c_void) {
    let subscriber = SUBSCRIBER.load(Ordering::Acquire);
    if subscriber.is_null() {
        return;
    }
    // SAFETY: stored above as a function of this type.
    let subscriber = unsafe { core::mem::transmute::<*mut (), CallbackFn>(subscriber) };
    // SAFETY: its own argument, and the caller's.
    unsafe { subscriber(ARGUMENT.load(Ordering::Relaxed), domain, id, parameters) };
}
