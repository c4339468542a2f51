//! NVIDIA H200 SXM, 141 GB: the device that this project measures on.

use super::{hopper, sm, topology};
use crate::control::{ControlSpec, TpcPlace};
use crate::spec::{
    BoardSpec, ClockSpec, ComputeCapability, CopySpec, DeviceSpec, DriverSpec, MemorySpec, SchedulerSpec,
    StreamMaskLayout, StreamMaskSpec,
};

/// `(gpc, bit in the launch descriptor's mask)` of each TPC, in logical (`%smid`) order.
///
/// Measured (driver 580.159.04, 2026-11-21), by disabling each bit alone and by the driver's GR_GET_GLOBAL_SM_ORDER, which agree:
/// bit = 9 × virtual GPC + TPC, round-robin over the GPCs. This board's GPC 0 has four TPCs; the four others of that physical GPC are
/// singletons (bits 75, 78, 81 and 83), last in the order, each a GPC of its own (8 to 11) as far as clusters go.
#[rustfmt::skip]
const TPCS: [(u8, u16); 66] = [
    (0, 0), (1, 9), (2, 18), (3, 27), (4, 36), (5, 45), (6, 54), (7, 63),
    (0, 1), (1, 10), (2, 19), (3, 28), (4, 37), (5, 46), (6, 55), (7, 64),
    (0, 2), (1, 11), (2, 20), (3, 29), (4, 38), (5, 47), (6, 56), (7, 65),
    (0, 3), (1, 12), (2, 21), (3, 30), (4, 39), (5, 48), (6, 57), (7, 66),
    (1, 13), (2, 22), (3, 31), (4, 40), (5, 49), (6, 58), (7, 67), (1, 14),
    (2, 23), (3, 32), (4, 41), (5, 50), (6, 59), (7, 68), (1, 15), (2, 24),
    (3, 33), (4, 42), (5, 51), (6, 60), (7, 69), (1, 16), (2, 25), (3, 34),
    (4, 43), (5, 52), (6, 61), (7, 70), (6, 62), (7, 71), (8, 75), (9, 78),
    (10, 81), (11, 83),
];

/// GPC, TPC in it, virtual GPC, TPC in that, uGPU, CPC and virtual TPC of each TPC, in logical order, as GR_GET_GLOBAL_SM_ORDER of the
/// same board says it. The singletons' virtual GPCs are 11, 14, 17 and 19; their bits in a launch mask are 64 more.
#[rustfmt::skip]
const PLACES: [(u16, u16, u16, u16, u16, u16, u16); 66] = [
    (1, 0, 0, 0, 0, 0, 0), (2, 0, 1, 0, 1, 0, 0), (3, 0, 2, 0, 1, 0, 0), (4, 0, 3, 0, 1, 0, 0), (5, 0, 4, 0, 0, 0, 0), (6, 0, 5, 0, 0, 0, 0),
    (0, 0, 6, 0, 0, 0, 0), (7, 0, 7, 0, 1, 0, 0), (1, 3, 0, 1, 0, 1, 1), (2, 3, 1, 1, 1, 1, 1), (3, 3, 2, 1, 1, 1, 1), (4, 3, 3, 1, 1, 1, 1),
    (5, 3, 4, 1, 0, 1, 1), (6, 3, 5, 1, 0, 1, 1), (0, 3, 6, 1, 0, 1, 1), (7, 3, 7, 1, 1, 1, 1), (1, 6, 0, 2, 0, 2, 2), (2, 6, 1, 2, 1, 2, 2),
    (3, 6, 2, 2, 1, 2, 2), (4, 6, 3, 2, 1, 2, 2), (5, 6, 4, 2, 0, 2, 2), (6, 6, 5, 2, 0, 2, 2), (0, 6, 6, 2, 0, 2, 2), (7, 6, 7, 2, 1, 2, 2),
    (1, 1, 0, 3, 0, 0, 3), (2, 1, 1, 3, 1, 0, 3), (3, 1, 2, 3, 1, 0, 3), (4, 1, 3, 3, 1, 0, 3), (5, 1, 4, 3, 0, 0, 3), (6, 1, 5, 3, 0, 0, 3),
    (0, 1, 6, 3, 0, 0, 3), (7, 1, 7, 3, 1, 0, 3), (2, 4, 1, 4, 1, 1, 4), (3, 4, 2, 4, 1, 1, 4), (4, 4, 3, 4, 1, 1, 4), (5, 4, 4, 4, 0, 1, 4),
    (6, 4, 5, 4, 0, 1, 4), (0, 4, 6, 4, 0, 1, 4), (7, 4, 7, 4, 1, 1, 4), (2, 7, 1, 5, 1, 2, 5), (3, 7, 2, 5, 1, 2, 5), (4, 7, 3, 5, 1, 2, 5),
    (5, 7, 4, 5, 0, 2, 5), (6, 7, 5, 5, 0, 2, 5), (0, 7, 6, 5, 0, 2, 5), (7, 7, 7, 5, 1, 2, 5), (2, 2, 1, 6, 1, 0, 6), (3, 2, 2, 6, 1, 0, 6),
    (4, 2, 3, 6, 1, 0, 6), (5, 2, 4, 6, 0, 0, 6), (6, 2, 5, 6, 0, 0, 6), (0, 2, 6, 6, 0, 0, 6), (7, 2, 7, 6, 1, 0, 6), (2, 5, 1, 7, 1, 1, 7),
    (3, 5, 2, 7, 1, 1, 7), (4, 5, 3, 7, 1, 1, 7), (5, 5, 4, 7, 0, 1, 7), (6, 5, 5, 7, 0, 1, 7), (0, 5, 6, 7, 0, 1, 7), (7, 5, 7, 7, 1, 1, 7),
    (0, 8, 6, 8, 0, 2, 8), (7, 8, 7, 8, 1, 2, 8), (1, 4, 11, 0, 0, 1, 4), (1, 7, 14, 0, 0, 2, 5), (1, 2, 17, 0, 0, 0, 6), (1, 5, 19, 0, 0, 1, 7),
];

/// What GR_GET_TPC_MASK says of GPC 0 and following: not in the order of the GPCs above.
const TPC_MASKS: [u32; 8] = [0x1ff, 0x1bf, 0x1bf, 0x1bf, 0x1bf, 0x1ff, 0x1bf, 0x1bf];

fn control() -> ControlSpec {
    let place = |&(gpc, tpc_in_gpc, virtual_gpc, migratable_tpc, ugpu, cpc, virtual_tpc)| TpcPlace {
        gpc,
        tpc_in_gpc,
        virtual_gpc,
        migratable_tpc,
        ugpu,
        cpc,
        virtual_tpc,
    };
    ControlSpec { places: PLACES.iter().map(place).collect(), tpc_masks: TPC_MASKS.to_vec() }
}

/// The catalogue entry; seed 0 is the board that was measured.
pub(super) fn spec(seed: u64) -> DeviceSpec {
    let (topology, control) = match seed {
        0 => (topology(2, &TPCS), control()),
        // Another board; without singletons, as how a board comes to have them is not known.
        _ => {
            let topology = hopper::PLAN.topology(seed);
            let control = ControlSpec::of(&topology);
            (topology, control)
        }
    };
    DeviceSpec {
        id: "h200",
        name: "NVIDIA H200",
        architecture: "Hopper",
        compute_capability: ComputeCapability::new(9, 0),
        topology,
        control,
        sm: sm::CC_9_0,
        memory: MemorySpec {
            // NVML on the measured board.
            capacity_bytes: 143_771 << 20,
            // Data sheet: 4.8 TB/s, HBM3e, six stacks of 1024 bits.
            bandwidth_bytes_per_s: 4_800_000_000_000,
            bus_bits: 6144,
            // GH100 has 60 MB; all of it is taken to be enabled with six stacks (assumption).
            l2_bytes: 60 << 20,
            // Half to three quarters on other parts; three quarters assumed.
            l2_persisting_bytes: 45 << 20,
            constant_bytes: 64 << 10,
            ecc: true,
        },
        // Data sheet: boost 1980 MHz. Memory: 4.8 TB/s over 6144 bits at two transfers a clock is 3.13 GHz;
        // nvidia-smi shows 3201 MHz.
        clocks: ClockSpec { sm_khz: 1_980_000, memory_khz: 3_201_000 },
        copy: CopySpec {
            // deviceQuery on GH100 boards: 3 copy engines.
            engines: 3,
            // PCIe 5.0 x16 is 63 GB/s; pinned copies reach about 55 GB/s (assumption).
            link_bytes_per_s: 55_000_000_000,
            // A copy reads and writes: at most half of DRAM bandwidth, 0.85 of that assumed.
            local_bytes_per_s: 2_040_000_000_000,
            latency_ns: 1_500,
        },
        scheduler: SchedulerSpec {
            // 128 resident grids at compute capability 9.0 (CUDA C++ Programming Guide): each holds a slot.
            task_slots: 128,
            queues_default: 8,
            queues_max: 32,
            priority_least: 0,
            priority_greatest: -5,
            ..super::parts::DELAYS
        },
        driver: DriverSpec {
            version: "580.159.04",
            cuda_version: 13_000,
            // Measured: the version byte of this driver's launch descriptors, mask in 4 words with an enable bit.
            qmd_version: 0x40,
            // Measured on this driver.
            stream_mask: StreamMaskSpec { offset_bytes: 0x51c, layout: StreamMaskLayout::EnabledWords4 },
        },
        board: BoardSpec {
            // pci.ids: 10de:2335 GH100 [H200 SXM 141GB].
            pci_device_id: 0x2335,
            pci_subsystem_id: 0x18be_10de,
            pcie_generation: 5,
            pcie_lanes: 16,
            // Data sheet: up to 700 W.
            power_limit_mw: 700_000,
        },
    }
}
