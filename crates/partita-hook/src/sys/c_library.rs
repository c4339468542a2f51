//! Functions that the process's C library may lack.
//!
//! The library loads with glibc as old as 2.17, and with musl, so it must not import anything
//! newer. The functions here have newer versions, or are in libraries that older systems have
//! beside libc. Each is defined under its own name, hidden, so that every crate in this library is
//! linked with it: as a system call, or as a jump to the function that the process has.

use core::ffi::{CStr, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::sys::elf;
use crate::sys::next::real_dlsym;
use crate::sys::onward::{Arguments, hidden_jump, onward};

/// Defines hidden functions that are plain system calls. On x86-64 and on aarch64 the kernel's
/// `struct stat` is the C library's.
macro_rules! system_calls {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => { $(
        unsafe extern "C" fn $name($($argument: $type),*) -> isize $body
        hidden_jump!($name to $name);
    )* };
}

/// Defines hidden functions that jump to those of the process, through a word that at first leads
/// to the search for it.
macro_rules! found_later {
    ($($name:ident, missing $missing:expr;)*) => { $(
        mod $name {
            use super::*;

            static FOUND: AtomicPtr<c_void> = AtomicPtr::new(search as *mut c_void);

            extern "C" fn find(_: &mut Arguments, _caller: *const c_void) -> *mut c_void {
                extern "C" fn missing() -> c_int {
                    $missing
                }
                const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name holds no zero byte"),
                };
                let found = anywhere(NAME);
                let found = if found.is_null() { missing as *mut c_void } else { found };
                FOUND.store(found, Ordering::Release);
                found
            }

            /// Continues in the function that is found, with the arguments of the first call.
            #[unsafe(naked)]
            unsafe extern "C" fn search() {
                onward!(find)
            }

            hidden_jump!($name through FOUND);
        }
    )* };
}

system_calls! {
    fn stat(path: *const c_void, to: *mut c_void) {
        // SAFETY: the caller's arguments, passed on.
        unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path, to, 0) as isize }
    }
    fn lstat(path: *const c_void, to: *mut c_void) {
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path, to, flags) as isize }
    }
    fn fstat(file: c_int, to: *mut c_void) {
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_fstat, file, to) as isize }
    }
    fn fstatat(directory: c_int, path: *const c_void, to: *mut c_void, flags: c_int) {
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_newfstatat, directory, path, to, flags) as isize }
    }
    fn getrandom(to: *mut c_void, bytes: usize, flags: c_uint) {
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_getrandom, to, bytes, flags) as isize }
    }
    fn pthread_sigmask(how: c_int, new: *const c_void, old: *mut c_void) {
        /// Bytes of the kernel's set of signals.
        const SET_BYTES: usize = 8;
        // SAFETY: as above. Unlike the others it returns the error's number.
        unsafe {
            match libc::syscall(libc::SYS_rt_sigprocmask, how, new, old, SET_BYTES) {
                0 => 0,
                _ => *libc::__errno_location() as isize,
            }
        }
    }
}

found_later! {
    __register_atfork, missing libc::ENOSYS;
    dladdr, missing 0;
    pthread_create, missing libc::ENOSYS;
    pthread_detach, missing libc::ENOSYS;
    pthread_getspecific, missing 0;
    pthread_key_create, missing libc::ENOSYS;
    pthread_mutex_trylock, missing libc::ENOSYS;
    pthread_setspecific, missing libc::ENOSYS;
}

/// The function that the program itself would call, else one that a library keeps to itself: older
/// systems load libpthread with libcuda, which a program may have opened for itself alone.
fn anywhere(name: &CStr) -> *mut c_void {
    // SAFETY: a constant name.
    let found = unsafe { real_dlsym(libc::RTLD_DEFAULT, name) };
    if found.is_null() { elf::in_c_library(name) } else { found }
}
