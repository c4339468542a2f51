//! Turing.

use super::parts::{Part, clocks, driver, memory};
use super::plan::{Numbering, Order, Plan};
use super::sm;
use crate::spec::DeviceSpec;

/// NVIDIA GeForce RTX 2060.
pub(super) fn rtx2060(seed: u64) -> DeviceSpec {
    Part {
        id: "rtx2060",
        name: "NVIDIA GeForce RTX 2060",
        architecture: "Turing",
        capability: (7, 5),
        // Turing white paper: TU106, 3 GPCs of 6 TPCs of 2 SMs, 30 SMs here: 15 TPCs. Table II of the partitioning paper has 30.
        plan: Plan {
            sms_per_tpc: 2,
            gpcs: 3,
            tpcs_per_gpc: 6,
            tpcs: 15,
            order: Order::RoundRobin,
            numbering: Numbering::Logical,
        },
        sm: sm::CC_7_5,
        // Product page: 6 GB GDDR6, 192 bits, 336 GB/s; nvidia-smi shows 6144 MiB. 3 MB of L2.
        memory: memory(6_144, 336_000, 192, 3_072, 0, false),
        // Product page: boost 1680 MHz, 14 Gb/s.
        clocks: clocks(1_680, 7_001),
        copy_engines: 3,
        pcie: (3, 16),
        grids: 128,
        priority_greatest: -5,
        // Class C5C0 knows V2.3 alone.
        driver: driver("550.54.15", 12_040, 0x23, 0x4ac),
        pci_device_id: 0x1f08,
        // Product page: 160 W.
        power_limit_mw: 160_000,
    }
    .spec(seed)
}
