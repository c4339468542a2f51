//! A shared library opened at run time.

use alloc::string::{String, ToString};
use core::ffi::{CStr, c_void};

use crate::error::Error;

/// An open library. It is never closed: a driver leaves threads that still run its code.
#[derive(Debug, Clone, Copy)]
pub struct Library(*mut c_void);

// SAFETY: the linker's handles may be used from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Opens a library by path, or by name as the linker searches.
    ///
    /// # Errors
    /// [`Error::Load`] with the linker's reason.
    pub fn open(path: &CStr) -> Result<Self, Error> {
        // SAFETY: a valid string. Loading runs the library's constructors, which is the purpose.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() { Err(Error::Load(last_error())) } else { Ok(Self(handle)) }
    }

    /// The address of an exported name; null if the library does not export it.
    pub fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: a live handle and a valid string.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }
}

fn last_error() -> String {
    // SAFETY: dlerror returns null or a string that is valid until this thread's next call of the
    // linker.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "unknown reason".to_string()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

/// Defines a table of optional entry points, and a method for each. A missing name is an error of
/// its call, not of loading. Calls without arguments in the table are libcuda's, with the
/// prototypes of `partita_abi::prototypes`.
macro_rules! symbols {
    (
        $(#[$doc:meta])*
        pub struct $table:ident;
        $(fn $method:ident = $name:ident $(($($arguments:tt)*))?;)*
    ) => {
        $(#[$doc])*
        pub struct $table {
            opened: $crate::library::Library,
            $($method: *mut core::ffi::c_void,)*
        }

        // SAFETY: addresses of functions, never written through.
        unsafe impl Send for $table {}
        // SAFETY: as above.
        unsafe impl Sync for $table {}

        impl $table {
            /// Resolves every name; a missing one is an error of the call that needs it.
            fn resolve(opened: $crate::library::Library) -> Self {
                use alloc::ffi::CString;
                let find = |name: &str| {
                    CString::new(name).map_or(core::ptr::null_mut(), |name| opened.symbol(&name))
                };
                Self { opened, $($method: find(stringify!($name)),)* }
            }

            $($crate::library::method! { $method $name $(($($arguments)*))? })*

            /// The address of a function of the library that is not in the table.
            #[must_use]
            pub fn symbol(&self, name: &core::ffi::CStr) -> Option<core::ptr::NonNull<core::ffi::c_void>> {
                core::ptr::NonNull::new(self.opened.symbol(name))
            }
        }
    };
}
pub(crate) use symbols;

macro_rules! method {
    ($method:ident $name:ident) => {
        partita_abi::prototype! { $name => method_of! { $method $name } }
    };
    ($method:ident $name:ident $arguments:tt) => {
        $crate::library::method_of! { $arguments $method $name }
    };
}
pub(crate) use method;

macro_rules! method_of {
    (($($argument:ident: $type:ty),* $(,)?) $method:ident $name:ident) => {
        #[doc = concat!("Calls `", stringify!($name), "`.")]
        ///
        /// # Errors
        /// [`Error::MissingSymbol`](crate::Error::MissingSymbol) or
        /// [`Error::Call`](crate::Error::Call).
        ///
        /// # Safety
        /// As the library documents for the call.
        #[allow(clippy::too_many_arguments, reason = "the library's prototype")]
        pub unsafe fn $method(
            &self,
            $($argument: partita_abi::types::Raw<$type>),*
        ) -> Result<(), $crate::Error> {
            if self.$method.is_null() {
                return Err($crate::Error::MissingSymbol(stringify!($name)));
            }
            type Call = unsafe extern "C" fn($(partita_abi::types::Raw<$type>),*) -> partita_abi::CuResult;
            // SAFETY: the address was found under this name, which has this prototype.
            let call = unsafe { core::mem::transmute::<*mut core::ffi::c_void, Call>(self.$method) };
            // SAFETY: the caller guarantees it.
            unsafe { call($($argument),*) }
                .ok()
                .map_err(|code| $crate::Error::Call { name: stringify!($name), code })
        }
    };
}
pub(crate) use method_of;
