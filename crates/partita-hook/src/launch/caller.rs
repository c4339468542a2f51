//! The caller of a query: the program, or a library of NVIDIA's that computes wrong results when it
//! sees another number of SMs than the device's.
//!
//! The whole stack is checked, because most programs query through a CUDA runtime. A static runtime
//! is part of the calling object; `libcudart.so` queries for its caller. If a library of the list
//! is anywhere on the stack, the query is the library's. If the stack is unreadable, the query
//! counts as the library's too: the device's number is never wrong, only less convenient.

use core::ffi::{c_int, c_void};

use crate::sys::elf;
use crate::sys::next::real_dlsym;

/// How the names of the files begin. Each brings its own CUDA runtime, or calls the shared one.
const LIBRARIES: [&[u8]; 18] = [
    b"libcublas",
    b"libcudnn",
    b"libcudss",
    b"libcufft",
    b"libcurand",
    b"libcusolver",
    b"libcusparse",
    b"libcutensor",
    b"libnccl",
    b"libnpp",
    b"libnvblas",
    b"libnvcomp",
    b"libnvinfer",
    b"libnvjpeg",
    b"libnvonnxparser",
    b"libnvshmem",
    b"libcustatevec",
    b"libcutensornet",
];

/// Prefixes of the names of files that query for others.
const BETWEEN: [&[u8]; 8] =
    [b"libcudart", b"libcuda.so", b"libc.so", b"libc-", b"libpthread", b"ld-linux", b"ld-", b"libgcc_s"];

/// Calls that are looked at, outwards.
const FRAMES_MAX: usize = 128;

/// The owner of the code at a return address.
#[derive(PartialEq, Eq)]
enum Owner {
    /// Some object's that is not listed, or no object's: code made at run time.
    Program,
    /// One of [`LIBRARIES`].
    Library,
    /// One of [`BETWEEN`], or this library.
    Between,
}

type Backtrace = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;

/// Whether the program asks.
pub fn is_program() -> bool {
    // SAFETY: a valid name. Not every C library has it, so it is not linked.
    let backtrace = unsafe { real_dlsym(libc::RTLD_NEXT, c"backtrace") };
    if backtrace.is_null() || elf::holder(is_program as *const c_void).is_none() {
        return false;
    }
    // SAFETY: the prototype of that name in execinfo.h.
    let backtrace = unsafe { core::mem::transmute::<*mut c_void, Backtrace>(backtrace) };
    let mut addresses = [core::ptr::null_mut(); FRAMES_MAX];
    // SAFETY: room for as many addresses as said.
    let found = unsafe { backtrace(addresses.as_mut_ptr(), FRAMES_MAX as c_int) };
    let found = usize::try_from(found).unwrap_or(0).min(FRAMES_MAX);
    let mut is_program = false;
    for address in &addresses[..found] {
        match owner(*address) {
            Owner::Library => return false,
            Owner::Program => is_program = true,
            Owner::Between => {}
        }
    }
    is_program
}

fn owner(return_address: *mut c_void) -> Owner {
    // The call is before its return address.
    let Some(object) = elf::holder(return_address.wrapping_byte_sub(1)) else { return Owner::Program };
    let is_one_of = |list: &[&[u8]]| list.iter().any(|prefix| object.file_name().starts_with(prefix));
    if object.is_own() || is_one_of(&BETWEEN) {
        Owner::Between
    } else if is_one_of(&LIBRARIES) {
        Owner::Library
    } else {
        Owner::Program
    }
}
