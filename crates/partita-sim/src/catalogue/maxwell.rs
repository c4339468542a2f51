//! Maxwell: one SM per TPC.

use super::parts::{Part, clocks, driver, memory};
use super::plan::{Numbering, Order, Plan};
use super::sm;
use crate::spec::DeviceSpec;

/// NVIDIA GeForce GTX 970.
pub(super) fn gtx970(seed: u64) -> DeviceSpec {
    Part {
        id: "gtx970",
        name: "NVIDIA GeForce GTX 970",
        architecture: "Maxwell",
        capability: (5, 2),
        // GTX 980 white paper: GM204, 4 GPCs of 4 SMM, 13 of them here; table II of the partitioning paper agrees.
        plan: Plan {
            sms_per_tpc: 1,
            gpcs: 4,
            tpcs_per_gpc: 4,
            tpcs: 13,
            order: Order::RoundRobin,
            numbering: Numbering::Logical,
        },
        sm: sm::CC_5_2,
        // Product page: 4 GB GDDR5, 256 bits, 224 GB/s; nvidia-smi shows 4043 MiB. 1.75 MB of L2.
        memory: memory(4_043, 224_000, 256, 1_792, 0, false),
        // Product page: boost 1178 MHz, 7.0 Gb/s.
        clocks: clocks(1_178, 3_505),
        copy_engines: 2,
        pcie: (3, 16),
        grids: 32,
        priority_greatest: -1,
        // Class B1C0 knows V0.6, which has no mask, and V1.7.
        driver: driver("525.147.05", 12_000, 0x17, 0x4cc),
        pci_device_id: 0x13c2,
        // Product page: 145 W.
        power_limit_mw: 145_000,
    }
    .spec(seed)
}
