//! One wrapped export of a library of NVIDIA's: the element of both tables of hooks, libcuda's and
//! the management library's.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// One wrapped export.
pub struct Row {
    /// The exported name, exactly.
    pub name: &'static CStr,
    /// Address of the hook's function of that name.
    pub hook: *mut c_void,
    real: AtomicPtr<c_void>,
}

// SAFETY: `hook` is the address of a function, never written through.
unsafe impl Sync for Row {}

impl Row {
    /// The row of `name`, which ends with its one NUL. For statics: another name does not compile
    /// there.
    pub const fn new(name: &'static str, hook: *mut c_void) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Self { name, hook, real: AtomicPtr::new(core::ptr::null_mut()) },
            Err(_) => panic!("a name must end with its one NUL"),
        }
    }

    /// Address of the library's function, null before it was found and
    /// where this library does not export the name.
    pub fn real(&self) -> *mut c_void {
        self.real.load(Ordering::Acquire)
    }

    /// The same for a call: an address of code needs no order with other memory.
    #[inline]
    pub fn real_to_call(&self) -> *mut c_void {
        self.real.load(Ordering::Relaxed)
    }

    /// Records the library's function.
    pub fn set_real(&self, address: *mut c_void) {
        self.real.store(address, Ordering::Release);
    }
}
