//! Contexts and the device resources that they use.

use super::layout;
use core::ffi::c_void;

/// Which execution affinity is meant.
pub type CUexecAffinityType = u32;
/// A number of SMs, which the device rounds up.
pub const CU_EXEC_AFFINITY_TYPE_SM_COUNT: CUexecAffinityType = 0;

/// An execution affinity of a context.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUexecAffinityParam {
    /// Which affinity; `CU_EXEC_AFFINITY_TYPE_SM_COUNT` is the only one.
    pub kind: CUexecAffinityType,
    /// The number of SMs.
    pub sm_count: u32,
}
layout!(CUexecAffinityParam, 8, sm_count @ 4);

/// Data shared with a graphics client.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUctxCigParam {
    /// What the data is.
    pub shared_data_type: u32,
    /// The data.
    pub shared_data: *mut c_void,
}
layout!(CUctxCigParam, 16);

/// The parameters of `cuCtxCreate_v4`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUctxCreateParams {
    /// The affinities; null when there are none.
    pub exec_affinity_params: *mut CUexecAffinityParam,
    /// How many affinities there are.
    pub num_exec_affinity_params: i32,
    /// Data shared with a graphics client, or null.
    pub cig_params: *mut CUctxCigParam,
}
layout!(CUctxCreateParams, 24, cig_params @ 16);

/// Which kind of device resource is meant.
pub type CUdevResourceType = u32;
/// Not a resource.
pub const CU_DEV_RESOURCE_TYPE_INVALID: CUdevResourceType = 0;
/// Streaming multiprocessors.
pub const CU_DEV_RESOURCE_TYPE_SM: CUdevResourceType = 1;

/// Some of a device's SMs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUdevSmResource {
    /// How many SMs.
    pub sm_count: u32,
    /// The least number of SMs of a part.
    pub min_sm_partition_size: u32,
    /// How many SMs are sure to be in one GPC together.
    pub sm_coscheduled_alignment: u32,
}
layout!(CUdevSmResource, 12);

/// A device resource, of which only SMs exist in CUDA 13.0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUdevResource {
    /// Which kind; says whether `sm` counts.
    pub kind: CUdevResourceType,
    /// For the driver.
    pub internal_padding: [u8; 92],
    /// The SMs.
    pub sm: CUdevSmResource,
    /// Room for other kinds.
    pub oversize: [u8; 36],
}
layout!(CUdevResource, 144, sm @ 96);
