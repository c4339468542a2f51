//! Who asks: the program, or a library of NVIDIA's that computes wrong when it is told another number of SMs than the device's.
//!
//! The whole stack is looked at, because most programs ask through a CUDA runtime. One that is linked into the asking object is part of
//! it; `libcudart.so` asks for whoever called it. One library of the list anywhere on the stack makes the question the library's.
//! Where the stack cannot be told, the answer is the library's too: the device's number is never wrong, only less convenient.

use core::ffi::{CStr, c_int, c_void};

use crate::linker::real_dlsym;

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

/// How the names of files begin that ask for somebody else.
const BETWEEN: [&[u8]; 8] =
    [b"libcudart", b"libcuda.so", b"libc.so", b"libc-", b"libpthread", b"ld-linux", b"ld-", b"libgcc_s"];

/// Calls that are looked at, outwards.
const FRAMES_MAX: usize = 128;

/// Whose code a return address lies in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// Some object's that is not listed, or no object's: code made at run time.
    Program,
    /// One of [`LIBRARIES`].
    Library,
    /// One of [`BETWEEN`], or this library.
    Between,
}

struct Stack {
    addresses: [*mut c_void; FRAMES_MAX],
    owners: [Owner; FRAMES_MAX],
    count: usize,
}

type Backtrace = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;

/// Whether the program asks.
pub fn is_program() -> bool {
    // SAFETY: a valid name. Not every C library has it, so nothing links to it.
    let backtrace = unsafe { real_dlsym(libc::RTLD_NEXT, c"backtrace") };
    if backtrace.is_null() {
        return false;
    }
    // SAFETY: the prototype of that name in execinfo.h.
    let backtrace = unsafe { core::mem::transmute::<*mut c_void, Backtrace>(backtrace) };
    let mut stack = Stack {
        addresses: [core::ptr::null_mut(); FRAMES_MAX],
        owners: [Owner::Program; FRAMES_MAX],
        count: 0,
    };
    // SAFETY: room for as many addresses as said.
    let found = unsafe { backtrace(stack.addresses.as_mut_ptr(), FRAMES_MAX as c_int) };
    stack.count = usize::try_from(found).unwrap_or(0).min(FRAMES_MAX);
    // SAFETY: the callback is given a pointer to the stack, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut stack).cast()) };
    let owners = &stack.owners[..stack.count];
    !owners.contains(&Owner::Library) && owners.contains(&Owner::Program)
}

/// Notes whose the addresses are that lie in one loaded object.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, stack: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr passes a valid description of one loaded object and the pointer given to it.
    let (info, stack) = unsafe { (&*info, &mut *stack.cast::<Stack>()) };
    let holds = |address: usize| {
        (0..info.dlpi_phnum).any(|index| {
            // SAFETY: dlpi_phnum program headers lie at dlpi_phdr.
            let header = unsafe { &*info.dlpi_phdr.add(index.into()) };
            let start = (info.dlpi_addr + header.p_vaddr) as usize;
            header.p_type == libc::PT_LOAD && (start..start + header.p_memsz as usize).contains(&address)
        })
    };
    let owner = match file_name(info) {
        _ if holds(visit as *const () as usize) => Owner::Between,
        name if BETWEEN.iter().any(|prefix| name.starts_with(prefix)) => Owner::Between,
        name if LIBRARIES.iter().any(|prefix| name.starts_with(prefix)) => Owner::Library,
        _ => return 0,
    };
    for (address, of) in stack.addresses[..stack.count].iter().zip(&mut stack.owners) {
        // The call lies before the address that it returns to.
        if holds(address.addr().wrapping_sub(1)) {
            *of = owner;
        }
    }
    0
}

/// The last part of the object's path; nothing for the program's own file.
fn file_name(info: &libc::dl_phdr_info) -> &[u8] {
    if info.dlpi_name.is_null() {
        return b"";
    }
    // SAFETY: the linker's object names are NUL-terminated strings, and stay while the object is there.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}
