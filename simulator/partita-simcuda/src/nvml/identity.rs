//! Finding devices, and their constant properties.

use std::ffi::{c_char, c_int};

use super::{Device, Handle, NvmlReturn, device, devices, handle_of, pci, put, put_text, text};

/// `nvmlComputeMode_t`: any process may use the device.
const COMPUTE_MODE_DEFAULT: u32 = 0;
/// `nvmlBrandType_t`.
const BRAND_GEFORCE: u32 = 5;
/// `nvmlBrandType_t`: data centre boards since they are no longer called Tesla.
const BRAND_NVIDIA: u32 = 14;
/// `NVML_BUS_TYPE_PCIE`.
const BUS_TYPE_PCIE: u32 = 2;

nvml_api! {
    /// How many devices there are.
    fn nvmlDeviceGetCount_v2(count: *mut u32) { put(count, devices()?.len() as u32) }
    /// How many devices there are.
    fn nvmlDeviceGetCount(count: *mut u32) { put(count, devices()?.len() as u32) }
    /// The device of a number.
    fn nvmlDeviceGetHandleByIndex_v2(index: u32, to: *mut Handle) {
        find(|device| device.place.index == index, to, NvmlReturn::INVALID_ARGUMENT)
    }
    /// The device of a number.
    fn nvmlDeviceGetHandleByIndex(index: u32, to: *mut Handle) {
        find(|device| device.place.index == index, to, NvmlReturn::INVALID_ARGUMENT)
    }
    /// The device of an identifier `GPU-…` or `MIG-…`.
    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, to: *mut Handle) {
        let wanted = text(uuid)?;
        find(|device| device.uuid == wanted, to, NvmlReturn::NOT_FOUND)
    }
    /// The device at a place on the bus.
    fn nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, to: *mut Handle) {
        let wanted = text(id)?;
        find(|device| pci::is_here(device, wanted), to, NvmlReturn::NOT_FOUND)
    }
    /// The device at a place on the bus.
    fn nvmlDeviceGetHandleByPciBusId(id: *const c_char, to: *mut Handle) {
        let wanted = text(id)?;
        find(|device| pci::is_here(device, wanted), to, NvmlReturn::NOT_FOUND)
    }

    /// Product name.
    fn nvmlDeviceGetName(handle: Handle, to: *mut c_char, length: u32) {
        put_text(to, length, device(handle)?.place.spec.name)
    }
    /// Identifier, `GPU-…`.
    fn nvmlDeviceGetUUID(handle: Handle, to: *mut c_char, length: u32) {
        put_text(to, length, &device(handle)?.uuid)
    }
    /// Compute capability.
    fn nvmlDeviceGetCudaComputeCapability(handle: Handle, major: *mut c_int, minor: *mut c_int) {
        let capability = device(handle)?.place.spec.compute_capability;
        put(major, capability.major.into())?;
        put(minor, capability.minor.into())
    }
    /// Whether ECC is on, now and after the next reset.
    fn nvmlDeviceGetEccMode(handle: Handle, current: *mut u32, pending: *mut u32) {
        let ecc = u32::from(ecc(&*device(handle)?)?);
        put(current, ecc)?;
        put(pending, ecc)
    }
    /// Whether two devices are on one board: a device and itself are.
    fn nvmlDeviceOnSameBoard(one: Handle, other: Handle, same: *mut c_int) {
        let (one, other) = (device(one)?, device(other)?);
        put(same, c_int::from(one.place.index == other.place.index))
    }
}

/// Stores the handle of the device.
///
/// # Safety
/// The pointer is null or valid for writing a handle.
unsafe fn find(
    is_meant: impl Fn(&Device) -> bool,
    to: *mut Handle,
    otherwise: NvmlReturn,
) -> Result<(), NvmlReturn> {
    let gpus = devices()?;
    let mut found = gpus.iter().find(|device| is_meant(device)).cloned();
    for gpu in &gpus {
        if found.is_none() {
            let instances = gpu.instances()?.unwrap_or_default();
            found = instances.into_iter().find(|device| is_meant(device));
        }
    }
    // SAFETY: the caller's own demand.
    unsafe { put(to, handle_of(&*found.ok_or(otherwise)?)) }
}

fn ecc(device: &Device) -> Result<bool, NvmlReturn> {
    // Boards without it do not answer with "off": they do not know the question.
    if device.place.spec.memory.ecc { Ok(true) } else { Err(NvmlReturn::NOT_SUPPORTED) }
}

/// `NVML_DEVICE_ARCH_*`.
fn architecture(device: &Device) -> u32 {
    let capability = device.place.spec.compute_capability;
    match (capability.major, capability.minor) {
        (3, _) => 2,
        (5, _) => 3,
        (6, _) => 4,
        (7, 5) => 6,
        (7, _) => 5,
        (8, 9) => 8,
        (8, _) => 7,
        (9, _) => 9,
        (10 | 12, _) => 10,
        _ => u32::MAX,
    }
}

fn brand(device: &Device) -> u32 {
    if device.place.spec.name.contains("GeForce") { BRAND_GEFORCE } else { BRAND_NVIDIA }
}

nvml_getters! {
    /// Number of the device.
    fn nvmlDeviceGetIndex -> u32 = |device| device.place.index;
    /// Number of the device node.
    fn nvmlDeviceGetMinorNumber -> u32 = |device| device.place.index;
    /// Number that devices of one board share.
    fn nvmlDeviceGetBoardId -> u32 = |device| device.place.pci_bus() << 8;
    /// Whether the board has several GPUs.
    fn nvmlDeviceGetMultiGpuBoard -> u32 = |_device| 0;
    /// Brand.
    fn nvmlDeviceGetBrand -> u32 = |device| brand(&device);
    /// Architecture.
    fn nvmlDeviceGetArchitecture -> u32 = |device| architecture(&device);
    /// FP32 lanes of all SMs.
    fn nvmlDeviceGetNumGpuCores -> u32 = |device| device.place.spec.sm_count() * device.place.spec.sm.fp32_lanes;
    /// Width of the memory bus, in bits.
    fn nvmlDeviceGetMemoryBusWidth -> u32 = |device| device.place.spec.memory.bus_bits;
    /// Kind of bus.
    fn nvmlDeviceGetBusType -> u32 = |_device| BUS_TYPE_PCIE;
    /// Whether ECC is on by default.
    fn nvmlDeviceGetDefaultEccMode -> u32 = |device| u32::from(ecc(&device)?);
    /// Which processes may use the device: all.
    fn nvmlDeviceGetComputeMode -> u32 = |_device| COMPUTE_MODE_DEFAULT;
    /// Whether the driver stays loaded without clients. The board exits with its last client, so it
    /// does not.
    fn nvmlDeviceGetPersistenceMode -> u32 = |_device| 0;
    /// Whether a display is connected.
    fn nvmlDeviceGetDisplayMode -> u32 = |_device| 0;
    /// Whether a display is in use.
    fn nvmlDeviceGetDisplayActive -> u32 = |_device| 0;
    /// Whether use is accounted for per process.
    fn nvmlDeviceGetAccountingMode -> u32 = |_device| 0;
    /// Whether the device is virtualised.
    fn nvmlDeviceGetVirtualizationMode -> u32 = |_device| 0;
}
