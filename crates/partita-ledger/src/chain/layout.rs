//! The chain file as it lies in memory: words only.

use core::ffi::CStr;
use core::mem::{offset_of, size_of};

use super::flow::{Line, Ring};
use crate::epoch::DoubleBuffer;
use crate::header::{Header, Kind};
use crate::sync::Word;

/// The chain file's name in the tenant's directory.
pub const CHAIN_FILE_NAME: &CStr = c"chain";
/// The chain file's size in bytes.
pub const CHAIN_FILE_BYTES: usize = size_of::<Layout>();
/// Roles of a chain, at most.
pub const ROLES_MAX: usize = 16;
/// Frames of a chain, at most.
pub const FRAMES_MAX: usize = 256;
/// Allocations that the frames of a chain lie in, at most.
pub const SLABS_MAX: usize = 32;
/// Words that whoever has a frame may leave in it for the next one.
pub const META_WORDS: usize = 4;
/// Bytes of a handle, of memory or of an event, between processes (`CU_IPC_HANDLE_SIZE`).
pub const HANDLE_BYTES: usize = 64;

pub(super) const KIND: Kind = Kind { magic: *b"PARTITAC", bytes: CHAIN_FILE_BYTES as u32 };

/// A handle between processes.
pub(super) type Handle = [Word; HANDLE_BYTES / 8];

/// The chain's plan.
#[repr(C)]
pub(super) struct PlanCells {
    /// Roles, frames, queue, policy, frame bytes.
    pub(super) numbers: [Word; 5],
    pub(super) gpu_uuid: [Word; 2],
    /// The chain's, and those of the roles.
    pub(super) names: [[Word; 4]; ROLES_MAX + 1],
}

/// What belongs to no role.
#[repr(C)]
pub(super) struct Common {
    /// Not zero once everybody is to end.
    pub(super) stopping: Line,
    /// How many frames were ever begun.
    pub(super) begun: Line,
    /// How often a lease came back to the pool.
    pub(super) freed: Line,
    /// Locked by whoever writes suggestions.
    pub(super) suggesting: Line,
}

/// A role. Its owner, who holds a lock on these bytes, writes all but `suggestion`.
#[repr(C, align(64))]
pub(super) struct RoleCells {
    pub(super) pid: Word,
    pub(super) start_ticks: Word,
    /// How often it was attached to.
    pub(super) incarnation: Word,
    /// Not zero while its owner sleeps, or died sleeping.
    pub(super) sleeping: Word,
    pub(super) counters: Counters,
    /// The suggestion that it obeys, and how, in words of the client library.
    pub(super) applied_epoch: Word,
    pub(super) applied_how: Word,
    pub(super) suggestion: DoubleBuffer<4>,
}

/// Of a role, since the file was made.
#[repr(C)]
pub(super) struct Counters {
    pub(super) frames_in: Word,
    pub(super) frames_out: Word,
    pub(super) dropped_newest: Word,
    pub(super) dropped_oldest: Word,
    pub(super) dropped_by_owner: Word,
    pub(super) dropped_of_dead: Word,
    pub(super) completed_of_dead: Word,
    pub(super) busy_ns: Word,
    pub(super) wait_in_ns: Word,
    pub(super) wait_out_ns: Word,
    pub(super) latency_ns: Word,
    pub(super) seen_ns: Word,
}

/// An allocation. The first role's owner writes it.
#[repr(C, align(64))]
pub(super) struct SlabCells {
    /// Generation above 8 bits of what it is.
    pub(super) state: Word,
    pub(super) begins_at: Word,
    pub(super) bytes: Word,
    pub(super) lease_bytes: Word,
    /// Whose it is: the keeper's number, or the incarnation of the first role.
    pub(super) owner: Word,
    /// Two words of the owner's.
    pub(super) tag: [Word; 2],
    pub(super) handle: Handle,
}

/// What a lease stands for, and the frame in it. Whoever holds the lease writes it.
#[repr(C, align(64))]
pub(super) struct FrameCells {
    /// Its slab's number, below its slab's generation.
    pub(super) slab: Word,
    pub(super) offset: Word,
    /// When it may be used again after its owner died.
    pub(super) rests_until_ns: Word,
    pub(super) sequence: Word,
    pub(super) bytes: Word,
    pub(super) born_ns: Word,
    /// Who had it last and noted when the GPU is done with it: role plus one, below the
    /// incarnation; 0 for nobody.
    pub(super) recorded_by: Word,
    /// [`Note::done_roles`](super::Note::done_roles).
    pub(super) done_roles: Word,
    pub(super) meta: [Word; META_WORDS],
}

/// The event that a role records for a lease.
#[repr(C)]
pub(super) struct EventCells {
    pub(super) incarnation: Word,
    pub(super) handle: Handle,
}

/// An edge.
#[repr(C, align(64))]
pub(super) struct Edge(pub(super) Ring<FRAMES_MAX>);

impl AsRef<Ring<FRAMES_MAX>> for Edge {
    fn as_ref(&self) -> &Ring<FRAMES_MAX> {
        &self.0
    }
}

#[repr(C)]
pub(super) struct Layout {
    pub(super) header: Header,
    pub(super) plan: PlanCells,
    pub(super) common: Common,
    pub(super) roles: [RoleCells; ROLES_MAX],
    pub(super) slabs: [SlabCells; SLABS_MAX],
    pub(super) edges: [Edge; ROLES_MAX - 1],
    pub(super) leases: [Line; FRAMES_MAX],
    pub(super) frames: [FrameCells; FRAMES_MAX],
    pub(super) events: [[EventCells; FRAMES_MAX]; ROLES_MAX],
}

/// The bytes that the owner of a role locks.
pub(super) fn role_range(role: u8) -> (usize, usize) {
    let at = offset_of!(Layout, roles) + usize::from(role) % ROLES_MAX * size_of::<RoleCells>();
    (at, size_of::<RoleCells>())
}

/// The byte that whoever writes suggestions locks.
pub(super) const SUGGESTING_OFFSET: usize = offset_of!(Layout, common) + offset_of!(Common, suggesting);

pub(super) fn store_bytes(cells: &[Word], bytes: &[u8]) {
    for (cell, word) in cells.iter().zip(bytes.as_chunks::<8>().0) {
        cell.store(u64::from_ne_bytes(*word));
    }
}

pub(super) fn load_handle(cells: &Handle) -> [u8; HANDLE_BYTES] {
    let mut bytes = [0; HANDLE_BYTES];
    for (word, cell) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(cells) {
        *word = cell.load().to_ne_bytes();
    }
    bytes
}
