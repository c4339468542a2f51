//! The driver's debug callback, which runs for every launch just before the
//! launch descriptor goes to the GPU.
//!
//! Reached through an export table that the driver keeps for its own tools
//! and documents nowhere. Found by libsmctrl; the numbers marked *measured*
//! were confirmed on an H200 with driver 580.159.04 (CUDA 13.0). Nothing here
//! is promised by NVIDIA: whoever calls the table must check what it can
//! ([`TABLE_BYTES_MIN`], return codes, [`PARAMS_BYTES_MIN`]) and give up
//! quietly otherwise.

use crate::types::CUuuid;
use core::ffi::{c_int, c_void};

/// The export table's identifier, for `cuGetExportTable` (measured).
pub const EXPORT_TABLE_UUID: CUuuid = CUuuid {
    bytes: [0x2c, 0x8e, 0x0a, 0xd8, 0x07, 0x10, 0xab, 0x4e, 0x90, 0xdd, 0x54, 0x71, 0x9f, 0xe5, 0xf7, 0x4b],
};

/// Index of the table's own size in bytes, counting the table as an array of
/// pointers; 0x60 was measured.
pub const TABLE_INDEX_BYTES: usize = 0;
/// Index of the [`SubscribeFn`].
pub const TABLE_INDEX_SUBSCRIBE: usize = 3;
/// Index of the [`EnableFn`].
pub const TABLE_INDEX_ENABLE: usize = 6;
/// The least size that a table with both functions can have, in bytes.
pub const TABLE_BYTES_MIN: usize = (TABLE_INDEX_ENABLE + 1) * size_of::<*const c_void>();

/// The domain of launch callbacks (measured).
pub const DOMAIN_LAUNCH: c_int = 0xb;
/// The callback just before a launch descriptor is uploaded (measured). It
/// runs on the launching thread, once a launch, after the driver has merged
/// the stream's mask into the descriptor.
pub const CBID_QMD_READY: c_int = 0x1;

/// A callback: `user` as given to subscribe, then domain, id and parameters.
pub type CallbackFn =
    unsafe extern "C" fn(user: *mut c_void, domain: c_int, cbid: c_int, params: *const c_void);
/// Subscribes a callback and returns a handle; 0 is success.
pub type SubscribeFn =
    unsafe extern "C" fn(handle: *mut u32, callback: CallbackFn, user: *mut c_void) -> c_int;
/// Switches a callback of a subscriber on (1) or off (0); 0 is success.
pub type EnableFn = unsafe extern "C" fn(on: u32, handle: u32, domain: c_int, cbid: c_int) -> c_int;

/// Byte offset of the parameter block's size, a `u32`: the four bytes after it
/// are not zero (measured), so it must not be read as 64 bits.
pub const PARAMS_OFFSET_BYTES: usize = 0;
/// Byte offset of the pointer to the launch descriptor (measured). Each stream
/// has a buffer of its own, which every launch overwrites.
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
