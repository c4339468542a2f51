//! The one subscription that the driver gives a process, shared by all who mask or watch its launches.
//!
//! The driver refuses a second subscriber (measured: code 210). In a tenant's process `libpartita.so` holds the place already and offers
//! to call one function more before it applies the tenant's own mask ([`CHAIN_SYMBOL`]); a launch then obeys both.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use partita_abi::callback::CallbackFn;

use crate::callback::{self, SubscribeError, Subscription};
use crate::cuda::Cuda;
use crate::error::Error;

/// What `libpartita.so` exports for this: `int (void (*subscriber)(void *, int, int, const void *), void *argument)`, 0 for success, 1 in a
/// process that is no tenant's, 2 if there is one. The
/// subscriber is called for every launch with the driver's own arguments, before the tenant's mask is united with what it leaves.
pub const CHAIN_SYMBOL: &CStr = c"partita_chain_launches";

/// It was preloaded and has no tenant: the driver's own place is free.
const CHAIN_NOT_A_TENANT: c_int = 1;
/// How many can share it.
const SUBSCRIBERS_MAX: usize = 4;

/// A subscriber; its function is null while there is none.
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

/// Has `subscriber` called with `argument` for every kernel launch of this process, for ever, after those that were added before.
///
/// # Errors
/// [`Error::Subscribe`]: [`SubscribeError::Again`] for a function that is there already.
///
/// # Safety
/// `argument` stays valid for the life of the process, and `subscriber` may be called with it on any thread.
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
        let subscription = first(cuda)?;
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

/// Makes the process's one subscription: by `libpartita.so` if that is here, else by the driver.
fn first(cuda: &Cuda) -> Result<Subscription, Error> {
    // SAFETY: a valid name, looked for in everything that is loaded.
    let chain = unsafe { libc::dlsym(libc::RTLD_DEFAULT, CHAIN_SYMBOL.as_ptr()) };
    if !chain.is_null() {
        type Chain = unsafe extern "C" fn(CallbackFn, *mut c_void) -> c_int;
        // SAFETY: what libpartita.so exports under this name.
        let chain = unsafe { core::mem::transmute::<*mut c_void, Chain>(chain) };
        // SAFETY: the subscriber uses statics only.
        match unsafe { chain(dispatch, core::ptr::null_mut()) } {
            0 => return Ok(Subscription::chained()),
            CHAIN_NOT_A_TENANT => {}
            code => return Err(SubscribeError::Refused(code).into()),
        }
    }
    // SAFETY: the driver's own function; the subscriber uses statics only.
    Ok(unsafe { callback::subscribe(cuda.export_table()?, dispatch, core::ptr::null_mut())? })
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
