//! The layout of the chain file in memory: words only.

use core::ffi::CStr;
use core::mem::{offset_of, size_of};

use crate::flow::{Line, Ring};
use partita_ledger::shared::{DoubleBuffer, Header, Kind};

use crate::sync::Word;

/// The chain file's name in the tenant's directory.
pub const CHAIN_FILE_NAME: &CStr = c"chain";
pub const CHAIN_FILE_BYTES: usize = size_of::<Layout>();
/// Roles of a chain, at most.
pub const ROLES_MAX: usize = 16;
/// Frames of a chain, at most.
pub const FRAMES_MAX: usize = 256;
/// Allocations that the frames of a chain lie in, at most: with one on each of as many GPUs as
/// there are roles, those of two sets.
pub const SLABS_MAX: usize = 32;
const _: () = assert!(SLABS_MAX >= 2 * ROLES_MAX);
/// Words that the owner of a frame may leave in it for the next one.
pub const META_WORDS: usize = 4;
/// Bytes of a handle, of memory or of an event, between processes (`CU_IPC_HANDLE_SIZE`).
pub const HANDLE_BYTES: usize = 64;

pub(crate) const KIND: Kind = Kind { magic: *b"PARTITAC", bytes: CHAIN_FILE_BYTES as u32 };

/// A handle between processes.
pub(crate) type Handle = [Word; HANDLE_BYTES / 8];

/// The chain's plan.
#[repr(C)]
pub(crate) struct PlanCells {
    /// Roles, frames, queue, policy, frame bytes.
    pub(crate) numbers: [Word; 5],
    /// Not zero if `role_gpus` are known.
    pub(crate) knows_gpus: Word,
    pub(crate) role_gpus: [[Word; 2]; ROLES_MAX],
    /// The chain's, and those of the roles.
    pub(crate) names: [[Word; 4]; ROLES_MAX + 1],
}

/// Words that belong to no role.
#[repr(C)]
pub(crate) struct Common {
    /// Not zero once the chain is stopped.
    pub(crate) stopping: Line,
    /// How many frames were started so far.
    pub(crate) begun: Line,
    /// How many times a lease came back to the pool.
    pub(crate) freed: Line,
    /// A writer of suggestions locks it.
    pub(crate) suggesting: Line,
}

/// A role. Its owner, which holds a lock on these bytes, writes all fields but `suggestion`.
#[repr(C, align(64))]
pub(crate) struct RoleCells {
    pub(crate) pid: Word,
    pub(crate) start_ticks: Word,
    /// How often a process attached to it.
    pub(crate) incarnation: Word,
    /// Not zero while its owner sleeps, or died sleeping.
    pub(crate) sleeping: Word,
    pub(crate) counters: Counters,
    /// How frames of a role before on another GPU reach it ([`Reach`](super::Reach)).
    pub(crate) reach: Word,
    /// The suggestion in force, and its method, in words of the client library.
    pub(crate) applied_epoch: Word,
    pub(crate) applied_how: Word,
    /// The last suggestion that its owner could not apply; 0 for none.
    pub(crate) refused_epoch: Word,
    pub(crate) suggestion: DoubleBuffer<4>,
}

/// Of a role, since the creation of the file.
#[repr(C)]
pub(crate) struct Counters {
    pub(crate) frames_in: Word,
    pub(crate) frames_out: Word,
    pub(crate) dropped_newest: Word,
    pub(crate) dropped_oldest: Word,
    pub(crate) dropped_by_owner: Word,
    pub(crate) dropped_of_dead: Word,
    pub(crate) completed_of_dead: Word,
    pub(crate) busy_ns: Word,
    pub(crate) wait_in_ns: Word,
    pub(crate) wait_out_ns: Word,
    pub(crate) latency_ns: Word,
    pub(crate) seen_ns: Word,
}

/// An allocation. The first role's owner writes it.
#[repr(C, align(64))]
pub(crate) struct SlabCells {
    /// Generation, above 8 bits for its kind.
    pub(crate) state: Word,
    pub(crate) begins_at: Word,
    pub(crate) bytes: Word,
    pub(crate) lease_bytes: Word,
    /// Its owner: the keeper's number, or the incarnation of the first role.
    pub(crate) owner: Word,
    /// Two words for the owner.
    pub(crate) tag: [Word; 2],
    /// The number of its GPU in the plan.
    pub(crate) gpu: Word,
    /// On another GPU than the first: the slab there whose frames have this memory here.
    pub(crate) home: Word,
    pub(crate) handle: Handle,
}

/// The memory of a lease, and its frame. The holder of the lease writes it.
#[repr(C, align(64))]
pub(crate) struct FrameCells {
    /// Its slab's number, below its slab's generation.
    pub(crate) slab: Word,
    pub(crate) offset: Word,
    /// When it may be used again after its owner's death.
    pub(crate) rests_until_ns: Word,
    pub(crate) sequence: Word,
    pub(crate) bytes: Word,
    pub(crate) born_ns: Word,
    /// The last role that recorded when the GPU is done with it: role plus one, below the
    /// incarnation; 0 for none.
    pub(crate) recorded_by: Word,
    /// [`Note::done_roles`](super::Note::done_roles).
    pub(crate) done_roles: Word,
    pub(crate) meta: [Word; META_WORDS],
}

/// The event that a role records for a lease.
#[repr(C)]
pub(crate) struct EventCells {
    pub(crate) incarnation: Word,
    pub(crate) handle: Handle,
}

#[repr(C, align(64))]
pub(crate) struct Edge(pub(crate) Ring<FRAMES_MAX>);

impl AsRef<Ring<FRAMES_MAX>> for Edge {
    fn as_ref(&self) -> &Ring<FRAMES_MAX> {
        &self.0
    }
}

#[repr(C)]
pub(crate) struct Layout {
    pub(crate) header: Header,
    pub(crate) plan: PlanCells,
    pub(crate) common: Common,
    pub(crate) roles: [RoleCells; ROLES_MAX],
    pub(crate) slabs: [SlabCells; SLABS_MAX],
    pub(crate) edges: [Edge; ROLES_MAX - 1],
    pub(crate) leases: [Line; FRAMES_MAX],
    pub(crate) frames: [FrameCells; FRAMES_MAX],
    pub(crate) events: [[EventCells; FRAMES_MAX]; ROLES_MAX],
}

/// The bytes that the owner of a role locks.
pub(crate) fn role_range(role: u8) -> (usize, usize) {
    let at = offset_of!(Layout, roles) + usize::from(role) % ROLES_MAX * size_of::<RoleCells>();
    (at, size_of::<RoleCells>())
}

/// The byte that a writer of suggestions locks.
pub(crate) const SUGGESTING_OFFSET: usize = offset_of!(Layout, common) + offset_of!(Common, suggesting);

pub(crate) fn store_bytes(cells: &[Word], bytes: &[u8]) {
    for (cell, word) in cells.iter().zip(bytes.as_chunks::<8>().0) {
        cell.store(u64::from_ne_bytes(*word));
    }
}

pub(crate) fn load_handle(cells: &Handle) -> [u8; HANDLE_BYTES] {
    let mut bytes = [0; HANDLE_BYTES];
    for (word, cell) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(cells) {
        *word = cell.load().to_ne_bytes();
    }
    bytes
}
