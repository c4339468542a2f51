//! The launch callback: where a mask enters a launch descriptor.
//!
//! libcuda calls one subscriber, on the launching thread, for every kernel just
//! before its descriptor (QMD) is uploaded. The interface is undocumented; its
//! numbers stand in `partita_abi::callback` with their sources, and the
//! calibration proves what a descriptor's mask does before anything relies on it.

use core::ffi::{c_int, c_void};
use core::fmt;

use partita_abi::CuResult;
use partita_abi::callback::{
    CBID_QMD_READY, CallbackFn, DOMAIN_LAUNCH, EXPORT_TABLE_UUID, EnableFn, PARAMS_BYTES_MIN,
    PARAMS_OFFSET_BYTES, PARAMS_OFFSET_QMD, SubscribeFn, TABLE_BYTES_MIN, TABLE_INDEX_BYTES,
    TABLE_INDEX_ENABLE, TABLE_INDEX_SUBSCRIBE,
};
use partita_abi::qmd::QmdLayout;
use partita_abi::types::CUuuid;

/// The C type of `cuGetExportTable`.
pub type GetExportTable = unsafe extern "C" fn(*mut *const c_void, *const CUuuid) -> CuResult;

/// Why the driver gives no launch callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubscribeError {
    /// The driver has no such table.
    NoTable(CuResult),
    /// The table ends before the entry that is needed, or the entry is null.
    NoEntry,
    /// Another subscriber (a profiler, a debugger) holds the one slot, or the
    /// driver refuses.
    Refused(c_int),
    /// The launch event cannot be enabled.
    NotEnabled(c_int),
    /// This process's launches are masked or watched so already.
    Again,
}

impl fmt::Display for SubscribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTable(code) => write!(f, "this driver has no launch-callback table ({code})"),
            Self::NoEntry => f.write_str("this driver's launch-callback table lacks the entries needed"),
            Self::Refused(code) => {
                write!(
                    f,
                    "the driver refused a launch callback ({code}): is a profiler or debugger attached?"
                )
            }
            Self::NotEnabled(code) => write!(f, "the driver did not enable the launch callback ({code})"),
            Self::Again => f.write_str("this process's launches have such a mask already: one at a time"),
        }
    }
}

impl core::error::Error for SubscribeError {}

/// A subscriber's hold on the callback.
#[derive(Debug, Clone, Copy)]
pub struct Subscription {
    handle: u32,
    /// None for a subscriber that is called by another.
    enable: Option<EnableFn>,
}

impl Subscription {
    /// That of a subscriber whom `libpartita.so` calls.
    pub(crate) fn chained() -> Self {
        Self { handle: 0, enable: None }
    }

    /// Has the subscriber called for later launches, or not. Subscribed and not called, a launch costs what it costs without.
    ///
    /// # Errors
    /// [`SubscribeError::NotEnabled`]; for a subscriber in a tenant's process always, since its callback is the tenant's mask.
    pub fn call(&self, on: bool) -> Result<(), SubscribeError> {
        let Some(enable) = self.enable else { return Err(SubscribeError::NotEnabled(-1)) };
        // SAFETY: the driver's own function, with the handle that it gave; it is valid as long as libcuda is loaded, which is for ever.
        match unsafe { enable(u32::from(on), self.handle, DOMAIN_LAUNCH, CBID_QMD_READY) } {
            0 => Ok(()),
            code => Err(SubscribeError::NotEnabled(code)),
        }
    }
}

/// Subscribes `subscriber` to every kernel launch of this process, for ever.
///
/// # Errors
/// See [`SubscribeError`]; nothing is subscribed then.
///
/// # Safety
/// `get_export_table` is the driver's. `argument` stays valid for the life of
/// the process, and `subscriber` may be called with it on any thread.
pub unsafe fn subscribe(
    get_export_table: GetExportTable,
    subscriber: CallbackFn,
    argument: *mut c_void,
) -> Result<Subscription, SubscribeError> {
    let mut table: *const c_void = core::ptr::null();
    // SAFETY: both pointers are valid for the call.
    unsafe { get_export_table(&mut table, &EXPORT_TABLE_UUID) }.ok().map_err(SubscribeError::NoTable)?;
    let table: *const *const c_void = table.cast();
    if table.is_null() {
        return Err(SubscribeError::NoEntry);
    }
    // SAFETY: the driver returned a table, which starts with its size in bytes.
    let table_bytes = unsafe { *table.add(TABLE_INDEX_BYTES).cast::<usize>() };
    if table_bytes < TABLE_BYTES_MIN {
        return Err(SubscribeError::NoEntry);
    }
    // SAFETY: both indices lie inside the table, as just checked.
    let (subscribe, enable) = unsafe { (*table.add(TABLE_INDEX_SUBSCRIBE), *table.add(TABLE_INDEX_ENABLE)) };
    if subscribe.is_null() || enable.is_null() {
        return Err(SubscribeError::NoEntry);
    }
    // SAFETY: the entries at these indices have these types (partita_abi::callback).
    let (subscribe, enable) = unsafe {
        (
            core::mem::transmute::<*const c_void, SubscribeFn>(subscribe),
            core::mem::transmute::<*const c_void, EnableFn>(enable),
        )
    };
    let mut handle = 0;
    // SAFETY: the caller vouches for subscriber and argument.
    match unsafe { subscribe(&mut handle, subscriber, argument) } {
        0 => {}
        code => return Err(SubscribeError::Refused(code)),
    }
    let subscription = Subscription { handle, enable: Some(enable) };
    subscription.call(true)?;
    Ok(subscription)
}

/// The launch descriptor among a callback's parameters, null where they are too
/// short to hold one.
///
/// # Safety
/// `parameters` is what the driver passed to a subscriber.
#[inline]
pub unsafe fn launch_descriptor(parameters: *const c_void) -> *mut u32 {
    if parameters.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: the block holds at least its size, a u32 (the four bytes after it are undefined).
    let bytes = unsafe { *parameters.byte_add(PARAMS_OFFSET_BYTES).cast::<u32>() };
    if bytes < PARAMS_BYTES_MIN {
        return core::ptr::null_mut();
    }
    // SAFETY: the block is long enough for the pointer.
    unsafe { *parameters.byte_add(PARAMS_OFFSET_QMD).cast::<*mut u32>() }
}

/// The whole launch descriptor among a callback's parameters, if it is of the version that the layout describes.
///
/// # Safety
/// `parameters` is what the driver passed to a subscriber, and the result is not used after the subscriber has returned.
#[inline]
pub unsafe fn descriptor_of<'d>(parameters: *const c_void, layout: &QmdLayout) -> Option<&'d mut [u32]> {
    // SAFETY: passed on to the caller.
    let descriptor = unsafe { launch_descriptor(parameters) };
    if descriptor.is_null() {
        return None;
    }
    // SAFETY: every version of the descriptor is longer than the offset of any version's byte.
    let version = unsafe { *descriptor.cast::<u8>().add(usize::from(layout.version_offset_bytes)) };
    if version != layout.version.byte() {
        return None;
    }
    // SAFETY: a descriptor of this version has the layout's size, and the driver lets its subscriber write it.
    Some(unsafe { core::slice::from_raw_parts_mut(descriptor, layout.words()) })
}
