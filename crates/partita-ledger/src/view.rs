//! The usage file for an observer: read by `pread`, never mapped.
//!
//! An observer of a tenant does not trust it. A mapping of a file that the tenant shrinks would end
//! the observer with a SIGBUS; a `pread` just returns fewer bytes. The price is that a look takes
//! some system calls, and copies words instead of reading them atomically; so each look is repeated
//! until two copies agree.

use alloc::ffi::CString;
use alloc::vec;
use alloc::vec::Vec;
use core::mem::{offset_of, size_of};

use crate::account::{Account, Entry, Name, SLOTS, Totals};
use crate::error::LedgerError;
use crate::file::{Access, At, Fd};
use crate::lock;
use crate::usage::{
    CLAIMS_OFFSET, Counters, EMPTY_PLACE, Holder, HookState, KIND, Key, LAST_OFFSET, LAUNCH_COUNTERS,
    PACE_OFFSET, PLACES, PROCESS_SLOTS, Pace, PlaceBytes, Shared, SlotCells, Waited, slot_offset,
};

/// How many times an observer looks for two copies that agree.
const LOOKS_MAX: u32 = 64;

type SlotBytes = [u8; size_of::<SlotCells>()];
/// Slots that nothing ever had.
const UNUSED_GROUP: [SlotBytes; AT_ONCE] = [[0; size_of::<SlotCells>()]; AT_ONCE];

/// The contents of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotInfo {
    /// The slot's number, from 0.
    pub index: usize,
    /// The process number that its owner recorded, in the owner's PID namespace. 0 while the owner
    /// is just coming or going.
    pub pid: i32,
    /// When the process started, in clock ticks since boot, as its owner recorded it.
    pub start_ticks: u64,
    /// Bytes of device memory that it holds.
    pub bytes: u64,
    /// Bytes of host memory that it has instead of device memory, beyond the quota.
    pub spilled_bytes: u64,
    /// Bytes of device memory that the driver has allocated for itself in it; some of them may be
    /// among `bytes`.
    pub driver_bytes: u64,
    /// Kernel launches so far.
    pub launches: u64,
    /// Allocations refused by the quota so far.
    pub refusals: u64,
    /// Launches so far that did not fit the set and ran on the whole GPU, as the tenant's limits
    /// allow.
    pub widened: u64,
    /// What it has waited for.
    pub waited: Waited,
    /// When all of its work had last finished, on the monotonic clock in nanoseconds; 0 if it never
    /// has.
    pub finished_ns: u64,
    /// The first error that ended its work on the GPU, as CUDA numbers it; 0 for none.
    pub error: u32,
    /// The report of its hook.
    pub state: HookState,
    /// Whether it stands for shared memory, and not for a process: then it has only bytes.
    pub shared: bool,
    /// Whether its owner, or a process that shares it, holds the slot's lock. A dead owner's bytes
    /// are released when the next process claims a slot, reaps, or would otherwise be refused
    /// memory.
    pub live: bool,
}

/// The usage file, opened for reading only.
#[derive(Debug)]
pub struct UsageView {
    path: CString,
    fd: Fd,
}

/// Slots that are read at once.
const AT_ONCE: usize = 32;
const _: () = assert!(PROCESS_SLOTS.is_multiple_of(AT_ONCE) && SLOTS.is_multiple_of(AT_ONCE));

impl UsageView {
    /// Opens an existing file.
    ///
    /// # Errors
    /// The file's problem, or the failed system call.
    pub fn open<'a>(at: impl Into<At<'a>>) -> Result<Self, LedgerError> {
        let at = at.into();
        let (fd, _) = KIND.open(at, Access::ReadOnly)?;
        Ok(Self { path: at.path.into(), fd })
    }

    /// Bytes that the tenant's processes hold together and their highest number so far.
    ///
    /// Exact if two looks agree on the last operation, which they do unless operations follow each
    /// other without pause; then the answer is one of the numbers of these operations.
    ///
    /// # Errors
    /// [`Problem::Size`](crate::Problem::Size) if the file was truncated, or the failed system
    /// call.
    pub fn totals(&self) -> Result<Totals, LedgerError> {
        let mut totals = Totals::default();
        let mut last = self.last()?;
        for _ in 0..LOOKS_MAX {
            let slot = self.slot_bytes(last.slot())?;
            totals = Totals {
                used: word(&slot, entry_offset(last) + offset_of!(Entry, used)),
                peak: word(&slot, entry_offset(last) + offset_of!(Entry, peak)),
            };
            let again = self.last()?;
            if again == last {
                break;
            }
            last = again;
        }
        Ok(totals)
    }

    /// Every slot that a process has, or had and that is not reaped.
    pub fn slots(&self) -> impl Iterator<Item = Result<SlotInfo, LedgerError>> {
        (0..SLOTS).step_by(AT_ONCE).flat_map(|first| {
            // Most slots were never used: one look at many of them is enough.
            let (slots, error) = match self.group(first) {
                Ok(slots) => (slots, None),
                Err(error) => (UNUSED_GROUP, Some(Err(error))),
            };
            let used = (first..).zip(slots).filter(|(_, slot)| is_used(slot));
            used.filter_map(|(index, _)| self.slot(index).transpose()).chain(error)
        })
    }

    /// Bytes that the living processes hold, alone or together, and bytes that the driver has taken
    /// for itself in them. Bytes of a process that ends meanwhile may count.
    ///
    /// # Errors
    /// As [`UsageView::totals`].
    pub fn in_use(&self) -> Result<(u64, u64), LedgerError> {
        // First: what is reaped later than this was counted, and is not subtracted.
        let mut used = self.totals()?.used;
        let mut driver = 0u64;
        for slot in self.slots() {
            match slot? {
                slot if slot.live => driver = driver.saturating_add(slot.driver_bytes),
                slot => used = used.saturating_sub(slot.bytes),
            }
        }
        Ok((used, driver))
    }

    /// What the tenant's processes, the dead ones included, have counted so far. Any numbers in the
    /// file make some histogram.
    ///
    /// # Errors
    /// As [`UsageView::totals`].
    pub fn pace(&self) -> Result<Pace, LedgerError> {
        let mut places: Vec<PlaceBytes> = vec![EMPTY_PLACE; self.claimed()?.min(PLACES)];
        self.read(PACE_OFFSET, places.as_flattened_mut().as_flattened_mut())?;
        let mut pace = Pace::default();
        places.iter().for_each(|place| pace.add(place));
        Ok(pace)
    }

    /// How many slots of processes were ever taken, at most: a process takes the first free one, so
    /// that further ones were not.
    fn claimed(&self) -> Result<usize, LedgerError> {
        let mut claims = [0; 8];
        self.read(CLAIMS_OFFSET, &mut claims)?;
        Ok(usize::try_from(u64::from_ne_bytes(claims)).unwrap_or(PROCESS_SLOTS).min(PROCESS_SLOTS))
    }

    /// Launches of all processes in the file, living or not, added up: a number that changes with
    /// every launch. Cheaper than [`UsageView::slots`], because it checks no lock.
    ///
    /// # Errors
    /// As [`UsageView::totals`].
    pub fn launches(&self) -> Result<u64, LedgerError> {
        let mut sum = 0u64;
        for first in (0..PROCESS_SLOTS).step_by(AT_ONCE) {
            for slot in &self.group(first)? {
                let from = offset_of!(SlotCells, counters) + offset_of!(Counters, launches);
                let launches =
                    (0..LAUNCH_COUNTERS).map(|counter| word(slot, from + counter * size_of::<u64>()));
                sum = launches.fold(sum, u64::wrapping_add);
            }
        }
        Ok(sum)
    }

    /// One slot, or `None` if it is free.
    ///
    /// Two copies that agree, with `last` read between them: an entry in force is written again
    /// only after `settled` has changed.
    fn slot(&self, index: usize) -> Result<Option<SlotInfo>, LedgerError> {
        let mut slot = self.slot_bytes(index)?;
        let mut bytes = 0;
        for _ in 0..LOOKS_MAX {
            let last = self.last()?;
            let again = self.slot_bytes(index)?;
            let settled = Name(word(&slot, offset_of!(SlotCells, account) + offset_of!(Account, settled)));
            let newest = [last, self.partner(last)?].into_iter().find(|name| name.slot() == index);
            let current = newest.filter(|name| name.version() > settled.version()).unwrap_or(settled);
            bytes = word(&slot, entry_offset(current) + offset_of!(Entry, bytes));
            if accounts_and_holder(&slot) == accounts_and_holder(&again) {
                break;
            }
            slot = again;
        }
        let holder = offset_of!(SlotCells, holder);
        let counters = offset_of!(SlotCells, counters);
        let shared = offset_of!(SlotCells, shared);
        let pid = word(&slot, holder + offset_of!(Holder, pid));
        if pid == 0 && bytes == 0 {
            return Ok(None);
        }
        Ok(Some(SlotInfo {
            index,
            pid: i32::try_from(pid).unwrap_or(0),
            start_ticks: word(&slot, holder + offset_of!(Holder, start_ticks)),
            bytes,
            spilled_bytes: word(&slot, shared + offset_of!(Shared, spilled)),
            driver_bytes: word(&slot, shared + offset_of!(Shared, driver)),
            launches: (0..LAUNCH_COUNTERS)
                .map(|counter| {
                    word(&slot, counters + offset_of!(Counters, launches) + counter * size_of::<u64>())
                })
                .fold(0, u64::wrapping_add),
            refusals: word(&slot, counters + offset_of!(Counters, refusals)),
            widened: word(&slot, counters + offset_of!(Counters, widened)),
            waited: Waited::from_word(word(&slot, shared + offset_of!(Shared, waited))),
            finished_ns: word(&slot, shared + offset_of!(Shared, finished_ns)),
            error: word(&slot, shared + offset_of!(Shared, error)) as u32,
            state: HookState::from_word(word(&slot, holder + offset_of!(Holder, state))),
            shared: index >= PROCESS_SLOTS,
            live: lock::is_locked(&self.path, &self.fd, slot_offset(index), size_of::<SlotCells>())?,
        }))
    }

    /// Whether there is shared memory of this key.
    pub fn has_shared(&self, key: Key) -> bool {
        let at = offset_of!(SlotCells, shared) + offset_of!(Shared, key);
        (PROCESS_SLOTS..SLOTS).any(|index| {
            let mut words = [[0; 8]; 2];
            let read = self.read(slot_offset(index) + at, words.as_flattened_mut());
            read.is_ok() && words.map(u64::from_ne_bytes) == key.0
        })
    }

    fn last(&self) -> Result<Name, LedgerError> {
        let mut bytes = [0; 8];
        self.read(LAST_OFFSET, &mut bytes)?;
        Ok(Name(u64::from_ne_bytes(bytes)))
    }

    /// The other slot that the operation `last` changed; `last` itself if it changed one.
    fn partner(&self, last: Name) -> Result<Name, LedgerError> {
        let slot = self.slot_bytes(last.slot())?;
        let partner = Name(word(&slot, offset_of!(SlotCells, account) + offset_of!(Account, partner)));
        Ok(if partner.version() == last.version() { partner } else { last })
    }

    /// The slots from this one on.
    fn group(&self, first: usize) -> Result<[SlotBytes; AT_ONCE], LedgerError> {
        let mut slots = UNUSED_GROUP;
        self.read(slot_offset(first), slots.as_flattened_mut())?;
        Ok(slots)
    }

    fn slot_bytes(&self, index: usize) -> Result<SlotBytes, LedgerError> {
        let mut bytes = [0; size_of::<SlotCells>()];
        self.read(slot_offset(index), &mut bytes)?;
        Ok(bytes)
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), LedgerError> {
        KIND.read(&self.path, &self.fd, offset, bytes)
    }
}

fn entry_offset(name: Name) -> usize {
    offset_of!(SlotCells, account) + offset_of!(Account, entries) + name.entry() * size_of::<Entry>()
}

/// Whether anything ever had a slot.
fn is_used(slot: &SlotBytes) -> bool {
    let (account, holder) = accounts_and_holder(slot);
    account.is_some_and(|account| account.iter().any(|byte| *byte != 0))
        || holder.is_some_and(|holder| holder.iter().any(|byte| *byte != 0))
}

/// All of a slot but its counters.
fn accounts_and_holder(
    slot: &SlotBytes,
) -> (Option<&[u8; size_of::<Account>()]>, Option<&[u8; size_of::<Holder>()]>) {
    let from = |offset| slot.get(offset..).unwrap_or_default();
    (from(offset_of!(SlotCells, account)).first_chunk(), from(offset_of!(SlotCells, holder)).first_chunk())
}

/// The word at an offset; zero past the end, which no offset here reaches.
fn word(slot: &SlotBytes, offset: usize) -> u64 {
    slot.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}
