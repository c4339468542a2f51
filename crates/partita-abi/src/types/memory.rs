//! Physical memory, pools and memory shared between processes.

use super::layout;
use core::ffi::c_void;

/// What kind of place a [`CUmemLocation`] is.
pub type CUmemLocationType = u32;
/// No place, or none preferred.
pub const CU_MEM_LOCATION_TYPE_INVALID: CUmemLocationType = 0;
/// A device, by ordinal.
pub const CU_MEM_LOCATION_TYPE_DEVICE: CUmemLocationType = 1;
/// The host.
pub const CU_MEM_LOCATION_TYPE_HOST: CUmemLocationType = 2;
/// A NUMA node of the host, by number.
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA: CUmemLocationType = 3;
/// The calling thread's NUMA node.
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: CUmemLocationType = 4;

/// A place where memory is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUmemLocation {
    /// What kind of place.
    pub kind: CUmemLocationType,
    /// Which one of that kind.
    pub id: i32,
}
layout!(CUmemLocation, 8);

/// What kind of allocation a [`CUmemAllocationProp`] asks for.
pub type CUmemAllocationType = u32;
/// Not an allocation.
pub const CU_MEM_ALLOCATION_TYPE_INVALID: CUmemAllocationType = 0;
/// Memory that stays where it is.
pub const CU_MEM_ALLOCATION_TYPE_PINNED: CUmemAllocationType = 1;
/// Memory that migrates.
pub const CU_MEM_ALLOCATION_TYPE_MANAGED: CUmemAllocationType = 2;

/// How memory may be handed to other processes.
pub type CUmemAllocationHandleType = u32;
/// Not at all.
pub const CU_MEM_HANDLE_TYPE_NONE: CUmemAllocationHandleType = 0;
/// As a file descriptor.
pub const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: CUmemAllocationHandleType = 1;
/// As a handle of the NVLink fabric.
pub const CU_MEM_HANDLE_TYPE_FABRIC: CUmemAllocationHandleType = 8;

/// The flags of a [`CUmemAllocationProp`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUmemAllocationPropFlags {
    /// 1 asks for compressible memory.
    pub compression_type: u8,
    /// 1 asks for memory that other devices on the bus may access.
    pub gpu_direct_rdma_capable: u8,
    /// `CU_MEM_CREATE_USAGE_*`.
    pub usage: u16,
    /// Zero.
    pub reserved: [u8; 4],
}
layout!(CUmemAllocationPropFlags, 8);

/// The properties of memory made by `cuMemCreate`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUmemAllocationProp {
    /// What kind of allocation.
    pub kind: CUmemAllocationType,
    /// How it may be handed to other processes.
    pub requested_handle_types: CUmemAllocationHandleType,
    /// Where it is.
    pub location: CUmemLocation,
    /// Windows security attributes; null.
    pub win32_handle_meta_data: *mut c_void,
    /// Its flags.
    pub alloc_flags: CUmemAllocationPropFlags,
}
layout!(CUmemAllocationProp, 32, location @ 8, win32_handle_meta_data @ 16, alloc_flags @ 24);

/// What may be done with memory from a place.
pub type CUmemAccess_flags = u32;
/// Nothing.
pub const CU_MEM_ACCESS_FLAGS_PROT_NONE: CUmemAccess_flags = 0;
/// Reading.
pub const CU_MEM_ACCESS_FLAGS_PROT_READ: CUmemAccess_flags = 1;
/// Reading and writing.
pub const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: CUmemAccess_flags = 3;

/// What a place may do with some memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUmemAccessDesc {
    /// The place.
    pub location: CUmemLocation,
    /// What it may do.
    pub flags: CUmemAccess_flags,
}
layout!(CUmemAccessDesc, 12);

/// The properties of a memory pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemPoolProps {
    /// What kind of allocation.
    pub alloc_type: CUmemAllocationType,
    /// How the pool may be handed to other processes.
    pub handle_types: CUmemAllocationHandleType,
    /// Where the memory is.
    pub location: CUmemLocation,
    /// Windows security attributes; null.
    pub win32_security_attributes: *mut c_void,
    /// Greatest size, in bytes; zero for the system's default.
    pub max_size: usize,
    /// `CU_MEM_POOL_CREATE_USAGE_*`.
    pub usage: u16,
    /// Zero.
    pub reserved: [u8; 54],
}
layout!(CUmemPoolProps, 88, location @ 8, max_size @ 24, usage @ 32);

/// Which attribute of a memory pool is meant.
pub type CUmemPool_attribute = u32;
/// Reuse along event dependencies (`int`).
pub const CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: CUmemPool_attribute = 1;
/// Reuse of memory whose free has happened to complete (`int`).
pub const CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: CUmemPool_attribute = 2;
/// Reuse with dependencies that the driver inserts (`int`).
pub const CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: CUmemPool_attribute = 3;
/// Bytes kept at a synchronisation (`u64`).
pub const CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: CUmemPool_attribute = 4;
/// Bytes of backing memory now (`u64`).
pub const CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: CUmemPool_attribute = 5;
/// Most bytes of backing memory so far (`u64`).
pub const CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: CUmemPool_attribute = 6;
/// Bytes in use now (`u64`).
pub const CU_MEMPOOL_ATTR_USED_MEM_CURRENT: CUmemPool_attribute = 7;
/// Most bytes in use so far (`u64`).
pub const CU_MEMPOOL_ATTR_USED_MEM_HIGH: CUmemPool_attribute = 8;

/// Which memory counter of a device's graphs is meant.
pub type CUgraphMem_attribute = u32;
/// Bytes in use by graphs now (`u64`).
pub const CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: CUgraphMem_attribute = 0;
/// Most bytes in use by graphs so far (`u64`).
pub const CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: CUgraphMem_attribute = 1;
/// Bytes reserved for graphs now (`u64`).
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: CUgraphMem_attribute = 2;
/// Most bytes reserved for graphs so far (`u64`).
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: CUgraphMem_attribute = 3;

/// An allocation of a shared pool, as handed to another process.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUmemPoolPtrExportData {
    /// For the driver.
    pub reserved: [u8; 64],
}
layout!(CUmemPoolPtrExportData, 64);

/// Memory, as handed to another process by `cuIpcGetMemHandle`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUipcMemHandle {
    /// For the driver.
    pub reserved: [u8; 64],
}
layout!(CUipcMemHandle, 64);

/// Memory of another programming interface, for `cuImportExternalMemory`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
    /// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_*`.
    pub kind: u32,
    /// A descriptor in the first four bytes, or pointers, as the type says.
    pub handle: [u64; 2],
    /// Bytes.
    pub size: u64,
    /// `CUDA_EXTERNAL_MEMORY_DEDICATED` or zero.
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 16],
}
layout!(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, 104, handle @ 8, size @ 24, flags @ 32);
/// A part of such memory, for `cuExternalMemoryGetMappedBuffer`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 16],
}
layout!(CUDA_EXTERNAL_MEMORY_BUFFER_DESC, 88, size @ 8, flags @ 16);
/// A descriptor, which the driver takes over.
pub const CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD: u32 = 1;

/// An event, as handed to another process by `cuIpcGetEventHandle`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUipcEventHandle {
    /// For the driver.
    pub reserved: [u8; 64],
}
layout!(CUipcEventHandle, 64);

/// Memory, as handed to another process of the NVLink fabric.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUmemFabricHandle {
    /// For the driver.
    pub data: [u8; 64],
}
layout!(CUmemFabricHandle, 64);

/// The properties of a multicast object.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUmulticastObjectProp {
    /// How many devices take part.
    pub num_devices: u32,
    /// Most bytes to be bound per device.
    pub size: usize,
    /// How it may be handed to other processes.
    pub handle_types: u64,
    /// Zero.
    pub flags: u64,
}
layout!(CUmulticastObjectProp, 32, size @ 8);
