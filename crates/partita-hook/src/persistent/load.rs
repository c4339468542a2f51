//! Calls that load code.

use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::prototypes;

use crate::account::tenant::{self, Tenant};
use crate::driver::real;
use crate::persistent::image::{self, Image};
use crate::sys::report;

/// `CU_JIT_INPUT_CUBIN`, `_PTX`, `_FATBINARY`.
const INPUT_CUBIN: c_uint = 0;
const INPUT_PTX: c_uint = 1;
const INPUT_FATBINARY: c_uint = 2;

/// Loads an image as it is rewritten, or as it is.
fn with(
    image: Result<Image, CuResult>,
    text: impl FnOnce(Vec<u8>) -> CuResult,
    as_is: impl FnOnce() -> CuResult,
) -> CuResult {
    match image {
        Ok(Image::Text(bytes)) => text(bytes),
        Ok(Image::AsIs) => as_is(),
        Err(code) => code,
    }
}

/// A driver's function that the hook calls in the place of another one.
macro_rules! other {
    ($name:ident, $literal:literal) => {{
        let address = real::symbol($literal);
        (!address.is_null()).then(|| {
            // SAFETY: the prototype of that name in cuda.h.
            unsafe { core::mem::transmute::<*mut c_void, prototypes::$name>(address) }
        })
    }};
}

/// Wraps `cuModuleLoadData`.
pub unsafe fn data(
    real: prototypes::cuModuleLoadData,
    module: *mut *mut c_void,
    image: *const c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let load = |image: *const c_void| unsafe { real(module, image) };
    let Some(tenant) = tenant::persistent() else { return load(image) };
    // SAFETY: the caller's image.
    with(unsafe { image::at(tenant, image.cast()) }, |text| load(text.as_ptr().cast()), || load(image))
}

/// Wraps `cuModuleLoadDataEx`.
pub unsafe fn data_ex(
    real: prototypes::cuModuleLoadDataEx,
    module: *mut *mut c_void,
    image: *const c_void,
    count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let load = |image: *const c_void| unsafe { real(module, image, count, options, values) };
    let Some(tenant) = tenant::persistent() else { return load(image) };
    // SAFETY: the caller's image.
    with(unsafe { image::at(tenant, image.cast()) }, |text| load(text.as_ptr().cast()), || load(image))
}

/// Wraps `cuModuleLoadFatBinary`. Text goes to the call that takes it.
pub unsafe fn fat_binary(
    real: prototypes::cuModuleLoadFatBinary,
    module: *mut *mut c_void,
    image: *const c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let load = || unsafe { real(module, image) };
    let Some(tenant) = tenant::persistent() else { return load() };
    // SAFETY: the caller's image.
    with(unsafe { image::at(tenant, image.cast()) }, |text| load_text(module, &text), load)
}

/// Wraps `cuModuleLoad`.
pub unsafe fn file(
    real: prototypes::cuModuleLoad,
    module: *mut *mut c_void,
    name: *const c_char,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let load = || unsafe { real(module, name) };
    let Some(tenant) = tenant::persistent() else { return load() };
    // SAFETY: the caller's path.
    with(unsafe { of_file(tenant, name) }, |text| load_text(module, &text), load)
}

fn load_text(module: *mut *mut c_void, text: &[u8]) -> CuResult {
    // SAFETY: the caller's pointer, and text of the hook.
    other!(cuModuleLoadData, c"cuModuleLoadData")
        .map_or(CuResult::NOT_SUPPORTED, |call| unsafe { call(module, text.as_ptr().cast()) })
}

/// Wraps `cuLibraryLoadData`. The driver may keep the address of the code: the rewritten text
/// stays.
#[expect(clippy::too_many_arguments, reason = "the driver's prototype")]
pub unsafe fn library(
    real: prototypes::cuLibraryLoadData,
    library: *mut *mut c_void,
    code: *const c_void,
    jit_options: *mut c_uint,
    jit_values: *mut *mut c_void,
    jit_count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
    count: c_uint,
) -> CuResult {
    let load = |code: *const c_void| {
        // SAFETY: the caller's arguments, passed on.
        unsafe { real(library, code, jit_options, jit_values, jit_count, options, values, count) }
    };
    let Some(tenant) = tenant::persistent() else { return load(code) };
    // SAFETY: the caller's image.
    with(unsafe { image::at(tenant, code.cast()) }, |text| load(text.leak().as_ptr().cast()), || load(code))
}

/// Wraps `cuLibraryLoadFromFile`.
#[expect(clippy::too_many_arguments, reason = "the driver's prototype")]
pub unsafe fn library_file(
    real: prototypes::cuLibraryLoadFromFile,
    library: *mut *mut c_void,
    name: *const c_char,
    jit_options: *mut c_uint,
    jit_values: *mut *mut c_void,
    jit_count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
    count: c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let load = || unsafe { real(library, name, jit_options, jit_values, jit_count, options, values, count) };
    let Some(tenant) = tenant::persistent() else { return load() };
    // SAFETY: the caller's path.
    let image = unsafe { of_file(tenant, name) };
    let load_text = |text: Vec<u8>| {
        let text: *const u8 = text.leak().as_ptr();
        other!(cuLibraryLoadData, c"cuLibraryLoadData").map_or(CuResult::NOT_SUPPORTED, |call| {
            // SAFETY: the caller's arguments, and text of the hook that stays.
            unsafe { call(library, text.cast(), jit_options, jit_values, jit_count, options, values, count) }
        })
    };
    with(image, load_text, load)
}

/// Wraps `cuLinkAddData`.
#[expect(clippy::too_many_arguments, reason = "the driver's prototype")]
pub unsafe fn link_data(
    real: prototypes::cuLinkAddData_v2,
    handle: *mut c_void,
    kind: c_uint,
    data: *mut c_void,
    bytes: usize,
    name: *const c_char,
    count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> CuResult {
    let add = |kind, data: *mut c_void, bytes| {
        // SAFETY: the caller's arguments, passed on, or text of the hook for the same call.
        unsafe { real(handle, kind, data, bytes, name, count, options, values) }
    };
    let Some(tenant) = tenant::persistent() else { return add(kind, data, bytes) };
    if data.is_null() {
        return CuResult::INVALID_VALUE;
    }
    // SAFETY: the caller's data, as long as it says.
    let image = unsafe { core::slice::from_raw_parts(data.cast::<u8>().cast_const(), bytes) };
    let add_text = |mut text: Vec<u8>| add(INPUT_PTX, text.as_mut_ptr().cast(), text.len());
    with(part(tenant, kind, image), add_text, || add(kind, data, bytes))
}

/// Wraps `cuLinkAddFile`: the part is rewritten in memory.
pub unsafe fn link_file(
    real: prototypes::cuLinkAddFile_v2,
    handle: *mut c_void,
    kind: c_uint,
    path: *const c_char,
    count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let add = || unsafe { real(handle, kind, path, count, options, values) };
    let Some(tenant) = tenant::persistent() else { return add() };
    // SAFETY: the caller's path.
    let image = unsafe { read(path) }.and_then(|bytes| part(tenant, kind, &bytes));
    let add_text = |mut text: Vec<u8>| {
        other!(cuLinkAddData_v2, c"cuLinkAddData_v2").map_or(CuResult::NOT_SUPPORTED, |call| {
            let (text, bytes) = (text.as_mut_ptr().cast(), text.len());
            // SAFETY: the caller's arguments, and text of the hook.
            unsafe { call(handle, INPUT_PTX, text, bytes, path, count, options, values) }
        })
    };
    with(image, add_text, add)
}

/// A part of what is linked.
fn part(tenant: &Tenant, kind: c_uint, bytes: &[u8]) -> Result<Image, CuResult> {
    if matches!(kind, INPUT_CUBIN | INPUT_PTX | INPUT_FATBINARY) {
        return image::of_bytes(tenant, bytes);
    }
    report::line(format_args!(
        "{}: an object file was refused: the driver links it without its PTX, of which persistent \
         blocks are made; link PTX, or use --via mask",
        report::program()
    ));
    Err(CuResult::NO_BINARY_FOR_GPU)
}

/// Wraps `cuLinkComplete`: what was linked is rewritten already.
pub unsafe fn link_complete(
    real: prototypes::cuLinkComplete,
    handle: *mut c_void,
    image: *mut *const c_void,
    bytes: *mut usize,
) -> CuResult {
    if tenant::persistent().is_none() || image.is_null() {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real(handle, image, bytes) };
    }
    let mut length = 0;
    // SAFETY: the caller's arguments, and a valid pointer.
    let result = unsafe { real(handle, image, &mut length) };
    if result.is_ok() {
        // SAFETY: the driver has just written the address of so many bytes; the program may have
        // asked for their number.
        unsafe {
            image::note_linked(core::slice::from_raw_parts((*image).cast(), length));
            if let Some(bytes) = bytes.as_mut() {
                *bytes = length;
            }
        }
    }
    result
}

/// # Safety
/// The name is null or a valid string.
unsafe fn of_file(tenant: &Tenant, name: *const c_char) -> Result<Image, CuResult> {
    // SAFETY: passed on to the caller.
    image::of_bytes(tenant, &unsafe { read(name) }?)
}

/// Reads a file.
///
/// # Safety
/// The name is null or a valid string.
unsafe fn read(name: *const c_char) -> Result<Vec<u8>, CuResult> {
    if name.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: a valid string, says the caller.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: a valid path.
    let file = unsafe { libc::open(name.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return Err(CuResult::FILE_NOT_FOUND);
    }
    let mut bytes = Vec::new();
    let mut buffer = vec![0u8; 1 << 16];
    let result = loop {
        // SAFETY: room for as many bytes as said.
        let count = unsafe { libc::read(file, buffer.as_mut_ptr().cast(), buffer.len()) };
        match usize::try_from(count) {
            Ok(0) => break Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(_) => break Err(CuResult::FILE_NOT_FOUND),
        }
    };
    // SAFETY: opened above.
    unsafe { libc::close(file) };
    result
}
