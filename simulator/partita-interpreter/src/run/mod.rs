//! The interpreter: one block at a time, in slices.

mod access;
mod block;
mod call;
mod clock;
mod meeting;
mod special;
mod together;
mod warp;

use core::fmt;
use std::sync::Arc;

use crate::kernel::Kernel;
use partita_ptx::Position;

pub use block::Block;

/// Device memory, and host memory that the device reaches.
pub trait Memory {
    /// Copies bytes out. Returns whether all of them may be read; if not, it may have copied some.
    fn read(&mut self, address: u64, into: &mut [u8]) -> bool;
    /// Copies bytes in. Returns whether all of them may be written; if not, it may have copied
    /// some.
    fn write(&mut self, address: u64, from: &[u8]) -> bool;
}

/// A launch of a kernel.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What runs.
    pub kernel: Arc<Kernel>,
    /// Its parameters as they lie in memory.
    pub params: Vec<u8>,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub dynamic_shared: u32,
    /// The launch's number.
    pub number: u64,
    /// SMs of the device.
    pub sms: u32,
    /// Clock rate of its SMs, in kHz.
    pub clock_khz: u32,
}

/// Where and when a block runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The block's number in the grid, counted along x first.
    pub block: u64,
    /// The number of its SM.
    pub sm: u32,
    /// When its first instruction runs, in nanoseconds.
    pub at_ns: u64,
}

/// Whether a block has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All threads have ended.
    Done,
    /// The steps of this slice are used up.
    Running,
}

/// Why a kernel ended too early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An access to memory that is not mapped, or not for this.
    IllegalAddress(u64),
    /// An access at no multiple of its size.
    Misaligned(u64),
    /// `trap`.
    Trap,
    /// An assertion failed.
    Assertion,
    /// A jump to an address where no function is.
    BadCall(u64),
    /// A barrier number above 15.
    BadBarrier(u64),
    /// Calls inside one another took more memory than a thread has.
    StackOverflow,
    /// All threads that have not ended wait for each other: so many at barriers, and so many in
    /// operations of their warps.
    Deadlock {
        /// At `bar.sync` and the like.
        at_barriers: u32,
        /// In `shfl.sync` and the like.
        in_warps: u32,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IllegalAddress(address) => write!(f, "illegal address {address:#x}"),
            Self::Misaligned(address) => write!(f, "misaligned address {address:#x}"),
            Self::Trap => f.write_str("trap"),
            Self::Assertion => f.write_str("an assertion failed"),
            Self::BadCall(address) => write!(f, "a call of address {address:#x}, where no function is"),
            Self::BadBarrier(number) => write!(f, "barrier {number}: a block has barriers 0 to 15"),
            Self::StackOverflow => f.write_str("calls inside one another took more memory than a thread has"),
            Self::Deadlock { at_barriers, in_warps } => write!(
                f,
                "deadlock: {at_barriers} threads wait at barriers and {in_warps} in operations of their warps"
            ),
        }
    }
}

/// A fault with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What happened.
    pub fault: Fault,
    /// In which kernel.
    pub kernel: String,
    /// At which instruction of its text.
    pub at: Position,
    /// In which block.
    pub block: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel '{}', block {}, {}: {}", self.kernel, self.block, self.at, self.fault)
    }
}

impl core::error::Error for Failure {}
