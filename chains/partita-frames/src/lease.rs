//! A frame's memory, and the data about the frame in it.

use crate::file::ChainFile;
use crate::layout::{FRAMES_MAX, FrameCells, HANDLE_BYTES, META_WORDS, ROLES_MAX, load_handle, store_bytes};
use crate::slabs::SlabRef;
use crate::state::Ticket;

/// A frame's memory, held by a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub ticket: Ticket,
    /// The allocation with its memory.
    pub slab: SlabRef,
    /// Its offset in that, in bytes.
    pub offset: u64,
}

/// The role that recorded when the GPU is done with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorder {
    pub role: u8,
    /// Its incarnation then.
    pub incarnation: u64,
}

impl Recorder {
    fn to_word(this: Option<Self>) -> u64 {
        this.map_or(0, |this| this.incarnation << 8 | (u64::from(this.role) + 1))
    }

    fn from_word(word: u64) -> Option<Self> {
        let role = (word as u8).checked_sub(1).filter(|role| usize::from(*role) < ROLES_MAX)?;
        Some(Self { role, incarnation: word >> 8 })
    }
}

/// The data about a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Note {
    /// Its number in the order of their starts, from 0.
    pub sequence: u64,
    /// How many bytes of its memory are in use.
    pub bytes: u64,
    /// When it was started, by the monotonic clock, in nanoseconds.
    pub born_ns: u64,
    /// The roles, a bit each, that saw the GPU finish their work on it before they passed it on.
    pub done_roles: u64,
    /// Words for the next one.
    pub meta: [u64; META_WORDS],
}

impl ChainFile {
    pub(crate) fn frame_cells(&self, lease: usize) -> &FrameCells {
        &self.layout().frames[lease % FRAMES_MAX]
    }

    pub(crate) fn lease(&self, ticket: Ticket) -> Lease {
        let offset = self.frame_cells(ticket.lease()).offset.load();
        Lease { ticket, slab: self.slab_of(ticket.lease()), offset }
    }

    /// The data about the frame in a lease that the caller holds.
    pub fn note(&self, lease: &Lease) -> Note {
        let cells = self.frame_cells(lease.ticket.lease());
        Note {
            sequence: cells.sequence.load(),
            bytes: cells.bytes.load().min(self.plan().frame_bytes),
            born_ns: cells.born_ns.load(),
            done_roles: cells.done_roles.load(),
            meta: core::array::from_fn(|at| cells.meta[at].load()),
        }
    }

    pub(crate) fn set_note(&self, lease: usize, note: &Note) {
        let cells = self.frame_cells(lease);
        cells.sequence.store(note.sequence);
        cells.bytes.store(note.bytes.min(self.plan().frame_bytes));
        cells.born_ns.store(note.born_ns);
        cells.done_roles.store(note.done_roles);
        cells.meta.iter().zip(note.meta).for_each(|(cell, word)| cell.store(word));
    }

    /// The last role that recorded when the GPU is done with a lease that the caller holds; `None`
    /// if there is no need to wait.
    pub fn recorder(&self, lease: &Lease) -> Option<Recorder> {
        Recorder::from_word(self.frame_cells(lease.ticket.lease()).recorded_by.load())
    }

    pub(crate) fn set_recorder(&self, lease: usize, recorder: Option<Recorder>) {
        self.frame_cells(lease).recorded_by.store(Recorder::to_word(recorder));
    }

    /// Records for all leases, whichever role holds them, that nothing recorded by this role needs
    /// to be waited for any more.
    pub(crate) fn clear_recorded(&self, recorder: Recorder) {
        let word = Recorder::to_word(Some(recorder));
        for cells in &self.layout().frames {
            // The holder of the lease may record itself meanwhile: then that stays.
            cells.recorded_by.replace(word, 0);
        }
    }

    /// The handle of the event that was recorded for a lease that the caller holds; `None` if
    /// another process has taken that role since, or the role left none.
    pub fn event_handle(&self, lease: &Lease, recorder: Recorder) -> Option<[u8; HANDLE_BYTES]> {
        let cells = &self.layout().events.get(usize::from(recorder.role))?[lease.ticket.lease() % FRAMES_MAX];
        let current = self.incarnation(recorder.role) == recorder.incarnation;
        (current && cells.incarnation.load() == recorder.incarnation).then(|| load_handle(&cells.handle))
    }

    pub(crate) fn set_event_handle(&self, lease: usize, recorder: Recorder, handle: &[u8; HANDLE_BYTES]) {
        let role = usize::from(recorder.role) % ROLES_MAX;
        let cells = &self.layout().events[role][lease % FRAMES_MAX];
        cells.incarnation.store(0);
        store_bytes(&cells.handle, handle);
        cells.incarnation.store(recorder.incarnation);
    }
}
