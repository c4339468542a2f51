//! Copies and memory operations of streams.

use super::{CUarray, CUcontext, CUdeviceptr, CUmemLocation, layout};
use core::ffi::c_void;

/// What kind of memory one side of a copy is.
pub type CUmemorytype = u32;
/// Host memory.
pub const CU_MEMORYTYPE_HOST: CUmemorytype = 1;
/// Device memory.
pub const CU_MEMORYTYPE_DEVICE: CUmemorytype = 2;
/// A CUDA array.
pub const CU_MEMORYTYPE_ARRAY: CUmemorytype = 3;
/// An address of the unified address space.
pub const CU_MEMORYTYPE_UNIFIED: CUmemorytype = 4;

/// A two-dimensional copy (`CUDA_MEMCPY2D_v2`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY2D {
    /// Source x, in bytes.
    pub src_x_in_bytes: usize,
    /// Source y, in rows.
    pub src_y: usize,
    /// Kind of the source, which says which of the next three counts.
    pub src_memory_type: CUmemorytype,
    /// Source in host memory.
    pub src_host: *const c_void,
    /// Source in device memory.
    pub src_device: CUdeviceptr,
    /// Source array.
    pub src_array: CUarray,
    /// Bytes from one source row to the next; not for arrays.
    pub src_pitch: usize,
    /// Destination x, in bytes.
    pub dst_x_in_bytes: usize,
    /// Destination y, in rows.
    pub dst_y: usize,
    /// Kind of the destination.
    pub dst_memory_type: CUmemorytype,
    /// Destination in host memory.
    pub dst_host: *mut c_void,
    /// Destination in device memory.
    pub dst_device: CUdeviceptr,
    /// Destination array.
    pub dst_array: CUarray,
    /// Bytes from one destination row to the next; not for arrays.
    pub dst_pitch: usize,
    /// Bytes of a row.
    pub width_in_bytes: usize,
    /// Rows.
    pub height: usize,
}
layout!(CUDA_MEMCPY2D, 128, dst_memory_type @ 72, width_in_bytes @ 112);

/// A three-dimensional copy (`CUDA_MEMCPY3D_v2`; `CUDA_MEMCPY3D_PEER` has the
/// same layout, with contexts in the two reserved fields).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY3D {
    /// Source x, in bytes.
    pub src_x_in_bytes: usize,
    /// Source y, in rows.
    pub src_y: usize,
    /// Source z, in slices.
    pub src_z: usize,
    /// Source level of detail.
    pub src_lod: usize,
    /// Kind of the source, which says which of the next three counts.
    pub src_memory_type: CUmemorytype,
    /// Source in host memory.
    pub src_host: *const c_void,
    /// Source in device memory.
    pub src_device: CUdeviceptr,
    /// Source array.
    pub src_array: CUarray,
    /// Null, or the source's context in a peer copy.
    pub src_context: CUcontext,
    /// Bytes from one source row to the next; not for arrays.
    pub src_pitch: usize,
    /// Rows of a source slice; not for arrays.
    pub src_height: usize,
    /// Destination x, in bytes.
    pub dst_x_in_bytes: usize,
    /// Destination y, in rows.
    pub dst_y: usize,
    /// Destination z, in slices.
    pub dst_z: usize,
    /// Destination level of detail.
    pub dst_lod: usize,
    /// Kind of the destination.
    pub dst_memory_type: CUmemorytype,
    /// Destination in host memory.
    pub dst_host: *mut c_void,
    /// Destination in device memory.
    pub dst_device: CUdeviceptr,
    /// Destination array.
    pub dst_array: CUarray,
    /// Null, or the destination's context in a peer copy.
    pub dst_context: CUcontext,
    /// Bytes from one destination row to the next; not for arrays.
    pub dst_pitch: usize,
    /// Rows of a destination slice; not for arrays.
    pub dst_height: usize,
    /// Bytes of a row.
    pub width_in_bytes: usize,
    /// Rows of a slice.
    pub height: usize,
    /// Slices.
    pub depth: usize,
}
layout!(CUDA_MEMCPY3D, 200, dst_memory_type @ 120, depth @ 192);

/// How the source of a batched copy may be accessed, and where the two sides
/// are.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUmemcpyAttributes {
    /// When the source may be read.
    pub src_access_order: u32,
    /// A hint of where the source is.
    pub src_loc_hint: CUmemLocation,
    /// A hint of where the destination is.
    pub dst_loc_hint: CUmemLocation,
    /// `CU_MEMCPY_FLAG_*`.
    pub flags: u32,
}
layout!(CUmemcpyAttributes, 24, flags @ 20);

/// A comparison of `cuStreamWaitValue32` and related calls.
pub type CUstreamWaitValue_flags = u32;
/// Waits until the value at the address, as a signed difference, is not less.
pub const CU_STREAM_WAIT_VALUE_GEQ: CUstreamWaitValue_flags = 0;
/// Waits until the value at the address is equal.
pub const CU_STREAM_WAIT_VALUE_EQ: CUstreamWaitValue_flags = 1;
/// Waits until a common bit is set.
pub const CU_STREAM_WAIT_VALUE_AND: CUstreamWaitValue_flags = 2;
/// Waits until some bit is set in neither.
pub const CU_STREAM_WAIT_VALUE_NOR: CUstreamWaitValue_flags = 3;
/// Flushes remote writes after the wait.
pub const CU_STREAM_WAIT_VALUE_FLUSH: CUstreamWaitValue_flags = 1 << 30;

/// A memory barrier precedes the write.
pub const CU_STREAM_WRITE_VALUE_DEFAULT: u32 = 0;
/// No memory barrier precedes the write.
pub const CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER: u32 = 1;

/// An operation of `cuStreamBatchMemOp`.
pub type CUstreamBatchMemOpType = u32;
/// Waits for a 32-bit value.
pub const CU_STREAM_MEM_OP_WAIT_VALUE_32: CUstreamBatchMemOpType = 1;
/// Writes a 32-bit value.
pub const CU_STREAM_MEM_OP_WRITE_VALUE_32: CUstreamBatchMemOpType = 2;
/// Flushes remote writes.
pub const CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: CUstreamBatchMemOpType = 3;
/// Waits for a 64-bit value.
pub const CU_STREAM_MEM_OP_WAIT_VALUE_64: CUstreamBatchMemOpType = 4;
/// Writes a 64-bit value.
pub const CU_STREAM_MEM_OP_WRITE_VALUE_64: CUstreamBatchMemOpType = 5;
/// A memory barrier.
pub const CU_STREAM_MEM_OP_BARRIER: CUstreamBatchMemOpType = 6;

/// One operation of `cuStreamBatchMemOp`: a 48-byte C union, of which the
/// wait and write members share one layout. Barriers and flushes keep their
/// flags where `reserved` is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUstreamBatchMemOpParams {
    /// Which operation.
    pub operation: CUstreamBatchMemOpType,
    /// Flags of a barrier or a flush.
    pub reserved: u32,
    /// The address waited for or written.
    pub address: CUdeviceptr,
    /// The value; a 32-bit operation uses the low half.
    pub value: u64,
    /// `CU_STREAM_WAIT_VALUE_*` or `CU_STREAM_WRITE_VALUE_*`.
    pub flags: u32,
    /// Padding.
    pub pad0: u32,
    /// The driver's own; zero.
    pub alias: CUdeviceptr,
    /// Padding.
    pub pad1: u64,
}
layout!(CUstreamBatchMemOpParams, 48, address @ 8, value @ 16, flags @ 24, alias @ 32);
