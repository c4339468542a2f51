//! Ampere.

use super::parts::{Part, clocks, driver, memory};
use super::plan::{Numbering, Order, Plan};
use super::sm;
use crate::spec::DeviceSpec;

/// NVIDIA A100 SXM4, 40 GB.
pub(super) fn a100(seed: u64) -> DeviceSpec {
    Part {
        id: "a100",
        name: "NVIDIA A100-SXM4-40GB",
        architecture: "Ampere",
        capability: (8, 0),
        // A100 white paper: GPCs of 8 TPCs of 2 SMs, 7 or 8 of them, 108 SMs: 54 TPCs; 7 assumed. Table II of the partitioning paper
        // has 68 TPCs, more than the chip, in 8 GPCs.
        plan: Plan {
            sms_per_tpc: 2,
            gpcs: 7,
            tpcs_per_gpc: 8,
            tpcs: 54,
            order: Order::RoundRobin,
            numbering: Numbering::Logical,
        },
        sm: sm::CC_8_0,
        // White paper: 40 GB HBM2, 5120 bits, 1555 GB/s, 40 MB of L2 of which 30 MB can persist.
        memory: memory(40_960, 1_555_000, 5120, 40 << 10, 30 << 10, true),
        // White paper: boost 1410 MHz, memory 1215 MHz.
        clocks: clocks(1_410, 1_215),
        copy_engines: 3,
        pcie: (4, 16),
        grids: 128,
        priority_greatest: -5,
        // Class C6C0 knows V2.3, V2.4 and V3.0; the newest is assumed. The mask sits alike in all three.
        driver: driver("570.124.06", 12_080, 0x30, 0x4fc),
        pci_device_id: 0x20b0,
        // Data sheet: 400 W.
        power_limit_mw: 400_000,
    }
    .spec(seed)
}

/// NVIDIA GeForce RTX 3070.
pub(super) fn rtx3070(seed: u64) -> DeviceSpec {
    Part {
        id: "rtx3070",
        name: "NVIDIA GeForce RTX 3070",
        architecture: "Ampere",
        capability: (8, 6),
        // GA102 white paper: GA104, 6 GPCs of 4 TPCs of 2 SMs, 46 SMs here: 23 TPCs. Table II of the partitioning paper has 46.
        plan: Plan {
            sms_per_tpc: 2,
            gpcs: 6,
            tpcs_per_gpc: 4,
            tpcs: 23,
            order: Order::RoundRobin,
            numbering: Numbering::Logical,
        },
        sm: sm::CC_8_6,
        // White paper: 8 GB GDDR6, 256 bits, 448 GB/s, 4 MB of L2; three quarters of it can persist (assumption).
        memory: memory(8_192, 448_000, 256, 4_096, 3_072, false),
        // White paper: boost 1725 MHz, 14 Gb/s.
        clocks: clocks(1_725, 7_001),
        copy_engines: 2,
        pcie: (4, 16),
        grids: 128,
        priority_greatest: -5,
        // Class C7C0 knows V2.3, V2.4 and V3.0; V2.4, which no other device here has, is assumed.
        driver: driver("555.58.02", 12_050, 0x24, 0x4ec),
        pci_device_id: 0x2484,
        // White paper: 220 W.
        power_limit_mw: 220_000,
    }
    .spec(seed)
}
