//! The launch callback: where masks enter launch descriptors.
//!
//! libcuda calls one subscriber, on the launching thread, for every kernel just before it uploads
//! the descriptor (QMD). The interface is undocumented; `partita_abi::callback` lists its numbers
//! with their sources, and the calibration proves what a descriptor's mask does before anything
//! relies on it.

use core::ffi::{c_int, c_void};
use core::fmt;

use partita_abi::CuResult;
use partita_abi::callback::{
    CBID_QMD_READY, CallbackFn, DOMAIN_LAUNCH, EXPORT_TABLE_UUID, EnableFn, PARAMS_BYTES_MIN,
    PARAMS_OFFSET_BYTES, PARAMS_OFFSET_QMD, SubscribeFn, TABLE_BYTES_MIN, TABLE_INDEX_BYTES,
    TABLE_INDEX_ENABLE, TABLE_INDEX_SUBSCRIBE,
};
use partita_abi::qmd::QmdLayout;

/// The C type of `cuGetExportTable`.
pub type GetExportTable = partita_abi::prototypes::cuGetExportTable;

/// Why there is no launch callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubscribeError {
    /// The driver has no such table.
    NoTable(CuResult),
    /// The table lacks the entry, or the entry is null.
    NoEntry,
    /// Another subscriber (a profiler, a debugger) has the only slot, or the driver refuses.
    Refused(c_int),
    /// The launch event cannot be enabled.
    NotEnabled(c_int),
    /// This process already masks or watches launches in this way.
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
            Self::Again => f.write_str(
                "this process's launches already have such a mask: only one is \
                possible",
            ),
        }
    }
}

impl core::error::Error for SubscribeError {}

/// A subscription to the callback.
#[derive(Debug, Clone, Copy)]
pub struct Subscription {
    handle: u32,
    enable: EnableFn,
}

impl Subscription {
    /// Enables or disables the callback for later launches. A disabled subscription does not slow
    /// launches down.
    ///
    /// # Errors
    /// [`SubscribeError::NotEnabled`].
    pub fn call(&self, on: bool) -> Result<(), SubscribeError> {
        // SAFETY: the driver's own function, with the handle that it gave; both stay valid because
        // libcuda is never unloaded.
        match unsafe { (self.enable)(u32::from(on), self.handle, DOMAIN_LAUNCH, CBID_QMD_READY) } {
            0 => Ok(()),
            code => Err(SubscribeError::NotEnabled(code)),
        }
    }
}

/// The driver's table of callback functions.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    entries: *const *const c_void,
    count: usize,
}

// SAFETY: the table is the driver's constant data.
unsafe impl Send for Table {}

impl Table {
    /// Gets the driver's table.
    ///
    /// # Errors
    /// [`SubscribeError::NoTable`]; [`SubscribeError::NoEntry`] for a table without the entries
    /// that a subscription needs.
    ///
    /// # Safety
    /// `get_export_table` is the driver's.
    pub unsafe fn get(get_export_table: GetExportTable) -> Result<Self, SubscribeError> {
        let mut table: *const c_void = core::ptr::null();
        // SAFETY: both pointers are valid for the call.
        unsafe { get_export_table(&mut table, &EXPORT_TABLE_UUID) }.ok().map_err(SubscribeError::NoTable)?;
        // SAFETY: what the driver returned for this identifier.
        unsafe { Self::from_raw(table) }.ok_or(SubscribeError::NoEntry)
    }

    /// The table at an address; `None` without the entries that a subscription needs.
    ///
    /// # Safety
    /// Null, or what the driver returned for [`EXPORT_TABLE_UUID`].
    pub unsafe fn from_raw(table: *const c_void) -> Option<Self> {
        let entries: *const *const c_void = table.cast();
        if entries.is_null() {
            return None;
        }
        // SAFETY: a table starts with its size in bytes.
        let bytes = unsafe { *entries.add(TABLE_INDEX_BYTES).cast::<usize>() };
        if bytes < TABLE_BYTES_MIN {
            return None;
        }
        let table = Self { entries, count: bytes / size_of::<*const c_void>() };
        let has = |index| !table.address(index).is_null();
        (has(TABLE_INDEX_SUBSCRIBE) && has(TABLE_INDEX_ENABLE)).then_some(table)
    }

    /// The table's words, its size first.
    pub fn words(&self) -> &'static [*const c_void] {
        // SAFETY: a table has its length in its first word, and the driver is never unloaded.
        unsafe { core::slice::from_raw_parts(self.entries, self.count) }
    }

    /// The address of an entry; null if the table lacks it.
    pub fn address(&self, index: usize) -> *const c_void {
        self.words().get(index).copied().unwrap_or(core::ptr::null())
    }

    /// The entry that subscribes.
    pub fn subscribe(&self) -> SubscribeFn {
        // SAFETY: from_raw() found it, and the entry has this type (partita_abi::callback).
        unsafe { core::mem::transmute::<*const c_void, SubscribeFn>(self.address(TABLE_INDEX_SUBSCRIBE)) }
    }

    /// The entry that switches one callback.
    pub fn enable(&self) -> EnableFn {
        // SAFETY: as for subscribe().
        unsafe { core::mem::transmute::<*const c_void, EnableFn>(self.address(TABLE_INDEX_ENABLE)) }
    }
}

/// Subscribes `subscriber` to every kernel launch of this process, until the process ends.
///
/// # Errors
/// See [`SubscribeError`]; nothing is subscribed then.
///
/// # Safety
/// `get_export_table` is the driver's. `argument` stays valid for the life of the process, and
/// `subscriber` may be called with it on any thread.
pub unsafe fn subscribe(
    get_export_table: GetExportTable,
    subscriber: CallbackFn,
    argument: *mut c_void,
) -> Result<Subscription, SubscribeError> {
    // SAFETY: the caller guarantees it.
    let table = unsafe { Table::get(get_export_table)? };
    let mut handle = 0;
    // SAFETY: the caller vouches for subscriber and argument.
    match unsafe { (table.subscribe())(&mut handle, subscriber, argument) } {
        0 => {}
        code => return Err(SubscribeError::Refused(code)),
    }
    let subscription = Subscription { handle, enable: table.enable() };
    subscription.call(true)?;
    Ok(subscription)
}

/// The launch descriptor among a callback's parameters; null if they are too short to hold one.
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

/// The whole launch descriptor among a callback's parameters, if it is of the version that the
/// layout describes.
///
/// # Safety
/// `parameters` is what the driver passed to a subscriber, and the result is not used after the
/// subscriber has returned.
#[inline]
pub unsafe fn descriptor_of<'d>(parameters: *const c_void, layout: &QmdLayout) -> Option<&'d mut [u32]> {
    // SAFETY: the caller guarantees it.
    let descriptor = unsafe { launch_descriptor(parameters) };
    if descriptor.is_null() {
        return None;
    }
    // SAFETY: every version of the descriptor is longer than any version's byte offset.
    let version = unsafe { *descriptor.cast::<u8>().add(usize::from(layout.version_offset_bytes)) };
    if version != layout.version.byte() {
        return None;
    }
    // SAFETY: a descriptor of this version has the layout's size, and the driver lets its
    // subscriber write to it.
    Some(unsafe { core::slice::from_raw_parts_mut(descriptor, layout.words()) })
}
