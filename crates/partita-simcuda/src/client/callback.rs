//! The debug callback: the table that `cuGetExportTable` hands out for it, and its call at each launch.

use core::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use partita_abi::callback::{
    CBID_QMD_READY, CallbackFn, DOMAIN_LAUNCH, EXPORT_TABLE_UUID, PARAMS_OFFSET_QMD, TABLE_INDEX_BYTES,
    TABLE_INDEX_ENABLE, TABLE_INDEX_SUBSCRIBE,
};
use partita_abi::types::CUuuid;

use super::runtime::lock;
use crate::shared::qmd::Image;

/// Size of the real table, in bytes.
const TABLE_BYTES: usize = 0x60;
/// Size of the real parameter block, in bytes.
const PARAMS_BYTES: usize = 0x58;
/// What the real driver leaves in the four bytes after the block's size.
const PARAMS_LEFTOVER: u32 = 0x7ffd;
/// The one subscriber's handle.
const HANDLE: u32 = 1;

const REFUSED: c_int = 1;
/// What the real driver answers to a second subscriber (measured).
const TAKEN: c_int = 210;

/// The subscriber: function and argument. There is one place for it in the driver.
static SUBSCRIBER: Mutex<Option<(CallbackFn, usize)>> = Mutex::new(None);
/// The same, to be read at each launch without a lock. The argument is stored before the function and never
/// changes while one is set.
static FUNCTION: AtomicUsize = AtomicUsize::new(0);
static USER: AtomicUsize = AtomicUsize::new(0);
/// Whether launches are to be reported.
static ENABLED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn subscribe(handle: *mut u32, callback: CallbackFn, user: *mut c_void) -> c_int {
    let mut subscriber = lock(&SUBSCRIBER);
    if handle.is_null() {
        return REFUSED;
    }
    if subscriber.is_some() {
        return TAKEN;
    }
    *subscriber = Some((callback, user as usize));
    USER.store(user as usize, Ordering::Relaxed);
    FUNCTION.store(callback as usize, Ordering::Release);
    // SAFETY: not null, so valid by the caller's word.
    unsafe { handle.write(HANDLE) };
    0
}

unsafe extern "C" fn enable(on: u32, handle: u32, domain: c_int, cbid: c_int) -> c_int {
    if handle != HANDLE || lock(&SUBSCRIBER).is_none() {
        return REFUSED;
    }
    // The real driver knows many more; only this one is simulated, and the others never happen here.
    if domain == DOMAIN_LAUNCH && cbid == CBID_QMD_READY {
        ENABLED.store(on != 0, Ordering::Release);
    }
    0
}

unsafe extern "C" fn not_simulated() -> c_int {
    REFUSED
}

/// The table, as an array of words.
#[repr(transparent)]
struct Table([*const c_void; TABLE_BYTES / 8]);

// SAFETY: the words are a size and functions' addresses, and never change.
unsafe impl Sync for Table {}

static TABLE: Table = {
    let mut words = [not_simulated as *const c_void; TABLE_BYTES / 8];
    words[TABLE_INDEX_BYTES] = std::ptr::without_provenance(TABLE_BYTES);
    words[TABLE_INDEX_SUBSCRIBE] = subscribe as *const c_void;
    words[TABLE_INDEX_ENABLE] = enable as *const c_void;
    Table(words)
};

/// The table of an identifier.
pub fn export_table(id: &CUuuid) -> Option<*const c_void> {
    (*id == EXPORT_TABLE_UUID).then_some((&raw const TABLE.0).cast())
}

/// Whether there is a subscriber, enabled or not.
pub fn is_subscribed() -> bool {
    FUNCTION.load(Ordering::Acquire) != 0
}

/// Shows a descriptor to the subscriber, who may change it.
#[inline]
pub fn show(image: &mut Image) {
    if ENABLED.load(Ordering::Acquire) {
        call(image);
    }
}

fn call(image: &mut Image) {
    let function = FUNCTION.load(Ordering::Acquire);
    if function == 0 {
        return;
    }
    let mut params = [0u64; PARAMS_BYTES / 8];
    params[0] = PARAMS_BYTES as u64 | u64::from(PARAMS_LEFTOVER) << 32;
    params[PARAMS_OFFSET_QMD / 8] = image.as_mut_ptr() as u64;
    // SAFETY: the address is that of the function that was subscribed, and is never unset.
    let function: CallbackFn = unsafe { std::mem::transmute::<usize, CallbackFn>(function) };
    let user = USER.load(Ordering::Relaxed) as *mut c_void;
    // SAFETY: the subscriber's function with its own argument; block and descriptor live until it returns.
    unsafe { function(user, DOMAIN_LAUNCH, CBID_QMD_READY, params.as_ptr().cast()) };
}
