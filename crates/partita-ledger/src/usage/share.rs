//! Memory that several processes of a tenant hold together: charged once, whatever their number.
//!
//! Each such memory has a slot, after those of the processes. The slot accounts its bytes, and
//! every process that holds the memory has a *shared* lock on the slot. So the kernel counts the
//! holders: while one lives, no process gets the exclusive lock that reaping needs, and when the
//! last one is gone, killed or not, the next process that reaps releases the bytes.
//!
//! A [`Key`] identifies a slot. The process that makes one locks it exclusively until it has
//! written the key, and makers of different processes exclude each other by a lock on a byte
//! outside all slots.

use crate::account::{Change, Fault, SLOTS};
use crate::error::LedgerError;
use crate::lock;

use super::{AccountError, PROCESS_SLOTS, Slot, SlotCells, UsageMap, slot_offset};

/// How many times a process that joins waits for a maker, or for one that reaps: far longer than
/// either takes, so that only a stopped process exceeds it.
const WAITS_MAX: u32 = lock::WAITS_MAX;
/// The byte that makers lock: past every slot.
const MAKERS_OFFSET: usize = slot_offset(SLOTS);

/// The identity of a shared memory: the same for every process that shares it. Not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub [u64; 2]);

/// A process's share of a memory, which [`Slot::leave`] or the end of the process releases. A
/// process takes one share of each memory.
#[derive(Debug)]
#[must_use = "the bytes stay charged until it is left"]
pub struct Share {
    slot: usize,
}

impl Slot {
    /// Shares `bytes` of this process under `key` from now on. The total does not change at any
    /// instant.
    ///
    /// `None`, and nothing changes, if there is no room for another shared memory.
    ///
    /// # Errors
    /// As [`Slot::release`].
    pub fn share(&self, key: Key, bytes: u64) -> Result<Option<Share>, AccountError> {
        if self.is_foreign() {
            return Err(AccountError::ForkedChild);
        }
        let _turn = self.sharing.lock();
        let Some(slot) = self.map.take_shared().map_err(|_| AccountError::Damaged)? else { return Ok(None) };
        let passed = self.transact(Change::Pass { bytes, to: slot });
        if !matches!(passed, Ok(Ok(()))) {
            self.map.give_shared_back(slot);
        }
        match passed? {
            Ok(()) => self.map.publish_shared(slot, key).map(Some).map_err(|_| AccountError::Damaged),
            Err(Fault::NotHeld { held }) => Err(AccountError::NotHeld { asked: bytes, held }),
            Err(_) => Err(AccountError::Damaged),
        }
    }

    /// A share of the memory with that key, if a living process of the tenant holds it.
    pub fn join(&self, key: Key) -> Option<Share> {
        let _turn = self.sharing.lock();
        self.map.find_shared(key)
    }

    /// A share of the memory with that key; charges its `bytes` if no living process of the tenant
    /// holds it.
    ///
    /// `None`, and nothing changes, if there is no room for another shared memory.
    ///
    /// # Errors
    /// As [`Slot::reserve`].
    pub fn join_or_reserve(&self, key: Key, bytes: u64, quota: u64) -> Result<Option<Share>, AccountError> {
        if self.is_foreign() {
            return Err(AccountError::ForkedChild);
        }
        let _turn = self.sharing.lock();
        // If a stopped process keeps the makers' lock, the memory may be charged more than once,
        // never less.
        let making = self.map.file.byte(MAKERS_OFFSET);
        let found = self.map.find_shared(key);
        if found.is_some() {
            return Ok(found);
        }
        let Some(slot) = self.map.take_shared().map_err(|_| AccountError::Damaged)? else { return Ok(None) };
        let is_over = |fault: &Fault| matches!(fault, Fault::OverQuota { .. });
        let reserve = || self.map.book().transact(slot, Change::Reserve { bytes, quota });
        let result = self.map.with_reaping(is_over, reserve);
        let share = match result {
            Ok(_) => self.map.publish_shared(slot, key).map(Some).map_err(|_| AccountError::Damaged),
            Err(fault) => {
                self.map.give_shared_back(slot);
                Err(match fault {
                    Fault::OverQuota { used } => {
                        self.map.cells(self.index).counters.refusals.count();
                        AccountError::OverQuota { asked: bytes, used, quota }
                    }
                    _ => AccountError::Damaged,
                })
            }
        };
        drop(making);
        share
    }

    /// Releases a share, and the bytes if no other process has one.
    pub fn leave(&self, share: Share) {
        if self.is_foreign() {
            return;
        }
        let _turn = self.sharing.lock();
        let (start, length) = (slot_offset(share.slot), size_of::<SlotCells>());
        // Two that leave at once may both be refused: then the next process that reaps releases the
        // bytes.
        if self.map.file.try_lock(start, length).unwrap_or(false) {
            let _ = self.map.vacate(share.slot);
        }
        let _ = self.map.file.unlock(start, length);
    }
}

impl UsageMap {
    /// A free slot for shared memory, locked exclusively.
    fn take_shared(&self) -> Result<Option<usize>, LedgerError> {
        for reaped in [false, true] {
            for slot in PROCESS_SLOTS..SLOTS {
                // This description may share slots with a key, which a lock would not show; slots
                // with bytes are for the process that reaps.
                let free = || self.key_of(slot) == Key([0, 0]) && self.book().bytes(slot) == 0;
                let (start, length) = (slot_offset(slot), size_of::<SlotCells>());
                if free() && self.file.try_lock(start, length)? {
                    if free() {
                        return Ok(Some(slot));
                    }
                    self.file.unlock(start, length)?;
                }
            }
            if !reaped {
                self.reap()?;
            }
        }
        Ok(None)
    }

    fn give_shared_back(&self, slot: usize) {
        let _ = self.vacate(slot);
        let _ = self.file.unlock(slot_offset(slot), size_of::<SlotCells>());
    }

    fn publish_shared(&self, slot: usize, key: Key) -> Result<Share, LedgerError> {
        let words = &self.cells(slot).shared.key;
        words[1].store(key.0[1]);
        words[0].store(key.0[0]);
        // No other process can hold it: this only lets others in.
        self.file.try_lock_shared(slot_offset(slot), size_of::<SlotCells>())?;
        Ok(Share { slot })
    }

    pub(crate) fn key_of(&self, slot: usize) -> Key {
        let [first, second] = &self.cells(slot).shared.key;
        Key([first.load(), second.load()])
    }

    fn find_shared(&self, key: Key) -> Option<Share> {
        for round in 0..WAITS_MAX {
            let mut kept_out = false;
            for slot in (PROCESS_SLOTS..SLOTS).filter(|&slot| self.key_of(slot) == key) {
                let (start, length) = (slot_offset(slot), size_of::<SlotCells>());
                if !self.file.try_lock_shared(start, length).ok()? {
                    kept_out = true;
                    continue;
                }
                // Between the check and the lock it may have become another memory's; a slot
                // without bytes is from a process that died while it released it.
                if self.key_of(slot) == key && self.book().bytes(slot) > 0 {
                    return Some(Share { slot });
                }
                let _ = self.file.unlock(start, length);
            }
            if !kept_out {
                return None;
            }
            lock::pause(round);
        }
        None
    }
}
