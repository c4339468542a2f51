//! Start and end of the library, its errors' names and versions.

use std::ffi::{CStr, c_char, c_int};

use super::{NvmlReturn, end, first_device, put, put_text, start};

nvml_api! {
    /// Initialises the library; each call needs a matching shutdown.
    fn nvmlInit_v2() { start() }
    /// Starts the library.
    fn nvmlInit() { start() }
    /// Initialises the library. The flags concern machines with missing GPUs, and have no effect
    /// here.
    fn nvmlInitWithFlags(_flags: u32) { start() }
    /// Shuts down the library.
    fn nvmlShutdown() { end() }

    /// Version of the simulated driver.
    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: u32) {
        put_text(version, length, first_device()?.place.spec.driver.version)
    }
    /// Version of this library: its own CUDA version before the driver's, as the real one prints
    /// it.
    fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: u32) {
        let driver = first_device()?.place.spec.driver;
        put_text(version, length, &format!("{}.{}", driver.cuda_version / 1000, driver.version))
    }
    /// Newest CUDA that the simulated driver serves, thousands for the major.
    fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) {
        put(version, first_device()?.place.spec.driver.cuda_version as c_int)
    }
    /// Newest CUDA that the simulated driver serves, thousands for the major.
    fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) {
        put(version, first_device()?.place.spec.driver.cuda_version as c_int)
    }
    /// The program that a process runs, cut to the buffer's length.
    fn nvmlSystemGetProcessName(pid: u32, name: *mut c_char, length: u32) {
        first_device()?;
        if name.is_null() || length == 0 {
            return Err(NvmlReturn::INVALID_ARGUMENT);
        }
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NvmlReturn::NOT_FOUND)?;
        let program = line.split(|byte| *byte == 0).next().unwrap_or_default();
        let program = String::from_utf8_lossy(program);
        let mut end = program.len().min(length as usize - 1);
        while !program.is_char_boundary(end) {
            end -= 1;
        }
        put_text(name, length, &program[..end])
    }
}

/// A text for a result, never null. The words are those of the real library where they are known.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn nvmlErrorString(result: NvmlReturn) -> *const c_char {
    error_text(result).as_ptr()
}

fn error_text(result: NvmlReturn) -> &'static CStr {
    match result.0 {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"GPU access blocked by the operating system",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => c"ECC must be disabled for vGPU",
        23 => c"Insufficient Resources",
        24 => c"Frequency Not Supported",
        25 => c"Argument Version Mismatch",
        26 => c"Deprecated",
        27 => c"Not Ready",
        28 => c"GPU Not Found",
        29 => c"Invalid State",
        30 => c"Reset Type Not Supported",
        _ => c"Unknown Error",
    }
}
