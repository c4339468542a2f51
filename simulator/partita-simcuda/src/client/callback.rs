//! The debug callback: its table from `cuGetExportTable`, and its calls.
//!
//! The table behaves as the real driver's (measured on an H100, driver 580.159.04): one subscriber,
//! switches that last as long as their subscription, features that a subscriber must declare. Two
//! kinds of callbacks happen here: a launch's descriptor, and the beginning and end of
//! `cuLaunchKernel`, whose parameters the simulator leaves empty.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use partita_abi::callback::{
    CBID_QMD_READY, CODE_INVALID, CODE_INVALID_HANDLE, CODE_NOT_SUBSCRIBED, CODE_TAKEN, CallbackFn,
    DOMAIN_LAUNCH, DOMAINS, EXPORT_TABLE_UUID, FEATURE_GREEN_CONTEXTS, FEATURES, HANDLE, NAME_BYTES_MAX,
    NAME_UNKNOWN, PARAMS_OFFSET_QMD, TABLE_INDEX_BYTES, TABLE_INDEX_COUNT, TABLE_INDEX_DECLARE,
    TABLE_INDEX_ENABLE, TABLE_INDEX_ENABLE_ALL, TABLE_INDEX_ENABLE_DOMAIN, TABLE_INDEX_STATE,
    TABLE_INDEX_SUBSCRIBE, TABLE_INDEX_SUBSCRIBE_NAMED, TABLE_INDEX_UNSUBSCRIBE,
};
use partita_abi::types::CUuuid;

use crate::shared::qmd::Image;
use crate::shared::sys::lock;

/// Size of the real table, in bytes.
const TABLE_BYTES: usize = 0x60;
/// Size of the real parameter block, in bytes.
const PARAMS_BYTES: usize = 0x58;
/// The leftover value of the real driver in the four bytes after the block's size.
const PARAMS_LEFTOVER: u32 = 0x7ffd;

/// The domain of calls of the driver interface.
const DOMAIN_DRIVER_API: c_int = 6;
/// `CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel`.
const CBID_LAUNCH_KERNEL: c_int = 307;
/// The callbacks of each domain of the real driver.
const COUNTS: [usize; DOMAINS as usize] = [
    0, 8, 90, 18, 5, 5, 807, 1024, 13, 4, 3, 4, 8, 11, 3, 14, 6, 5, 9, 28, 6, 22, 4, 2, 13, 4, 4, 10, 7, 5, 2,
];
const WORDS: usize = {
    let (mut all, mut domain) = (0, 0);
    while domain < COUNTS.len() {
        all += COUNTS[domain];
        domain += 1;
    }
    all
};

/// The name of the subscriber; `None` without one.
static NAME: Mutex<Option<[u8; NAME_BYTES_MAX]>> = Mutex::new(None);
/// The subscriber's function, 0 without one, and its argument. The argument is stored first.
static FUNCTION: AtomicUsize = AtomicUsize::new(0);
static USER: AtomicUsize = AtomicUsize::new(0);
/// Whether each callback of each domain is on, one domain after the other.
static SWITCHES: [AtomicBool; WORDS] = [const { AtomicBool::new(false) }; WORDS];
/// A bit for each feature that the subscriber has not declared. It outlives the subscription.
static WITHHELD: AtomicU32 = AtomicU32::new(0);

/// The place of a callback's switch.
const fn place(domain: c_int, cbid: c_int) -> Option<usize> {
    if domain < 0 || domain >= DOMAINS || cbid < 0 || cbid as usize >= COUNTS[domain as usize] {
        return None;
    }
    let (mut at, mut before) = (cbid as usize, 0);
    while before < domain as usize {
        at += COUNTS[before];
        before += 1;
    }
    Some(at)
}

const QMD_SWITCH: usize = match place(DOMAIN_LAUNCH, CBID_QMD_READY) {
    Some(at) => at,
    None => panic!("the launch callback has a switch"),
};
const LAUNCH_SWITCH: usize = match place(DOMAIN_DRIVER_API, CBID_LAUNCH_KERNEL) {
    Some(at) => at,
    None => panic!("cuLaunchKernel has a switch"),
};

/// Whether the switch is fixed: the real driver silently ignores changes of one switch.
fn is_fixed(domain: c_int, cbid: c_int) -> bool {
    domain == 7 && cbid == 0x82
}

unsafe extern "C" fn count(count: *mut usize, table: *mut *const c_void, domain: c_int) -> c_int {
    if count.is_null() || table.is_null() {
        return CODE_INVALID;
    }
    let callbacks = usize::try_from(domain).ok().and_then(|domain| COUNTS.get(domain));
    // SAFETY: not null, so valid by the caller's word.
    unsafe {
        count.write(callbacks.copied().unwrap_or(0));
        table.write(std::ptr::null());
    }
    0
}

unsafe extern "C" fn subscribe(handle: *mut u32, callback: CallbackFn, user: *mut c_void) -> c_int {
    let none = std::ptr::null_mut();
    // SAFETY: the caller's arguments, and no name.
    unsafe { subscribe_named(handle, callback, user, none, none, 0) }
}

unsafe extern "C" fn subscribe_named(
    handle: *mut u32,
    callback: CallbackFn,
    user: *mut c_void,
    name: *const c_char,
    holder: *mut c_char,
    holder_bytes: usize,
) -> c_int {
    if handle.is_null() {
        return CODE_INVALID;
    }
    // SAFETY: null or the caller's string.
    let name = if name.is_null() { NAME_UNKNOWN } else { unsafe { CStr::from_ptr(name) } }.to_bytes();
    if name.len() >= NAME_BYTES_MAX {
        return CODE_INVALID;
    }
    let mut place = lock(&NAME);
    if let Some(taken) = &*place {
        if !holder.is_null() && holder_bytes > 0 {
            // SAFETY: the caller's buffer, of as many bytes.
            let buffer = unsafe { std::slice::from_raw_parts_mut(holder.cast::<u8>(), holder_bytes) };
            buffer.fill(0);
            buffer.iter_mut().zip(taken).for_each(|(to, from)| *to = *from);
            buffer[holder_bytes - 1] = 0;
        }
        return CODE_TAKEN;
    }
    let mut own = [0; NAME_BYTES_MAX];
    own[..name.len()].copy_from_slice(name);
    *place = Some(own);
    WITHHELD.store((1 << FEATURES) - 1, Ordering::Release);
    USER.store(user as usize, Ordering::Relaxed);
    FUNCTION.store(callback as usize, Ordering::Release);
    // SAFETY: not null, so valid by the caller's word.
    unsafe { handle.write(HANDLE) };
    0
}

unsafe extern "C" fn unsubscribe(handle: u32) -> c_int {
    let mut place = lock(&NAME);
    if handle != HANDLE || place.take().is_none() {
        return CODE_NOT_SUBSCRIBED;
    }
    FUNCTION.store(0, Ordering::Release);
    switch_all(false);
    0
}

fn switch_all(on: bool) {
    for domain in 1..DOMAINS {
        switch_domain(on, domain);
    }
}

fn switch_domain(on: bool, domain: c_int) {
    let all = (0..).map_while(|cbid| place(domain, cbid).map(|at| (cbid, at)));
    for (_, at) in all.filter(|(cbid, _)| !is_fixed(domain, *cbid)) {
        SWITCHES[at].store(on, Ordering::Release);
    }
}

unsafe extern "C" fn state(on: *mut u32, handle: u32, domain: c_int, cbid: c_int) -> c_int {
    match place(domain, cbid) {
        Some(at) if handle == HANDLE && !on.is_null() => {
            // SAFETY: not null, so valid by the caller's word.
            unsafe { on.write(u32::from(SWITCHES[at].load(Ordering::Acquire))) };
            0
        }
        _ => CODE_INVALID,
    }
}

unsafe extern "C" fn enable(on: u32, handle: u32, domain: c_int, cbid: c_int) -> c_int {
    match place(domain, cbid) {
        Some(at) if handle == HANDLE => {
            if !is_fixed(domain, cbid) {
                SWITCHES[at].store(on != 0, Ordering::Release);
            }
            0
        }
        _ => CODE_INVALID,
    }
}

unsafe extern "C" fn enable_domain(on: u32, handle: u32, domain: c_int) -> c_int {
    if handle != HANDLE || !(0..DOMAINS).contains(&domain) {
        return CODE_INVALID;
    }
    switch_domain(on != 0, domain);
    0
}

unsafe extern "C" fn enable_all(on: u32, handle: u32) -> c_int {
    if handle != HANDLE {
        return CODE_INVALID;
    }
    switch_all(on != 0);
    0
}

unsafe extern "C" fn declare(supports: u32, handle: u32, feature: u32) -> c_int {
    if handle != HANDLE {
        return CODE_INVALID_HANDLE;
    }
    if feature >= FEATURES {
        return CODE_INVALID;
    }
    match supports {
        0 => WITHHELD.fetch_or(1 << feature, Ordering::AcqRel),
        _ => WITHHELD.fetch_and(!(1 << feature), Ordering::AcqRel),
    };
    0
}

unsafe extern "C" fn not_simulated() -> c_int {
    CODE_INVALID
}

/// The table, as an array of words.
#[repr(transparent)]
struct Table([*const c_void; TABLE_BYTES / 8]);

// SAFETY: the words are a size and functions' addresses, and never change.
unsafe impl Sync for Table {}

static TABLE: Table = {
    let mut words = [not_simulated as *const c_void; TABLE_BYTES / 8];
    words[TABLE_INDEX_BYTES] = std::ptr::without_provenance(TABLE_BYTES);
    words[TABLE_INDEX_COUNT] = count as *const c_void;
    words[TABLE_INDEX_SUBSCRIBE] = subscribe as *const c_void;
    words[TABLE_INDEX_UNSUBSCRIBE] = unsubscribe as *const c_void;
    words[TABLE_INDEX_STATE] = state as *const c_void;
    words[TABLE_INDEX_ENABLE] = enable as *const c_void;
    words[TABLE_INDEX_ENABLE_DOMAIN] = enable_domain as *const c_void;
    words[TABLE_INDEX_ENABLE_ALL] = enable_all as *const c_void;
    words[TABLE_INDEX_DECLARE] = declare as *const c_void;
    words[TABLE_INDEX_SUBSCRIBE_NAMED] = subscribe_named as *const c_void;
    Table(words)
};

/// The table of an identifier.
pub fn export_table(id: &CUuuid) -> Option<*const c_void> {
    (*id == EXPORT_TABLE_UUID).then_some((&raw const TABLE.0).cast())
}

/// Whether green contexts can be made: not after a subscriber that has not declared them.
pub fn allows_green_contexts() -> bool {
    WITHHELD.load(Ordering::Acquire) & (1 << FEATURE_GREEN_CONTEXTS) == 0
}

/// Shows a descriptor to the subscriber, who may change it.
#[inline]
pub fn show(image: &mut Image) {
    if SWITCHES[QMD_SWITCH].load(Ordering::Acquire) {
        let mut params = [0u64; PARAMS_BYTES / 8];
        params[PARAMS_OFFSET_QMD / 8] = image.as_mut_ptr() as u64;
        call(DOMAIN_LAUNCH, CBID_QMD_READY, params);
    }
}

/// Notifies the subscriber that `cuLaunchKernel` begins or ends.
#[inline]
pub fn show_launch_call() {
    if SWITCHES[LAUNCH_SWITCH].load(Ordering::Acquire) {
        call(DOMAIN_DRIVER_API, CBID_LAUNCH_KERNEL, [0; PARAMS_BYTES / 8]);
    }
}

fn call(domain: c_int, cbid: c_int, mut params: [u64; PARAMS_BYTES / 8]) {
    let function = FUNCTION.load(Ordering::Acquire);
    if function == 0 {
        return;
    }
    params[0] = PARAMS_BYTES as u64 | u64::from(PARAMS_LEFTOVER) << 32;
    // SAFETY: the address is that of the function that was subscribed.
    let function: CallbackFn = unsafe { std::mem::transmute::<usize, CallbackFn>(function) };
    let user = USER.load(Ordering::Relaxed) as *mut c_void;
    // SAFETY: the subscriber's function with its own argument; the block lives until it returns.
    unsafe { function(user, domain, cbid, params.as_ptr().cast()) };
}
