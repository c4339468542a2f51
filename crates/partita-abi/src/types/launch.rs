//! Kernel launches and their attributes.

use super::{CUevent, CUfunction, CUstream, layout};
use core::ffi::c_void;

/// Which attribute of a launch, kernel node or stream is meant.
pub type CUlaunchAttributeID = u32;

/// `CU_LAUNCH_ATTRIBUTE_IGNORE`: an entry without meaning.
pub const CU_LAUNCH_ATTRIBUTE_IGNORE: CUlaunchAttributeID = 0;
/// A window of memory to keep in L2.
pub const CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: CUlaunchAttributeID = 1;
/// The launch is cooperative: all blocks resident at once.
pub const CU_LAUNCH_ATTRIBUTE_COOPERATIVE: CUlaunchAttributeID = 2;
/// How the host waits for the stream.
pub const CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY: CUlaunchAttributeID = 3;
/// Blocks of a cluster in x, y and z.
pub const CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: CUlaunchAttributeID = 4;
/// How clusters are spread.
pub const CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: CUlaunchAttributeID = 5;
/// The launch may begin before the one before it ends.
pub const CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: CUlaunchAttributeID = 6;
/// An event recorded when all blocks trigger it.
pub const CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT: CUlaunchAttributeID = 7;
/// Priority of the kernel, as of a stream.
pub const CU_LAUNCH_ATTRIBUTE_PRIORITY: CUlaunchAttributeID = 8;
/// Map of memory synchronisation domains.
pub const CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: CUlaunchAttributeID = 9;
/// The launch's memory synchronisation domain.
pub const CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: CUlaunchAttributeID = 10;
/// A cluster size to use where it fits (Blackwell).
pub const CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION: CUlaunchAttributeID = 11;
/// An event recorded when all blocks have begun.
pub const CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT: CUlaunchAttributeID = 12;
/// The kernel node may be updated from the device.
pub const CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE: CUlaunchAttributeID = 13;
/// How much of L1 should be shared memory, in percent.
pub const CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: CUlaunchAttributeID = 14;
/// Schedule for NVLink utilization.
pub const CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING: CUlaunchAttributeID = 16;

/// The value of an attribute: a 64-byte C union, stored as its bytes.
///
/// The attribute's id says which member counts. The functions below read and write the members that
/// Partita uses; the header's union would make that unsafe without benefit.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUlaunchAttributeValue {
    words: [u64; 8],
}
layout!(CUlaunchAttributeValue, 64);

impl CUlaunchAttributeValue {
    /// A union whose first members are the given 32-bit words.
    const fn from_u32s(a: u32, b: u32, c: u32) -> Self {
        let (a, b) = if cfg!(target_endian = "little") { (a, b) } else { (b, a) };
        let mut words = [0; 8];
        words[0] = a as u64 | (b as u64) << 32;
        words[1] = if cfg!(target_endian = "little") { c as u64 } else { (c as u64) << 32 };
        Self { words }
    }

    /// The 32-bit word at a byte offset that is a multiple of four.
    const fn u32_at(&self, offset: usize) -> u32 {
        let word = self.words[offset / 8];
        let high = offset % 8 == 4;
        if high == cfg!(target_endian = "little") { (word >> 32) as u32 } else { word as u32 }
    }

    /// A value for an attribute of one integer: `cooperative`, `priority`,
    /// `memSyncDomain`, `sharedMemCarveout` and others.
    pub const fn from_i32(value: i32) -> Self {
        Self::from_u32s(value as u32, 0, 0)
    }

    /// The value of an attribute of one integer.
    pub const fn as_i32(&self) -> i32 {
        self.u32_at(0) as i32
    }

    /// A value for `clusterDim` or `preferredClusterDim`: blocks in x, y, z.
    pub const fn from_dim3(dim: [u32; 3]) -> Self {
        Self::from_u32s(dim[0], dim[1], dim[2])
    }

    /// The value of `clusterDim` or `preferredClusterDim`.
    pub const fn as_dim3(&self) -> [u32; 3] {
        [self.u32_at(0), self.u32_at(4), self.u32_at(8)]
    }

    /// The event of `programmaticEvent` or `launchCompletionEvent`.
    pub const fn event(&self) -> CUevent {
        CUevent::from_addr(self.words[0] as usize)
    }

    /// The flags after the event of `programmaticEvent` or
    /// `launchCompletionEvent`.
    pub const fn event_flags(&self) -> i32 {
        self.u32_at(8) as i32
    }
}

/// One attribute of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUlaunchAttribute {
    /// Which attribute.
    pub id: CUlaunchAttributeID,
    /// Padding; callers leave it as it was.
    pub pad: [u8; 4],
    /// Its value.
    pub value: CUlaunchAttributeValue,
}
layout!(CUlaunchAttribute, 72, value @ 8);

/// A launch, for `cuLaunchKernelEx`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchConfig {
    /// Blocks of the grid in x.
    pub grid_dim_x: u32,
    /// Blocks of the grid in y.
    pub grid_dim_y: u32,
    /// Blocks of the grid in z.
    pub grid_dim_z: u32,
    /// Threads of a block in x.
    pub block_dim_x: u32,
    /// Threads of a block in y.
    pub block_dim_y: u32,
    /// Threads of a block in z.
    pub block_dim_z: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_mem_bytes: u32,
    /// The stream.
    pub stream: CUstream,
    /// The attributes; may be null when there are none.
    pub attrs: *mut CUlaunchAttribute,
    /// How many attributes there are.
    pub num_attrs: u32,
}
layout!(CUlaunchConfig, 56, stream @ 32, attrs @ 40, num_attrs @ 48);

/// One launch of `cuLaunchCooperativeKernelMultiDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_LAUNCH_PARAMS {
    /// The kernel.
    pub function: CUfunction,
    /// Blocks of the grid in x, y and z.
    pub grid_dim: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block_dim: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_mem_bytes: u32,
    /// The stream.
    pub stream: CUstream,
    /// Pointers to the parameters.
    pub kernel_params: *mut *mut c_void,
}
layout!(CUDA_LAUNCH_PARAMS, 56, stream @ 40);

/// Ends the `extra` list of a launch (`CU_LAUNCH_PARAM_END`).
pub const CU_LAUNCH_PARAM_END: usize = 0;
/// The next entry of `extra` is the parameter buffer.
pub const CU_LAUNCH_PARAM_BUFFER_POINTER: usize = 1;
/// The next entry of `extra` points to the buffer's size in bytes.
pub const CU_LAUNCH_PARAM_BUFFER_SIZE: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_values_lie_where_c_puts_them() {
        let cluster = CUlaunchAttributeValue::from_dim3([8, 2, 1]);
        assert_eq!(cluster.as_dim3(), [8, 2, 1]);
        assert_eq!(cluster.as_i32(), 8);
        assert_eq!(CUlaunchAttributeValue::from_i32(-5).as_i32(), -5);
        let mut event = CUlaunchAttributeValue::default();
        event.words[0] = 0x7f00_1234_5678;
        event.words[1] = 3;
        assert_eq!(event.event(), CUevent::from_addr(0x7f00_1234_5678));
        assert_eq!(event.event_flags(), 3);
    }
}
