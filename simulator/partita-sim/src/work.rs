//! Works of programs: kernels, copies, host operations, waits.

use core::fmt;

use partita_core::TpcSet;

use crate::Time;

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $letter:literal) => {
        $(#[$doc])*
        ///
        /// A handle is never reused within one engine, so a stale one is recognised.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) u64);

        impl $name {
            /// The handle as a number, for logs and wire formats.
            #[must_use]
            pub const fn to_u64(self) -> u64 {
                self.0
            }

            /// The handle of [`Self::to_u64`]'s result. Any other number is an unknown handle.
            #[must_use]
            pub const fn from_u64(raw: u64) -> Self {
                Self(raw)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{}.{}", $letter, self.0 as u32, self.0 >> 32)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

handle!(
    /// A time-slice group: its members run at the same time, and groups take turns.
    GroupId, "g"
);
handle!(
    /// A hardware queue: works leave it in submission order.
    QueueId, "q"
);
handle!(
    /// A stream: works run in submission order, each after the one before has completed.
    StreamId, "s"
);
handle!(
    /// One submitted work.
    WorkId, "w"
);

/// The meaning of a time-slice group. The engine treats both alike; the kind is for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// The contexts of one process without MPS.
    Own,
    /// All clients of one MPS server.
    Mps,
}

/// One entry of a stream.
#[derive(Clone, Debug)]
pub enum Work {
    /// A kernel launch.
    Kernel(KernelWork),
    /// A transfer on a copy engine.
    Copy(CopyWork),
    /// An operation of fixed length that uses none of the modelled engines.
    Delay {
        /// Length in nanoseconds.
        ns: Time,
    },
    /// An operation outside the model (a host function, a wait on memory): it starts in stream
    /// order and ends at [`crate::Engine::complete`]. Meanwhile it blocks its hardware queue.
    External,
    /// Waits until that work has completed. Blocks its hardware queue meanwhile.
    WaitOn(WorkId),
    /// Completes as soon as it is reached (an event record).
    Marker,
}

/// A kernel launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelWork {
    pub grid_blocks: u64,
    pub threads_per_block: u32,
    /// Registers of one thread.
    pub regs_per_thread: u32,
    /// Shared memory of one block, static and dynamic, in bytes.
    pub smem_per_block: u32,
    /// Blocks of one cluster; 1 for none. The grid must be a multiple of it.
    pub cluster_blocks: u32,
    /// All blocks must be resident at the same time (grid synchronisation).
    pub cooperative: bool,
    /// TPCs that may run it, logical numbering.
    pub enabled: TpcSet,
    /// Time of one block with sufficient memory bandwidth, in nanoseconds.
    pub block_ns: Time,
    /// DRAM traffic of one block, in bytes; 0 for a compute-bound kernel.
    pub bytes_per_block: u64,
    /// Traffic of one block that L2 serves, in bytes: it needs its GPC's path to memory alone.
    pub l2_bytes_per_block: u64,
    /// The length of each block varies uniformly within ± this many thousandths of `block_ns`, by
    /// the engine's seed; below 1000.
    pub jitter_permille: u16,
    /// Share of its SM's throughput that one block takes while it is alone there, in thousandths; 0
    /// for a kernel whose blocks do not contend on their SM. Blocks of an SM whose demand exceeds
    /// it slow down alike; those that touch memory use only memory's clock.
    pub sm_permille: u16,
    /// Records a [`crate::BlockRecord`] of each block, for [`crate::Engine::take_blocks`].
    pub record_blocks: bool,
    /// The caller says how long each block takes: [`crate::EventKind::BlockStarted`] reports it,
    /// and it runs until [`crate::Engine::end_block`]. `block_ns`, both counts of bytes
    /// and `sm_permille` have no effect.
    pub open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// Host memory to device memory.
    ToDevice,
    /// Device memory to host memory.
    ToHost,
    /// Device memory to device memory.
    Within,
    /// A value written over device memory.
    Fill,
}

/// A transfer on a copy engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyWork {
    /// Payload in bytes.
    pub bytes: u64,
    pub direction: CopyDirection,
    /// Whose it is, by any number: a process. An engine goes on with one client as long as it can.
    pub client: u64,
}

impl KernelWork {
    /// A kernel of `grid_blocks` blocks of `threads_per_block` threads that take `block_ns` each
    /// and may run on `enabled`: 32 registers, no shared memory, no cluster, no memory traffic, no
    /// contention on its SM, no records.
    #[must_use]
    pub fn new(grid_blocks: u64, threads_per_block: u32, block_ns: Time, enabled: TpcSet) -> Self {
        Self {
            grid_blocks,
            threads_per_block,
            regs_per_thread: 32,
            smem_per_block: 0,
            cluster_blocks: 1,
            cooperative: false,
            enabled,
            block_ns,
            bytes_per_block: 0,
            l2_bytes_per_block: 0,
            jitter_permille: 0,
            sm_permille: 0,
            record_blocks: false,
            open: false,
        }
    }
}

impl From<KernelWork> for Work {
    fn from(kernel: KernelWork) -> Self {
        Self::Kernel(kernel)
    }
}

impl From<CopyWork> for Work {
    fn from(copy: CopyWork) -> Self {
        Self::Copy(copy)
    }
}
