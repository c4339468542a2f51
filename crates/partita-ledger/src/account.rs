//! Exact, crash-proof byte accounting between processes, without locks.
//!
//! # The state
//! Each process owns a *slot*. A slot holds two *entries*, each the outcome of one operation: the
//! bytes that the slot holds after it, and the tenant's total and peak after it. One global word,
//! `last`, names the operation that took effect last: its version (1, 2, 3, … over all slots), its
//! slot and which of that slot's two entries it wrote. The tenant's total *is* the `used` of the
//! entry that `last` names. A slot's word `settled` names the slot's last recorded operation.
//!
//! # An operation of slot `s`
//! 1. Read `last`, and `used` and `peak` from the entry that it names.
//! 2. *Settle* that operation: if the `settled` of its slot is older, replace it by `last`
//!    (compare-and-swap).
//! 3. `settled` of `s` now names the last operation of `s`; its entry holds the bytes of `s`. Check
//!    the quota against `used`.
//! 4. Write the outcome into the *other* entry of `s`.
//! 5. Compare-and-swap `last` from the name read in step 1 to (version + 1, `s`, that entry). If it
//!    fails, start again.
//! 6. Settle this operation. That is optional: otherwise the next operation does it in step 2.
//!
//! # Passing bytes on
//! [`Change::Pass`] moves bytes from slot `s` to slot `t`, which the caller owns too; the total
//! does not change. It is one operation of both: step 4 writes the other entry of each, and writes
//! to `partner` of `s` the name that settles `t`: the version of this operation, `t`, and its
//! entry. Step 5 puts both in force at once, and a process that settles an operation settles the
//! slot that its `partner` names as well. A `partner` is valid only with the operation of its slot
//! that has the same version, and other operations clear it before step 5, so a `partner` that was
//! written for an operation without effect is ignored. The `partner` of an operation in force is
//! not cleared before both slots are settled: the owner's next operation settles them in step 2.
//!
//! # Why it is right
//! Operations of one slot follow one another: the slot's owner holds the slot's file lock, and
//! serialises its own threads.
//!
//! **Names do not repeat.** Every change of `last` increments its 52-bit version, which never
//! wraps: an operation at the highest version is refused ([`Fault::Damaged`]; at ten million
//! operations a second that takes 14 years). So a compare-and-swap that finds the expected name
//! proves that nothing happened in between. There is no ABA problem, in `last` or in `settled`, and
//! a process may sleep for any time between two instructions.
//!
//! **No operation writes an entry in force.** The entries in force are the one that `last` names
//! and, for each slot, the one of its last operation. Step 4 writes the entry other than that of
//! the last operation of `s`. Call that operation *o*; in step 3 `settled` of `s` names *o*, for
//! one of two reasons. If `last` named *o* in step 1, step 2 settled it. Otherwise `last` has moved
//! on from *o*, and the process that moved it had settled *o* before; and no operation of `s` came
//! later, because they follow one another. Settling needs only one attempt: between two operations
//! of a slot its `settled` changes once, so a failed attempt means that it is done. A reader that
//! finds a half-written entry has a name from step 1 that is no longer in `last`: the writer of the
//! entry had loaded a later one before it stored (release) the words that the reader has loaded
//! (acquire). So step 5, or the second read of `last` for a refusal or an observer, finds that
//! later name.
//!
//! **Never above the quota by a byte, and no refusal of a request that fits.** Step 5 takes effect
//! only if `last` is still the name whose `used` was checked: at that instant the total goes from
//! `used` to `used + bytes`, which is at most the quota. A refusal reads `last` again; if it is
//! unchanged, `used` was the total at that instant and the request did not fit; otherwise the
//! operation starts again. The bytes of a dead process are part of the total until they are reaped;
//! the caller reaps before it accepts a refusal.
//!
//! **SIGKILL at any instruction loses no byte and blocks no process.** The only step that changes a
//! total or a balance is the single compare-and-swap of step 5. If the process dies before it, the
//! operation has not happened: the entry that it wrote is not in force. If it dies after it, the
//! operation has happened completely: `last` names it, and the next operation settles it. No
//! process ever waits for a slot's owner, so none is blocked: an operation starts again only
//! because another one took effect. The next process to get the slot's lock after the owner's death
//! is its new owner and releases the bytes by a normal operation; if it dies meanwhile, the same
//! holds for it.
//!
//! # Hostile files
//! A tenant can write to its own usage file. Every index comes from as many bits as there are slots
//! and is checked, sums saturate, and attempts are counted ([`TRIES_MAX`]): damaged words yield
//! wrong numbers or a [`Fault`], never a panic or an endless loop.

use crate::sync::Word;

/// Bits of a name that hold the slot.
const SLOT_BITS: u32 = 11;
/// Slots in a usage file: first those of processes, then those of shared memory.
pub const SLOTS: usize = 1 << SLOT_BITS;
/// The highest version of an operation.
const VERSION_MAX: u64 = u64::MAX >> (SLOT_BITS + 1);
/// How often an operation starts again because others took effect first: far more often than
/// scheduling can cause, so that reaching it means that another program rewrites the file.
pub const TRIES_MAX: u32 = 1 << 20;
/// How often an observer tries to find an instant between two operations.
const LOOKS_MAX: u32 = 256;

/// The name of an operation: version, entry, slot, from the top of the word downwards, so that
/// later names are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(pub u64);

impl Name {
    fn new(version: u64, entry: usize, slot: usize) -> Self {
        Self(
            version << (SLOT_BITS + 1) | (entry as u64 & 1) << SLOT_BITS | (slot as u64 & (SLOTS as u64 - 1)),
        )
    }

    /// The number of operations up to and including this one.
    pub fn version(self) -> u64 {
        self.0 >> (SLOT_BITS + 1)
    }

    /// Which entry of its slot the operation wrote: 0 or 1.
    pub fn entry(self) -> usize {
        (self.0 >> SLOT_BITS & 1) as usize
    }

    /// The slot of the operation, below [`SLOTS`].
    pub fn slot(self) -> usize {
        (self.0 & (SLOTS as u64 - 1)) as usize
    }
}

/// The outcome of an operation.
#[derive(Debug)]
#[repr(C)]
pub struct Entry {
    /// Bytes that all slots hold together.
    pub used: Word,
    /// Bytes that this slot holds.
    pub bytes: Word,
    /// The highest `used` up to and including this operation.
    pub peak: Word,
}

/// The accounting words of a slot: one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Account {
    /// Name of the slot's last operation, or of the one before if `last` still names the last.
    pub settled: Word,
    /// Outcomes of the last operation, and of the one before or after it.
    pub entries: [Entry; 2],
    /// The name that settles the slot to which the slot's last [`Change::Pass`], or one in
    /// preparation, moved bytes.
    pub partner: Word,
}

#[cfg(any(test, loom))]
impl Account {
    /// A slot that never held a byte.
    pub fn new() -> Self {
        let entry = || Entry { used: Word::new(0), bytes: Word::new(0), peak: Word::new(0) };
        Self { settled: Word::new(0), entries: [entry(), entry()], partner: Word::new(0) }
    }
}

#[cfg(any(test, loom))]
impl Default for Account {
    fn default() -> Self {
        Self::new()
    }
}

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Add `bytes` if the total stays within `quota`.
    Reserve {
        /// Bytes to add.
        bytes: u64,
        /// The most that all slots may hold together, in bytes.
        quota: u64,
    },
    /// Release that many bytes.
    Release(u64),
    /// Release all bytes of the slot.
    ReleaseAll,
    /// Move that many bytes to another slot, which the caller owns too.
    Pass {
        /// Bytes to move.
        bytes: u64,
        /// The slot that holds them afterwards.
        to: usize,
    },
}

/// Why an operation had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The bytes did not fit at the instant at which all slots together held `used`.
    OverQuota {
        /// Bytes that all slots held together.
        used: u64,
    },
    /// The slot holds fewer bytes than the operation releases.
    NotHeld {
        /// Bytes that the slot holds.
        held: u64,
    },
    /// Other operations took effect first [`TRIES_MAX`] times in a row.
    Contended,
    /// No operation can have written these words, or the highest version is reached.
    Damaged,
}

/// Sums over all slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Bytes that all slots hold together.
    pub used: u64,
    /// The highest value of `used` so far.
    pub peak: u64,
}

/// The accounting state in (shared) memory: the name of the last operation and the slots.
#[derive(Debug, Clone, Copy)]
pub struct Book<'m, S> {
    last: &'m Word,
    slots: &'m [S],
}

impl<'m, S: AsRef<Account>> Book<'m, S> {
    /// The book whose last operation `last` names.
    pub fn new(last: &'m Word, slots: &'m [S]) -> Self {
        Self { last, slots }
    }

    fn account(&self, slot: usize) -> Option<&'m Account> {
        self.slots.get(slot).map(S::as_ref)
    }

    /// Records the operation `name` in its slot, unless another process has.
    fn note(account: &Account, name: Name) {
        let settled = Name(account.settled.load());
        if settled.version() < name.version() {
            account.settled.replace(settled.0, name.0);
        }
    }

    /// The slot to which the operation `name` of `account` passed bytes, and the name that settles
    /// it.
    fn partner(&self, account: &Account, name: Name) -> Option<(&'m Account, Name)> {
        let partner = Name(account.partner.load());
        (partner.version() == name.version() && partner.slot() != name.slot())
            .then_some(partner)
            .and_then(|partner| Some((self.account(partner.slot())?, partner)))
    }

    /// Records the operation `name` in the slots that it changed.
    fn settle(&self, account: &Account, name: Name) {
        Self::note(account, name);
        if let Some((other, partner)) = self.partner(account, name) {
            Self::note(other, partner);
        }
    }

    /// Performs one operation of `slot`, which the caller owns, and returns how many bytes it
    /// moved.
    pub fn transact(&self, slot: usize, change: Change) -> Result<u64, Fault> {
        let own = self.account(slot).ok_or(Fault::Damaged)?;
        let receiver = match change {
            Change::Reserve { bytes: 0, .. } | Change::Release(0) | Change::Pass { bytes: 0, .. } => {
                return Ok(0);
            }
            Change::Pass { to, .. } if to == slot => return Err(Fault::Damaged),
            Change::Pass { to, .. } => Some((to, self.account(to).ok_or(Fault::Damaged)?)),
            _ => None,
        };
        for _ in 0..TRIES_MAX {
            let last = Name(self.last.load());
            // A slot number outside a shortened table cannot occur in a file, whose table is
            // complete.
            let named = self.account(last.slot()).ok_or(Fault::Damaged)?;
            let outcome = &named.entries[last.entry()];
            let (used, peak) = (outcome.used.load(), outcome.peak.load());
            self.settle(named, last);

            let settled = Name(own.settled.load());
            if settled.version() > last.version() {
                // Only the caller performs operations of this slot, and its last one came before
                // `last` was read.
                return Err(Fault::Damaged);
            }
            let held = own.entries[settled.entry()].bytes.load();
            let (moved, used, held) = match change {
                Change::Reserve { bytes, quota } => match used.checked_add(bytes) {
                    Some(sum) if sum <= quota => (bytes, sum, held.saturating_add(bytes)),
                    _ if self.last.load() == last.0 => return Err(Fault::OverQuota { used }),
                    _ => continue,
                },
                Change::Release(bytes) | Change::Pass { bytes, .. } if bytes > held => {
                    return Err(Fault::NotHeld { held });
                }
                Change::Release(bytes) => (bytes, used.saturating_sub(bytes), held - bytes),
                Change::ReleaseAll => (held, used.saturating_sub(held), 0),
                Change::Pass { bytes, .. } => (bytes, used, held - bytes),
            };
            if moved == 0 {
                return Ok(0);
            }
            if last.version() == VERSION_MAX {
                return Err(Fault::Damaged);
            }
            let next = Name::new(last.version() + 1, settled.entry() ^ 1, slot);
            let write = |entry: &Entry, bytes| {
                entry.used.store(used);
                entry.bytes.store(bytes);
                entry.peak.store(peak.max(used));
            };
            write(&own.entries[next.entry()], held);
            if let Some((to, other)) = receiver {
                let theirs = Name(other.settled.load());
                if theirs.version() > last.version() {
                    return Err(Fault::Damaged);
                }
                let received = Name::new(next.version(), theirs.entry() ^ 1, to);
                let bytes = other.entries[theirs.entry()].bytes.load().saturating_add(moved);
                write(&other.entries[received.entry()], bytes);
                own.partner.store(received.0);
            } else if own.partner.load() != 0 {
                // A dead process may have left it, prepared for the version that this operation may
                // get.
                own.partner.store(0);
            }
            if self.last.replace(last.0, next.0) {
                self.settle(own, next);
                return Ok(moved);
            }
        }
        Err(Fault::Contended)
    }

    /// The totals at an instant during the call. If operations take effect without pause, and one
    /// during each attempt, the final answer may be that of an operation without effect.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for _ in 0..LOOKS_MAX {
            let last = Name(self.last.load());
            let Some(account) = self.account(last.slot()) else { break };
            let outcome = &account.entries[last.entry()];
            totals = Totals { used: outcome.used.load(), peak: outcome.peak.load() };
            if self.last.load() == last.0 {
                break;
            }
        }
        totals
    }

    /// The bytes of `slot` at an instant during the call; as exact as [`Book::totals`].
    pub fn bytes(&self, slot: usize) -> u64 {
        let mut bytes = 0;
        let Some(account) = self.account(slot) else { return 0 };
        for _ in 0..LOOKS_MAX {
            let last = Name(self.last.load());
            let settled = Name(account.settled.load());
            let named = self.account(last.slot());
            let partner = named.and_then(|named| self.partner(named, last)).map(|(_, partner)| partner);
            let newest = [Some(last), partner].into_iter().flatten().find(|name| name.slot() == slot);
            let current = newest.filter(|name| name.version() > settled.version()).unwrap_or(settled);
            bytes = account.entries[current.entry()].bytes.load();
            if self.last.load() == last.0 {
                break;
            }
        }
        bytes
    }
}

// Every order of a step would take days under an interpreter.
#[cfg(all(test, not(loom), not(miri)))]
mod schedules;
#[cfg(all(test, not(loom)))]
mod tests;
