//! The elastic file of a GPU: which processes have work there, and what each borrows.
//!
//! Each process of a tenant with a mask has a *record*. Before the first launch after a rest it
//! writes there that it is at work, and closes the record's gate, a word for which queued borrowed
//! work waits on the GPU. When all of its work has ended it opens the gate and writes that it
//! rests. A borrower reads the records of all others. What it takes of TPCs that it does not own is
//! in its own record, which no two borrowers have in common ([`Claims`]).
//!
//! # Death
//! The owner of a record holds an open-file-description lock on its bytes, which the kernel
//! releases with the process. [`ElasticMap::reap`] clears the records without an owner; every
//! borrower calls it now and then. Until then a dead owner counts as at work, and what a dead
//! borrower held stays taken: both keep others away, and nobody in.
//!
//! # Who trusts whom
//! As with the [gate](crate::GateMap): the file is of tenants of one user. A process can shut its
//! own TPCs away from borrowers or leave them open, and can keep others from borrowing. It cannot
//! take a TPC of another tenant's guarantee from that tenant's launches: those carry the mask that
//! is in the limits.

use core::ffi::CStr;
use core::mem::{offset_of, size_of};

use partita_core::TpcSet;
use partita_core::elastic::Seen;

use crate::claims::Claims;
use crate::error::LedgerError;
use crate::file::{Access, At};
use crate::header::{Header, Kind};
use crate::lock;
use crate::mapped::MappedFile;
use crate::sync::Word;

/// The elastic file's name in a GPU's directory: the parent of its tenants'.
pub const ELASTIC_FILE_NAME: &CStr = c".elastic";
/// The elastic file's size in bytes: whole pages, which GPUs can map.
pub const ELASTIC_FILE_BYTES: usize = 5 * 4096;
/// Processes on a GPU that have a record. The TPCs of further ones are lent to nobody.
pub const RECORDS: usize = 128;
/// Set in a gate that is open.
const OPEN: u64 = 1;

const KIND: Kind = Kind { magic: *b"PARTITAE", bytes: ELASTIC_FILE_BYTES as u32 };

#[repr(C, align(64))]
struct Line(Word);

/// A process's record.
#[repr(C, align(128))]
struct Cells {
    /// Since when it is at work or rests, in nanoseconds, above one bit: 1 for work.
    state: Word,
    /// The GPU uses its low half. Bit 0 means open.
    gate: Word,
    /// A number of its tenant.
    tenant: Word,
    /// 1 for a process that borrows.
    borrows: Word,
    owned: [Word; 4],
    held: Claims,
    unused: [u64; 4],
}

#[repr(C)]
struct Layout {
    header: Header,
    /// A bit for each record that has an owner.
    claimed: [Line; RECORDS / 64],
    /// Counts how often any process has begun to work.
    beginnings: Line,
    /// The TPCs of processes without a record.
    shut: Claims,
    unused: [u64; (4096 - size_of::<Header>() - (RECORDS / 64 + 1) * 64 - 32) / 8],
    records: [Cells; RECORDS],
}

const _: () = assert!(size_of::<Layout>() == ELASTIC_FILE_BYTES);

/// A GPU's elastic file, mapped.
#[derive(Debug)]
pub struct ElasticMap {
    file: MappedFile,
}

impl ElasticMap {
    /// Creates the file without records; `mode` is its permissions.
    ///
    /// # Errors
    /// [`Problem::Exists`](crate::Problem::Exists), or the failed system call; the file is then
    /// removed.
    pub fn create<'a>(at: impl Into<At<'a>>, mode: u32) -> Result<Self, LedgerError> {
        let map = Self { file: MappedFile::create(KIND, at.into(), mode)? };
        map.layout().records.iter().for_each(|record| record.gate.store(OPEN));
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

    #[inline]
    fn layout(&self) -> &Layout {
        // SAFETY: the mapping has the size of the file, which is that of the layout; the layout
        // consists of words; the mapping is writable.
        unsafe { self.file.as_ref() }
    }

    #[inline]
    fn cells(&self, record: usize) -> &Cells {
        &self.layout().records[record % RECORDS]
    }

    /// The mapped pages, for a GPU to map them too: [`ELASTIC_FILE_BYTES`] from here.
    pub fn address(&self) -> usize {
        core::ptr::from_ref(self.layout()).addr()
    }

    /// Offset of a record's gate in the pages, in bytes. Its bit 0 is set while the process rests.
    pub fn gate_offset(record: usize) -> usize {
        offset_of!(Layout, records) + (record % RECORDS) * size_of::<Cells>() + offset_of!(Cells, gate)
    }

    fn lock_range(record: usize) -> (usize, usize) {
        (offset_of!(Layout, records) + (record % RECORDS) * size_of::<Cells>(), size_of::<Cells>())
    }

    /// Claims a record for the calling process, which rests, of a tenant that owns these TPCs.
    /// `None` if all are taken: then the TPCs are lent to nobody. One thread of a process at a
    /// time.
    ///
    /// # Errors
    /// The failed system call.
    pub fn claim(
        &self,
        tenant: u64,
        owned: TpcSet,
        borrows: bool,
        now_ns: u64,
    ) -> Result<Option<usize>, LedgerError> {
        // A lock does not exclude its own description, so skip the marked records; those of dead
        // processes have been unmarked by then.
        self.reap()?;
        for record in (0..RECORDS).filter(|record| !self.is_claimed(*record)) {
            let (start, bytes) = Self::lock_range(record);
            if self.file.try_lock(start, bytes)? {
                let cells = self.cells(record);
                cells.held.put([0; 4]);
                cells.tenant.store(tenant);
                cells.borrows.store(borrows.into());
                self.put_owned(record, owned);
                cells.state.store(now_ns << 1);
                cells.gate.store(OPEN);
                self.mark(record, true);
                return Ok(Some(record));
            }
        }
        let shut = TpcSet::from_words(self.layout().shut.get()) | owned;
        self.layout().shut.put(shut.to_words());
        Ok(None)
    }

    fn is_claimed(&self, record: usize) -> bool {
        self.layout().claimed[record / 64].0.load() >> (record % 64) & 1 != 0
    }

    fn mark(&self, record: usize, claimed: bool) {
        let (word, bit) = (&self.layout().claimed[record / 64].0, 1u64 << (record % 64));
        loop {
            let old = word.load();
            let new = if claimed { old | bit } else { old & !bit };
            if old == new || word.replace(old, new) {
                return;
            }
        }
    }

    /// The numbers of the records that have an owner.
    pub fn claimed(&self) -> impl Iterator<Item = usize> + Clone {
        let words: [u64; RECORDS / 64] = core::array::from_fn(|at| self.layout().claimed[at].0.load());
        (0..RECORDS).filter(move |record| words[record / 64] >> (record % 64) & 1 != 0)
    }

    /// Writes the TPCs of a record's owner.
    pub fn put_owned(&self, record: usize, owned: TpcSet) {
        self.cells(record).owned.iter().zip(owned.to_words()).for_each(|(word, value)| word.store(value));
    }

    /// Writes whether a record's owner borrows.
    pub fn put_borrows(&self, record: usize, borrows: bool) {
        self.cells(record).borrows.store(borrows.into());
    }

    /// Whether a record's owner is at work. One load from memory.
    #[inline]
    pub fn is_at_work(&self, record: usize) -> bool {
        self.cells(record).state.load() & 1 != 0
    }

    /// Since when a record's owner is at work or rests, in nanoseconds.
    pub fn since_ns(&self, record: usize) -> u64 {
        self.cells(record).state.load() >> 1
    }

    /// The owner of a record begins to work: its gate closes first.
    pub fn begin(&self, record: usize, now_ns: u64) {
        let cells = self.cells(record);
        cells.gate.store(0);
        cells.state.store(now_ns << 1 | 1);
        self.layout().beginnings.0.count();
    }

    /// All work of a record's owner has ended.
    pub fn rest(&self, record: usize, now_ns: u64) {
        let cells = self.cells(record);
        cells.state.store(now_ns << 1);
        cells.gate.store(OPEN);
    }

    /// How often any process on the GPU has begun to work. One load from memory.
    #[inline]
    pub fn beginnings(&self) -> u64 {
        self.layout().beginnings.0.load()
    }

    /// What a record says.
    pub fn seen(&self, record: usize) -> Seen {
        let cells = self.cells(record);
        let state = cells.state.load();
        Seen {
            tenant: cells.tenant.load(),
            owned: TpcSet::from_words(core::array::from_fn(|at| cells.owned[at].load())),
            at_work: state & 1 != 0,
            since_ns: state >> 1,
            borrows: cells.borrows.load() != 0,
            held: TpcSet::from_words(cells.held.get()),
        }
    }

    /// The TPCs of processes that have no record.
    pub fn shut(&self) -> TpcSet {
        TpcSet::from_words(self.layout().shut.get())
    }

    /// What the owner of a record holds beside its own TPCs.
    pub fn held(&self, record: usize) -> TpcSet {
        TpcSet::from_words(self.cells(record).held.get())
    }

    /// The owner of a record gives back all that it holds but `kept`.
    pub fn give_back(&self, record: usize, kept: TpcSet) {
        let held = &self.cells(record).held;
        held.put((TpcSet::from_words(held.get()) & kept).to_words());
    }

    /// The owner of a record takes TPCs: as many as no process of another tenant holds. Returns
    /// all that it holds.
    pub fn take(&self, record: usize, wanted: TpcSet) -> TpcSet {
        let own = self.cells(record);
        let tenant = own.tenant.load();
        let others = self.claimed().map(|other| self.cells(other));
        let others = others.filter(|other| other.tenant.load() != tenant).map(|other| &other.held);
        TpcSet::from_words(own.held.take(wanted.to_words(), others))
    }

    /// Opens the gates that `passes` finds closed for too long, for what waits there now. Its
    /// argument is the time when the owner began to work. The owner still counts as at work.
    pub fn relent(&self, passes: impl Fn(u64) -> bool) {
        for record in self.claimed() {
            let cells = self.cells(record);
            let (state, gate) = (cells.state.load(), cells.gate.load());
            if state & 1 != 0 && gate & OPEN == 0 && passes(state >> 1) {
                // If it fails, the owner has just written it.
                let _ = cells.gate.replace(gate, gate | OPEN);
            }
        }
    }

    /// Clears the records of dead processes, and returns how many there were. Never waits.
    ///
    /// # Errors
    /// [`Problem::Replaced`](crate::Problem::Replaced), or the failed system call.
    pub fn reap(&self) -> Result<u32, LedgerError> {
        let mut claimed = self.claimed().peekable();
        if claimed.peek().is_none() {
            return Ok(0);
        }
        // Open the file again: a lock does not exclude its own description.
        let fd = self.file.reopened(Access::ReadWrite)?;
        let mut reaped = 0;
        for record in claimed {
            let (start, bytes) = Self::lock_range(record);
            if lock::try_lock(self.file.path(), &fd, start, bytes)? {
                let cells = self.cells(record);
                // Its gate opens before others can claim the record.
                cells.held.put([0; 4]);
                cells.state.store(0);
                cells.gate.store(OPEN);
                self.mark(record, false);
                lock::unlock(self.file.path(), &fd, start, bytes)?;
                reaped += 1;
            }
        }
        Ok(reaped)
    }

    /// In a child of `fork`, leaves the record to the parent.
    pub fn abandon_in_fork_child(self) {
        // The description is the parent's: closing the copied descriptor releases nothing.
        drop(self);
    }
}
