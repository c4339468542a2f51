//! The only subscription that the driver gives a process, shared by all code that masks or watches
//! its launches.
//!
//! The driver refuses a second subscriber (measured: code 210). In a tenant's process
//! `libpartita.so` answers for the driver: it calls this subscriber before it applies the tenant's
//! own mask, so that both masks hold for a launch.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use partita_abi::callback::CallbackFn;

use crate::callback::{self, SubscribeError, Subscription};
use crate::cuda::Cuda;
use crate::error::Error;

/// How many can share it.
const SUBSCRIBERS_MAX: usize = 4;

/// A subscriber; its function is null if the slot is free.
struct Slot {
    function: AtomicPtr<()>,
    argument: AtomicPtr<c_void>,
}

static SLOTS: [Slot; SUBSCRIBERS_MAX] = [const {
    Slot { function: AtomicPtr::new(core::ptr::null_mut()), argument: AtomicPtr::new(core::ptr::null_mut()) }
}; SUBSCRIBERS_MAX];
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static ADDING: AtomicBool = AtomicBool::new(false);
static OURS: AtomicPtr<Subscription> = AtomicPtr::new(core::ptr::null_mut());

/// Registers `subscriber`, which is called with `argument` for every kernel launch of this process
/// until it ends, after earlier subscribers.
///
/// # Errors
/// [`Error::Subscribe`]: [`SubscribeError::Again`] for a function that is registered already.
///
/// # Safety
/// `argument` stays valid for the life of the process, and `subscriber` may be called with it on
/// any thread.
pub(crate) unsafe fn add(
    cuda: &Cuda,
    subscriber: CallbackFn,
    argument: *mut c_void,
) -> Result<Subscription, Error> {
    while ADDING.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        core::hint::spin_loop();
    }
    let added = add_alone(cuda, subscriber, argument);
    ADDING.store(false, Ordering::Release);
    added
}

fn add_alone(cuda: &Cuda, subscriber: CallbackFn, argument: *mut c_void) -> Result<Subscription, Error> {
    let function = subscriber as *mut ();
    let taken = TAKEN.load(Ordering::Relaxed);
    if SLOTS[..taken].iter().any(|slot| slot.function.load(Ordering::Relaxed) == function) {
        return Err(SubscribeError::Again.into());
    }
    let Some(slot) = SLOTS.get(taken) else { return Err(SubscribeError::Again.into()) };
    let ours = OURS.load(Ordering::Relaxed);
    let subscription = if ours.is_null() {
        // SAFETY: the driver's own function; the subscriber uses statics only.
        let subscription =
            unsafe { callback::subscribe(cuda.export_table()?, dispatch, core::ptr::null_mut())? };
        OURS.store(alloc::boxed::Box::leak(alloc::boxed::Box::new(subscription)), Ordering::Relaxed);
        subscription
    } else {
        // SAFETY: stored below and never freed.
        unsafe { *ours }
    };
    slot.argument.store(argument, Ordering::Relaxed);
    slot.function.store(function, Ordering::Relaxed);
    TAKEN.store(taken + 1, Ordering::Release);
    Ok(subscription)
}

unsafe extern "C" fn dispatch(_: *mut c_void, domain: c_int, id: c_int, parameters: *const c_void) {
    for slot in &SLOTS[..TAKEN.load(Ordering::Acquire).min(SUBSCRIBERS_MAX)] {
        // SAFETY: stored by add() as a function of this type, before it was counted.
        let function =
            unsafe { core::mem::transmute::<*mut (), CallbackFn>(slot.function.load(Ordering::Relaxed)) };
        // SAFETY: its own argument, and the driver's parameters.
        unsafe { function(slot.argument.load(Ordering::Relaxed), domain, id, parameters) };
    }
}
