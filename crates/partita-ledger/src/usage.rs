//! The usage file: what a tenant uses, and which of its processes.

mod pace;
mod share;
mod slot;

use core::ffi::CStr;

use crate::account::{Account, Book, Change, SLOTS, Totals};
use crate::error::{LedgerError, Problem};
use crate::file::{Access, At};
use crate::header::{Header, Kind};
use crate::lock::{self, Byte};
use crate::mapped::MappedFile;
use crate::sync::Word;

use self::pace::PaceCells;

pub(crate) use self::pace::{EMPTY_PLACE, PLACES, PlaceBytes};

pub use self::pace::Pace;
pub use self::share::{Key, Share};
pub use self::slot::{AccountError, HookState, Owner, Slot, Waited};

/// The usage file's name in the tenant's directory.
pub const USAGE_FILE_NAME: &CStr = c"usage";
/// The usage file's size in bytes.
pub const USAGE_FILE_BYTES: usize = PACE_OFFSET + PLACES * size_of::<PaceCells>();

/// Offset of the name of the last operation.
pub(crate) const LAST_OFFSET: usize = core::mem::offset_of!(Layout, last);
pub(crate) const CLAIMS_OFFSET: usize = core::mem::offset_of!(Layout, claims);
/// Offset of the slots: on a separate page.
pub(crate) const SLOTS_OFFSET: usize = 4096;
/// Offset of the places where processes count bursts and steps.
pub(crate) const PACE_OFFSET: usize = SLOTS_OFFSET + SLOTS * size_of::<SlotCells>();

pub(crate) const KIND: Kind = Kind { magic: *b"PARTITAU", bytes: USAGE_FILE_BYTES as u32 };

/// Slots of processes: the largest number that can hold memory of one tenant at a time. The other
/// slots are for shared memory.
pub const PROCESS_SLOTS: usize = 1024;

/// The layout of a slot in the file. Each part has separate cache lines: many threads count
/// launches, at every launch, and other processes read the accounts.
#[repr(C, align(64))]
pub(crate) struct SlotCells {
    pub(crate) account: Account,
    pub(crate) counters: Counters,
    pub(crate) holder: Holder,
    pub(crate) shared: Shared,
}

/// The meaning of a slot of shared memory, and a process's memory beside device memory.
#[repr(C, align(64))]
pub(crate) struct Shared {
    /// Its [`Key`](crate::Key); zero in a free slot and in those of processes.
    pub(crate) key: [Word; 2],
    /// Bytes of host memory that the owner has instead of device memory.
    pub(crate) spilled: Word,
    /// Bytes of device memory that the driver has allocated for itself in the owner.
    pub(crate) driver: Word,
    /// How many of those do not count against the quota.
    pub(crate) driver_free: Word,
    /// The owner's last wait for its work, as [`Waited`] packs it.
    pub(crate) waited: Word,
    /// When all of its work had last finished, on the monotonic clock in nanoseconds.
    pub(crate) finished_ns: Word,
    /// The first error that ended the owner's work on the GPU, as CUDA numbers it; 0 for none.
    pub(crate) error: Word,
}

/// The owner's counters.
#[repr(C, align(64))]
pub(crate) struct Counters {
    pub(crate) refusals: Word,
    pub(crate) widened: Word,
    /// The number of launches is the sum. A single thread at a time writes each but the last; the
    /// last is for all other threads.
    pub(crate) launches: [Word; LAUNCH_COUNTERS],
}

/// Counters of launches in a slot: the rest of their cache line.
pub const LAUNCH_COUNTERS: usize = 6;

/// The owner.
#[repr(C, align(64))]
pub(crate) struct Holder {
    /// 0 in a free slot. A new owner writes it last; a leaving one clears it first.
    pub(crate) pid: Word,
    pub(crate) start_ticks: Word,
    /// Low half: flags; high half: code.
    pub(crate) state: Word,
}

impl AsRef<Account> for SlotCells {
    fn as_ref(&self) -> &Account {
        &self.account
    }
}

#[repr(C)]
struct Layout {
    header: Header,
    /// The last operation: every operation replaces it.
    last: OwnLine,
    /// How many processes have claimed a slot so far.
    claims: OwnLine,
    unused: [u64; (SLOTS_OFFSET - size_of::<Header>() - 2 * size_of::<OwnLine>()) / 8],
    slots: [SlotCells; SLOTS],
    pace: [PaceCells; PLACES],
}

/// A word alone on its cache line.
#[repr(C, align(64))]
struct OwnLine(Word);

const _: () = {
    assert!(size_of::<Account>() == 64);
    assert!(size_of::<SlotCells>() == 256);
    assert!(core::mem::offset_of!(Layout, slots) == SLOTS_OFFSET);
    assert!(core::mem::offset_of!(Layout, pace) == PACE_OFFSET);
    assert!(size_of::<Layout>() == USAGE_FILE_BYTES);
};

/// The byte that a process locks while it reaps dead processes' bytes: past every slot, and past
/// the makers'.
const REAPERS_OFFSET: usize = slot_offset(SLOTS) + 1;

/// The range of a slot in the file, which its owner locks.
pub(crate) const fn slot_offset(slot: usize) -> usize {
    SLOTS_OFFSET + slot * size_of::<SlotCells>()
}

/// The usage file, mapped for writing by a process of the tenant, or by the one that creates it.
#[derive(Debug)]
pub struct UsageMap {
    pub(crate) file: MappedFile,
}

impl UsageMap {
    /// Creates the file: nothing used, every slot free. `mode` is its permissions (`0o600`, or
    /// `0o666` for a tenant of another user).
    ///
    /// # Errors
    /// [`Problem::Exists`], or the failed system call; the file is then removed.
    pub fn create<'a>(at: impl Into<At<'a>>, mode: u32) -> Result<Self, LedgerError> {
        let map = Self { file: MappedFile::create(KIND, at.into(), mode)? };
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
        // SAFETY: the mapping has the size of the file, which is that of the layout; the layout
        // consists of words; the mapping is writable.
        unsafe { self.file.as_ref() }
    }

    pub(crate) fn cells(&self, slot: usize) -> &SlotCells {
        &self.layout().slots[slot % SLOTS]
    }

    /// Where the owner of a slot counts its bursts and steps.
    fn pace(&self, slot: usize) -> &PaceCells {
        &self.layout().pace[slot % PLACES]
    }

    pub(crate) fn book(&self) -> Book<'_, SlotCells> {
        Book::new(&self.layout().last.0, &self.layout().slots)
    }

    /// The file's path at `open`.
    pub fn path(&self) -> &CStr {
        self.file.path()
    }

    /// Claims a free slot, or one whose owner died (after releasing its bytes), for the calling
    /// process. The lock on the slot belongs to this map's open file description and stays until
    /// the [`Slot`] is dropped or the process ends.
    ///
    /// # Errors
    /// [`Problem::Full`] if 1024 living processes hold slots; [`Problem::BadOwner`];
    /// [`Problem::Damaged`]; or the failed system call.
    pub fn claim(self, owner: Owner) -> Result<Slot, LedgerError> {
        let index = self.take_place(owner)?;
        self.layout().claims.0.count();
        Ok(Slot::new(self, index))
    }

    /// Takes a locked place for the owner.
    fn take_place(&self, owner: Owner) -> Result<usize, LedgerError> {
        let wrong = |problem| LedgerError::new(self.file.path(), problem);
        if owner.pid <= 0 {
            return Err(wrong(Problem::BadOwner { pid: owner.pid }));
        }
        // Free slots first, so that `ps` shows dead processes as long as there is room.
        for free_only in [true, false] {
            let _reaping = if free_only { None } else { self.file.byte(REAPERS_OFFSET) };
            for index in 0..PROCESS_SLOTS {
                if free_only && self.cells(index).holder.pid.load() != 0 {
                    continue;
                }
                if self.file.try_lock(slot_offset(index), size_of::<SlotCells>())? {
                    self.vacate(index)?;
                    let cells = self.cells(index);
                    cells.counters.launches.iter().for_each(|counter| counter.store(0));
                    cells.counters.refusals.store(0);
                    cells.shared.spilled.store(0);
                    cells.shared.driver.store(0);
                    cells.shared.driver_free.store(0);
                    cells.shared.waited.store(0);
                    cells.shared.finished_ns.store(0);
                    cells.shared.error.store(0);
                    cells.holder.state.store(0);
                    cells.holder.start_ticks.store(owner.start_ticks);
                    cells.holder.pid.store(owner.pid as u64);
                    return Ok(index);
                }
            }
        }
        Err(wrong(Problem::Full { slots: PROCESS_SLOTS }))
    }

    /// As the owner of a slot, releases its bytes and marks it free. Returns the number of bytes.
    pub(crate) fn vacate(&self, slot: usize) -> Result<u64, LedgerError> {
        let bytes = self
            .book()
            .transact(slot, Change::ReleaseAll)
            .map_err(|_| LedgerError::new(self.file.path(), Problem::Damaged))?;
        self.cells(slot).holder.pid.store(0);
        if slot >= PROCESS_SLOTS {
            self.cells(slot).shared.key.iter().for_each(|word| word.store(0));
        }
        Ok(bytes)
    }

    /// Releases the bytes of every process that died with some, and returns their number.
    ///
    /// Skips a slot that has a living owner (the caller's own included). One process reaps at a
    /// time, so that afterwards only living processes hold bytes: otherwise a process that finds
    /// the quota full while another one is about to release a dead process's bytes would be refused
    /// a request that fits. Waits a tenth of a second for a stopped one. Opens the file again,
    /// because locks exclude descriptions from each other, not threads.
    ///
    /// # Errors
    /// [`Problem::Replaced`] if the path leads to another file by now; [`Problem::Damaged`]; or the
    /// failed system call.
    pub fn reap(&self) -> Result<u64, LedgerError> {
        let fd = self.file.reopened(Access::ReadWrite)?;
        let range = |slot| (slot_offset(slot), size_of::<SlotCells>());
        let mut all_owned = true;
        for slot in self.taken() {
            let (start, length) = range(slot);
            all_owned = all_owned && lock::is_locked(self.file.path(), &fd, start, length)?;
        }
        // Checked last: a process that reaps may hold the lock of a slot.
        if all_owned && !lock::is_locked(self.file.path(), &fd, REAPERS_OFFSET, 1)? {
            return Ok(0);
        }
        let _reaping = Byte::take(self.file.path(), &fd, REAPERS_OFFSET);
        let mut bytes = 0u64;
        for slot in self.taken() {
            let (start, length) = range(slot);
            if lock::try_lock(self.file.path(), &fd, start, length)? {
                bytes = bytes.saturating_add(self.vacate(slot)?);
                lock::unlock(self.file.path(), &fd, start, length)?;
            }
        }
        Ok(bytes)
    }

    /// Makes an attempt that may find the quota full, and another one after reaping.
    pub(crate) fn with_reaping<T, E>(
        &self,
        is_over: impl Fn(&E) -> bool,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut result = attempt();
        // Each further round needs another process that died with bytes meanwhile.
        for _ in 0..4 {
            if !result.as_ref().is_err_and(&is_over) {
                break;
            }
            // If the file can no longer be opened, a refusal is still right; only reaping is
            // impossible.
            let reaped = self.reap().unwrap_or(0);
            // Even if nothing was reaped: another process may have reaped between the attempt and
            // this.
            result = attempt();
            if reaped == 0 {
                break;
            }
        }
        result
    }

    /// The slots in which a process, dead or alive, has or had bytes.
    fn taken(&self) -> impl Iterator<Item = usize> {
        (0..SLOTS).filter(|&slot| {
            let named = self.cells(slot).holder.pid.load() != 0 || self.key_of(slot) != Key([0, 0]);
            named || self.book().bytes(slot) > 0
        })
    }

    /// How many processes have claimed a slot so far. One load from memory.
    #[inline]
    pub fn claims(&self) -> u64 {
        self.layout().claims.0.load()
    }

    /// How many living processes have a slot, the caller's included.
    ///
    /// # Errors
    /// The file's problem, or the failed system call.
    pub fn processes(&self) -> Result<u32, LedgerError> {
        // Opened again, because a description sees its own locks as free.
        let fd = self.file.reopened(Access::ReadOnly)?;
        let mut living = 0;
        for slot in (0..PROCESS_SLOTS).filter(|&slot| self.cells(slot).holder.pid.load() != 0) {
            let (start, length) = (slot_offset(slot), size_of::<SlotCells>());
            living += u32::from(lock::is_locked(self.file.path(), &fd, start, length)?);
        }
        Ok(living)
    }

    /// Bytes that all processes hold together and their highest number so far, including dead
    /// processes until they are reaped.
    pub fn totals(&self) -> Totals {
        self.book().totals()
    }

    /// Bytes that all processes hold together: the first half of [`UsageMap::totals`].
    pub fn used(&self) -> u64 {
        self.totals().used
    }

    /// The highest number of bytes that all processes held together so far.
    pub fn peak(&self) -> u64 {
        self.totals().peak
    }
}
