//! `dlopen` and `dlmopen`: ways to a libcuda that the hook does not wrap.
//!
//! A library opened with `RTLD_DEEPBIND` binds to libcuda before it searches the preloaded
//! libraries, so a tenant's libraries are opened without that flag. A new linker namespace has
//! separate libraries and preloads nothing, so a tenant is refused one: `dlmopen` gets a name that
//! cannot be opened, which `dlerror` then shows.
//!
//! Both are jumps ([`onward`]), because the linker checks the caller.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::account::origin;
use crate::sys::elf;
use crate::sys::onward::{Arguments, onward};

/// `RTLD_DEEPBIND` of glibc's dlfcn.h.
const DEEPBIND: usize = 8;
/// `LM_ID_BASE`: the namespace of the program.
const BASE: usize = 0;
/// The name in `dlerror`. No file has this path.
const REFUSED: &CStr = c"/partita: a new linker namespace would leave the tenant's limits, and is refused";

/// A function behind the hook's of the same name.
struct Behind {
    name: &'static CStr,
    look: fn(&CStr) -> *mut c_void,
    /// Null before the first call.
    found: AtomicPtr<c_void>,
}

impl Behind {
    const fn new(name: &'static CStr, look: fn(&CStr) -> *mut c_void) -> Self {
        Self { name, look, found: AtomicPtr::new(core::ptr::null_mut()) }
    }

    fn address(&self) -> *mut c_void {
        let mut address = self.found.load(Ordering::Acquire);
        if address.is_null() {
            let found = (self.look)(self.name);
            address = if found.is_null() { not_found as *mut c_void } else { found };
            self.found.store(address, Ordering::Release);
        }
        address
    }
}

/// Stands in where the C library exports no such function.
extern "C" fn not_found() -> *mut c_void {
    core::ptr::null_mut()
}

// Where the exported functions continue: the next ones, which other libraries may interpose.
static NEXT_DLOPEN: Behind = Behind::new(c"dlopen", elf::behind_this_library);
static NEXT_DLMOPEN: Behind = Behind::new(c"dlmopen", elf::behind_this_library);
// Where the functions that look-ups return (`linker`) continue: the C library's own.
static C_LIBRARYS_DLOPEN: Behind = Behind::new(c"dlopen", elf::in_c_library);
static C_LIBRARYS_DLMOPEN: Behind = Behind::new(c"dlmopen", elf::in_c_library);

/// The body of a naked function that changes its arguments and goes on in the one behind it.
macro_rules! through {
    ($change:path, $behind:path) => {{
        extern "C" fn decide(arguments: &mut Arguments, _caller: *const c_void) -> *mut c_void {
            $change(arguments);
            $behind.address()
        }
        onward!(decide)
    }};
}

/// Interposed dlopen(3).
///
/// # Safety
/// As for dlopen(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    through!(without_deepbind, NEXT_DLOPEN)
}

/// dlopen(3) for code that has looked it up in the linker.
///
/// # Safety
/// As for dlopen(3).
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen_of_c_library(name: *const c_char, flags: c_int) -> *mut c_void {
    through!(without_deepbind, C_LIBRARYS_DLOPEN)
}

fn without_deepbind([_, flags, ..]: &mut Arguments) {
    let wanted = flags.addr();
    if wanted & DEEPBIND != 0 && origin::is_tenant() {
        *flags = core::ptr::without_provenance_mut(wanted & !DEEPBIND);
    }
}

/// Interposed dlmopen(3).
///
/// # Safety
/// As for dlmopen(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlmopen(namespace: isize, name: *const c_char, flags: c_int) -> *mut c_void {
    through!(without_namespace, NEXT_DLMOPEN)
}

/// dlmopen(3) for code that has looked it up in the linker.
///
/// # Safety
/// As for dlmopen(3).
#[unsafe(naked)]
pub unsafe extern "C" fn dlmopen_of_c_library(
    namespace: isize,
    name: *const c_char,
    flags: c_int,
) -> *mut c_void {
    through!(without_namespace, C_LIBRARYS_DLMOPEN)
}

/// Another name instead of the one that was asked for, unless a tenant may have it.
fn without_namespace([namespace, name, ..]: &mut Arguments) {
    if namespace.addr() != BASE && origin::is_tenant() {
        *namespace = core::ptr::without_provenance_mut(BASE);
        *name = REFUSED.as_ptr().cast_mut().cast();
    }
}
