//! `dlopen` and `dlmopen`: ways to a libcuda that the hook does not wrap.
//!
//! A library opened with `RTLD_DEEPBIND` binds to libcuda before it searches the preloaded
//! libraries, so a tenant's libraries are opened without that flag. A new linker namespace has
//! separate libraries and preloads nothing, so a tenant is refused one: `dlmopen` gets a name that
//! cannot be opened, which `dlerror` then shows.
//!
//! Both are jumps, as in `linker`, because the linker checks the caller.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::account::origin;
use crate::sys::elf;

/// `RTLD_DEEPBIND` of glibc's dlfcn.h.
const DEEPBIND: c_int = 8;
/// `LM_ID_BASE`: the namespace of the program.
const BASE: isize = 0;
/// The name in `dlerror`. No file has this path.
const REFUSED: &CStr = c"/partita: a new linker namespace would leave the tenant's limits, and is refused";

/// Where the exported functions continue: the next ones, which other libraries may interpose.
static NEXT_DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static NEXT_DLMOPEN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// Where the functions that look-ups return (`linker`) continue: the C library's own.
static C_LIBRARYS_DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static C_LIBRARYS_DLMOPEN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Stands in where the C library exports no such function.
extern "C" fn not_found() -> *mut c_void {
    core::ptr::null_mut()
}

/// Finds both, once.
fn find(name: &CStr, next: &AtomicPtr<c_void>, c_librarys: &AtomicPtr<c_void>) {
    let places: [(_, fn(&CStr) -> _); 2] =
        [(c_librarys, elf::in_c_library), (next, elf::behind_this_library)];
    for (known, look) in places {
        if known.load(Ordering::Acquire).is_null() {
            let found = look(name);
            known.store(if found.is_null() { not_found as *mut c_void } else { found }, Ordering::Release);
        }
    }
}

/// A dlopen(3) that continues in the function at an address.
macro_rules! dlopen_to {
    ($next:ident) => {
        core::arch::naked_asm!(
            "push rdi",
            "mov edi, esi",
            "call {flags}",
            "pop rdi",
            "mov esi, eax",
            "jmp qword ptr [rip + {next}]",
            flags = sym flags_of_dlopen,
            next = sym $next,
        )
    };
}

/// A dlmopen(3) that continues in the function at an address.
macro_rules! dlmopen_to {
    ($next:ident) => {
        core::arch::naked_asm!(
            "push rdi",
            "push rsi",
            "push rdx",
            "call {refusal}",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "test rax, rax",
            "je 2f",
            "mov rsi, rax",
            "xor edi, edi",
            "2:",
            "jmp qword ptr [rip + {next}]",
            refusal = sym refusal_of_dlmopen,
            next = sym $next,
        )
    };
}

/// Interposed dlopen(3).
///
/// # Safety
/// As for dlopen(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    dlopen_to!(NEXT_DLOPEN)
}

/// dlopen(3) for code that has looked it up in the linker.
///
/// # Safety
/// As for dlopen(3).
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen_of_c_library(name: *const c_char, flags: c_int) -> *mut c_void {
    dlopen_to!(C_LIBRARYS_DLOPEN)
}

extern "C" fn flags_of_dlopen(flags: c_int) -> c_int {
    find(c"dlopen", &NEXT_DLOPEN, &C_LIBRARYS_DLOPEN);
    if flags & DEEPBIND != 0 && origin::is_tenant() { flags & !DEEPBIND } else { flags }
}

/// Interposed dlmopen(3).
///
/// # Safety
/// As for dlmopen(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlmopen(namespace: isize, name: *const c_char, flags: c_int) -> *mut c_void {
    dlmopen_to!(NEXT_DLMOPEN)
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
    dlmopen_to!(C_LIBRARYS_DLMOPEN)
}

/// The name to open instead, null for the one that was asked for.
extern "C" fn refusal_of_dlmopen(namespace: isize) -> *const c_char {
    find(c"dlmopen", &NEXT_DLMOPEN, &C_LIBRARYS_DLMOPEN);
    if namespace != BASE && origin::is_tenant() { REFUSED.as_ptr() } else { core::ptr::null() }
}
