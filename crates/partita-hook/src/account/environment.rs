//! Which environment counts: the outermost that names a tenant.
//!
//! A process of a container can change neither the environment of the container's first process nor
//! that of its own ancestors. So the limits of its tenant's start hold for a child with other
//! variables, or without them. An environment that the kernel does not show (of an ancestor that
//! has ended, or of another user's) cannot count.

use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::format;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, Ordering};

use partita_core::hami::Says;
use partita_driver::files;

/// More than an environment and its arguments may have.
const ENVIRONMENT_BYTES_MAX: u64 = 8 << 20;
/// Generations that are looked at, so that nothing that a process does to its ancestors makes this
/// last.
const GENERATIONS_MAX: u32 = 64;

/// This process's own environment; null if it names no tenant.
static OWN: AtomicPtr<Says> = AtomicPtr::new(core::ptr::null_mut());
/// The environment that counts; null before the first call.
static COUNTS: AtomicPtr<Says> = AtomicPtr::new(core::ptr::null_mut());

/// The environment that counts in this process, found at the first call.
pub fn says() -> &'static Says {
    let known = COUNTS.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: stored below, and never freed.
        return unsafe { &*known };
    }
    let outermost = ancestors().into_iter().rev().map(environment_of).find(|says| *says != Says::Nothing);
    let counts = outermost.unwrap_or_else(|| own().cloned().unwrap_or(Says::Nothing));
    let made = Box::into_raw(Box::new(counts));
    match COUNTS.compare_exchange(core::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above.
        Ok(_) => unsafe { &*made },
        Err(first) => {
            // SAFETY: no other thread has seen the one, and the other is never freed.
            unsafe {
                drop(Box::from_raw(made));
                &*first
            }
        }
    }
}

/// Whether this process belongs to a tenant that an environment names, even if by invalid values.
pub fn is_tenant() -> bool {
    matches!(says(), Says::Asks(_) | Says::Unclear(_))
}

/// This process's own environment, if it names a tenant.
pub fn own() -> Option<&'static Says> {
    // SAFETY: null, or stored at load and never freed.
    unsafe { OWN.load(Ordering::Acquire).as_ref() }
}

/// The strings of this process's environment, as they are now.
fn strings() -> impl Iterator<Item = &'static [u8]> {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: null or the C library's list of pointers.
    let first = unsafe { environ.as_ref() };
    // SAFETY: the list ends with a null, which take_while() below does not go beyond.
    let pointers = core::iter::successors(first, |&at| unsafe { core::ptr::from_ref(at).add(1).as_ref() });
    let strings = pointers.take_while(|string| !string.is_null());
    // SAFETY: the list's strings.
    strings.map(|&string| unsafe { CStr::from_ptr(string) }.to_bytes())
}

/// The names in this process's environment that begin so.
pub fn names(beginning: &[u8]) -> Vec<CString> {
    let name = |string: &[u8]| CString::new(string.split(|&byte| byte == b'=').next()?).ok();
    strings().filter(|string| string.starts_with(beginning)).filter_map(name).collect()
}

/// Reads the process's own environment before the program can change it. Allocates only if it names
/// something.
pub fn look_at_load() {
    // The process has one thread yet.
    let says = Says::of(strings());
    if says != Says::Nothing {
        OWN.store(Box::into_raw(Box::new(says)), Ordering::Release);
    }
}

/// The process's ancestors as far as they are seen, from its parent on, and the first process of
/// all.
fn ancestors() -> Vec<u32> {
    // SAFETY: plain system calls.
    let (own, parent) = unsafe { (libc::getpid(), libc::getppid()) };
    let mut found = Vec::new();
    let mut at = parent.unsigned_abs();
    for _ in 0..GENERATIONS_MAX {
        if at <= 1 {
            break;
        }
        found.push(at);
        at = parent_of(at).unwrap_or(0);
    }
    if own != 1 {
        found.push(1);
    }
    found
}

/// Field 4 of `/proc/PID/stat`; the second, a command's name in brackets, may hold anything.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = files::read_bytes(&format!("/proc/{pid}/stat"), 4096).ok()?;
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 2;
    let field = stat.get(after_name..)?.split(|&byte| byte == b' ').nth(1)?;
    core::str::from_utf8(field).ok()?.parse().ok()
}

fn environment_of(pid: u32) -> Says {
    match files::read_bytes(&format!("/proc/{pid}/environ"), ENVIRONMENT_BYTES_MAX) {
        Ok(environment) => Says::of(environment.split(|&byte| byte == 0)),
        Err(_) => Says::Nothing,
    }
}
