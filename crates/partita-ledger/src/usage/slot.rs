//! A process's slot in the usage file.

use core::fmt;

use crate::account::{Change, Fault};
use crate::error::LedgerError;
use crate::forked::Process;
use crate::mutex::Mutex;
use crate::sync::Word;

use super::{LAUNCH_COUNTERS, PROCESS_SLOTS, UsageMap};

/// The process that claims a slot. The ledger shows it; ownership is the lock, not the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The caller's process number, in the caller's PID namespace.
    pub pid: i32,
    /// When the process started, in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
}

/// The report of a process's hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HookState {
    /// Flags: [`HookState::ATTACHED`] and so on.
    pub flags: u32,
    /// Why it refused, as a code of the hook; 0 if it did not.
    pub code: u32,
}

impl HookState {
    /// The hook is in the process and has read the limits.
    pub const ATTACHED: u32 = 1;
    /// The launch mask is proved on this driver, and launches carry it.
    pub const MASK_VERIFIED: u32 = 2;
    /// The hook refuses the program's work; the code says why.
    pub const REFUSED: u32 = 4;
    /// At least one launch could not get its mask (a launch descriptor of an unexpected version, or
    /// unreadable limits).
    pub const UNMASKED: u32 = 8;

    pub(crate) fn from_word(word: u64) -> Self {
        Self { flags: word as u32, code: (word >> 32) as u32 }
    }

    fn to_word(self) -> u64 {
        u64::from(self.flags) | u64::from(self.code) << 32
    }
}

/// What a process has waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Waited {
    /// Not known: it launches what is not counted, or in several contexts.
    #[default]
    Unknown,
    /// For all of its launches so far.
    ForAll {
        /// Their number.
        launches: u64,
    },
    /// For some of its launches so far.
    ForSome {
        /// Their number.
        launches: u64,
    },
}

impl Waited {
    const SOME: u64 = 1 << 63;

    pub(crate) fn from_word(word: u64) -> Self {
        match (word & !Self::SOME).checked_sub(1) {
            None => Self::Unknown,
            Some(launches) if word & Self::SOME != 0 => Self::ForSome { launches },
            Some(launches) => Self::ForAll { launches },
        }
    }

    fn to_word(self) -> u64 {
        match self {
            Self::Unknown => 0,
            Self::ForAll { launches } => (launches + 1) & !Self::SOME,
            Self::ForSome { launches } => (launches + 1) | Self::SOME,
        }
    }
}

/// Why bytes were not accounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccountError {
    /// They do not fit: with them the tenant would exceed its quota.
    OverQuota {
        /// Requested bytes.
        asked: u64,
        /// Bytes that the tenant's processes held together at that instant.
        used: u64,
        /// The quota in bytes.
        quota: u64,
    },
    /// The caller released more than this process holds: a fault of its bookkeeping. Nothing was
    /// released.
    NotHeld {
        /// Bytes to release.
        asked: u64,
        /// Bytes that this process holds.
        held: u64,
    },
    /// The slot is the parent's; this process must abandon it and claim its own.
    ForkedChild,
    /// Another program rewrites the file without pause, or its words are out of range.
    Damaged,
}

impl fmt::Display for AccountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OverQuota { asked, used, quota } => write!(
                f,
                "{asked} bytes do not fit: the tenant holds {used} of its quota of {quota} bytes; free some, or raise \
                 it with `partita set --mem`"
            ),
            Self::NotHeld { asked, held } => {
                write!(f, "cannot release {asked} bytes: this process holds {held}; nothing was released")
            }
            Self::ForkedChild => {
                f.write_str("the slot belongs to the parent process; abandon it and claim another one")
            }
            Self::Damaged => {
                f.write_str("the tenant's usage file was damaged from outside; start the tenant again")
            }
        }
    }
}

impl core::error::Error for AccountError {}

/// A process's place in the usage file: its bytes and its counters.
///
/// All threads may use it at the same time. Dropping it has the effect of the process's death: the
/// lock goes, and the bytes stay accounted until another process reaps them. [`Slot::finish`]
/// releases them at once.
#[derive(Debug)]
pub struct Slot {
    pub(crate) map: UsageMap,
    pub(crate) index: usize,
    claimed_by: Process,
    /// Held during an operation by one of the process's threads. In private memory: no other
    /// process ever waits for it.
    busy: Mutex<()>,
    /// As `busy`, while the process takes or leaves a share.
    pub(crate) sharing: Mutex<()>,
}

impl Slot {
    pub(crate) fn new(map: UsageMap, index: usize) -> Self {
        Self { map, index, claimed_by: Process::current(), busy: Mutex::new(()), sharing: Mutex::new(()) }
    }

    /// The file of the slot.
    pub fn map(&self) -> &UsageMap {
        &self.map
    }

    /// The slot's number, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Accounts `bytes` before they are allocated. If they do not fit, reaps dead processes' bytes
    /// first, so a refusal means that living processes hold too much. Waits, for microseconds, for
    /// a process that is about to reap.
    ///
    /// Lock-free among processes; threads of this process take turns. Do not call it from a signal
    /// handler.
    ///
    /// # Errors
    /// [`AccountError::OverQuota`], [`AccountError::ForkedChild`] or [`AccountError::Damaged`];
    /// nothing is accounted then.
    pub fn reserve(&self, bytes: u64, quota: u64) -> Result<(), AccountError> {
        let is_over = |error: &AccountError| matches!(error, AccountError::OverQuota { .. });
        let result = self.map.with_reaping(is_over, || self.try_reserve(bytes, quota));
        if result.as_ref().is_err_and(is_over) {
            self.map.cells(self.index).counters.refusals.count();
        }
        result
    }

    /// As [`Slot::reserve`], but counts dead processes' bytes as used, and makes no system call.
    ///
    /// # Errors
    /// As [`Slot::reserve`].
    pub fn try_reserve(&self, bytes: u64, quota: u64) -> Result<(), AccountError> {
        self.transact(Change::Reserve { bytes, quota })?.map_err(|fault| match fault {
            Fault::OverQuota { used } => AccountError::OverQuota { asked: bytes, used, quota },
            _ => AccountError::Damaged,
        })
    }

    /// Releases `bytes` after they were freed.
    ///
    /// # Errors
    /// [`AccountError::NotHeld`] if this process holds less, [`AccountError::ForkedChild`] or
    /// [`AccountError::Damaged`]; nothing is released then.
    pub fn release(&self, bytes: u64) -> Result<(), AccountError> {
        self.transact(Change::Release(bytes))?.map_err(|fault| match fault {
            Fault::NotHeld { held } => AccountError::NotHeld { asked: bytes, held },
            _ => AccountError::Damaged,
        })
    }

    /// The owner's operation. The check comes before the turn: a child of `fork` may have a copy of
    /// `busy` that no thread will release.
    pub(crate) fn transact(&self, change: Change) -> Result<Result<(), Fault>, AccountError> {
        if self.is_foreign() {
            return Err(AccountError::ForkedChild);
        }
        let _turn = self.busy.lock();
        Ok(self.map.book().transact(self.index, change).map(|_| ()))
    }

    /// Bytes that this process holds.
    pub fn bytes(&self) -> u64 {
        self.map.book().bytes(self.index)
    }

    /// Counts a launch: one relaxed addition on a cache line that only this process writes. No
    /// allocation, lock or system call.
    #[inline]
    pub fn count_launch(&self) {
        self.map.cells(self.index).counters.launches[LAUNCH_COUNTERS - 1].count();
    }

    /// Counts a launch in a counter that only the calling thread uses, below [`LAUNCH_COUNTERS`] -
    /// 1; another number counts as [`Slot::count_launch`] does. A load and a store: on x86 an
    /// atomic addition would make the launch wait for all of its earlier stores.
    #[inline]
    pub fn count_launch_in(&self, counter: usize) {
        match self.map.cells(self.index).counters.launches[..LAUNCH_COUNTERS - 1].get(counter) {
            Some(counter) => counter.store(counter.load().wrapping_add(1)),
            None => self.count_launch(),
        }
    }

    /// Launches of this process so far. A launch that another thread is making may be missing.
    pub fn launches(&self) -> u64 {
        self.map.cells(self.index).counters.launches.iter().map(Word::load).fold(0, u64::wrapping_add)
    }

    /// The descriptor whose lock keeps the slot. A copy of it in another process keeps the slot as
    /// long as that process has it.
    pub fn descriptor(&self) -> core::ffi::c_int {
        self.map.file.descriptor()
    }

    /// Reports the last wait for this process's work; `now_ns` is the monotonic clock, in
    /// nanoseconds.
    pub fn show_waited(&self, waited: Waited, now_ns: u64) {
        let shared = &self.map.cells(self.index).shared;
        if matches!(waited, Waited::ForAll { .. }) {
            shared.finished_ns.store(now_ns);
        }
        shared.waited.store(waited.to_word());
    }

    /// Reports the error that ended this process's work on the GPU. The first one stays.
    pub fn show_error(&self, code: u32) {
        let error = &self.map.cells(self.index).shared.error;
        if error.load() == 0 {
            error.store(u64::from(code));
        }
    }

    /// Counts a launch that did not fit the set and ran on the whole GPU.
    pub fn count_widened(&self) {
        self.map.cells(self.index).counters.widened.count();
    }

    /// Reports how many bytes of host memory this process has instead of device memory: beyond the
    /// quota, and not part of the account.
    pub fn show_spilled(&self, bytes: u64) {
        self.map.cells(self.index).shared.spilled.store(bytes);
    }

    /// Reports how many bytes of device memory the driver has allocated for itself in this process:
    /// contexts, code, variables of modules, stacks. The account includes those that count against
    /// the quota.
    pub fn show_driver(&self, bytes: u64) {
        self.map.cells(self.index).shared.driver.store(bytes);
    }

    /// Takes up to `wanted` bytes of the driver's free allowance, `bound` for all processes of the
    /// tenant together, in place of what this process took before; returns how many it has now. Two
    /// processes that take at the same moment see each other, and may get less than the rest; never
    /// more.
    pub fn take_driver_free(&self, wanted: u64, bound: u64) -> u64 {
        let own = &self.map.cells(self.index).shared.driver_free;
        let all = || {
            (0..PROCESS_SLOTS)
                .map(|slot| self.map.cells(slot))
                .filter(|cells| cells.holder.pid.load() != 0)
                .fold(0u64, |sum, cells| sum.saturating_add(cells.shared.driver_free.load()))
        };
        let had = own.load();
        own.store(wanted);
        if wanted <= had {
            return wanted;
        }
        crate::sync::see_each_other();
        if all() <= bound {
            return wanted;
        }
        // Dead processes have none; if the file cannot be opened again, they keep theirs.
        let _ = self.map.reap();
        let others = all().saturating_sub(wanted);
        let given = wanted.min(bound.saturating_sub(others));
        own.store(given);
        given
    }

    /// Reports the hook's state, for `partita ps`.
    pub fn report(&self, state: HookState) {
        self.map.cells(self.index).holder.state.store(state.to_word());
    }

    /// Releases all bytes, returns their number, and frees the slot. In a child of `fork` it
    /// releases nothing, as [`Slot::abandon_in_fork_child`].
    ///
    /// # Errors
    /// [`Problem::Damaged`](crate::Problem::Damaged).
    pub fn finish(self) -> Result<u64, LedgerError> {
        if self.is_foreign() {
            return Ok(0);
        }
        // The last reference: no other thread can be in an operation.
        self.map.vacate(self.index)
    }

    /// Abandons the parent's slot in a child of `fork`: closes and unmaps, and releases neither the
    /// parent's bytes nor its lock. The child then opens the file and claims its own slot. Until a
    /// child does this, ends or calls `exec`, it keeps the parent's slot locked even if the parent
    /// dies.
    pub fn abandon_in_fork_child(self) {
        drop(self);
    }

    pub(crate) fn is_foreign(&self) -> bool {
        self.claimed_by.is_another()
    }
}
