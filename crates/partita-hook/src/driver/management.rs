//! The management library itself, and the UUIDs that it reports.

use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::sys::next::real_dlsym;

/// `nvmlReturn_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NvmlReturn(c_int);

impl NvmlReturn {
    /// As NVML documents the code of that name.
    pub const SUCCESS: Self = Self(0);
    /// As NVML documents the code of that name.
    pub const INVALID_ARGUMENT: Self = Self(2);
    /// As NVML documents the code of that name.
    pub const NOT_FOUND: Self = Self(6);
    /// As NVML documents the code of that name.
    pub const INSUFFICIENT_SIZE: Self = Self(7);
    /// As NVML documents the code of that name.
    pub const FUNCTION_NOT_FOUND: Self = Self(13);

    /// The code.
    pub fn number(self) -> c_int {
        self.0
    }
}

/// `nvmlDevice_t`.
pub type Device = *mut c_void;

/// The library, once the hook itself has opened it.
static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Its handle, null without one.
pub fn library() -> *mut c_void {
    let known = LIBRARY.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a constant name; the handle is kept for ever.
    let opened = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    LIBRARY.store(opened, Ordering::Release);
    opened
}

/// The UUID of a device of the library: a GPU's, or a MIG instance's. Drivers before 470 have no
/// UUIDs of instances.
pub fn uuid_of(device: Device) -> Option<[u8; 16]> {
    /// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`.
    const TEXT_BYTES: usize = 96;
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let mut real = REAL.load(Ordering::Acquire);
    if real.is_null() {
        // SAFETY: a handle that was opened, if it was, and a constant name.
        real = unsafe {
            real_dlsym(Some(library()).filter(|library| !library.is_null())?, c"nvmlDeviceGetUUID")
        };
        REAL.store(real, Ordering::Release);
    }
    if real.is_null() {
        return None;
    }
    type Real = unsafe extern "C" fn(Device, *mut c_char, c_uint) -> NvmlReturn;
    // SAFETY: the prototype of that name in nvml.h.
    let real = unsafe { core::mem::transmute::<*mut c_void, Real>(real) };
    let mut text = [0u8; TEXT_BYTES];
    // SAFETY: room for as many bytes as said; the library checks the device.
    if unsafe { real(device, text.as_mut_ptr().cast(), TEXT_BYTES as c_uint) } != NvmlReturn::SUCCESS {
        return None;
    }
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_bytes();
    let text = text.strip_prefix(b"GPU-").or_else(|| text.strip_prefix(b"MIG-"))?;
    let mut digits = text.iter().filter(|&&byte| byte != b'-').map(|&byte| char::from(byte).to_digit(16));
    let mut uuid = [0; 16];
    for byte in &mut uuid {
        *byte = (digits.next()?? << 4 | digits.next()??) as u8;
    }
    Some(uuid)
}

/// A function of the library; `None` without it.
pub fn symbol(name: &CStr) -> Option<*mut c_void> {
    let library = library();
    if library.is_null() {
        return None;
    }
    // SAFETY: a live handle and a constant name.
    let found = unsafe { real_dlsym(library, name) };
    (!found.is_null()).then_some(found)
}

/// The UUIDs of the library's GPUs, in its order; empty if it does not report them. A GPU without a
/// known UUID keeps its number.
pub fn uuids() -> Vec<[u8; 16]> {
    devices().into_iter().map(|(_, uuid)| uuid.unwrap_or_default()).collect()
}

/// The library's GPU with this UUID.
pub fn device_of(uuid: &[u8; 16]) -> Option<Device> {
    devices().into_iter().find_map(|(device, found)| (found.as_ref() == Some(uuid)).then_some(device))
}

/// The library's GPUs, in its order; empty if it does not report them.
fn devices() -> Vec<(Device, Option<[u8; 16]>)> {
    type Init = unsafe extern "C" fn() -> NvmlReturn;
    type Count = unsafe extern "C" fn(*mut c_uint) -> NvmlReturn;
    type Handle = unsafe extern "C" fn(c_uint, *mut Device) -> NvmlReturn;
    let (Some(init), Some(count), Some(handle)) =
        (symbol(c"nvmlInit_v2"), symbol(c"nvmlDeviceGetCount_v2"), symbol(c"nvmlDeviceGetHandleByIndex_v2"))
    else {
        return Vec::new();
    };
    let mut devices = Vec::new();
    // SAFETY: the prototypes of these names in nvml.h, and valid pointers. The library counts how
    // often it is started, and stays so.
    unsafe {
        if core::mem::transmute::<*mut c_void, Init>(init)() != NvmlReturn::SUCCESS {
            return devices;
        }
        let mut known = 0;
        if core::mem::transmute::<*mut c_void, Count>(count)(&mut known) != NvmlReturn::SUCCESS {
            return devices;
        }
        for index in 0..known {
            let mut device = core::ptr::null_mut();
            let answer = core::mem::transmute::<*mut c_void, Handle>(handle)(index, &mut device);
            devices.push((device, (answer == NvmlReturn::SUCCESS).then(|| uuid_of(device)).flatten()));
        }
    }
    devices
}
