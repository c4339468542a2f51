//! The gate file of a GPU: it shows which tenants of high priority have work in flight, so that
//! others wait for them.
//!
//! A *lane* is a word that a process of high priority closes before it launches; the GPU opens it
//! after the process's last kernel. GPUs read the word too: queued work of tenants of low priority
//! waits for it there. GPUs use only its low half, whose bit 0 means open ([`OPEN`]).
//!
//! # Why every closed lane opens again
//! The owner of a lane holds an open-file-description lock on its bytes, which the kernel releases
//! with the process, whenever that dies. [`GateMap::open_orphans`] opens the lanes without an
//! owner, and [`GateMap::relent`] those that have been closed for too long; every waiting process
//! calls both now and then. A lane is marked as claimed before it is first closed, and stays so
//! until it has been opened, so that these calls find every closed lane.
//!
//! Nothing here names a process, so processes of several PID namespaces use one file. Times are
//! those of `CLOCK_MONOTONIC`, which must not differ between time namespaces.
//!
//! # Who trusts whom
//! Any user who may open the file may open and close lanes of others, hold them all, or truncate
//! the file: priorities are for tenants that trust each other. The file holds no limits. A damaged
//! word does no lasting harm: a lane that is closed for ever has effect only until
//! [`relent`](GateMap::relent) opens it, and lanes stay open for at most a second.

use core::ffi::CStr;
use core::mem::{offset_of, size_of};

use crate::error::LedgerError;
use crate::file::{Access, At};
use crate::header::{Header, Kind};
use crate::lock;
use crate::mapped::MappedFile;
use crate::sync::Word;

/// The gate file's path in a GPU's directory: the parent of its tenants'. In a directory of its
/// own, which keeps other users of the machine from it where every user of a container may write.
pub const GATE_FILE_NAME: &CStr = c".turns/gate";
/// The gate file's size in bytes: a page, which GPUs can map.
pub const GATE_FILE_BYTES: usize = 4096;
/// Lanes of a GPU: the largest number of high-priority streams that close it at a time.
pub const GATE_LANES: usize = 32;
/// The largest plausible time in the future, in nanoseconds: later times are invalid.
const PLAN_NS_MAX: u64 = 1_000_000_000;
/// Set in a lane that is open.
pub const OPEN: u32 = 1;

/// Behind the words: a byte that every process of low priority holds a shared lock on.
const LOW: usize = GATE_FILE_BYTES;

const KIND: Kind = Kind { magic: *b"PARTITAG", bytes: GATE_FILE_BYTES as u32 };

#[repr(C, align(64))]
struct Line(Word);

#[repr(C, align(64))]
struct LaneCells {
    state: Word,
    /// When it was closed last, by the clock that all processes use.
    closed_ns: Word,
}

#[repr(C)]
struct Layout {
    header: Header,
    /// A bit for each lane that may be closed.
    claimed: Line,
    /// Until when no process closes a lane.
    passes_until_ns: Line,
    lanes: [LaneCells; GATE_LANES],
    /// The turn, for tenants that have the whole GPU in turns: its end in microseconds, above 16
    /// bits that name the tenant.
    turn: Line,
}

const _: () = assert!(size_of::<Layout>() <= GATE_FILE_BYTES);

/// A lane of the calling process, until the [`GateMap`] that claimed it is dropped or the process
/// ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane(u8);

impl Lane {
    /// Its number, below [`GATE_LANES`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A GPU's gate file, mapped.
#[derive(Debug)]
pub struct GateMap {
    file: MappedFile,
}

impl GateMap {
    /// Creates the file with every lane open; `mode` is its permissions.
    ///
    /// # Errors
    /// [`Problem::Exists`](crate::Problem::Exists), or the failed system call; the file is then
    /// removed.
    pub fn create<'a>(at: impl Into<At<'a>>, mode: u32) -> Result<Self, LedgerError> {
        let map = Self { file: MappedFile::create(KIND, at.into(), mode)? };
        map.layout().lanes.iter().for_each(|lane| lane.state.store(OPEN.into()));
        map.layout().header.finish(KIND);
        Ok(map)
    }

    /// Maps an existing file.
    ///
    /// # Errors
    /// The file's problem, or the failed system call.
    pub fn open<'a>(at: impl Into<At<'a>>) -> Result<Self, LedgerError> {
        Ok(Self { file: MappedFile::open(KIND, at.into())? })
    }

    fn layout(&self) -> &Layout {
        // SAFETY: the mapping has the size of the file, which is at least that of the layout; the
        // layout consists of words; the mapping is writable.
        unsafe { self.file.as_ref() }
    }

    fn cells(&self, lane: usize) -> &LaneCells {
        &self.layout().lanes[lane % GATE_LANES]
    }

    /// The mapped page, for a GPU to map it too: [`GATE_FILE_BYTES`] from here.
    pub fn address(&self) -> usize {
        core::ptr::from_ref(self.layout()).addr()
    }

    /// Offset of a lane's word in the page, in bytes.
    pub fn offset_of(lane: usize) -> usize {
        offset_of!(Layout, lanes) + (lane % GATE_LANES) * size_of::<LaneCells>()
    }

    /// Claims a free lane, which is open. `None` if all are taken. One thread of a process at a
    /// time.
    ///
    /// # Errors
    /// The failed system call.
    pub fn claim(&self) -> Result<Option<Lane>, LedgerError> {
        // A lock does not exclude its own description, so skip the marked lanes; those of dead
        // processes have been unmarked by then.
        self.open_orphans()?;
        let claimed = self.claimed();
        for lane in (0..GATE_LANES).filter(|lane| claimed >> lane & 1 == 0) {
            if self.file.try_lock(Self::offset_of(lane), size_of::<LaneCells>())? {
                self.cells(lane).state.store(OPEN.into());
                self.mark(lane, true);
                return Ok(Some(Lane(lane as u8)));
            }
        }
        Ok(None)
    }

    fn mark(&self, lane: usize, claimed: bool) {
        let word = &self.layout().claimed.0;
        loop {
            let old = word.load();
            let new = if claimed { old | 1 << lane } else { old & !(1 << lane) };
            if old == new || word.replace(old, new) {
                return;
            }
        }
    }

    /// The lanes that may be closed, a bit for each.
    #[inline]
    pub fn claimed(&self) -> u64 {
        self.layout().claimed.0.load()
    }

    /// The low half of a lane's word.
    #[inline]
    pub fn state(&self, lane: usize) -> u32 {
        self.cells(lane).state.load() as u32
    }

    /// Closes a lane with a word whose bit 0 is clear, unless waiting work may pass now.
    #[inline]
    pub fn close(&self, lane: Lane, state: u32, now_ns: u64) {
        self.close_lane(lane.index(), state, now_ns);
    }

    /// As [`GateMap::close`], by the number of a lane that the caller has claimed.
    #[inline]
    pub fn close_lane(&self, lane: usize, state: u32, now_ns: u64) {
        let left_ns = self.layout().passes_until_ns.0.load().saturating_sub(now_ns);
        if left_ns > 0 && left_ns < PLAN_NS_MAX {
            return;
        }
        let cells = self.cells(lane);
        // Store the time first, so that a lane never appears closed with an old time.
        cells.closed_ns.store(now_ns);
        cells.state.store(u64::from(state & !OPEN));
    }

    /// Opens a lane that the caller has claimed, with a word whose bit 0 is set.
    pub fn open_lane(&self, lane: usize, state: u32) {
        self.cells(lane).state.store(u64::from(state | OPEN));
    }

    /// Opens the lanes of dead processes, and returns how many there were. Never waits.
    ///
    /// # Errors
    /// [`Problem::Replaced`](crate::Problem::Replaced), or the failed system call.
    pub fn open_orphans(&self) -> Result<u32, LedgerError> {
        let claimed = self.claimed();
        if claimed == 0 {
            return Ok(0);
        }
        // Open the file again: a lock does not exclude its own description.
        let fd = self.file.reopened(Access::ReadWrite)?;
        let mut opened = 0;
        for lane in (0..GATE_LANES).filter(|lane| claimed >> lane & 1 != 0) {
            let (start, bytes) = (Self::offset_of(lane), size_of::<LaneCells>());
            if lock::try_lock(self.file.path(), &fd, start, bytes)? {
                self.cells(lane).state.store(OPEN.into());
                self.mark(lane, false);
                lock::unlock(self.file.path(), &fd, start, bytes)?;
                opened += 1;
            }
        }
        Ok(opened)
    }

    /// Opens every lane if `passes_until` finds one that was closed for too long, and keeps them
    /// open for the time that it returns. Its argument is the time when a lane was closed.
    pub fn relent(&self, passes_until: impl Fn(u64) -> Option<u64>) -> bool {
        let claimed = self.claimed();
        let closed = |lane: &usize| claimed >> lane & 1 != 0 && self.state(*lane) & OPEN == 0;
        let until = (0..GATE_LANES)
            .filter(closed)
            .filter_map(|lane| passes_until(self.cells(lane).closed_ns.load()))
            .max();
        let Some(until) = until else { return false };
        self.layout().passes_until_ns.0.store(until);
        for lane in (0..GATE_LANES).filter(closed) {
            let cells = self.cells(lane);
            let state = cells.state.load();
            // If it fails, the owner or the GPU has just written it.
            let _ = cells.state.replace(state, state | u64::from(OPEN));
        }
        true
    }

    /// Counts the process among those of low priority, or no longer.
    ///
    /// # Errors
    /// The failed system call.
    pub fn count_low(&self, is_low: bool) -> Result<(), LedgerError> {
        match is_low {
            true => self.file.try_lock_shared(LOW, 1).map(drop),
            false => self.file.unlock(LOW, 1),
        }
    }

    /// Whether another process counts among those of low priority.
    ///
    /// # Errors
    /// The failed system call.
    pub fn are_others_low(&self) -> Result<bool, LedgerError> {
        self.file.is_locked(LOW, 1)
    }

    /// Starts or extends the GPU's turn until a time, for a tenant that `who` identifies. A turn
    /// ends with its time, so a dead tenant does not hold it.
    ///
    /// # Errors
    /// The end of another tenant's turn, in nanoseconds.
    pub fn take_turn(&self, who: u16, now_ns: u64, until_ns: u64) -> Result<(), u64> {
        let turn = &self.layout().turn.0;
        loop {
            let old = turn.load();
            let old_until_ns = (old >> 16).saturating_mul(1000);
            let is_held = old_until_ns > now_ns && old_until_ns - now_ns < PLAN_NS_MAX;
            if is_held && old as u16 != who {
                return Err(old_until_ns);
            }
            if turn.replace(old, (until_ns / 1000) << 16 | u64::from(who)) {
                return Ok(());
            }
        }
    }

    /// Ends the turn, if the tenant has it.
    pub fn end_turn(&self, who: u16) {
        let turn = &self.layout().turn.0;
        let old = turn.load();
        if old as u16 == who {
            // If it fails, another tenant has it by now.
            let _ = turn.replace(old, 0);
        }
    }

    /// In a child of `fork`, leaves all lanes to the parent.
    pub fn abandon_in_fork_child(self) {
        // The description is the parent's: closing the copied descriptor releases nothing.
        drop(self);
    }
}
