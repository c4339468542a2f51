//! The driver calls that the hook makes on its own account.

use core::ffi::{CStr, c_int, c_uint, c_void};

use partita_abi::CuResult;
use partita_driver::callback::GetExportTable;

use crate::real;

macro_rules! calls {
    ($($(#[$doc:meta])* $field:ident = $name:literal: fn($($type:ty),*);)*) => {
        /// Entry points of the driver, resolved once when the process attaches.
        pub struct DriverCalls {
            $($(#[$doc])* $field: unsafe extern "C" fn($($type),*) -> CuResult,)*
        }

        impl DriverCalls {
            /// Resolves them all.
            ///
            /// # Errors
            /// The name of the first one that this driver does not export.
            pub fn resolve() -> Result<Self, &'static CStr> {
                Ok(Self {
                    $($field: {
                        let address = real::symbol($name);
                        if address.is_null() {
                            return Err($name);
                        }
                        // SAFETY: the prototype of that name in cuda.h.
                        unsafe {
                            core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> CuResult>(
                                address,
                            )
                        }
                    },)*
                })
            }
        }
    };
}

calls! {
    current_context = c"cuCtxGetCurrent": fn(*mut *mut c_void);
    retain_primary = c"cuDevicePrimaryCtxRetain": fn(*mut *mut c_void, c_int);
    release_primary = c"cuDevicePrimaryCtxRelease_v2": fn(c_int);
    primary_state = c"cuDevicePrimaryCtxGetState": fn(c_int, *mut c_uint, *mut c_int);
    free = c"cuMemFree_v2": fn(u64);
    function_attribute = c"cuFuncGetAttribute": fn(*mut c_int, c_int, *mut c_void);
    kernel_function = c"cuKernelGetFunction": fn(*mut *mut c_void, *mut c_void);
    blocks_per_sm = c"cuOccupancyMaxActiveBlocksPerMultiprocessor": fn(*mut c_int, *mut c_void, c_int, usize);
}

/// `cuGetExportTable`, if the driver exports it.
pub fn export_table() -> Option<GetExportTable> {
    let address = real::symbol(c"cuGetExportTable");
    // SAFETY: the prototype of that name in cuda.h.
    (!address.is_null()).then(|| unsafe { core::mem::transmute::<*mut c_void, GetExportTable>(address) })
}

impl DriverCalls {
    /// The calling thread's context as a number, 0 for none.
    pub fn current_context(&self) -> usize {
        let mut context = core::ptr::null_mut();
        // SAFETY: a valid pointer.
        if unsafe { (self.current_context)(&mut context) }.is_ok() { context as usize } else { 0 }
    }

    /// Whether the device's primary context exists.
    pub fn primary_context_is_active(&self, device: c_int) -> bool {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: valid pointers.
        unsafe { (self.primary_state)(device, &mut flags, &mut active) }.is_ok() && active != 0
    }

    /// The handle of a primary context that exists.
    pub fn primary_context(&self, device: c_int) -> Option<usize> {
        let mut context = core::ptr::null_mut();
        // SAFETY: a valid pointer; the reference is given back at once.
        unsafe {
            (self.retain_primary)(&mut context, device).ok().ok()?;
            let _ = (self.release_primary)(device);
        }
        Some(context as usize)
    }

    /// Frees device memory that the program was never told of.
    pub fn free(&self, pointer: u64) {
        // SAFETY: the driver checks the pointer.
        let _ = unsafe { (self.free)(pointer) };
    }

    /// A function's attribute, by the numbers of `CUfunction_attribute`.
    ///
    /// `function` is a `CUfunction`, or a `CUkernel`, which launches accept too.
    pub fn function_attribute(&self, function: *mut c_void, attribute: c_int) -> Option<u32> {
        let mut value = 0;
        // SAFETY: a valid pointer; the driver checks the handle.
        if unsafe { (self.function_attribute)(&mut value, attribute, function) }.is_err() {
            let mut of_kernel = core::ptr::null_mut();
            // SAFETY: as above.
            unsafe {
                (self.kernel_function)(&mut of_kernel, function).ok().ok()?;
                (self.function_attribute)(&mut value, attribute, of_kernel).ok().ok()?;
            }
        }
        u32::try_from(value).ok()
    }

    /// Blocks of a launch that one SM holds at once.
    pub fn blocks_per_sm(&self, function: *mut c_void, threads: u32, shared_bytes: u32) -> Option<u32> {
        let mut blocks = 0;
        let threads = c_int::try_from(threads).ok()?;
        // SAFETY: a valid pointer; the driver checks the handle.
        unsafe { (self.blocks_per_sm)(&mut blocks, function, threads, shared_bytes as usize) }.ok().ok()?;
        u32::try_from(blocks).ok()
    }
}
