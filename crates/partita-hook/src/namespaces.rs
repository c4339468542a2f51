//! `dlopen` and `dlmopen`: ways to a libcuda that the hook does not stand before.
//!
//! A library opened with `RTLD_DEEPBIND` binds to libcuda before it looks at what was preloaded, so a tenant's
//! libraries are opened without that flag. A new linker namespace has libraries of its own and preloads nothing, so a
//! tenant is refused one: `dlmopen` is given a name that cannot be opened, which `dlerror` then shows.
//!
//! Both are jumps, as in `linker`, because the linker looks at who calls.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::linker::real_dlsym;

/// `RTLD_DEEPBIND` of glibc's dlfcn.h.
const DEEPBIND: c_int = 8;
/// `LM_ID_BASE`: the namespace of the program.
const BASE: isize = 0;
/// What `dlerror` names. No path of a file that anybody has.
const REFUSED: &CStr = c"/partita: a new linker namespace would leave the tenant's limits, and is refused";

static REAL_DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static REAL_DLMOPEN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Stands in where the C library exports no such function.
extern "C" fn not_found() -> *mut c_void {
    core::ptr::null_mut()
}

fn find(known: &AtomicPtr<c_void>, name: &CStr) {
    if known.load(Ordering::Acquire).is_null() {
        // SAFETY: a valid name; the next one after the hook is the C library's.
        let found = unsafe { real_dlsym(libc::RTLD_NEXT, name) };
        known.store(if found.is_null() { not_found as *mut c_void } else { found }, Ordering::Release);
    }
}

/// Interposed dlopen(3).
///
/// # Safety
/// As for dlopen(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "mov edi, esi",
        "call {flags}",
        "pop rdi",
        "mov esi, eax",
        "jmp qword ptr [rip + {real}]",
        flags = sym flags_of_dlopen,
        real = sym REAL_DLOPEN,
    )
}

extern "C" fn flags_of_dlopen(flags: c_int) -> c_int {
    find(&REAL_DLOPEN, c"dlopen");
    if flags & DEEPBIND != 0 && crate::is_tenant() { flags & !DEEPBIND } else { flags }
}

/// Interposed dlmopen(3).
///
/// # Safety
/// As for dlmopen(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlmopen(namespace: isize, name: *const c_char, flags: c_int) -> *mut c_void {
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
        "jmp qword ptr [rip + {real}]",
        refusal = sym refusal_of_dlmopen,
        real = sym REAL_DLMOPEN,
    )
}

/// The name to open instead, null for the one that was asked for.
extern "C" fn refusal_of_dlmopen(namespace: isize) -> *const c_char {
    find(&REAL_DLMOPEN, c"dlmopen");
    if namespace != BASE && crate::is_tenant() { REFUSED.as_ptr() } else { core::ptr::null() }
}
