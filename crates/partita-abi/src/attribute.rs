//! Attributes of devices, functions and pointers.
//!
//! Numbers and names are those of `cuda.h`, CUDA 13.0. A number that has two
//! names in the header, an old and a new one, has the new one here.
#![allow(non_camel_case_types)] // The header's own names.

/// Defines the constants of one enumeration and the names of their numbers.
macro_rules! attributes {
    ($type:ident, $name:ident, $all:ident: $($(#[$doc:meta])* $constant:ident = $value:literal;)*) => {
        $(
            $(#[$doc])*
            pub const $constant: $type = $value;
        )*

        /// Every attribute of the enumeration, in ascending order.
        pub const $all: &[$type] = &[$($value),*];

        /// The header's name of an attribute, or `None` for an unknown number.
        pub const fn $name(attribute: $type) -> Option<&'static str> {
            match attribute {
                $($value => Some(stringify!($constant)),)*
                _ => None,
            }
        }
    };
}

/// An attribute of `cuDeviceGetAttribute`, whose value is an `int`.
pub type CUdevice_attribute = u32;

attributes! {
    CUdevice_attribute, device_attribute_name, DEVICE_ATTRIBUTES:
    /// Most threads of a block.
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1;
    /// Most threads of a block in x.
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X = 2;
    /// Most threads of a block in y.
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y = 3;
    /// Most threads of a block in z.
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z = 4;
    /// Most blocks of a grid in x.
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5;
    /// Most blocks of a grid in y.
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y = 6;
    /// Most blocks of a grid in z.
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z = 7;
    /// Most shared memory of a block without opting in, in bytes.
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8;
    /// Constant memory of a kernel, in bytes.
    CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY = 9;
    /// Threads of a warp.
    CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10;
    /// Greatest pitch of a copy, in bytes.
    CU_DEVICE_ATTRIBUTE_MAX_PITCH = 11;
    /// 32-bit registers of a block.
    CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK = 12;
    /// Clock of the SMs, in kHz.
    CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13;
    /// Alignment of textures, in bytes.
    CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT = 14;
    /// Whether copies and kernels overlap.
    CU_DEVICE_ATTRIBUTE_GPU_OVERLAP = 15;
    /// Number of SMs.
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16;
    /// Whether kernels have a time limit.
    CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT = 17;
    /// Whether the device shares the host's memory.
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18;
    /// Whether host memory can be mapped.
    CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19;
    /// Compute mode, `CU_COMPUTEMODE_*`.
    CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20;
    /// Greatest width of a one-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH = 21;
    /// Greatest width of a two-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH = 22;
    /// Greatest height of a two-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT = 23;
    /// Greatest width of a three-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH = 24;
    /// Greatest height of a three-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT = 25;
    /// Greatest depth of a three-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH = 26;
    /// Greatest width of a layered two-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH = 27;
    /// Greatest height of a layered two-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT = 28;
    /// Most layers of a layered two-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS = 29;
    /// Alignment of surfaces, in bytes.
    CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT = 30;
    /// Whether kernels can run at the same time.
    CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS = 31;
    /// Whether ECC is on.
    CU_DEVICE_ATTRIBUTE_ECC_ENABLED = 32;
    /// PCI bus.
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33;
    /// PCI device.
    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34;
    /// Whether the device uses the TCC driver model.
    CU_DEVICE_ATTRIBUTE_TCC_DRIVER = 35;
    /// Peak clock of the memory, in kHz.
    CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36;
    /// Width of the memory bus, in bits.
    CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37;
    /// L2 cache, in bytes.
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38;
    /// Most resident threads of an SM.
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39;
    /// Number of copy engines.
    CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40;
    /// Whether host and device share one address space.
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41;
    /// Greatest width of a layered one-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH = 42;
    /// Most layers of a layered one-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS = 43;
    /// Whether two-dimensional textures can gather.
    CU_DEVICE_ATTRIBUTE_CAN_TEX2D_GATHER = 44;
    /// Greatest width of a gathering two-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH = 45;
    /// Greatest height of a gathering two-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT = 46;
    /// Greatest width of the other permitted extent of a three-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE = 47;
    /// Greatest height of the other permitted extent of a three-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE = 48;
    /// Greatest depth of the other permitted extent of a three-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE = 49;
    /// PCI domain.
    CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50;
    /// Alignment of the pitch of textures, in bytes.
    CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT = 51;
    /// Greatest width of a cube map texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH = 52;
    /// Greatest width of a layered cube map texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH = 53;
    /// Most layers of a layered cube map texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS = 54;
    /// Greatest width of a one-dimensional surface.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH = 55;
    /// Greatest width of a two-dimensional surface.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH = 56;
    /// Greatest height of a two-dimensional surface.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT = 57;
    /// Greatest width of a three-dimensional surface.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH = 58;
    /// Greatest height of a three-dimensional surface.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT = 59;
    /// Greatest depth of a three-dimensional surface.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH = 60;
    /// Greatest width of a layered one-dimensional surface.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH = 61;
    /// Most layers of a layered one-dimensional surface.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS = 62;
    /// Greatest width of a layered two-dimensional surface.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH = 63;
    /// Greatest height of a layered two-dimensional surface.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT = 64;
    /// Most layers of a layered two-dimensional surface.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS = 65;
    /// Greatest width of a cube map surface.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH = 66;
    /// Greatest width of a layered cube map surface.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH = 67;
    /// Most layers of a layered cube map surface.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS = 68;
    /// Greatest width of a linear one-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH = 69;
    /// Greatest width of a linear two-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH = 70;
    /// Greatest height of a linear two-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT = 71;
    /// Greatest pitch, in bytes, of a linear two-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH = 72;
    /// Greatest width of a mip-mapped two-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH = 73;
    /// Greatest height of a mip-mapped two-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT = 74;
    /// Major compute capability.
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75;
    /// Minor compute capability.
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76;
    /// Greatest width of a mip-mapped one-dimensional texture.
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH = 77;
    /// Whether streams have priorities.
    CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED = 78;
    /// Whether L1 caches global memory.
    CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED = 79;
    /// Whether L1 caches local memory.
    CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED = 80;
    /// Shared memory of an SM, in bytes.
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81;
    /// 32-bit registers of an SM.
    CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR = 82;
    /// Whether managed memory exists.
    CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83;
    /// Whether the board has several devices.
    CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD = 84;
    /// A number that the devices of one board share.
    CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID = 85;
    /// Whether the link to the host has native atomics.
    CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED = 86;
    /// Ratio of single to double precision throughput.
    CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO = 87;
    /// Whether kernels may access pageable host memory.
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88;
    /// Whether host and device may access managed memory at the same time.
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89;
    /// Whether kernels can be pre-empted.
    CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED = 90;
    /// Whether registered host memory has one address on both sides.
    CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91;
    /// Whether the first version of stream memory operations exists.
    CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1 = 92;
    /// Whether its 64-bit operations exist.
    CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1 = 93;
    /// Whether its NOR comparison exists.
    CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1 = 94;
    /// Whether cooperative launches exist.
    CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH = 95;
    /// Whether cooperative launches over several devices exist.
    CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH = 96;
    /// Most shared memory of a block with opting in, in bytes.
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97;
    /// Whether streams can flush remote writes.
    CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES = 98;
    /// Whether host memory can be registered.
    CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99;
    /// Whether the device uses the host's page tables.
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 100;
    /// Whether the host can access managed memory in the device.
    CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST = 101;
    /// Whether `cuMemCreate` and `cuMemMap` exist.
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102;
    /// Whether memory can be exported as a file descriptor.
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103;
    /// Whether memory can be exported as a Windows handle.
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED = 104;
    /// Whether memory can be exported as a Windows KMT handle.
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED = 105;
    /// Most resident blocks of an SM.
    CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR = 106;
    /// Whether memory can be compressed.
    CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED = 107;
    /// Most L2 that can be set aside, in bytes.
    CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE = 108;
    /// Longest access policy window, in bytes.
    CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE = 109;
    /// Whether `cuMemCreate` can make memory that other devices of the bus may access.
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110;
    /// Shared memory that the driver reserves in a block, in bytes.
    CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK = 111;
    /// Whether sparse arrays exist.
    CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED = 112;
    /// Whether host memory can be registered for reading only.
    CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED = 113;
    /// Whether timeline semaphores can be imported.
    CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED = 114;
    /// Whether memory pools exist.
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115;
    /// Whether other devices of the bus may access the memory.
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116;
    /// How writes of other devices can be flushed, a bit mask.
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS = 117;
    /// Up to where writes of other devices are ordered.
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING = 118;
    /// How pools can be exported, `CU_MEM_HANDLE_TYPE_*`.
    CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES = 119;
    /// Whether clusters exist.
    CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH = 120;
    /// Whether arrays of deferred mapping exist.
    CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED = 121;
    /// Whether streams can wait for and write 64-bit values.
    CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122;
    /// Whether streams can wait with `CU_STREAM_WAIT_VALUE_NOR`.
    CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR = 123;
    /// Whether memory can be exported as a DMA buffer.
    CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124;
    /// Whether events can be exported.
    CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125;
    /// Number of memory synchronisation domains.
    CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT = 126;
    /// Whether tensor maps exist.
    CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED = 127;
    /// Whether memory can be exported to the NVLink fabric.
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128;
    /// Whether function pointers are the same on host and device.
    CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS = 129;
    /// How the memory is a NUMA node: 0 not, 1 a separate one.
    CU_DEVICE_ATTRIBUTE_NUMA_CONFIG = 130;
    /// NUMA node of the memory.
    CU_DEVICE_ATTRIBUTE_NUMA_ID = 131;
    /// Whether multicast objects exist.
    CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED = 132;
    /// Whether contexts are shared through MPS.
    CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133;
    /// Closest NUMA node of the host, or −1.
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134;
    /// Whether CUDA-in-graphics works with Direct3D 12.
    CU_DEVICE_ATTRIBUTE_D3D12_CIG_SUPPORTED = 135;
    /// Decompression algorithms in hardware, a bit mask.
    CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK = 136;
    /// Longest decompression, in bytes.
    CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_MAXIMUM_LENGTH = 137;
    /// Whether CUDA-in-graphics works with Vulkan.
    CU_DEVICE_ATTRIBUTE_VULKAN_CIG_SUPPORTED = 138;
    /// PCI device and vendor.
    CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID = 139;
    /// PCI subsystem and its vendor.
    CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID = 140;
    /// Whether `cuMemCreate` can place memory on a NUMA node of the host.
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 141;
    /// Whether pools can be on a NUMA node of the host.
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED = 142;
    /// Whether memory on a NUMA node can be shared between machines.
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED = 143;
    /// Whether pools can be on the host.
    CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED = 144;
    /// Whether `cuMemCreate` can place memory on the host.
    CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 145;
    /// Whether host memory can be exported as a DMA buffer.
    CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED = 146;
    /// Whether the link to the host has only some native atomics.
    CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED = 147;
}

/// An attribute of `cuFuncGetAttribute`, whose value is an `int`.
pub type CUfunction_attribute = u32;

attributes! {
    CUfunction_attribute, function_attribute_name, FUNCTION_ATTRIBUTES:
    /// Most threads of a block.
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0;
    /// Static shared memory of a block, in bytes.
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1;
    /// Constant memory, in bytes.
    CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES = 2;
    /// Local memory of a thread, in bytes.
    CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3;
    /// Registers of a thread.
    CU_FUNC_ATTRIBUTE_NUM_REGS = 4;
    /// PTX version, major × 10 + minor.
    CU_FUNC_ATTRIBUTE_PTX_VERSION = 5;
    /// Binary version, major × 10 + minor.
    CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6;
    /// Whether it was compiled to cache global loads in L1.
    CU_FUNC_ATTRIBUTE_CACHE_MODE_CA = 7;
    /// Most dynamic shared memory of a block, in bytes; can be set.
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;
    /// Share of L1 preferred as shared memory, in percent, −1 for none; can be set.
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9;
    /// Whether a launch must give a cluster size.
    CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET = 10;
    /// Blocks of a cluster in x, when compiled in; can be set.
    CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH = 11;
    /// Blocks of a cluster in y, when compiled in; can be set.
    CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT = 12;
    /// Blocks of a cluster in z, when compiled in; can be set.
    CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH = 13;
    /// Whether clusters of more than 8 blocks are allowed; can be set.
    CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14;
    /// How clusters are spread; can be set.
    CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 15;
}

/// An attribute of `cuPointerGetAttribute`; each has its own type of value.
pub type CUpointer_attribute = u32;

attributes! {
    CUpointer_attribute, pointer_attribute_name, POINTER_ATTRIBUTES:
    /// The context, as a `CUcontext`.
    CU_POINTER_ATTRIBUTE_CONTEXT = 1;
    /// Kind of memory, `CU_MEMORYTYPE_*`.
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2;
    /// The address on the device.
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3;
    /// An attribute of `cuPointerGetAttribute`; each has its own type of value.
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4;
    /// Tokens for peer-to-peer drivers.
    CU_POINTER_ATTRIBUTE_P2P_TOKENS = 5;
    /// Whether synchronous operations synchronise.
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6;
    /// A number of the allocation, unique in the process (`u64`).
    CU_POINTER_ATTRIBUTE_BUFFER_ID = 7;
    /// Whether the memory is managed.
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8;
    /// Ordinal of the device.
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9;
    /// Whether `cuIpcGetMemHandle` takes it.
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10;
    /// First address of the range.
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11;
    /// Size of the range, in bytes.
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12;
    /// Whether memory is mapped there.
    CU_POINTER_ATTRIBUTE_MAPPED = 13;
    /// How it may be exported, `CU_MEM_HANDLE_TYPE_*`.
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14;
    /// Whether other devices of the bus may access it.
    CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15;
    /// What the current device may do with it.
    CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16;
    /// Its pool, or null.
    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17;
    /// Size of the mapping, in bytes.
    CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18;
    /// First address of the mapping.
    CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19;
    /// A number of the physical memory, unique in the process (`u64`).
    CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20;
    /// Whether hardware decompression takes it.
    CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE = 21;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_gaps_and_names_are_theirs() {
        // The header numbers all three without a gap.
        assert!(DEVICE_ATTRIBUTES.iter().copied().eq(1..=147));
        assert!(FUNCTION_ATTRIBUTES.iter().copied().eq(0..=15));
        assert!(POINTER_ATTRIBUTES.iter().copied().eq(1..=21));
        assert_eq!(device_attribute_name(16), Some("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT"));
        assert_eq!(device_attribute_name(148), None);
        assert_eq!(function_attribute_name(4), Some("CU_FUNC_ATTRIBUTE_NUM_REGS"));
        assert_eq!(pointer_attribute_name(8), Some("CU_POINTER_ATTRIBUTE_IS_MANAGED"));
    }
}
