//! Device code of the kernels that Partita launches itself.
//!
//! One PTX module, for the oldest target that supports the kernels (`sm_30`, which has
//! `%globaltimer`): every supported GPU runs it, from a GTX 680 to an H200. The simulator knows the
//! kernels by name and does what they do. The computations described here were compared, bit for
//! bit, with the host's results on an H200.
//!
//! Addresses are 64-bit device addresses in global memory. Kernels that process an array use
//! strides of the whole grid, so any grid works.

use core::ffi::CStr;

/// Spins until a duration has passed.
///
/// Parameters: `u64 duration_ns`.
///
/// Each thread reads `%globaltimer` until it is `duration_ns` past the
/// thread's first reading, so blocks that start later end later. The timer's
/// steps are a property of the GPU; 32 ns on an H200.
pub const SPIN: &CStr = c"partita_spin";

/// Records where and when every block ran.
///
/// Parameters: `u64 out`, `u64 duration_ns`.
///
/// Every block spins as [`SPIN`] does. Thread 0 of the block with linear number `b` (x fastest)
/// then writes a [`CensusRecord`] to `out + 32 × b`, so `out` must have room for 32 bytes a block
/// and be 8-byte aligned. If the memory is zeroed before the launch, it shows which blocks ran.
pub const CENSUS: &CStr = c"partita_census";

/// Counts the blocks that every SM ran.
///
/// Parameters: `u64 counts`, `u32 sms`.
///
/// Thread 0 of every block adds one, atomically, to the `u32` at `counts + 4 × %smid`; a `%smid` of
/// `sms` or above counts at `sms`. So `counts` must have room for `sms + 1` numbers and be 4-byte
/// aligned. The other threads do nothing. For any grid, the counts show exactly where its blocks
/// ran, in memory of constant size.
pub const COUNT: &CStr = c"partita_count";

/// Copies memory.
///
/// Parameters: `u64 dst`, `u64 src`, `u64 bytes`.
///
/// 16-byte words first, then the last `bytes % 16` one by one. Both addresses
/// must be 16-byte aligned, and the ranges must not overlap.
pub const COPY: &CStr = c"partita_copy";

/// Fused multiply-adds over arrays of `f32`.
///
/// Parameters: `u64 out`, `u64 a`, `u64 b`, `u64 c`, `u64 n`, `u32 rounds`.
///
/// For each `i < n`: `acc = c[i]`, then `rounds` times
/// `acc = fma(a[i], b[i], acc)` rounded to nearest, then `out[i] = acc`. The
/// arrays may be the same.
pub const FMA: &CStr = c"partita_fma";

/// Multiplies square matrices of `f32`.
///
/// Parameters: `u64 c`, `u64 a`, `u64 b`, `u32 n`.
///
/// Row-major `n` × `n`, `c = a × b`. The thread at global x `column` and global y `row` computes
/// one element: `acc = 0`, then for `k` ascending `acc = fma(a[row][k], b[k][column], acc)` rounded
/// to nearest. Threads outside the matrix do nothing. It is meant for blocks of 16 × 16 threads, ⌈n
/// / 16⌉ of them in x and y.
pub const MATMUL: &CStr = c"partita_matmul";

/// The record of a block of [`CENSUS`]: four `u64`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CensusRecord {
    /// `%smid` of the SM that the block began on.
    pub smid: u64,
    /// `%globaltimer` when the block began, in nanoseconds.
    pub start_ns: u64,
    /// `%globaltimer` when the block ended, in nanoseconds.
    pub stop_ns: u64,
    /// The block's linear number plus one, so zero marks a block not run.
    pub block_plus_one: u64,
}

const _: () = assert!(size_of::<CensusRecord>() == 32);

/// Bytes of each parameter of a kernel, in order; each is aligned to its size.
///
/// `None` for a name that is not one of [`KERNELS`].
pub fn parameter_bytes(kernel: &CStr) -> Option<&'static [usize]> {
    KERNELS.iter().find(|(name, _)| *name == kernel).map(|(_, bytes)| *bytes)
}

/// Every kernel of the module and the bytes of its parameters.
pub const KERNELS: &[(&CStr, &[usize])] = &[
    (SPIN, &[8]),
    (CENSUS, &[8, 8]),
    (COUNT, &[8, 4]),
    (COPY, &[8, 8, 8]),
    (FMA, &[8, 8, 8, 8, 8, 4]),
    (MATMUL, &[8, 8, 8, 4]),
];

/// The module, for `cuModuleLoadData`.
pub const PTX_MODULE: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("kernels.ptx"), "\0").as_bytes()) {
        Ok(module) => module,
        Err(_) => panic!("the module must have no NUL inside"),
    };

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx;

    #[test]
    fn every_kernel_is_in_the_module_with_its_parameters() {
        ptx::has_kernels(PTX_MODULE, KERNELS);
        assert_eq!(parameter_bytes(c"partita_fma"), Some(&[8, 8, 8, 8, 8, 4][..]));
        assert_eq!(parameter_bytes(c"other"), None);
    }

    #[test]
    fn the_module_is_plain_text_for_an_old_target() {
        ptx::is_for_old_targets(PTX_MODULE);
    }

    #[test]
    fn the_assembler_accepts_the_module() {
        ptx::is_assembled(PTX_MODULE, "kernels");
    }
}
