//! SMs, by compute capability.
//!
//! CUDA C++ Programming Guide, «Technical specifications per compute capability» (release 10.2 for 3.x, 12.9 for 5.2 to 9.0, 13.0
//! for 10.0 and 12.1); register and shared memory units from its occupancy calculator; lanes from the architectures' white papers.

use crate::spec::SmSpec;

/// Kepler of the first generation.
pub(super) const CC_3_0: SmSpec = SmSpec {
    threads_max: 2048,
    blocks_max: 16,
    threads_per_block_max: 1024,
    warp_threads: 32,
    registers: 65_536,
    registers_per_block_max: 65_536,
    registers_per_thread_max: 63,
    register_unit: 256,
    shared_bytes: 48 << 10,
    shared_per_block_bytes: 48 << 10,
    shared_per_block_optin_bytes: 48 << 10,
    shared_reserved_per_block_bytes: 0,
    shared_unit_bytes: 256,
    cluster_blocks_max: 1,
    fp32_lanes: 192,
};

pub(super) const CC_3_5: SmSpec = SmSpec { registers_per_thread_max: 255, ..CC_3_0 };

pub(super) const CC_5_2: SmSpec =
    SmSpec { blocks_max: 32, shared_bytes: 96 << 10, fp32_lanes: 128, ..CC_3_5 };

pub(super) const CC_6_0: SmSpec = SmSpec { shared_bytes: 64 << 10, fp32_lanes: 64, ..CC_5_2 };

pub(super) const CC_6_1: SmSpec = CC_5_2;

pub(super) const CC_7_0: SmSpec = SmSpec { shared_per_block_optin_bytes: 96 << 10, fp32_lanes: 64, ..CC_5_2 };

pub(super) const CC_7_2: SmSpec = CC_7_0;

pub(super) const CC_7_5: SmSpec = SmSpec {
    threads_max: 1024,
    blocks_max: 16,
    shared_bytes: 64 << 10,
    shared_per_block_optin_bytes: 64 << 10,
    ..CC_7_0
};

pub(super) const CC_8_0: SmSpec = SmSpec {
    shared_bytes: 164 << 10,
    shared_per_block_optin_bytes: 163 << 10,
    shared_reserved_per_block_bytes: 1 << 10,
    shared_unit_bytes: 128,
    ..CC_7_0
};

pub(super) const CC_8_6: SmSpec = SmSpec {
    threads_max: 1536,
    blocks_max: 16,
    shared_bytes: 100 << 10,
    shared_per_block_optin_bytes: 99 << 10,
    fp32_lanes: 128,
    ..CC_8_0
};

pub(super) const CC_8_9: SmSpec = SmSpec { blocks_max: 24, ..CC_8_6 };

/// Clusters: Hopper tuning guide, 8 blocks portably, 16 with the non-portable attribute.
pub(super) const CC_9_0: SmSpec = SmSpec {
    shared_bytes: 228 << 10,
    shared_per_block_optin_bytes: 227 << 10,
    cluster_blocks_max: 16,
    fp32_lanes: 128,
    ..CC_8_0
};

/// Clusters: Blackwell tuning guide, as Hopper.
pub(super) const CC_10_0: SmSpec = CC_9_0;

/// Clusters: 8 blocks, the portable size.
pub(super) const CC_12_1: SmSpec = SmSpec { cluster_blocks_max: 8, ..CC_8_9 };
