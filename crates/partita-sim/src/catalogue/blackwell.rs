//! Blackwell.

use super::parts::{Part, clocks, driver, memory};
use super::plan::{Numbering, Order, Plan};
use super::sm;
use crate::spec::DeviceSpec;

/// NVIDIA B200.
pub(super) fn b200(seed: u64) -> DeviceSpec {
    let mut spec = Part {
        id: "b200",
        name: "NVIDIA B200",
        architecture: "Blackwell",
        capability: (10, 0),
        // Blackwell architecture brief: two dies, 148 SMs, 2 to a TPC: 74 TPCs. Assumed: 4 GPCs of 10 TPCs on each die, 160 SMs in the
        // whole package, order as on Hopper. Nobody published the numbering. V04_01 has a mask of two halves of 128 bits, which 80 TPCs do
        // not need; that each die has one of them, numbered as on Hopper, is assumed, as the harder of the cases.
        plan: Plan {
            sms_per_tpc: 2,
            gpcs: 8,
            tpcs_per_gpc: 10,
            tpcs: 74,
            order: Order::RoundRobin,
            numbering: Numbering::TwoDies { stride: 10 },
        },
        sm: sm::CC_10_0,
        // Data sheet: 180 GB HBM3e, 8192 bits, 8 TB/s; nvidia-smi shows 183359 MiB. 126 MB of L2, three quarters of it can persist
        // (assumption).
        memory: memory(183_359, 8_000_000, 8192, 126 << 10, 94 << 10, true),
        // nvidia-smi: 1965 MHz, memory 3996 MHz.
        clocks: clocks(1_965, 3_996),
        copy_engines: 4,
        pcie: (5, 16),
        grids: 128,
        priority_greatest: -5,
        // Class CDC0 knows V4.1, V5.0 and V5.1; V4.1 is assumed, and the driver is the one measured on an H200.
        driver: driver("580.159.04", 13_000, 0x41, 0x51c),
        pci_device_id: 0x2901,
        // Data sheet: 1000 W.
        power_limit_mw: 1_000_000,
    }
    .spec(seed);
    for place in &mut spec.control.places {
        place.ugpu = place.virtual_gpc / 4;
    }
    spec
}

/// NVIDIA GB10, the integrated GPU of DGX Spark.
pub(super) fn gb10(seed: u64) -> DeviceSpec {
    Part {
        id: "gb10",
        name: "NVIDIA GB10",
        architecture: "Blackwell",
        capability: (12, 1),
        // Reported (charsyam's libsmctrl, platforms/gb10): 24 TPCs in 6 GPCs of 4; SMs counted GPC by GPC; bit b is TPC b div 6 of GPC
        // b mod 6, so that bits 0 to 3 enable SMs 0, 1, 8, 9, 16, 17, 24 and 25.
        plan: Plan {
            sms_per_tpc: 2,
            gpcs: 6,
            tpcs_per_gpc: 4,
            tpcs: 24,
            order: Order::GpcByGpc,
            numbering: Numbering::GpcMinor,
        },
        sm: sm::CC_12_1,
        // DGX Spark user guide: 128 GB LPDDR5x, 256 bits, 273 GB/s, shared with the CPU; deviceQuery shows 122570 MB, 24 MB of L2, three
        // quarters of which can persist (assumption).
        memory: memory(122_570, 273_000, 256, 24 << 10, 18 << 10, false),
        // deviceQuery: 2418 MHz; LPDDR5x of 8533 MT/s.
        clocks: clocks(2_418, 4_266),
        copy_engines: 2,
        pcie: (0, 0),
        grids: 128,
        priority_greatest: -5,
        // Reported: V5.0 with driver 580.95.05, whose aarch64 build has the stream's mask at 0x53c.
        driver: driver("580.95.05", 13_000, 0x50, 0x53c),
        pci_device_id: 0x2e12,
        // DGX Spark user guide: 140 W for the package.
        power_limit_mw: 140_000,
    }
    .spec(seed)
}
