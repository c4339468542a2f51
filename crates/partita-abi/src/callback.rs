//! The driver's debug callback, which runs for every launch just before the launch descriptor goes
//! to the GPU.
//!
//! It is reached through an undocumented export table of the driver for its own tools. libsmctrl
//! found it; the numbers marked *measured* were confirmed on an H200 with driver 580.159.04 (CUDA
//! 13.0). NVIDIA promises nothing here: callers of the table must check what they can
//! ([`TABLE_BYTES_MIN`], return codes, [`PARAMS_BYTES_MIN`]) and otherwise leave it alone.

use crate::types::CUuuid;
use core::ffi::{c_char, c_int, c_void};

/// The export table's identifier, for `cuGetExportTable` (measured).
pub const EXPORT_TABLE_UUID: CUuuid = CUuuid {
    bytes: [0x2c, 0x8e, 0x0a, 0xd8, 0x07, 0x10, 0xab, 0x4e, 0x90, 0xdd, 0x54, 0x71, 0x9f, 0xe5, 0xf7, 0x4b],
};

/// Index of the table's own size in bytes, counting the table as an array of
/// pointers; 0x60 was measured.
pub const TABLE_INDEX_BYTES: usize = 0;
/// Index of the [`CountFn`] that reports how many callbacks a domain has.
pub const TABLE_INDEX_COUNT: usize = 2;
/// Index of the [`SubscribeFn`].
pub const TABLE_INDEX_SUBSCRIBE: usize = 3;
/// Index of the [`UnsubscribeFn`] (CUPTI calls it when it detaches).
pub const TABLE_INDEX_UNSUBSCRIBE: usize = 4;
/// Index of the [`StateFn`].
pub const TABLE_INDEX_STATE: usize = 5;
/// Index of the [`EnableFn`].
pub const TABLE_INDEX_ENABLE: usize = 6;
/// Index of the [`EnableDomainFn`].
pub const TABLE_INDEX_ENABLE_DOMAIN: usize = 7;
/// Index of the [`EnableAllFn`].
pub const TABLE_INDEX_ENABLE_ALL: usize = 8;
/// Index of the [`DeclareFn`].
pub const TABLE_INDEX_DECLARE: usize = 9;
/// Index of the [`SubscribeNamedFn`].
pub const TABLE_INDEX_SUBSCRIBE_NAMED: usize = 11;
/// The smallest size of a table with both functions, in bytes.
pub const TABLE_BYTES_MIN: usize = (TABLE_INDEX_ENABLE + 1) * size_of::<*const c_void>();

/// The domain of launch callbacks (measured).
pub const DOMAIN_LAUNCH: c_int = 0xb;
/// The callback just before a launch descriptor is uploaded (measured). It runs on the launching
/// thread, once a launch, after the driver has merged the stream's mask into the descriptor.
pub const CBID_QMD_READY: c_int = 0x1;

/// The one handle that the driver gives subscribers (measured).
pub const HANDLE: u32 = 1;
/// The driver's answer to a second subscriber (measured): CUPTI reports it as
/// `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`.
pub const CODE_TAKEN: c_int = 210;
/// The driver's answer to a null pointer, or to a domain or callback that it does not have.
pub const CODE_INVALID: c_int = 1;
/// The driver's answer to [`DeclareFn`] with a wrong handle.
pub const CODE_INVALID_HANDLE: c_int = 400;
/// The driver's answer to [`UnsubscribeFn`] without a subscriber or with a wrong handle.
pub const CODE_NOT_SUBSCRIBED: c_int = 999;

/// The feature of green contexts: the driver refuses to make one (`CUDA_ERROR_NOT_SUPPORTED`) after
/// a subscription until the subscriber declares that it supports them (measured).
pub const FEATURE_GREEN_CONTEXTS: u32 = 7;
/// Features that a subscriber can declare (measured).
pub const FEATURES: u32 = 11;
/// Domains are numbered below this (measured).
pub const DOMAINS: c_int = 31;
/// Bytes of a subscriber's name, its NUL included (measured).
pub const NAME_BYTES_MAX: usize = 64;
/// The name that the driver reports for a subscriber without one (measured).
pub const NAME_UNKNOWN: &core::ffi::CStr = c"<not provided>";

/// A callback: `user` as given to subscribe, then domain, id and parameters.
pub type CallbackFn =
    unsafe extern "C" fn(user: *mut c_void, domain: c_int, cbid: c_int, params: *const c_void);
/// Subscribes a callback and returns a handle; 0 is success.
pub type SubscribeFn =
    unsafe extern "C" fn(handle: *mut u32, callback: CallbackFn, user: *mut c_void) -> c_int;
/// As [`SubscribeFn`], with the subscriber's name; if another subscriber has the slot, its name
/// goes to `holder`, which has room for `holder_bytes`.
pub type SubscribeNamedFn = unsafe extern "C" fn(
    handle: *mut u32,
    callback: CallbackFn,
    user: *mut c_void,
    name: *const c_char,
    holder: *mut c_char,
    holder_bytes: usize,
) -> c_int;
/// Ends a subscription and switches all its callbacks off.
pub type UnsubscribeFn = unsafe extern "C" fn(handle: u32) -> c_int;
/// Reports whether a callback is switched on.
pub type StateFn = unsafe extern "C" fn(on: *mut u32, handle: u32, domain: c_int, cbid: c_int) -> c_int;
/// Reports how many callbacks a domain has, and null or a table of the driver's.
pub type CountFn = unsafe extern "C" fn(count: *mut usize, table: *mut *const c_void, domain: c_int) -> c_int;
/// Switches every callback of a domain on or off.
pub type EnableDomainFn = unsafe extern "C" fn(on: u32, handle: u32, domain: c_int) -> c_int;
/// Switches every callback of every domain on or off.
pub type EnableAllFn = unsafe extern "C" fn(on: u32, handle: u32) -> c_int;
/// Declares that the subscriber supports a feature (1) or not (0). A subscription begins with none.
pub type DeclareFn = unsafe extern "C" fn(supports: u32, handle: u32, feature: u32) -> c_int;
/// Switches a callback of a subscriber on (1) or off (0); 0 is success.
pub type EnableFn = unsafe extern "C" fn(on: u32, handle: u32, domain: c_int, cbid: c_int) -> c_int;

/// Byte offset of the parameter block's size, a `u32`: the four bytes after it
/// are not zero (measured), so it must not be read as 64 bits.
pub const PARAMS_OFFSET_BYTES: usize = 0;
/// Byte offset of the pointer to the launch descriptor (measured). Each stream has a separate
/// buffer, which every launch overwrites.
pub const PARAMS_OFFSET_QMD: usize = 0x20;
/// The least size of a parameter block that holds the pointer, in bytes; 0x58
/// was measured.
pub const PARAMS_BYTES_MIN: u32 = 0x28;

const _: () = assert!(PARAMS_OFFSET_QMD + 8 == PARAMS_BYTES_MIN as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn the_identifier_prints_as_it_is_quoted() {
        assert_eq!(EXPORT_TABLE_UUID.to_string(), "2c8e0ad8-0710-ab4e-90dd-54719fe5f74b");
        assert_eq!(TABLE_BYTES_MIN, 0x38);
    }
}
