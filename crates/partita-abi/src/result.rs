//! Result codes of the CUDA driver API (`CUresult`).

use core::ffi::CStr;
use core::fmt;

/// A result code as libcuda returns it: zero for success, a `CUDA_ERROR_*`
/// number otherwise.
///
/// A transparent newtype and not an enum, because a newer driver may return a
/// number that these constants do not know, and such a number must survive
/// being passed through. The names and numbers are those of the enumeration
/// `CUresult` in `cuda.h`, CUDA 13.0; numbers never change between releases.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "a driver call's result says whether it happened"]
pub struct CuResult(pub i32);

impl CuResult {
    /// Whether the code is [`CuResult::SUCCESS`].
    #[inline]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }

    /// Whether the code is anything but [`CuResult::SUCCESS`].
    ///
    /// [`CuResult::NOT_READY`] counts as an error here although it is an
    /// answer: callers of `cuStreamQuery` and `cuEventQuery` look for it
    /// first.
    #[inline]
    pub const fn is_err(self) -> bool {
        self.0 != 0
    }

    /// The code as a `Result`, for the `?` operator.
    ///
    /// # Errors
    /// Every code but [`CuResult::SUCCESS`] is returned as itself.
    #[inline]
    pub const fn ok(self) -> Result<(), CuResult> {
        if self.is_ok() { Ok(()) } else { Err(self) }
    }

    /// The name that `cuda.h` gives to the code, such as
    /// `CUDA_ERROR_OUT_OF_MEMORY`, or `None` for a number that CUDA 13.0 does
    /// not define.
    pub fn name(self) -> Option<&'static str> {
        // Every name is ASCII, so the conversion cannot fail.
        self.c_name().and_then(|name| name.to_str().ok())
    }

    /// Whether the code ends the context that it was raised in: every later
    /// call on that context fails, and only a new process or context recovers.
    pub const fn is_sticky(self) -> bool {
        matches!(
            self,
            Self::ECC_UNCORRECTABLE
                | Self::NVLINK_UNCORRECTABLE
                | Self::CONTAINED
                | Self::ILLEGAL_ADDRESS
                | Self::LAUNCH_TIMEOUT
                | Self::ASSERT
                | Self::HARDWARE_STACK_ERROR
                | Self::ILLEGAL_INSTRUCTION
                | Self::MISALIGNED_ADDRESS
                | Self::INVALID_ADDRESS_SPACE
                | Self::INVALID_PC
                | Self::LAUNCH_FAILED
                | Self::TENSOR_MEMORY_LEAK
                | Self::MPS_CLIENT_TERMINATED
                | Self::EXTERNAL_DEVICE
        )
    }
}

/// `CUDA_ERROR_OUT_OF_MEMORY (2)`; a number without a name prints as
/// `unknown CUresult (12345)`.
impl fmt::Display for CuResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name().unwrap_or("unknown CUresult"), self.0)
    }
}

/// The same as `Display`: a bare number is useless in a test's output.
impl fmt::Debug for CuResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for CuResult {}

/// Adds a terminator at compile time, so that the simulator can hand the text
/// to C callers of `cuGetErrorName` without copying it.
macro_rules! c_text {
    ($text:expr) => {
        const {
            match CStr::from_bytes_with_nul(concat!($text, "\0").as_bytes()) {
                Ok(text) => text,
                Err(_) => panic!("text with a NUL inside"),
            }
        }
    };
}

macro_rules! results {
    ($($constant:ident, $number:literal, $name:literal, $text:literal;)*) => {
        impl CuResult {
            $(
                #[doc = concat!("`", $name, "`: ", $text)]
                pub const $constant: CuResult = CuResult($number);
            )*

            /// Every code that CUDA 13.0 defines, in ascending order.
            pub const ALL: &'static [CuResult] = &[$(CuResult($number)),*];

            /// [`CuResult::name`] with a terminator, for C callers.
            pub const fn c_name(self) -> Option<&'static CStr> {
                match self.0 {
                    $($number => Some(c_text!($name)),)*
                    _ => None,
                }
            }

            /// The meaning of the code, in one sentence in this project's words, with a terminator
            /// for C callers.
            pub const fn c_description(self) -> Option<&'static CStr> {
                match self.0 {
                    $($number => Some(c_text!($text)),)*
                    _ => None,
                }
            }
        }
    };
}

results! {
    SUCCESS, 0, "CUDA_SUCCESS", "The call succeeded; for queries, the work is done.";
    INVALID_VALUE, 1, "CUDA_ERROR_INVALID_VALUE", "A parameter is outside its accepted range.";
    OUT_OF_MEMORY, 2, "CUDA_ERROR_OUT_OF_MEMORY", "The driver could not allocate enough memory.";
    NOT_INITIALIZED, 3, "CUDA_ERROR_NOT_INITIALIZED", "`cuInit` was not called, or failed.";
    DEINITIALIZED, 4, "CUDA_ERROR_DEINITIALIZED", "The driver is shutting down.";
    PROFILER_DISABLED, 5, "CUDA_ERROR_PROFILER_DISABLED", "Profiling is off for this run.";
    PROFILER_NOT_INITIALIZED, 6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "Unused since CUDA 5.0.";
    PROFILER_ALREADY_STARTED, 7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", "Unused since CUDA 5.0.";
    PROFILER_ALREADY_STOPPED, 8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", "Unused since CUDA 5.0.";
    STUB_LIBRARY, 34, "CUDA_ERROR_STUB_LIBRARY", "The loaded library is the link-time stub, not a driver.";
    CALL_REQUIRES_NEWER_DRIVER, 36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "The call needs a newer driver than the one installed.";
    DEVICE_UNAVAILABLE, 46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "The device is busy or in exclusive use by another process.";
    NO_DEVICE, 100, "CUDA_ERROR_NO_DEVICE", "No CUDA-capable device was found.";
    INVALID_DEVICE, 101, "CUDA_ERROR_INVALID_DEVICE", "The device ordinal or handle names no device.";
    DEVICE_NOT_LICENSED, 102, "CUDA_ERROR_DEVICE_NOT_LICENSED", "The device has no grid licence.";
    INVALID_IMAGE, 200, "CUDA_ERROR_INVALID_IMAGE", "The device code image is not valid.";
    INVALID_CONTEXT, 201, "CUDA_ERROR_INVALID_CONTEXT", "No context is current, or the one given is not valid.";
    CONTEXT_ALREADY_CURRENT, 202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", "Unused since CUDA 3.2.";
    MAP_FAILED, 205, "CUDA_ERROR_MAP_FAILED", "A map or register operation failed.";
    UNMAP_FAILED, 206, "CUDA_ERROR_UNMAP_FAILED", "An unmap or unregister operation failed.";
    ARRAY_IS_MAPPED, 207, "CUDA_ERROR_ARRAY_IS_MAPPED", "The array is mapped and so cannot be destroyed.";
    ALREADY_MAPPED, 208, "CUDA_ERROR_ALREADY_MAPPED", "The resource is already mapped.";
    NO_BINARY_FOR_GPU, 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "The image holds no code for this device.";
    ALREADY_ACQUIRED, 210, "CUDA_ERROR_ALREADY_ACQUIRED", "The resource is already acquired.";
    NOT_MAPPED, 211, "CUDA_ERROR_NOT_MAPPED", "The resource is not mapped.";
    NOT_MAPPED_AS_ARRAY, 212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", "The mapped resource cannot be accessed as an array.";
    NOT_MAPPED_AS_POINTER, 213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", "The mapped resource cannot be accessed as a pointer.";
    ECC_UNCORRECTABLE, 214, "CUDA_ERROR_ECC_UNCORRECTABLE", "An uncorrectable ECC error happened during execution.";
    UNSUPPORTED_LIMIT, 215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "The device does not support this `CUlimit`.";
    CONTEXT_ALREADY_IN_USE, 216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "The context is already bound to another thread.";
    PEER_ACCESS_UNSUPPORTED, 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "The two devices cannot access each other.";
    INVALID_PTX, 218, "CUDA_ERROR_INVALID_PTX", "PTX compilation failed.";
    INVALID_GRAPHICS_CONTEXT, 219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "The OpenGL or DirectX context is not valid.";
    NVLINK_UNCORRECTABLE, 220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "An uncorrectable NVLink error happened during execution.";
    JIT_COMPILER_NOT_FOUND, 221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "The PTX just-in-time compiler library was not found.";
    UNSUPPORTED_PTX_VERSION, 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "The PTX is newer than the compiler of this driver.";
    JIT_COMPILATION_DISABLED, 223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "Just-in-time compilation was switched off.";
    UNSUPPORTED_EXEC_AFFINITY, 224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "The device does not support this `CUexecAffinityType`.";
    UNSUPPORTED_DEVSIDE_SYNC, 225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", "The code calls `cudaDeviceSynchronize` on the device, which is not supported.";
    CONTAINED, 226, "CUDA_ERROR_CONTAINED", "An error was contained to this context; the device goes on.";
    INVALID_SOURCE, 300, "CUDA_ERROR_INVALID_SOURCE", "The device kernel source is not valid.";
    FILE_NOT_FOUND, 301, "CUDA_ERROR_FILE_NOT_FOUND", "The file was not found.";
    SHARED_OBJECT_SYMBOL_NOT_FOUND, 302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "A link to a shared object did not resolve.";
    SHARED_OBJECT_INIT_FAILED, 303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "A shared object failed to initialise.";
    OPERATING_SYSTEM, 304, "CUDA_ERROR_OPERATING_SYSTEM", "An operating-system call failed.";
    INVALID_HANDLE, 400, "CUDA_ERROR_INVALID_HANDLE", "A resource handle is not valid.";
    ILLEGAL_STATE, 401, "CUDA_ERROR_ILLEGAL_STATE", "A resource is not in a state that allows the operation.";
    LOSSY_QUERY, 402, "CUDA_ERROR_LOSSY_QUERY", "A query would have to drop semantically important information.";
    NOT_FOUND, 500, "CUDA_ERROR_NOT_FOUND", "The named symbol, texture or surface was not found.";
    NOT_READY, 600, "CUDA_ERROR_NOT_READY", "Asynchronous work has not completed yet: an answer, not a failure.";
    ILLEGAL_ADDRESS, 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "A kernel accessed an address it may not. The context is lost.";
    LAUNCH_OUT_OF_RESOURCES, 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "The launch needs more \
        registers, threads or memory than available.";
    LAUNCH_TIMEOUT, 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "A kernel ran longer than the device allows. The context is lost.";
    LAUNCH_INCOMPATIBLE_TEXTURING, 703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", "The launch uses an incompatible texturing mode.";
    PEER_ACCESS_ALREADY_ENABLED, 704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "Peer access between the two contexts is already on.";
    PEER_ACCESS_NOT_ENABLED, 705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "Peer access between the two contexts is not on.";
    PRIMARY_CONTEXT_ACTIVE, 708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "The primary context of the device is already initialised.";
    CONTEXT_IS_DESTROYED, 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "The current context was destroyed, or is a primary context not yet initialised.";
    ASSERT, 710, "CUDA_ERROR_ASSERT", "A device-side assertion failed. The context is lost.";
    TOO_MANY_PEERS, 711, "CUDA_ERROR_TOO_MANY_PEERS", "The hardware has no room for another peer.";
    HOST_MEMORY_ALREADY_REGISTERED, 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "The host memory range is already registered.";
    HOST_MEMORY_NOT_REGISTERED, 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "The host pointer is in no registered range.";
    HARDWARE_STACK_ERROR, 714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "The device met a stack error. The context is lost.";
    ILLEGAL_INSTRUCTION, 715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "The device met an illegal instruction. The context is lost.";
    MISALIGNED_ADDRESS, 716, "CUDA_ERROR_MISALIGNED_ADDRESS", "A kernel made a misaligned access. The context is lost.";
    INVALID_ADDRESS_SPACE, 717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "An instruction was given an address of the wrong space. The context is lost.";
    INVALID_PC, 718, "CUDA_ERROR_INVALID_PC", "The program counter left its address space. The context is lost.";
    LAUNCH_FAILED, 719, "CUDA_ERROR_LAUNCH_FAILED", "A kernel failed for a reason not covered elsewhere. The context is lost.";
    COOPERATIVE_LAUNCH_TOO_LARGE, 720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "A cooperative launch has more blocks than can be resident at once.";
    TENSOR_MEMORY_LEAK, 721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "A kernel ended without freeing its tensor memory. The context is lost.";
    NOT_PERMITTED, 800, "CUDA_ERROR_NOT_PERMITTED", "The operation is not permitted.";
    NOT_SUPPORTED, 801, "CUDA_ERROR_NOT_SUPPORTED", "The operation is not supported by this system or device.";
    SYSTEM_NOT_READY, 802, "CUDA_ERROR_SYSTEM_NOT_READY", "The system, such as its fabric manager, is not ready for CUDA work.";
    SYSTEM_DRIVER_MISMATCH, 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "The display driver and the CUDA driver have different versions.";
    COMPAT_NOT_SUPPORTED_ON_DEVICE, 804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "Forward compatibility is not supported on this device.";
    MPS_CONNECTION_FAILED, 805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "The MPS client could not reach the control daemon or the server.";
    MPS_RPC_FAILURE, 806, "CUDA_ERROR_MPS_RPC_FAILURE", "A call from the MPS client to the server failed.";
    MPS_SERVER_NOT_READY, 807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "The MPS server takes no new clients now; it may be recovering from a fault.";
    MPS_MAX_CLIENTS_REACHED, 808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "The MPS server has as many clients as it can take.";
    MPS_MAX_CONNECTIONS_REACHED, 809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "The MPS server has as many device connections as it can take.";
    MPS_CLIENT_TERMINATED, 810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "The MPS client was terminated by the server.";
    CDP_NOT_SUPPORTED, 811, "CUDA_ERROR_CDP_NOT_SUPPORTED", "Dynamic parallelism is not supported here.";
    CDP_VERSION_MISMATCH, 812, "CUDA_ERROR_CDP_VERSION_MISMATCH", "The module mixes incompatible versions of dynamic parallelism.";
    STREAM_CAPTURE_UNSUPPORTED, 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "The operation is not allowed while the stream is capturing.";
    STREAM_CAPTURE_INVALIDATED, 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "An earlier error invalidated the capture.";
    STREAM_CAPTURE_MERGE, 902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "The operation would merge two separate captures.";
    STREAM_CAPTURE_UNMATCHED, 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "The capture was not begun in this stream.";
    STREAM_CAPTURE_UNJOINED, 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "The capture has a fork that was not joined to its first stream.";
    STREAM_CAPTURE_ISOLATION, 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "A dependency would cross the boundary of the capture.";
    STREAM_CAPTURE_IMPLICIT, 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "An implicit dependency on the legacy stream is not allowed in a capture.";
    CAPTURED_EVENT, 907, "CUDA_ERROR_CAPTURED_EVENT", "The event was last recorded in a capturing stream.";
    STREAM_CAPTURE_WRONG_THREAD, 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "The capture was begun by another thread.";
    TIMEOUT, 909, "CUDA_ERROR_TIMEOUT", "A wait ran out of time.";
    GRAPH_EXEC_UPDATE_FAILURE, 910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "The graph update breaks a rule of in-place updates.";
    EXTERNAL_DEVICE, 911, "CUDA_ERROR_EXTERNAL_DEVICE", "An asynchronous error happened in a device outside CUDA. The context is lost.";
    INVALID_CLUSTER_SIZE, 912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "The launch uses a cluster size that the device or kernel does not allow.";
    FUNCTION_NOT_LOADED, 913, "CUDA_ERROR_FUNCTION_NOT_LOADED", "The function is not loaded yet (lazy loading).";
    INVALID_RESOURCE_TYPE, 914, "CUDA_ERROR_INVALID_RESOURCE_TYPE", "A resource has a type that the operation does not take.";
    INVALID_RESOURCE_CONFIGURATION, 915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "A resource is configured in a way that the operation does not take.";
    KEY_ROTATION, 916, "CUDA_ERROR_KEY_ROTATION", "The operation met a rotation of encryption keys.";
    UNKNOWN, 999, "CUDA_ERROR_UNKNOWN", "An internal error of the driver.";
}

#[cfg(test)]
mod tests {
    use super::CuResult;
    use std::format;
    use std::string::ToString;

    #[test]
    fn display_names_and_numbers() {
        assert_eq!(CuResult::OUT_OF_MEMORY.to_string(), "CUDA_ERROR_OUT_OF_MEMORY (2)");
        assert_eq!(CuResult(0).to_string(), "CUDA_SUCCESS (0)");
        assert_eq!(CuResult(4321).to_string(), "unknown CUresult (4321)");
        assert_eq!(format!("{:?}", CuResult(999)), "CUDA_ERROR_UNKNOWN (999)");
    }

    #[test]
    fn ok_is_zero_and_nothing_else() {
        assert_eq!(CuResult::SUCCESS.ok(), Ok(()));
        for code in CuResult::ALL.iter().skip(1) {
            assert_eq!(code.ok(), Err(*code));
            assert!(code.is_err());
        }
    }

    #[test]
    fn every_code_is_named_once() {
        assert!(CuResult::ALL.is_sorted_by_key(|code| code.0));
        assert_eq!(CuResult::ALL.len(), 101);
        for pair in CuResult::ALL.windows(2) {
            assert_ne!(pair[0].0, pair[1].0);
            assert_ne!(pair[0].name(), pair[1].name());
        }
        for code in CuResult::ALL {
            assert!(code.name().unwrap().starts_with("CUDA_"));
            assert!(!code.c_description().unwrap().is_empty());
        }
    }

    #[test]
    fn a_lost_context_is_sticky_and_a_refusal_is_not() {
        assert!(CuResult::ILLEGAL_ADDRESS.is_sticky());
        assert!(!CuResult::OUT_OF_MEMORY.is_sticky());
        assert!(!CuResult::NOT_READY.is_sticky());
        assert!(!CuResult::SUCCESS.is_sticky());
    }
}
