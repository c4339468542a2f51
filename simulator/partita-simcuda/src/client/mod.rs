//! The driver API as programs see it: exported C functions, by family.
//!
//! Every entry point is defined with `driver_api!`, which gives it the C ABI and the types of its
//! arguments (from [`partita_abi::prototypes`]) and turns its `Result` into a result code. The
//! workspace aborts on a panic, so entry points must not panic.
//!
//! Entry points are above the code that they use, so that no two files use each other: `stream_api`
//! has the entry points of streams, `context::stream` the streams, and captures are between them.

macro_rules! driver_api {
    () => {};
    (
        $(#[$meta:meta])*
        fn $name:ident | $twin:ident [$thread:ident] $args:tt $body:block
        $($rest:tt)*
    ) => {
        driver_api!(@define [$(#[$meta])*] $name $args { let $thread = false; $body });
        driver_api!(
            @define [#[doc = concat!("`", stringify!($name), "` with the per-thread default stream.")]]
            $twin $args { let $thread = true; $body }
        );
        driver_api!($($rest)*);
    };
    (
        $(#[$meta:meta])*
        fn $name:ident $args:tt $body:block
        $($rest:tt)*
    ) => {
        driver_api!(@define [$(#[$meta])*] $name $args $body);
        driver_api!($($rest)*);
    };
    (@define $meta:tt $name:ident $args:tt $body:block) => {
        partita_abi::prototype! { $name => entry_point! { $meta $name $args $body } }
    };
}

macro_rules! entry_point {
    (
        ($($declared:ident: $type:ty),* $(,)?)
        [$(#[$meta:meta])*] $name:ident ($($arg:ident),* $(,)?) $body:block
    ) => {
        $(#[$meta])*
        ///
        /// An entry point of the driver API; arguments and errors as in `cuda.h`.
        ///
        /// # Safety
        /// As the driver API requires: pointers are null or valid, handles came from this library.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> partita_abi::CuResult {
            #[allow(unused_unsafe, clippy::redundant_closure_call)]
            // SAFETY: the caller keeps the contract of this entry point.
            let result: Result<(), partita_abi::CuResult> = unsafe { (|| $body)() };
            match result {
                Ok(()) => partita_abi::CuResult::SUCCESS,
                Err(code) => code,
            }
        }
    };
}

pub mod array;
pub mod callback;
pub mod capture;
pub mod capture_api;
pub mod context;
pub mod context_api;
pub mod copy;
pub mod device;
pub mod end;
pub mod event;
pub mod event_api;
pub mod exports;
pub mod external;
pub mod fill;
pub mod function;
pub mod function_api;
pub mod gpus;
pub mod graph;
pub mod graph_api;
pub mod graph_exec;
pub mod graph_exec_api;
pub mod graph_kind;
pub mod graph_memory;
pub mod graph_memory_api;
pub mod graph_query;
pub mod green;
pub mod host;
pub mod image;
pub mod init;
pub mod ipc;
pub mod launch;
pub mod launch_api;
pub mod legacy;
pub mod link;
pub mod memcpy;
pub mod memory;
pub mod memory_api;
pub mod memset;
pub mod module;
pub mod moves;
pub mod object;
pub mod occupancy;
pub mod pointer;
pub mod pool;
pub mod pool_api;
pub mod primary;
pub mod region;
pub mod resource;
pub mod runtime;
pub mod source;
pub mod stream_api;
pub mod stream_ops;
pub mod structure;
pub mod user_object;
pub mod vmm;
pub mod worker;

use partita_abi::CuResult;

/// Stores a result where the program wants it.
///
/// # Errors
/// `INVALID_VALUE` for a null pointer.
///
/// # Safety
/// The pointer is null or valid for writing a `T`.
#[inline]
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Result<(), CuResult> {
    if to.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: not null, so valid by the caller's word; C programs may misalign their structures.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Stores a result where the program wants it, if it wants it.
///
/// # Safety
/// The pointer is null or valid for writing a `T`.
#[inline]
pub(crate) unsafe fn put_if<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, so valid by the caller's word.
        unsafe { to.write_unaligned(value) };
    }
}

/// Reads what a program points to.
///
/// # Errors
/// `INVALID_VALUE` for a null pointer.
///
/// # Safety
/// The pointer is null or valid for reading a `T`.
#[inline]
pub(crate) unsafe fn get<T: Copy>(from: *const T) -> Result<T, CuResult> {
    if from.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: not null, so valid by the caller's word.
    Ok(unsafe { from.read_unaligned() })
}

/// An array that a program points to.
///
/// # Errors
/// `INVALID_VALUE` for a null pointer with a count above 0.
///
/// # Safety
/// The pointer is null or valid for reading `count` elements while the result is used.
pub(crate) unsafe fn list<'a, T>(from: *const T, count: usize) -> Result<&'a [T], CuResult> {
    if count == 0 {
        return Ok(&[]);
    }
    if from.is_null() || !from.is_aligned() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: not null and aligned, so valid by the caller's word.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

/// A string that a program points to.
///
/// # Errors
/// `INVALID_VALUE` for a null pointer or text that is not UTF-8.
///
/// # Safety
/// The pointer is null or points to a string that ends with a zero byte.
pub(crate) unsafe fn text<'a>(from: *const std::ffi::c_char) -> Result<&'a str, CuResult> {
    if from.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: not null, so a C string by the caller's word.
    unsafe { std::ffi::CStr::from_ptr(from) }.to_str().map_err(|_| CuResult::INVALID_VALUE)
}

/// Copies text into a program's buffer, cut to fit and always ended with a zero byte.
///
/// # Errors
/// `INVALID_VALUE` for a null pointer or a buffer of no length.
///
/// # Safety
/// The pointer is null or valid for writing `length` bytes.
pub(crate) unsafe fn put_text(to: *mut std::ffi::c_char, length: i32, text: &str) -> Result<(), CuResult> {
    if to.is_null() || length <= 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let count = text.len().min(length as usize - 1);
    // SAFETY: `count` and the zero fit into `length` bytes, which are valid by the caller's word.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, count);
        to.add(count).write(0);
    }
    Ok(())
}
