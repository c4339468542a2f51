//! Ada: more TPCs than 64, so that V03_00 descriptors need this class's additional mask bits.

use super::parts::{Part, clocks, driver, memory};
use super::plan::{Numbering, Order, Plan};
use super::sm;
use crate::spec::DeviceSpec;

/// Ada white paper: AD102, 12 GPCs of 6 TPCs of 2 SMs, 142 SMs in both products: 71 TPCs.
const PLAN: Plan = Plan {
    sms_per_tpc: 2,
    gpcs: 12,
    tpcs_per_gpc: 6,
    tpcs: 71,
    order: Order::RoundRobin,
    numbering: Numbering::Logical,
};

/// NVIDIA RTX 6000 Ada Generation.
pub(super) fn rtx6000_ada(seed: u64) -> DeviceSpec {
    Part {
        id: "rtx6000-ada",
        name: "NVIDIA RTX 6000 Ada Generation",
        architecture: "Ada",
        capability: (8, 9),
        plan: PLAN,
        sm: sm::CC_8_9,
        // Data sheet: 48 GB GDDR6 with ECC, 384 bits, 960 GB/s; nvidia-smi shows 49140 MiB. 96 MB of L2, three quarters of it can persist
        // (assumption).
        memory: memory(49_140, 960_000, 384, 96 << 10, 72 << 10, false),
        // Data sheet: boost 2505 MHz, 20 Gb/s.
        clocks: clocks(2_505, 10_001),
        copy_engines: 2,
        pcie: (4, 16),
        grids: 128,
        priority_greatest: -5,
        // Class C9C0 knows V2.4, whose mask ends at 64, and V3.0.
        driver: driver("560.35.03", 12_060, 0x30, 0x4ec),
        pci_device_id: 0x26b1,
        // Data sheet: 300 W.
        power_limit_mw: 300_000,
    }
    .spec(seed)
}

/// NVIDIA L40S.
pub(super) fn l40s(seed: u64) -> DeviceSpec {
    Part {
        id: "l40s",
        name: "NVIDIA L40S",
        architecture: "Ada",
        capability: (8, 9),
        plan: PLAN,
        sm: sm::CC_8_9,
        // Data sheet: 48 GB GDDR6 with ECC, 384 bits, 864 GB/s; nvidia-smi shows 46068 MiB. 96 MB of L2, three quarters of it can persist
        // (assumption).
        memory: memory(46_068, 864_000, 384, 96 << 10, 72 << 10, true),
        // Data sheet: boost 2520 MHz, 18 Gb/s.
        clocks: clocks(2_520, 9_001),
        copy_engines: 2,
        pcie: (4, 16),
        grids: 128,
        priority_greatest: -5,
        // Class C9C0 knows V2.4, whose mask ends at 64, and V3.0.
        driver: driver("565.77", 12_070, 0x30, 0x4fc),
        pci_device_id: 0x26b9,
        // Data sheet: 350 W.
        power_limit_mw: 350_000,
    }
    .spec(seed)
}
