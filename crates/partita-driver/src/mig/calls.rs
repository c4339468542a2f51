//! The functions of `nvml.h` for MIG, found at run time.

use alloc::ffi::CString;
use core::ffi::{c_char, c_uint, c_ulonglong, c_void};

use super::error::MigError;
use crate::library::Library;

/// `nvmlDevice_t`, `nvmlGpuInstance_t` or `nvmlComputeInstance_t`.
pub(super) type Handle = *mut c_void;

/// `nvmlGpuInstancePlacement_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RawPlacement {
    pub start: c_uint,
    pub size: c_uint,
}

/// `nvmlGpuInstanceProfileInfo_v2_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct RawProfile {
    pub version: c_uint,
    pub id: c_uint,
    pub is_p2p_supported: c_uint,
    pub slice_count: c_uint,
    pub instance_count: c_uint,
    pub multiprocessor_count: c_uint,
    pub engine_counts: [c_uint; 5],
    pub memory_mib: c_ulonglong,
    pub name: [c_char; 96],
}

impl RawProfile {
    const VERSION: c_uint = size_of::<Self>() as c_uint | 2 << 24;

    /// What NVML fills in.
    pub const fn new() -> Self {
        Self {
            version: Self::VERSION,
            id: 0,
            is_p2p_supported: 0,
            slice_count: 0,
            instance_count: 0,
            multiprocessor_count: 0,
            engine_counts: [0; 5],
            memory_mib: 0,
            name: [0; 96],
        }
    }
}

/// `nvmlGpuInstanceInfo_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct RawInstance {
    pub device: Handle,
    pub id: c_uint,
    pub profile: c_uint,
    pub placement: RawPlacement,
}

/// `nvmlComputeInstanceProfileInfo_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RawComputeProfile {
    pub id: c_uint,
    pub slice_count: c_uint,
    pub instance_count: c_uint,
    pub multiprocessor_count: c_uint,
    pub shared_engine_counts: [c_uint; 5],
}

/// `nvmlComputeInstanceInfo_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct RawCompute {
    pub device: Handle,
    pub gpu_instance: Handle,
    pub id: c_uint,
    pub profile: c_uint,
    pub placement: RawPlacement,
}

/// `nvmlProcessInfo_t` of the third version.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RawProcess {
    pub pid: c_uint,
    pub used_bytes: c_ulonglong,
    pub gpu_instance: c_uint,
    pub compute_instance: c_uint,
}

/// `nvmlVgpuHeterogeneousMode_v1_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct RawMixed {
    pub version: c_uint,
    pub mode: c_uint,
}

impl RawMixed {
    pub const fn new(is_on: bool) -> Self {
        Self { version: size_of::<Self>() as c_uint | 1 << 24, mode: is_on as c_uint }
    }
}

/// `nvmlVgpuSchedulerGetState_t` and `nvmlVgpuSchedulerSetState_t`, which have the same layout.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RawScheduler {
    pub policy: c_uint,
    pub averages: c_uint,
    /// With averaging the factor, and the slice or, to set it, the frequency; else the slice.
    pub parameters: [c_uint; 2],
}

// The sizes of `nvml.h` on the 64-bit systems that CUDA has.
const _: () = assert!(size_of::<RawProfile>() == 152 && size_of::<RawInstance>() == 24);
const _: () = assert!(size_of::<RawComputeProfile>() == 36 && size_of::<RawCompute>() == 32);
const _: () = assert!(size_of::<RawProcess>() == 24);
const _: () = assert!(size_of::<RawMixed>() == 8 && size_of::<RawScheduler>() == 16);

macro_rules! calls {
    ($(fn $method:ident = $name:ident($($argument:ident: $type:ty),*);)*) => {
        /// The functions; a missing one is an error of its call.
        pub(super) struct Calls {
            $($method: *mut c_void,)*
        }

        impl Calls {
            /// Loads the library, and finds what it has.
            pub fn load() -> Result<Self, MigError> {
                let library = Library::open(c"libnvidia-ml.so.1")
                    .map_err(|error| MigError::Load(alloc::format!("{error}")))?;
                let find = |name: &str| {
                    CString::new(name).map_or(core::ptr::null_mut(), |name| library.symbol(&name))
                };
                Ok(Self { $($method: find(stringify!($name)),)* })
            }

            $(
                /// # Safety
                /// As `nvml.h` documents for the function of this name.
                pub unsafe fn $method(&self, $($argument: $type),*) -> Result<(), MigError> {
                    if self.$method.is_null() {
                        return Err(MigError::MissingSymbol(stringify!($name)));
                    }
                    type Call = unsafe extern "C" fn($($type),*) -> c_uint;
                    // SAFETY: the address was found under this name, which has this prototype.
                    let call = unsafe { core::mem::transmute::<*mut c_void, Call>(self.$method) };
                    // SAFETY: the caller guarantees it.
                    match unsafe { call($($argument),*) } {
                        0 => Ok(()),
                        code => Err(MigError::Call { name: stringify!($name), code }),
                    }
                }
            )*
        }
    };
}

calls! {
    fn init = nvmlInit_v2();
    fn device_by_uuid = nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Handle);
    fn uuid = nvmlDeviceGetUUID(device: Handle, text: *mut c_char, length: c_uint);
    fn mode = nvmlDeviceGetMigMode(device: Handle, current: *mut c_uint, pending: *mut c_uint);
    fn profile = nvmlDeviceGetGpuInstanceProfileInfoV(device: Handle, index: c_uint, info: *mut RawProfile);
    fn placements = nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: Handle, profile: c_uint, placements: *mut RawPlacement, count: *mut c_uint);
    fn instances = nvmlDeviceGetGpuInstances(
        device: Handle, profile: c_uint, instances: *mut Handle, count: *mut c_uint);
    fn instance_by_id = nvmlDeviceGetGpuInstanceById(device: Handle, id: c_uint, instance: *mut Handle);
    fn instance_info = nvmlGpuInstanceGetInfo(instance: Handle, info: *mut RawInstance);
    fn create_instance = nvmlDeviceCreateGpuInstanceWithPlacement(
        device: Handle, profile: c_uint, placement: *const RawPlacement, instance: *mut Handle);
    fn destroy_instance = nvmlGpuInstanceDestroy(instance: Handle);
    fn compute_profile = nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance: Handle, index: c_uint, engines: c_uint, info: *mut RawComputeProfile);
    fn computes = nvmlGpuInstanceGetComputeInstances(
        instance: Handle, profile: c_uint, computes: *mut Handle, count: *mut c_uint);
    fn compute_by_id = nvmlGpuInstanceGetComputeInstanceById(
        instance: Handle, id: c_uint, compute: *mut Handle);
    fn compute_info = nvmlComputeInstanceGetInfo_v2(compute: Handle, info: *mut RawCompute);
    fn create_compute = nvmlGpuInstanceCreateComputeInstance(
        instance: Handle, profile: c_uint, compute: *mut Handle);
    fn destroy_compute = nvmlComputeInstanceDestroy(compute: Handle);
    fn device_count = nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: *mut c_uint);
    fn device_by_index = nvmlDeviceGetMigDeviceHandleByIndex(
        device: Handle, index: c_uint, to: *mut Handle);
    fn gpu_instance_id = nvmlDeviceGetGpuInstanceId(device: Handle, id: *mut c_uint);
    fn compute_instance_id = nvmlDeviceGetComputeInstanceId(device: Handle, id: *mut c_uint);
    fn supported_vgpus = nvmlDeviceGetSupportedVgpus(
        device: Handle, count: *mut c_uint, types: *mut c_uint);
    fn vgpu_name = nvmlVgpuTypeGetName(kind: c_uint, name: *mut c_char, length: *mut c_uint);
    fn vgpu_bytes = nvmlVgpuTypeGetFramebufferSize(kind: c_uint, bytes: *mut c_ulonglong);
    fn mixed = nvmlDeviceGetVgpuHeterogeneousMode(device: Handle, mode: *mut RawMixed);
    fn set_mixed = nvmlDeviceSetVgpuHeterogeneousMode(device: Handle, mode: *const RawMixed);
    fn scheduler = nvmlDeviceGetVgpuSchedulerState(device: Handle, state: *mut RawScheduler);
    fn set_scheduler = nvmlDeviceSetVgpuSchedulerState(device: Handle, state: *mut RawScheduler);
    fn processes = nvmlDeviceGetComputeRunningProcesses_v3(
        device: Handle, count: *mut c_uint, processes: *mut RawProcess);
}
