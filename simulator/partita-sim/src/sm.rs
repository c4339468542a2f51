//! Occupancy: a block's resources on its SM, and how many blocks fit.

use crate::spec::SmSpec;
use crate::work::KernelWork;

/// A block's resources on its SM, rounded as by the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Threads, in whole warps.
    pub threads: u32,
    pub registers: u32,
    /// Shared memory in bytes, including the system's part.
    pub shared_bytes: u32,
}

impl Footprint {
    /// The footprint of a block of this kernel on an SM of this kind.
    ///
    /// Registers are given to warps in units, shared memory to blocks in units after adding the
    /// system's part: the rules of NVIDIA's occupancy calculator.
    #[must_use]
    pub fn of(kernel: &KernelWork, sm: &SmSpec) -> Self {
        let warps = kernel.threads_per_block.div_ceil(sm.warp_threads);
        let per_warp =
            kernel.regs_per_thread.saturating_mul(sm.warp_threads).next_multiple_of(sm.register_unit.max(1));
        Self {
            threads: warps.saturating_mul(sm.warp_threads),
            registers: per_warp.saturating_mul(warps),
            shared_bytes: kernel
                .smem_per_block
                .saturating_add(sm.shared_reserved_per_block_bytes)
                .next_multiple_of(sm.shared_unit_bytes.max(1)),
        }
    }

    /// Blocks of this footprint that one empty SM holds; 0 if not even one fits.
    ///
    /// `cuOccupancyMaxActiveBlocksPerMultiprocessor` returns this number.
    #[must_use]
    pub fn blocks_per_sm(&self, sm: &SmSpec) -> u32 {
        SmFree::new(sm).fits(self)
    }
}

/// Free resources of one SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SmFree {
    threads: u32,
    registers: u32,
    shared_bytes: u32,
    blocks: u32,
}

impl SmFree {
    /// An empty SM.
    pub(crate) fn new(sm: &SmSpec) -> Self {
        Self {
            threads: sm.threads_max,
            registers: sm.registers,
            shared_bytes: sm.shared_bytes,
            blocks: sm.blocks_max,
        }
    }

    /// Blocks that still fit.
    #[inline]
    pub(crate) fn fits(&self, block: &Footprint) -> u32 {
        // Most rounds find room for no or few blocks: the cheap test first, divisions after it.
        if self.blocks == 0
            || self.threads < block.threads
            || self.registers < block.registers
            || self.shared_bytes < block.shared_bytes
        {
            return 0;
        }
        let by = |free: u32, need: u32| free.checked_div(need).unwrap_or(u32::MAX);
        self.blocks
            .min(by(self.threads, block.threads))
            .min(by(self.registers, block.registers))
            .min(by(self.shared_bytes, block.shared_bytes))
    }

    /// Takes the resources of `count` blocks.
    #[inline]
    pub(crate) fn take(&mut self, block: &Footprint, count: u32) {
        debug_assert!(count <= self.fits(block), "placed {count} blocks where {} fit", self.fits(block));
        self.threads -= block.threads * count;
        self.registers -= block.registers * count;
        self.shared_bytes -= block.shared_bytes * count;
        self.blocks -= count;
    }

    /// Frees the resources of `count` blocks.
    #[inline]
    pub(crate) fn give(&mut self, block: &Footprint, count: u32) {
        self.threads += block.threads * count;
        self.registers += block.registers * count;
        self.shared_bytes += block.shared_bytes * count;
        self.blocks += count;
    }

    /// Resident threads, the load for the distributor's balance.
    #[inline]
    pub(crate) fn load(&self, sm: &SmSpec) -> u32 {
        sm.threads_max - self.threads
    }
}
