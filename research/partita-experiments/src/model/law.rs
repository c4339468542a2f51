//! The costs of each kernel's blocks on the model.
//!
//! One law a kernel; the kernels' own numbers are [`Costs`]. Two rules for all of them:
//!
//! - A block's length is fixed at its kernel's launch. The blocks on an SM share its lanes: an SM
//!   that gets eleven blocks of a grid takes eleven times as long as one block alone, whether they
//!   come in pairs or not, and the last, which has the SM for itself, takes half as long as each of
//!   a pair. Here that is spread evenly over the blocks, so a kernel alone takes the right time,
//!   and one beside others on the *same* SMs the time that it would take there alone. On disjoint
//!   sets, as of partitions, both are the same.
//! - Beyond SMs, DRAM bandwidth contends, by the engine's own law.

use partita_abi::workloads::{MANDELBROT_INSIDE_PERMILLE, REGISTERS};
use partita_core::TpcSet;
use partita_sim::{DeviceSpec, Footprint, KernelWork, Time};

use crate::costs::Costs;
use crate::dialect::{Dims, Spin};
use crate::program::{Code, KernelStep};

/// DRAM moves sectors of 32 bytes.
const SECTOR_BYTES: u64 = 32;
/// An empty block.
const LEAST_NS: u64 = 1_000;

/// The launch of a kernel on a device, on `enabled`.
pub fn kernel(
    spec: &DeviceSpec,
    costs: &Costs,
    step: &KernelStep,
    enabled: TpcSet,
    record_blocks: bool,
) -> KernelWork {
    let blocks = step.grid.count().max(1);
    let threads = step.block.count();
    let mut work = KernelWork::new(blocks, threads as u32, 0, enabled);
    work.regs_per_thread = REGISTERS;
    work.smem_per_block = step.shared_bytes;
    work.record_blocks = record_blocks;
    let together = together(spec, &work);
    match step.code {
        Code::Spin(Spin::Timer { ns }) => work.block_ns = ns.max(LEAST_NS),
        Code::Spin(Spin::Counter { loops }) => {
            // The limit is the loop's own latency or the issue slots of the SM.
            let warps = threads.div_ceil(u64::from(spec.sm.warp_threads));
            let issue = warps as f64 * together * costs.counter_instructions / schedulers(spec) as f64;
            work.block_ns = cycles(spec, loops as f64 * costs.counter_cycles.max(issue));
        }
        Code::Mandelbrot { pixels, rounds_max } => {
            let points = pixels.div_ceil(blocks);
            let rounds = (rounds_max * MANDELBROT_INSIDE_PERMILLE / 1_000).max(1);
            work.block_ns = lanes(spec, (points * rounds) as f64 * together * costs.mandelbrot_operations);
            // Rows inside the set take long, rows outside take no time.
            work.jitter_permille = 900;
            work.bytes_per_block = points;
        }
        Code::MatrixMultiply { width } => {
            let multiplications = threads * u64::from(width);
            work.block_ns =
                lanes(spec, multiplications as f64 * together * 1_000.0 / costs.matmul_peak_permille);
            // Each matrix crosses the DRAM bus once, which the arithmetic hides: on an H200 a
            // compute-bound kernel beside a streaming copy took 1.005 to 1.010 times its time. A
            // block reads its rows and columns from L2.
            let Dims([rows, columns, _]) = step.block;
            work.bytes_per_block = 0;
            work.l2_bytes_per_block = u64::from(rows + columns) * u64::from(width) * 4;
        }
        Code::Walk { is_random: true, accesses, bytes } => {
            // Data that fits into L2 stays there after the first round.
            let missed =
                bytes.saturating_sub(spec.memory.l2_bytes.into()).saturating_mul(1_000) / bytes.max(1);
            work.block_ns = time(accesses as f64 * costs.dram_read_ns);
            work.bytes_per_block = threads.saturating_mul(accesses) / 1_000 * SECTOR_BYTES * missed;
        }
        Code::Walk { is_random: false, accesses, .. } => {
            work.block_ns = time(accesses as f64 * costs.cached_read_ns);
            // The block's threads read the same lines.
            work.bytes_per_block = accesses.saturating_mul(4);
        }
    }
    work.block_ns = work.block_ns.max(LEAST_NS);
    work
}

/// The time of the host's own walk: a read of DRAM behind a CPU's caches, or of the next word
/// (assumptions).
pub fn cpu_walk_ns(is_random: bool, accesses: u64) -> Time {
    accesses.saturating_mul(if is_random { 90 } else { 1 })
}

/// The mean number of this kernel's blocks on an SM, over the waves of the busiest SM.
fn together(spec: &DeviceSpec, work: &KernelWork) -> f64 {
    let sms = u64::from((work.enabled & spec.topology.all()).len()) * u64::from(spec.topology.sms_per_tpc());
    let most = u64::from(Footprint::of(work, &spec.sm).blocks_per_sm(&spec.sm));
    let of_sm = work.grid_blocks.div_ceil(sms.max(1)).max(1);
    of_sm as f64 / of_sm.div_ceil(most.max(1)) as f64
}

/// The number of warps that an SM issues in a cycle: one for 32 lanes, at least two.
fn schedulers(spec: &DeviceSpec) -> u64 {
    u64::from(spec.sm.fp32_lanes / 32).max(2)
}

/// The time of this many clock cycles.
fn cycles(spec: &DeviceSpec, cycles: f64) -> Time {
    time(cycles * 1e6 / f64::from(spec.clocks.sm_khz.max(1)))
}

/// The time of this many FP32 operations on the lanes of one SM.
fn lanes(spec: &DeviceSpec, operations: f64) -> Time {
    cycles(spec, operations / f64::from(spec.sm.fp32_lanes.max(1)))
}

/// Nanoseconds, limited so that sums of them do not overflow.
fn time(ns: f64) -> Time {
    ns.min((u64::MAX >> 8) as f64) as Time
}

/// The TPCs of an MPS client with an active thread percentage: that part of the SMs, in whole TPCs
/// and at least one, as an H200 rounds. The choice is unspecified, so clients start at places
/// spread over the device, and their sets overlap.
pub fn percentage_set(spec: &DeviceSpec, percentage: f64, client: usize) -> TpcSet {
    let tpcs = spec.tpc_count();
    let count = ((f64::from(tpcs) * percentage / 100.0 + 1e-6) as u32).clamp(1, tpcs);
    // Knuth's multiplicative hash.
    let start = (client as u32).wrapping_mul(0x9e37_79b9) % tpcs;
    (0..count).map(|index| ((start + index) % tpcs) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Dims;
    use partita_sim::catalogue;

    fn matmul(width: u32) -> KernelStep {
        KernelStep {
            name: String::new(),
            grid: Dims([width / 32, width / 32, 1]),
            block: Dims([32, 32, 1]),
            shared_bytes: 0,
            sm_mask: None,
            code: Code::MatrixMultiply { width },
        }
    }

    #[test]
    fn a_product_takes_its_part_of_the_peak() {
        let spec = catalogue::device("h200").unwrap();
        let work = kernel(&spec, &Costs::default(), &matmul(6144), spec.topology.all(), false);
        // Two blocks of 1024 threads an SM, 36864 blocks on 264 places.
        let waves = (192 * 192_u64).div_ceil(264);
        let seconds = (waves * work.block_ns) as f64 / 1e9;
        let peak = 132.0 * 128.0 * 1.98e9;
        let part = 6144f64.powi(3) / seconds / peak;
        assert!((0.12..0.13).contains(&part), "{part}");
    }

    #[test]
    fn an_sm_takes_as_long_as_its_blocks_make_it_whether_they_come_in_pairs() {
        let spec = catalogue::device("h200").unwrap();
        // 1024 blocks, two at a time on an SM: 11 on each SM of 47 TPCs, 10 of 52, 9 of 57.
        let total = |tpcs: u8| {
            let set = (0..tpcs).collect::<TpcSet>();
            let work = kernel(&spec, &Costs::default(), &matmul(1024), set, false);
            let of_sm = 1024_u64.div_ceil(2 * u64::from(tpcs));
            (of_sm, of_sm.div_ceil(2) * work.block_ns)
        };
        let (alone, one) = total(64);
        assert_eq!(alone, 8);
        for tpcs in [47, 51, 52, 57, 63] {
            let (blocks, time) = total(tpcs);
            let ratio = time as f64 / one as f64;
            assert!((ratio - blocks as f64 / 8.0).abs() < 1e-3, "{tpcs} TPCs: {ratio}");
        }
    }

    #[test]
    fn percentages_round_as_measured() {
        let spec = catalogue::device("h200").unwrap();
        for (percentage, sms) in [(10.0, 12), (25.0, 32), (50.0, 66), (100.0, 132), (0.1, 2)] {
            assert_eq!(percentage_set(&spec, percentage, 3).len() * 2, sms, "{percentage}");
        }
        assert_ne!(percentage_set(&spec, 25.0, 0), percentage_set(&spec, 25.0, 1));
    }
}
