//! Hopper, but for H200, which is measured and has a file of its own.

use super::parts::{Part, clocks, driver, memory};
use super::plan::{Numbering, Order, Plan};
use super::sm;
use crate::spec::{DeviceSpec, SmSpec};

/// H100 white paper: GH100, 8 GPCs of 9 TPCs of 2 SMs, 132 SMs in the SXM5 products: 66 TPCs. Order and numbering as measured on an
/// H200; a board without singletons.
pub(super) const PLAN: Plan = Plan {
    sms_per_tpc: 2,
    gpcs: 8,
    tpcs_per_gpc: 9,
    tpcs: 66,
    order: Order::RoundRobin,
    numbering: Numbering::GpcMajor { stride: 9 },
};

/// NVIDIA H100 SXM5, 80 GB.
pub(super) fn h100(seed: u64) -> DeviceSpec {
    Part {
        id: "h100",
        name: "NVIDIA H100 80GB HBM3",
        architecture: "Hopper",
        capability: (9, 0),
        plan: PLAN,
        sm: sm::CC_9_0,
        // White paper: 80 GB HBM3, 5120 bits, 3352 GB/s, 50 MB of L2; nvidia-smi shows 81559 MiB. Five eighths of L2 can persist
        // (assumption).
        memory: memory(81_559, 3_352_000, 5120, 50 << 10, 32_000, true),
        // nvidia-smi: 1980 MHz, memory 2619 MHz.
        clocks: clocks(1_980, 2_619),
        copy_engines: 3,
        pcie: (5, 16),
        grids: 128,
        priority_greatest: -5,
        // Class CBC0 knows V3.0 and V4.0; an H200's driver has V4.0.
        driver: driver("570.124.06", 12_080, 0x40, 0x4fc),
        pci_device_id: 0x2330,
        // Data sheet: 700 W.
        power_limit_mw: 700_000,
    }
    .spec(seed)
}

/// NVIDIA H100 PCIe, with a driver that writes V03_00 descriptors, which its class's header allows. No driver that does is known: the
/// device is here so that nothing takes the version for granted.
pub(super) fn h100_v3(seed: u64) -> DeviceSpec {
    Part {
        id: "h100-v3",
        name: "NVIDIA H100 PCIe",
        architecture: "Hopper",
        capability: (9, 0),
        // White paper: 7 or 8 GPCs, 57 TPCs; 7 assumed. Logical numbers assumed, as on every other part with this version: positions
        // in GPCs reach beyond its 64 mask bits.
        plan: Plan { gpcs: 7, tpcs: 57, numbering: Numbering::Logical, ..PLAN },
        // V03_00 has no fields for clusters.
        sm: SmSpec { cluster_blocks_max: 1, ..sm::CC_9_0 },
        // White paper: 80 GB HBM2e, 5120 bits, 2039 GB/s, 50 MB of L2; nvidia-smi shows 81559 MiB. Five eighths of L2 can persist
        // (assumption).
        memory: memory(81_559, 2_039_000, 5120, 50 << 10, 32_000, true),
        // nvidia-smi: 1755 MHz, memory 1593 MHz.
        clocks: clocks(1_755, 1_593),
        copy_engines: 3,
        pcie: (5, 16),
        grids: 128,
        priority_greatest: -5,
        driver: driver("525.147.05", 12_000, 0x30, 0x4cc),
        pci_device_id: 0x2331,
        // Data sheet: 350 W.
        power_limit_mw: 350_000,
    }
    .spec(seed)
}
