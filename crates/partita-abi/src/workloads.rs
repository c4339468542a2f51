//! Device code of the kernels that experiments run.
//!
//! A separate PTX module, for the same old target as [`crate::kernels`]. Each kernel but [`CHAIN`]
//! takes `u64 out` first: thread 0 of the block with linear number `b` (x fastest) writes a
//! [`CensusRecord`](crate::kernels::CensusRecord) to `out + 32 × b` when all threads of the block
//! are done. The simulator knows the kernels by name: they take the time that follows from the
//! constants here, and leave their records.

use core::ffi::CStr;

/// Spins until a duration has passed: `u64 out, u64 duration_ns`.
pub const TIMER: &CStr = c"partita_work_timer";

/// Counts: `u64 out, u64 loops, u64 sink`; `sink` is 8 bytes that are in practice never written.
pub const COUNTER: &CStr = c"partita_work_counter";

/// Multiplies square matrices of `f32`, through tiles in shared memory: `u64 out, u64 c, u64 a, u64
/// b, u32 n`.
///
/// Row-major, `c = a × b`. Blocks are squares of at most 32 × 32 threads, ⌈n / side⌉ of them in x
/// and y.
pub const MATMUL: &CStr = c"partita_work_matmul";

/// Follows a chain of indices: `u64 out, u64 buffer, u64 words, u64 accesses, u64 stride`.
///
/// The thread with number `t` in the grid begins at word `t × stride mod words`, each a `u32` that
/// is the index of the next.
pub const WALK: &CStr = c"partita_work_walk";

/// Computes the Mandelbrot set, a byte a pixel: `u64 out, u64 image, u64 pixels, u32 side, u64
/// rounds_max`.
///
/// The thread with number `t` in the grid computes pixel `t` of a picture of `side` pixels a row,
/// of the square of side 2.5 at −2 − 1.25 i.
pub const MANDELBROT: &CStr = c"partita_work_mandelbrot";

/// Builds a chain for [`WALK`]: `u64 buffer, u64 words, u64 factor, u64 step`; word `i` becomes `(i
/// × factor + step) mod words`. Any grid.
pub const CHAIN: &CStr = c"partita_work_chain";

/// Every kernel of the module and the bytes of its parameters.
pub const WORKLOADS: &[(&CStr, &[usize])] = &[
    (TIMER, &[8, 8]),
    (COUNTER, &[8, 8, 8]),
    (MATMUL, &[8, 8, 8, 8, 4]),
    (WALK, &[8, 8, 8, 8, 8]),
    (MANDELBROT, &[8, 8, 8, 4, 8]),
    (CHAIN, &[8, 8, 8, 8]),
];

/// The module, for `cuModuleLoadData`.
pub const WORKLOADS_MODULE: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("workloads.ptx"), "\0").as_bytes()) {
        Ok(module) => module,
        Err(_) => panic!("the module must have no NUL inside"),
    };

/// Registers of a thread, at most: ptxas 13.0 assigns 25 or fewer for sm_75 to sm_90, rounded up to
/// a warp's share of an SM.
pub const REGISTERS: u32 = 32;

/// Cycles of one iteration of [`COUNTER`], whose sum depends on itself: two dependent 64-bit
/// integer operations of 4 cycles a half, and a branch (instruction latencies: Jia et al.,
/// «Dissecting the NVIDIA Volta GPU architecture via microbenchmarking», 2018; assumed elsewhere).
pub const COUNTER_CYCLES: u64 = 16;
/// Warp instructions of that round; a 64-bit operation is two.
pub const COUNTER_INSTRUCTIONS: u64 = 8;
/// FP32 operations of one round of [`MANDELBROT`], a fused multiply-add being one, with those of
/// the loop.
pub const MANDELBROT_OPERATIONS: u64 = 12;
/// The part of the picture of [`MANDELBROT`] inside the set, which takes all rounds, in
/// thousandths: area 1.5066 (Ewing and Schober, 1992) of 2.5 × 2.5.
pub const MANDELBROT_INSIDE_PERMILLE: u64 = 241;
/// Part of the FP32 peak that [`MATMUL`] reaches, in thousandths: each multiply-add loads two words
/// of shared memory, one of which an SM serves for one warp a cycle, while its lanes do four warps'
/// arithmetic (assumption, to be fitted on a device).
pub const MATMUL_PEAK_PERMILLE: u64 = 125;
/// A dependent read of [`WALK`] from DRAM, in nanoseconds (Jia et al.; newer parts are within a
/// quarter of it).
pub const DRAM_READ_NS: u64 = 600;
/// A read that hits L1, in nanoseconds (as above).
pub const CACHED_READ_NS: u64 = 25;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx;

    #[test]
    fn every_workload_is_in_the_module_with_its_parameters() {
        ptx::has_kernels(WORKLOADS_MODULE, WORKLOADS);
        ptx::is_for_old_targets(WORKLOADS_MODULE);
    }

    #[test]
    fn the_assembler_accepts_the_workloads_with_their_registers() {
        for messages in ptx::is_assembled(WORKLOADS_MODULE, "workloads") {
            for used in messages.split("Used ").skip(1) {
                let registers: u32 = used.split(' ').next().unwrap().parse().unwrap();
                assert!(registers <= REGISTERS, "{messages}");
            }
        }
    }
}
