//! The kernels of experiments: the cost of their blocks. They write records of their blocks, and no
//! other results.

use partita_abi::CuResult;
use partita_abi::workloads::{
    CACHED_READ_NS, CHAIN, COUNTER, COUNTER_CYCLES, COUNTER_INSTRUCTIONS, DRAM_READ_NS, MANDELBROT,
    MANDELBROT_INSIDE_PERMILLE, MANDELBROT_OPERATIONS, MATMUL, MATMUL_PEAK_PERMILLE, TIMER, WALK, WORKLOADS,
};
use partita_sim::{DeviceSpec, Footprint, KernelWork};

use super::Run;

/// The cost of a block that does nothing.
const LEAST_NS: u64 = 1_000;

/// Adds the cost to a launch of one of these kernels: the outer option is set for them, the inner
/// one has the effect.
///
/// # Errors
/// `ILLEGAL_ADDRESS` if the kernel has fewer parameters than it reads.
pub fn prepare(
    spec: &DeviceSpec,
    name: &str,
    params: &[u8],
    kernel: &mut KernelWork,
) -> Result<Option<Option<Run>>, CuResult> {
    let Some((known, sizes)) = WORKLOADS.iter().find(|(known, _)| known.to_bytes() == name.as_bytes()) else {
        return Ok(None);
    };
    if params.len() < sizes.iter().sum() {
        return Err(CuResult::ILLEGAL_ADDRESS);
    }
    // All parameters but a matrix's and a picture's width are eight bytes long, at multiples of
    // eight.
    let word = |index: usize| {
        let mut bytes = [0; 8];
        let rest = params.get(8 * index..).unwrap_or_default();
        let length = rest.len().min(sizes[index]);
        bytes[..length].copy_from_slice(&rest[..length]);
        u64::from_le_bytes(bytes)
    };
    if *known == CHAIN {
        kernel.bytes_per_block = word(1).saturating_mul(4) / kernel.grid_blocks.max(1);
        kernel.block_ns = LEAST_NS;
        return Ok(Some(None));
    }
    let threads = u64::from(kernel.threads_per_block);
    let together = together(spec, kernel);
    let cycles =
        |cycles: u64| (u128::from(cycles) * 1_000_000 / u128::from(spec.clocks.sm_khz.max(1))) as u64;
    let lanes = |operations: u64, permille: u64| {
        cycles(operations.saturating_mul(1_000) / (u64::from(spec.sm.fp32_lanes.max(1)) * permille))
    };
    kernel.block_ns = if *known == TIMER {
        word(1)
    } else if *known == COUNTER {
        let warps = threads.div_ceil(u64::from(spec.sm.warp_threads)) * together;
        let issue = warps * COUNTER_INSTRUCTIONS / u64::from(spec.sm.fp32_lanes / 32).max(2);
        cycles(word(1).saturating_mul(COUNTER_CYCLES.max(issue)))
    } else if *known == MATMUL {
        lanes(threads * word(4) * together, MATMUL_PEAK_PERMILLE)
    } else if *known == WALK {
        let (words, accesses, stride) = (word(2), word(3), word(4));
        let is_random = stride > 1;
        let missed = (words * 4).saturating_sub(spec.memory.l2_bytes.into()).saturating_mul(1_000)
            / (words * 4).max(1);
        if is_random {
            kernel.bytes_per_block = threads.saturating_mul(accesses) / 1_000 * 32 * missed;
        }
        accesses.saturating_mul(if is_random { DRAM_READ_NS } else { CACHED_READ_NS })
    } else {
        debug_assert_eq!(*known, MANDELBROT);
        let points = word(2).div_ceil(kernel.grid_blocks.max(1));
        // The side is the low half of its word.
        let rounds = (word(4) * MANDELBROT_INSIDE_PERMILLE / 1_000).max(1);
        lanes(points.saturating_mul(rounds).saturating_mul(MANDELBROT_OPERATIONS * together), 1_000)
    };
    kernel.block_ns = kernel.block_ns.max(LEAST_NS);
    kernel.record_blocks = true;
    Ok(Some(Some(Run::Census { out: word(0) })))
}

/// Blocks of this kernel that share an SM.
fn together(spec: &DeviceSpec, kernel: &KernelWork) -> u64 {
    let sms =
        u64::from((kernel.enabled & spec.topology.all()).len()) * u64::from(spec.topology.sms_per_tpc());
    let most = u64::from(Footprint::of(kernel, &spec.sm).blocks_per_sm(&spec.sm));
    kernel.grid_blocks.div_ceil(sms.max(1)).min(most).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_core::TpcSet;
    use partita_sim::catalogue;

    fn cost(name: &str, params: &[u64], threads: u32, blocks: u64) -> u64 {
        let spec = catalogue::device("h200").unwrap();
        let bytes: Vec<u8> = params.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut kernel = KernelWork::new(blocks, threads, 0, TpcSet::first(66));
        let run = prepare(&spec, name, &bytes, &mut kernel).unwrap().unwrap();
        assert!(matches!(run, Some(Run::Census { out: 7 })) && kernel.record_blocks);
        kernel.block_ns
    }

    #[test]
    fn blocks_cost_what_their_kernels_do() {
        assert_eq!(cost("partita_work_timer", &[7, 250_000_000], 1024, 1), 250_000_000);
        let counter = |loops, blocks| cost("partita_work_counter", &[7, loops, 0], 1024, blocks);
        assert_eq!(counter(2_000_000, 1) / counter(1_000_000, 1), 2);
        assert_eq!(
            counter(1_000_000, 264) / counter(1_000_000, 132),
            2,
            "two blocks share an SM's issue slots"
        );
        let matmul = |width, blocks| cost("partita_work_matmul", &[7, 0, 0, 0, width], 1024, blocks);
        assert_eq!(matmul(2048, 264) / matmul(1024, 264), 2);
        assert!(
            cost("partita_work_walk", &[7, 0, 1 << 27, 1000, 9], 32, 1)
                > cost("partita_work_walk", &[7, 0, 1 << 27, 1000, 1], 32, 1)
        );
        assert!(cost("partita_work_mandelbrot", &[7, 0, 1_000_000, 1000, 50_000], 512, 2000) > 100_000);
        let spec = catalogue::device("h200").unwrap();
        let mut kernel = KernelWork::new(1, 32, 0, TpcSet::first(66));
        assert_eq!(
            prepare(&spec, "partita_work_timer", &[0; 8], &mut kernel).err(),
            Some(CuResult::ILLEGAL_ADDRESS)
        );
        assert!(prepare(&spec, "other", &[], &mut kernel).unwrap().is_none());
    }
}
