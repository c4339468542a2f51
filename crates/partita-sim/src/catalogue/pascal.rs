//! Pascal: two SMs per TPC on P100, one on the GeForces.

use super::parts::{Part, clocks, driver, memory};
use super::plan::{Numbering, Order, Plan};
use super::sm;
use crate::spec::DeviceSpec;

/// NVIDIA GeForce GTX 1060 3GB: the device of the partitioning paper's figures 3 and 4.
pub(super) fn gtx1060_3gb(seed: u64) -> DeviceSpec {
    Part {
        id: "gtx1060-3gb",
        name: "NVIDIA GeForce GTX 1060 3GB",
        architecture: "Pascal",
        capability: (6, 1),
        // Table II of the partitioning paper: 9 TPCs in 2 GPCs, one SM each; GP106 has 5 to a GPC.
        plan: Plan {
            sms_per_tpc: 1,
            gpcs: 2,
            tpcs_per_gpc: 5,
            tpcs: 9,
            order: Order::RoundRobin,
            numbering: Numbering::Logical,
        },
        sm: sm::CC_6_1,
        // Product page: 3 GB GDDR5, 192 bits, 192.2 GB/s. nvidia-smi of the 470 series shows 3019 MiB; deviceQuery 1.5 MB of L2.
        memory: memory(3_019, 192_200, 192, 1_536, 0, false),
        // deviceQuery: 1709 MHz, memory 4004 MHz.
        clocks: clocks(1_709, 4_004),
        copy_engines: 2,
        pcie: (3, 16),
        // Also figure 12 of the partitioning paper: 32 task slots.
        grids: 32,
        priority_greatest: -1,
        // Class C1C0 knows V1.7, V2.0 and V2.1; the newest is assumed. The mask sits alike in all three.
        driver: driver("470.223.02", 11_040, 0x21, 0x37c),
        pci_device_id: 0x1c02,
        // Product page: 120 W.
        power_limit_mw: 120_000,
    }
    .spec(seed)
}

/// NVIDIA Tesla P100 SXM2: the first part with two SMs to a TPC.
pub(super) fn p100(seed: u64) -> DeviceSpec {
    Part {
        id: "p100",
        name: "Tesla P100-SXM2-16GB",
        architecture: "Pascal",
        capability: (6, 0),
        // P100 white paper: GP100, 6 GPCs of 5 TPCs of 2 SMs, 56 SMs here: 28 TPCs. Table II of the partitioning paper has 56.
        plan: Plan {
            sms_per_tpc: 2,
            gpcs: 6,
            tpcs_per_gpc: 5,
            tpcs: 28,
            order: Order::RoundRobin,
            numbering: Numbering::Logical,
        },
        sm: sm::CC_6_0,
        // White paper: 16 GB HBM2, 4096 bits, 732 GB/s, 4 MB of L2; nvidia-smi shows 16280 MiB.
        memory: memory(16_280, 732_000, 4096, 4_096, 0, true),
        // White paper: boost 1480 MHz; memory 715 MHz.
        clocks: clocks(1_480, 715),
        copy_engines: 2,
        pcie: (3, 16),
        grids: 128,
        priority_greatest: -1,
        // Class C0C0 knows V1.7, V2.0 and V2.1; V2.0, which no other device here has, is assumed.
        driver: driver("535.129.03", 12_020, 0x20, 0x4e4),
        pci_device_id: 0x15f9,
        // White paper: 300 W.
        power_limit_mw: 300_000,
    }
    .spec(seed)
}
