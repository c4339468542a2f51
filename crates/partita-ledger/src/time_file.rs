//! The time file: a tenant's gate, its account of GPU time, and which of its processes have work in
//! flight.
//!
//! The first page is for GPUs too: launches wait there until the tenant's *gate* is open
//! ([`OPEN`]). The gate stores the version of the account that it follows from, so a slow process
//! never opens or closes it for an outdated decision.
//!
//! The account is words that this file exchanges as a whole (`record.rs`) and does not interpret. A
//! process has a *seat*: the two records with which it changes the account, and a word with the
//! start of its work in flight that is not in the account yet. The owner of a seat holds an
//! open-file-description lock on that word. When its process dies, at any instruction, the word
//! stays, and [`TimeMap::charge_orphans`] charges it.
//!
//! # Who trusts whom
//! A user who may write the file may open its tenant's gate: a share of time limits programs that
//! do not try to escape (`docs/boundaries.md`). The file holds no limits, and no word of it is used
//! as an address or an index without a check.

use alloc::ffi::CString;
use core::ffi::CStr;
use core::mem::{offset_of, size_of};

use crate::error::{LedgerError, Problem};
use crate::file::{Access, At, Fd};
use crate::gate::OPEN;
use crate::header::{Header, Kind};
use crate::lock;
use crate::mapped::MappedFile;
use crate::record::{Records, Shared};
use crate::sync::Word;
use crate::usage::PROCESS_SLOTS;

/// The time file's name in the tenant's directory.
pub const TIME_FILE_NAME: &CStr = c"time";
/// Words of an account of GPU time.
pub const TIME_WORDS: usize = 34;
/// Bytes at the start of the file that GPUs map.
pub const TIME_PAGE_BYTES: usize = 4096;
/// The time file's size in bytes.
pub const TIME_FILE_BYTES: usize = size_of::<Layout>();

const KIND: Kind = Kind { magic: *b"PARTITAT", bytes: TIME_FILE_BYTES as u32 };

#[repr(C, align(64))]
struct Line(Word);

#[repr(C)]
struct Page {
    header: Header,
    /// Low half: [`OPEN`] or not, for GPUs. High half: the low half of the account's version.
    gate: Line,
    /// The account's record in force.
    current: Line,
    /// One past the highest seat that a process ever took.
    seats: Line,
    /// Until when the tenant counts as using the GPU.
    wants_until_ns: Line,
}

#[repr(C)]
struct Layout {
    page: Page,
    unused: [u64; (TIME_PAGE_BYTES - size_of::<Page>()) / 8],
    /// For each seat, the start of its process's work in flight that is not in the account; 0
    /// without such work.
    in_flight_since_ns: [Word; PROCESS_SLOTS],
    accounts: [Records<TIME_WORDS>; PROCESS_SLOTS],
}

const _: () = assert!(offset_of!(Layout, in_flight_since_ns) == TIME_PAGE_BYTES);

fn seat_offset(seat: usize) -> usize {
    offset_of!(Layout, in_flight_since_ns) + seat % PROCESS_SLOTS * size_of::<Word>()
}

/// A process's place in the file, until the [`TimeMap`] that took it is dropped or the process
/// ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat(u16);

impl Seat {
    fn index(self) -> usize {
        usize::from(self.0) % PROCESS_SLOTS
    }
}

/// A tenant's time file, mapped.
#[derive(Debug)]
pub struct TimeMap {
    file: MappedFile,
}

impl TimeMap {
    /// Creates the file with the gate open and an account of zeros; `mode` is its permissions.
    ///
    /// # Errors
    /// [`Problem::Exists`], or the failed system call; the file is then removed.
    pub fn create<'a>(at: impl Into<At<'a>>, mode: u32) -> Result<Self, LedgerError> {
        let map = Self { file: MappedFile::create(KIND, at.into(), mode)? };
        map.page().gate.0.store(OPEN.into());
        map.page().header.finish(KIND);
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
        // SAFETY: the mapping has the size of the file, which is that of the layout; the layout
        // consists of words; the mapping is writable.
        unsafe { self.file.as_ref() }
    }

    fn page(&self) -> &Page {
        &self.layout().page
    }

    fn account(&self) -> Shared<'_, TIME_WORDS> {
        Shared::new(&self.page().current.0, &self.layout().accounts)
    }

    /// The mapped file, for a GPU to map the first [`TIME_PAGE_BYTES`] too.
    pub fn address(&self) -> usize {
        core::ptr::from_ref(self.layout()).addr()
    }

    /// A number that very likely differs from those of the machine's other tenants.
    pub fn who(&self) -> u16 {
        self.file.inode() as u16 | 1
    }

    /// Offset of the gate's word in the file, in bytes.
    pub const GATE_OFFSET: usize = offset_of!(Layout, page) + offset_of!(Page, gate);

    /// Takes a seat. Its word may still be that of a dead process: charge it before using the seat.
    ///
    /// # Errors
    /// [`Problem::Full`] if 1024 living processes have seats, or the failed system call.
    pub fn take_seat(&self) -> Result<Seat, LedgerError> {
        for seat in 0..PROCESS_SLOTS {
            if self.file.try_lock(seat_offset(seat), size_of::<Word>())? {
                let seats = &self.page().seats.0;
                loop {
                    let known = seats.load();
                    if known > seat as u64 || seats.replace(known, seat as u64 + 1) {
                        return Ok(Seat(seat as u16));
                    }
                }
            }
        }
        Err(LedgerError::new(self.file.path(), Problem::Full { slots: PROCESS_SLOTS }))
    }

    /// Changes the account as the process in `seat`, one thread of it at a time, and returns the
    /// new version and the second result of `change`; `None` if others changed it at each attempt.
    pub fn update<T>(
        &self,
        seat: Seat,
        change: impl FnMut(&[u64; TIME_WORDS]) -> ([u64; TIME_WORDS], T),
    ) -> Option<(u64, T)> {
        self.account().update(seat.index(), change)
    }

    /// Whether the gate is open.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.page().gate.0.load() & u64::from(OPEN) != 0
    }

    /// Opens or closes the gate for version `version` of the account, unless it already follows
    /// from a later one.
    pub fn set_gate(&self, version: u64, open: bool) {
        let gate = &self.page().gate.0;
        loop {
            let old = gate.load();
            let is_later = (version as u32).wrapping_sub((old >> 32) as u32).cast_signed() > 0;
            if !is_later || gate.replace(old, (version << 32) | (u64::from(open) * u64::from(OPEN))) {
                return;
            }
        }
    }

    /// Opens the gate for work that dead processes have left at it, where no process lives that
    /// would.
    pub fn open_for_the_dead(&self) {
        self.page().gate.0.store(OPEN.into());
    }

    /// The start of the seat's work in flight that is not in the account; 0 for none.
    pub fn in_flight_since(&self, seat: Seat) -> u64 {
        self.layout().in_flight_since_ns[seat.index()].load()
    }

    /// Records it, if it is still `before`.
    pub fn note_in_flight(&self, seat: Seat, before: u64, since_ns: u64) -> bool {
        self.layout().in_flight_since_ns[seat.index()].replace(before, since_ns)
    }

    fn seats(&self) -> usize {
        usize::try_from(self.page().seats.0.load()).unwrap_or(PROCESS_SLOTS).min(PROCESS_SLOTS)
    }

    /// Whether a process in another seat has work in flight.
    pub fn others_in_flight(&self, seat: Seat) -> bool {
        let words = self.layout().in_flight_since_ns.iter().take(self.seats()).enumerate();
        words.into_iter().any(|(other, word)| other != seat.index() && word.load() != 0)
    }

    /// Calls `charge` with the start of each dead process's work in flight, if that is before
    /// `before_ns`, and then clears it. Never waits: it skips seats that another process charges.
    ///
    /// # Errors
    /// [`Problem::Replaced`], or the failed system call.
    pub fn charge_orphans(&self, before_ns: u64, mut charge: impl FnMut(u64)) -> Result<(), LedgerError> {
        let word = |seat: usize| &self.layout().in_flight_since_ns[seat];
        let suspect = |seat: &usize| (1..before_ns).contains(&word(*seat).load());
        if !(0..self.seats()).any(|seat| suspect(&seat)) {
            return Ok(());
        }
        // Open the file again: a lock does not exclude its own description.
        let fd = self.file.reopened(Access::ReadWrite)?;
        for seat in (0..self.seats()).filter(suspect) {
            let (start, bytes) = (seat_offset(seat), size_of::<Word>());
            if lock::try_lock(self.file.path(), &fd, start, bytes)? {
                let since_ns = word(seat).load();
                if since_ns != 0 {
                    charge(since_ns);
                    word(seat).store(0);
                }
                lock::unlock(self.file.path(), &fd, start, bytes)?;
            }
        }
        Ok(())
    }

    /// Records until when the tenant counts as using the GPU.
    pub fn want_until(&self, ns: u64) {
        self.page().wants_until_ns.0.store(ns);
    }

    /// In a child of `fork`, leaves all seats to the parent.
    pub fn abandon_in_fork_child(self) {
        // The description is the parent's: closing the copied descriptor releases nothing.
        drop(self);
    }
}

/// The time file for an observer: read, never mapped, so that a tenant that truncates it harms no
/// other process.
#[derive(Debug)]
pub struct TimeView {
    path: CString,
    fd: Fd,
}

impl TimeView {
    /// Opens an existing file.
    ///
    /// # Errors
    /// The file's problem, or the failed system call.
    pub fn open<'a>(at: impl Into<At<'a>>) -> Result<Self, LedgerError> {
        let at = at.into();
        let (fd, _) = KIND.open(at, Access::ReadOnly)?;
        Ok(Self { path: at.path.into(), fd })
    }

    /// The account's words. Exact unless the account changes without pause, which it does not
    /// between the looks of a tenant.
    ///
    /// # Errors
    /// [`Problem::Busy`], [`Problem::Size`] if the file was truncated, or the failed system call.
    pub fn account(&self) -> Result<[u64; TIME_WORDS], LedgerError> {
        const CURRENT: usize = offset_of!(Layout, page) + offset_of!(Page, current);
        for _ in 0..crate::epoch::READ_TRIES_MAX {
            let name: [u64; 1] = self.read(CURRENT)?;
            let place = (name[0] & 0xffff) as usize;
            let record = if place / 2 < PROCESS_SLOTS { place } else { place % 2 };
            let words = self.read(offset_of!(Layout, accounts) + record * size_of::<[Word; TIME_WORDS]>())?;
            if self.read::<1>(CURRENT)? == name {
                return Ok(words);
            }
        }
        Err(LedgerError::new(&self.path, Problem::Busy))
    }

    /// Whether its tenant uses the GPU at that time.
    ///
    /// # Errors
    /// As [`TimeView::account`].
    pub fn wants(&self, now_ns: u64) -> Result<bool, LedgerError> {
        let [until] = self.read(offset_of!(Layout, page) + offset_of!(Page, wants_until_ns))?;
        Ok(until > now_ns)
    }

    fn read<const N: usize>(&self, offset: usize) -> Result<[u64; N], LedgerError> {
        KIND.read_words(&self.path, &self.fd, offset)
    }
}
