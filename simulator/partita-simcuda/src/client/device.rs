//! The device: identity and attributes.

use core::ffi::{c_char, c_int};

use partita_abi::CuResult;
use partita_abi::attribute::*;
use partita_abi::types::*;

use super::context::check_device;
use super::gpus::{runtime, visible};
use super::runtime::Runtime;
use super::{put, put_text, text};

/// Where a simulated board sits: `0000:1b:00.0` for the first.
fn pci_bus_id(runtime: &Runtime) -> String {
    format!("0000:{:02x}:00.0", runtime.pci_bus)
}

/// Bytes of device memory that programs see: the board's without the driver's reserve.
pub fn total_bytes(runtime: &Runtime) -> u64 {
    crate::shared::place::usable_bytes(&runtime.spec)
}

/// An attribute of the simulated device.
fn attribute(runtime: &Runtime, attribute: CUdevice_attribute) -> Result<c_int, CuResult> {
    let spec = &runtime.spec;
    let (sm, capability) = (&spec.sm, spec.compute_capability);
    let major = capability.major;
    let value: u64 = match attribute {
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        | CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X
        | CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y => sm.threads_per_block_max.into(),
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z => 64,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X => i32::MAX as u64,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y | CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z => 65535,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => sm.shared_per_block_bytes.into(),
        CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY => spec.memory.constant_bytes.into(),
        CU_DEVICE_ATTRIBUTE_WARP_SIZE => sm.warp_threads.into(),
        CU_DEVICE_ATTRIBUTE_MAX_PITCH => i32::MAX as u64,
        CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK => sm.registers_per_block_max.into(),
        CU_DEVICE_ATTRIBUTE_CLOCK_RATE => spec.clocks.sm_khz.into(),
        CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE => spec.clocks.memory_khz.into(),
        CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT | CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT => 512,
        CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT => 32,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => runtime.sms.into(),
        CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT => spec.copy.engines.into(),
        CU_DEVICE_ATTRIBUTE_ECC_ENABLED => spec.memory.ecc.into(),
        CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => runtime.pci_bus.into(),
        CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH => spec.memory.bus_bits.into(),
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => spec.memory.l2_bytes.into(),
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => sm.threads_max.into(),
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => major.into(),
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => capability.minor.into(),
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => sm.shared_bytes.into(),
        CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR => sm.registers.into(),
        CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO => {
            if major >= 9 || major == 8 {
                2
            } else {
                32
            }
        }
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => sm.shared_per_block_optin_bytes.into(),
        CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR => sm.blocks_max.into(),
        CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE => spec.memory.l2_persisting_bytes.into(),
        CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE if spec.memory.l2_persisting_bytes > 0 => 128 << 20,
        CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK => sm.shared_reserved_per_block_bytes.into(),
        CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES => CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.into(),
        CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH => u64::from(sm.cluster_blocks_max > 1),
        CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED | CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS => {
            u64::from(major >= 9)
        }
        CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT => {
            if major >= 9 {
                4
            } else {
                1
            }
        }
        CU_DEVICE_ATTRIBUTE_MPS_ENABLED => runtime.mps.is_some().into(),
        CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID => u64::from(spec.board.pci_device_id) << 16 | 0x10de,
        CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID => spec.board.pci_subsystem_id.into(),
        CU_DEVICE_ATTRIBUTE_NUMA_ID | CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID => return Ok(-1),
        CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
        | CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH => u64::from(major >= 6),
        CU_DEVICE_ATTRIBUTE_GPU_OVERLAP
        | CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
        | CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS
        | CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        | CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
        | CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
        | CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR
        | CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED => 1,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH => 131_072,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT => 65_536,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH => 16_384,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH => 32_768,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS => 2048,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH => 268_435_456,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH => 131_072,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT => 65_000,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH => 2_097_120,
        // All others are absent, not supported or zero: no integrated, TCC, multi-board, fabric or
        // CIG features.
        attribute if device_attribute_name(attribute).is_some() => 0,
        _ => return Err(CuResult::INVALID_VALUE),
    };
    Ok(c_int::try_from(value).unwrap_or(c_int::MAX))
}

driver_api! {
    /// Counts the devices that `CUDA_VISIBLE_DEVICES` shows.
    fn cuDeviceGetCount(count) {
        runtime()?;
        put(count, visible().len() as c_int)
    }

    /// The device of an ordinal.
    fn cuDeviceGet(device, ordinal) {
        check_device(ordinal)?;
        put(device, ordinal)
    }

    /// The device's name.
    fn cuDeviceGetName(name, length, device) {
        put_text(name, length, check_device(device)?.spec.name)
    }

    /// The device's identifier: of a MIG instance its own.
    fn cuDeviceGetUuid_v2(uuid, device) {
        put(uuid, CUuuid { bytes: check_device(device)?.uuid })
    }

    /// The GPU's identifier, of a MIG instance too.
    fn cuDeviceGetUuid(uuid, device) {
        put(uuid, CUuuid { bytes: check_device(device)?.gpu_uuid })
    }

    /// The device's memory, in bytes.
    fn cuDeviceTotalMem_v2(bytes, device) {
        put(bytes, total_bytes(check_device(device)?) as usize)
    }

    /// An attribute of the device.
    fn cuDeviceGetAttribute(value, wanted, device) {
        put(value, attribute(check_device(device)?, wanted)?)
    }

    /// The device at a place on the bus.
    fn cuDeviceGetByPCIBusId(device, bus) {
        runtime()?;
        let wanted = text(bus)?.to_ascii_lowercase();
        let found = visible().iter().find(|runtime| {
            let known = pci_bus_id(runtime);
            // The domain and the function are optional.
            [known.as_str(), known.trim_start_matches("0000:")]
                .iter()
                .any(|known| *known == wanted || known.trim_end_matches(".0") == wanted)
        });
        put(device, found.ok_or(CuResult::INVALID_DEVICE)?.ordinal)
    }

    /// Where the device sits on the bus.
    fn cuDeviceGetPCIBusId(bus, length, device) {
        put_text(bus, length, &pci_bus_id(check_device(device)?))
    }

    /// Whether one device's kernels can access another's memory: none can here.
    fn cuDeviceCanAccessPeer(can, device, peer) {
        check_device(device)?;
        check_device(peer)?;
        put(can, 0)
    }

    /// How devices reach one another: not by themselves.
    fn cuDeviceGetP2PAttribute(value, attribute, from, to) {
        check_device(from)?;
        check_device(to)?;
        let known = CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK..=CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED;
        if from == to || !known.contains(&attribute) {
            return Err(if from == to { CuResult::INVALID_DEVICE } else { CuResult::INVALID_VALUE });
        }
        put(value, 0)
    }
}
