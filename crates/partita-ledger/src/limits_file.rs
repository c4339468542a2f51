//! The limits file: its owner writes it, the tenant maps it read-only, and others read it without a
//! mapping.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::fmt;
use core::mem::{offset_of, size_of};
use core::time::Duration;

use crate::epoch::{DoubleBuffer, READ_TRIES_MAX};
use crate::error::{LedgerError, Problem};
use crate::file::{Access, At, Fd, Mapping};
use crate::header::{Header, Kind};
use crate::limits::{Limits, WORDS};
use crate::lock;
use crate::mapped::MappedFile;

/// The limits file's name in the tenant's directory.
pub const LIMITS_FILE_NAME: &CStr = c"limits";
/// The limits file's size in bytes.
pub const LIMITS_FILE_BYTES: usize = 4096;

/// How long a writer waits for another one. A write takes microseconds.
const LOCK_WAIT_MS_MAX: u32 = 2000;

const KIND: Kind = Kind { magic: *b"PARTITAL", bytes: LIMITS_FILE_BYTES as u32 };

#[repr(C)]
struct Layout {
    header: Header,
    limits: DoubleBuffer<WORDS>,
}

const _: () = assert!(size_of::<Layout>() <= LIMITS_FILE_BYTES);

/// One whole version of the limits, checked.
fn load(path: &CStr, buffer: &DoubleBuffer<WORDS>) -> Result<(u64, Limits), LedgerError> {
    let (epoch, words) = buffer.read().ok_or_else(|| LedgerError::new(path, Problem::Busy))?;
    Ok((epoch, checked(path, &words)?))
}

fn checked(path: &CStr, words: &[u64; WORDS]) -> Result<Limits, LedgerError> {
    let limits = Limits::decode(words);
    limits.check().map_err(|fault| LedgerError::new(path, Problem::Limits(fault)))?;
    Ok(limits)
}

impl Limits {
    /// Reads a tenant's limits once, with their epoch, without trust: without a mapping, so that
    /// truncation meanwhile is an error and not a SIGBUS.
    ///
    /// # Errors
    /// The file's problem, or the failed system call.
    pub fn read<'a>(at: impl Into<At<'a>>) -> Result<(u64, Self), LedgerError> {
        let at = at.into();
        let path = at.path;
        let (fd, _) = KIND.open(at, Access::ReadOnly)?;
        let start = offset_of!(Layout, limits);
        let epoch = || {
            KIND.read_words::<1>(path, &fd, start + DoubleBuffer::<WORDS>::EPOCH_OFFSET).map(|[epoch]| epoch)
        };
        let mut before = epoch()?;
        for _ in 0..READ_TRIES_MAX {
            let words = KIND.read_words(path, &fd, start + DoubleBuffer::<WORDS>::copy_offset(before))?;
            let after = epoch()?;
            if after == before {
                return Ok((after, checked(path, &words)?));
            }
            before = after;
        }
        Err(LedgerError::new(path, Problem::Busy))
    }
}

/// The limits file for its owner: writable.
#[derive(Debug)]
pub struct LimitsFile {
    file: MappedFile,
}

impl LimitsFile {
    /// Creates the file with its first limits, at epoch 1. `mode` is the file's permissions
    /// (`0o600`, or `0o644` for a tenant of another user).
    ///
    /// # Errors
    /// [`Problem::Exists`], [`Problem::Limits`], or the failed system call; the file is then
    /// removed.
    pub fn create<'a>(at: impl Into<At<'a>>, limits: &Limits, mode: u32) -> Result<Self, LedgerError> {
        let at = at.into();
        limits.check().map_err(|fault| LedgerError::new(at.path, Problem::Limits(fault)))?;
        let file = Self { file: MappedFile::create(KIND, at, mode)? };
        file.layout().limits.write(&limits.encode());
        file.layout().header.finish(KIND);
        Ok(file)
    }

    /// Opens an existing file to read and change it.
    ///
    /// # Errors
    /// The file's problem, or the failed system call.
    pub fn open_rw<'a>(at: impl Into<At<'a>>) -> Result<Self, LedgerError> {
        Ok(Self { file: MappedFile::open(KIND, at.into())? })
    }

    fn layout(&self) -> &Layout {
        // SAFETY: the mapping has the size of the file, which is at least that of the layout; the
        // layout consists of words.
        unsafe { self.file.as_ref() }
    }

    /// The current limits and their epoch.
    ///
    /// # Errors
    /// [`Problem::Limits`] if they are impossible, [`Problem::Busy`] if they change without pause.
    pub fn load(&self) -> Result<(u64, Limits), LedgerError> {
        load(self.file.path(), &self.layout().limits)
    }

    /// Replaces the limits and returns the new epoch. Every process of the tenant obeys them from
    /// its next launch or allocation on.
    ///
    /// # Errors
    /// As for [`LimitsFile::update`].
    pub fn store(&mut self, limits: &Limits) -> Result<u64, LedgerError> {
        self.locked(|file| file.publish(limits))
    }

    /// Changes the limits: no other writer's change comes between the argument of `change` and its
    /// result. Returns the new epoch.
    ///
    /// # Errors
    /// [`Problem::Limits`] if the limits, before or after the change, are impossible;
    /// [`Problem::Locked`] if another process holds the writers' lock for longer than a write
    /// takes; [`Problem::Replaced`] or [`Problem::Size`] if the file is no longer the opened one.
    /// In each case the limits are unchanged.
    pub fn update(&mut self, change: impl FnOnce(&mut Limits)) -> Result<u64, LedgerError> {
        self.locked(|file| {
            let (_, mut limits) = file.load()?;
            change(&mut limits);
            file.publish(&limits)
        })
    }

    fn publish(&self, limits: &Limits) -> Result<u64, LedgerError> {
        limits.check().map_err(|fault| LedgerError::new(self.file.path(), Problem::Limits(fault)))?;
        Ok(self.layout().limits.write(&limits.encode()))
    }

    /// Runs `action` under the writers' lock.
    ///
    /// The lock is on a separate file that only the owner can open. Any user who may read the
    /// limits could hold a lock on them without end.
    fn locked<T>(&mut self, action: impl FnOnce(&Self) -> Result<T, LedgerError>) -> Result<T, LedgerError> {
        let path = lock_path(self.file.path());
        let fd = Fd::for_locks(self.file.place.beside(&path))?;
        let mut waited_ms = 0;
        while !lock::try_lock(&path, &fd, 0, 1)? {
            if waited_ms >= LOCK_WAIT_MS_MAX {
                return Err(LedgerError::new(&path, Problem::Locked { waited_ms }));
            }
            lock::sleep(Duration::from_millis(1));
            waited_ms += 1;
        }
        // Closing the file releases the lock.
        self.unchanged_file().and_then(|()| action(self))
    }

    /// A write past the end of a mapped file is a SIGBUS, and no process reads a file that was
    /// replaced.
    fn unchanged_file(&self) -> Result<(), LedgerError> {
        self.file.reopened(Access::ReadOnly).map(|_| ())
    }
}

/// The path of the file that the writers of a limits file lock.
fn lock_path(limits: &CStr) -> CString {
    let bytes: Vec<u8> = [limits.to_bytes(), b".lock"].concat();
    CString::new(bytes).unwrap_or_default()
}

/// The limits changed during each of many attempts to read them: a program rewrites them without
/// pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitsBusy;

impl fmt::Display for LimitsBusy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the tenant's limits change faster than they can be read; stop the program that rewrites them",
        )
    }
}

impl core::error::Error for LimitsBusy {}

/// The limits file for the tenant: opened `O_RDONLY`, mapped `PROT_READ`, with no way to write.
#[derive(Debug)]
pub struct LimitsMap {
    path: CString,
    mapping: Mapping,
}

impl LimitsMap {
    /// Maps an existing file, and closes its descriptor.
    ///
    /// # Errors
    /// The file's problem, or the failed system call.
    pub fn open_ro(path: &CStr) -> Result<Self, LedgerError> {
        let (fd, _) = KIND.open(path.into(), Access::ReadOnly)?;
        let mapping = Mapping::new(path, &fd, LIMITS_FILE_BYTES, Access::ReadOnly)?;
        Ok(Self { path: path.into(), mapping })
    }

    #[inline]
    fn limits(&self) -> &DoubleBuffer<WORDS> {
        // SAFETY: the mapping has the size of the file, which is at least that of the layout; the
        // layout consists of words, and reading a double buffer only peeks.
        let layout: &Layout = unsafe { self.mapping.as_ref() };
        &layout.limits
    }

    /// The number of the current version; one more after each change. A caller that caches results
    /// of an epoch needs to read again only when this number differs. One load from memory.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.limits().epoch()
    }

    /// The current limits and their epoch.
    ///
    /// # Errors
    /// [`Problem::Limits`] if they are impossible, [`Problem::Busy`] if they change without pause.
    pub fn load(&self) -> Result<(u64, Limits), LedgerError> {
        load(&self.path, self.limits())
    }

    /// The current disable mask (physical numbering, a set bit disables) and its epoch: the read of
    /// the launch path. No allocation, lock or system call, and six loads from two cache lines.
    ///
    /// # Errors
    /// [`LimitsBusy`] if the limits were replaced during each of 64 attempts of a few nanoseconds.
    /// A writer cannot be that fast; it means a fault of the owner, and the caller must refuse the
    /// launch or use the last mask that it read, not launch without one.
    #[inline]
    pub fn disable_words(&self) -> Result<(u64, [u32; 8]), LimitsBusy> {
        let (epoch, [a, b, c, d]) = self.limits().read::<4>().ok_or(LimitsBusy)?;
        let words = [a, b, c, d].map(|word| [word as u32, (word >> 32) as u32]);
        let [[w0, w1], [w2, w3], [w4, w5], [w6, w7]] = words;
        Ok((epoch, [w0, w1, w2, w3, w4, w5, w6, w7]))
    }

    /// The largest cluster that fits into the partition, in SMs, and the switches
    /// ([`Limits::flags`]): the data for checking a launch with clusters. As cheap as
    /// [`LimitsMap::disable_words`], except for more loads.
    ///
    /// # Errors
    /// [`LimitsBusy`], as for [`LimitsMap::disable_words`].
    #[inline]
    pub fn misfit_words(&self) -> Result<(u32, u32), LimitsBusy> {
        let (_, words) = self.limits().read::<{ crate::limits::FLAGS_WORD + 1 }>().ok_or(LimitsBusy)?;
        Ok((words[crate::limits::MAX_CLUSTER_WORD] as u32, words[crate::limits::FLAGS_WORD] as u32))
    }

    /// Whether other tenants use the device, too. As cheap as [`LimitsMap::misfit_words`].
    ///
    /// # Errors
    /// [`LimitsBusy`], as for [`LimitsMap::disable_words`].
    pub fn has_neighbours(&self) -> Result<bool, LimitsBusy> {
        self.misfit_words().map(|(_, flags)| flags & crate::limits::FLAG_NEIGHBOURS != 0)
    }

    /// The tenant's share of the kernels that the device runs at once; 0 for no limit.
    ///
    /// # Errors
    /// [`LimitsBusy`], as for [`LimitsMap::disable_words`].
    pub fn task_slots(&self) -> Result<u32, LimitsBusy> {
        let (_, [.., flags]) = self.limits().read::<{ crate::limits::FLAGS_WORD + 1 }>().ok_or(LimitsBusy)?;
        Ok((flags >> 32) as u32)
    }

    /// The memory quota ([`NO_QUOTA`](crate::NO_QUOTA) for none) and the device's memory, in bytes.
    /// As cheap as [`LimitsMap::disable_words`].
    ///
    /// # Errors
    /// [`LimitsBusy`], as for [`LimitsMap::disable_words`].
    #[inline]
    pub fn memory_bytes(&self) -> Result<(u64, u64), LimitsBusy> {
        let (_, [.., quota, total]) = self.limits().read::<6>().ok_or(LimitsBusy)?;
        Ok((quota, total))
    }

    /// The memory that the driver may allocate for itself in each process before it counts against
    /// the quota, in bytes.
    ///
    /// # Errors
    /// [`LimitsBusy`], as for [`LimitsMap::disable_words`].
    pub fn driver_allowance_bytes(&self) -> Result<u64, LimitsBusy> {
        let words = self.limits().read::<{ crate::limits::DRIVER_ALLOWANCE_WORD + 1 }>();
        let (_, [.., allowance]) = words.ok_or(LimitsBusy)?;
        Ok(allowance)
    }
}
