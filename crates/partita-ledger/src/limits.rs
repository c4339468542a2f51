//! The limits file: what a tenant may use.

use core::ffi::CStr;
use core::fmt;
use core::time::Duration;

use crate::epoch::DoubleBuffer;
use crate::error::{LedgerError, LimitsFault, Problem};
use crate::file::{Access, Fd, FileId, Mapping, unlink};
use crate::header::{Header, Kind};
use crate::lock;

/// The limits file's name in the tenant's directory.
pub const LIMITS_FILE_NAME: &CStr = c"limits";
/// The limits file's size in bytes.
pub const LIMITS_FILE_BYTES: usize = 4096;
/// A memory quota that is none.
pub const NO_QUOTA: u64 = u64::MAX;
/// The longest tenant name in bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// Words of one copy of the limits.
const WORDS: usize = 128;
/// How long a writer waits for another one. A write takes microseconds.
const LOCK_WAIT_MS_MAX: u32 = 2000;

const KIND: Kind = Kind { magic: *b"PARTITAL", bytes: LIMITS_FILE_BYTES as u32 };

#[repr(C)]
struct Layout {
    header: Header,
    limits: DoubleBuffer<WORDS>,
}

const _: () = assert!(size_of::<Layout>() <= LIMITS_FILE_BYTES);

/// What a tenant may use on its GPU.
///
/// Numbers whose meaning is not the ledger's (`mechanism`, `priority`, `flags`) pass through as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The GPU's UUID.
    pub gpu_uuid: [u8; 16],
    /// Compute capability: major × 10 + minor.
    pub device_class: u32,
    /// The version of the device's launch descriptor, in the coding that the hook and the planner share.
    pub qmd_version: u8,
    /// SMs per TPC.
    pub sms_per_tpc: u32,
    /// TPCs of the device.
    pub tpc_count: u32,
    /// Enabled TPCs, logical numbering.
    pub set: [u64; 4],
    /// Disable mask as launches carry it: physical numbering, a set bit disables.
    pub qmd_disable: [u32; 8],
    /// The largest cluster that fits into the partition, in SMs.
    pub max_cluster_sms: u32,
    /// The most device memory that all processes of the tenant hold together, in bytes; [`NO_QUOTA`] for no limit.
    pub memory_quota_bytes: u64,
    /// The device's memory in bytes; 0 if not known.
    pub memory_total_bytes: u64,
    /// Share of the device's time, per mille.
    pub time_permille: u32,
    /// Priority of the tenant among those of the device.
    pub priority: u32,
    /// Switches for the hook.
    pub flags: u32,
    /// How the partition is enforced.
    pub mechanism: u32,
    /// The tenant's name: UTF-8, ended and filled up by zero bytes.
    pub name: [u8; NAME_BYTES_MAX + 1],
    /// Physical number of each logical TPC; entries from `tpc_count` on are unused.
    pub physical_of_logical: [u16; 256],
    /// GPC of each logical TPC; entries from `tpc_count` on are unused.
    pub gpc_of_logical: [u8; 256],
}

impl Default for Limits {
    /// No device, no name, no limit: a start to fill in. It does not pass [`Limits::check`] as it is.
    fn default() -> Self {
        Self {
            gpu_uuid: [0; 16],
            device_class: 0,
            qmd_version: 0,
            sms_per_tpc: 0,
            tpc_count: 0,
            set: [0; 4],
            qmd_disable: [0; 8],
            max_cluster_sms: 0,
            memory_quota_bytes: NO_QUOTA,
            memory_total_bytes: 0,
            time_permille: 1000,
            priority: 0,
            flags: 0,
            mechanism: 0,
            name: [0; NAME_BYTES_MAX + 1],
            physical_of_logical: [0; 256],
            gpc_of_logical: [0; 256],
        }
    }
}

impl Limits {
    /// The name in the form of the `name` field.
    ///
    /// # Errors
    /// [`LimitsFault::Name`] if it is longer than [`NAME_BYTES_MAX`] or holds a zero byte.
    pub fn name_field(name: &str) -> Result<[u8; NAME_BYTES_MAX + 1], LimitsFault> {
        let mut field = [0; NAME_BYTES_MAX + 1];
        if name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return Err(LimitsFault::Name);
        }
        field[..name.len()].copy_from_slice(name.as_bytes());
        Ok(field)
    }

    /// The tenant's name; empty if the field holds none, which [`Limits::check`] refuses.
    pub fn name(&self) -> &str {
        CStr::from_bytes_until_nul(&self.name).ok().and_then(|name| name.to_str().ok()).unwrap_or("")
    }

    /// Checks what no tenant can have. Every file is written and read through this.
    ///
    /// # Errors
    /// The first fault that is found.
    pub fn check(&self) -> Result<(), LimitsFault> {
        if !(1..=256).contains(&self.tpc_count) {
            return Err(LimitsFault::TpcCount(self.tpc_count));
        }
        if self.sms_per_tpc == 0 {
            return Err(LimitsFault::SmsPerTpc);
        }
        if let Some(word) = (0..4).rev().find(|&i| self.set[i] != 0) {
            let tpc = word as u32 * 64 + 63 - self.set[word].leading_zeros();
            if tpc >= self.tpc_count {
                return Err(LimitsFault::SetBeyondDevice { tpc, tpc_count: self.tpc_count });
            }
        }
        for (tpc, &physical) in (0..self.tpc_count).zip(&self.physical_of_logical) {
            if physical > 255 {
                return Err(LimitsFault::Physical { tpc, physical });
            }
        }
        if self.time_permille > 1000 {
            return Err(LimitsFault::Time(self.time_permille));
        }
        let (quota, total) = (self.memory_quota_bytes, self.memory_total_bytes);
        if quota != NO_QUOTA && total != 0 && quota > total {
            return Err(LimitsFault::Quota { quota, total });
        }
        match CStr::from_bytes_until_nul(&self.name).map(CStr::to_str) {
            Ok(Ok(_)) => Ok(()),
            _ => Err(LimitsFault::Name),
        }
    }

    /// The limits as they lie in the file. What launches and allocations read comes first.
    fn encode(&self) -> [u64; WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let mut words = [0; WORDS];
        let mut rest = words.iter_mut();
        let mut put = |word| {
            if let Some(cell) = rest.next() {
                *cell = word;
            }
        };
        self.qmd_disable.as_chunks::<2>().0.iter().for_each(|&[low, high]| put(pair(low, high)));
        put(self.memory_quota_bytes);
        put(self.memory_total_bytes);
        self.set.iter().for_each(|&word| put(word));
        self.gpu_uuid.as_chunks::<8>().0.iter().for_each(|&bytes| put(u64::from_le_bytes(bytes)));
        put(pair(self.device_class, u32::from(self.qmd_version)));
        put(pair(self.sms_per_tpc, self.tpc_count));
        put(pair(self.max_cluster_sms, self.mechanism));
        put(pair(self.time_permille, self.priority));
        put(pair(self.flags, 0));
        self.name.as_chunks::<8>().0.iter().for_each(|&bytes| put(u64::from_le_bytes(bytes)));
        for &[a, b, c, d] in self.physical_of_logical.as_chunks::<4>().0 {
            put(u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(d) << 48);
        }
        self.gpc_of_logical.as_chunks::<8>().0.iter().for_each(|&bytes| put(u64::from_le_bytes(bytes)));
        words
    }

    fn decode(words: &[u64; WORDS]) -> Self {
        let mut rest = words.iter().copied();
        let mut get = || rest.next().unwrap_or(0);
        let split = |word: u64| (word as u32, (word >> 32) as u32);
        let mut limits = Self::default();
        limits.qmd_disable.as_chunks_mut::<2>().0.iter_mut().for_each(|to| *to = split(get()).into());
        limits.memory_quota_bytes = get();
        limits.memory_total_bytes = get();
        limits.set.fill_with(&mut get);
        limits.gpu_uuid.as_chunks_mut::<8>().0.iter_mut().for_each(|to| *to = get().to_le_bytes());
        let (device_class, qmd_version) = split(get());
        (limits.device_class, limits.qmd_version) = (device_class, qmd_version as u8);
        (limits.sms_per_tpc, limits.tpc_count) = split(get());
        (limits.max_cluster_sms, limits.mechanism) = split(get());
        (limits.time_permille, limits.priority) = split(get());
        (limits.flags, _) = split(get());
        limits.name.as_chunks_mut::<8>().0.iter_mut().for_each(|to| *to = get().to_le_bytes());
        for to in limits.physical_of_logical.as_chunks_mut::<4>().0 {
            let word = get();
            *to = [word as u16, (word >> 16) as u16, (word >> 32) as u16, (word >> 48) as u16];
        }
        limits.gpc_of_logical.as_chunks_mut::<8>().0.iter_mut().for_each(|to| *to = get().to_le_bytes());
        limits
    }
}

/// One whole version of the limits, checked.
fn load(path: &CStr, buffer: &DoubleBuffer<WORDS>) -> Result<(u64, Limits), LedgerError> {
    let (epoch, words) = buffer.read().ok_or_else(|| LedgerError::new(path, Problem::Busy))?;
    let limits = Limits::decode(&words);
    limits.check().map_err(|fault| LedgerError::new(path, Problem::Limits(fault)))?;
    Ok((epoch, limits))
}

/// The limits file as its owner holds it: writable.
#[derive(Debug)]
pub struct LimitsFile {
    path: alloc::ffi::CString,
    fd: Fd,
    id: FileId,
    mapping: Mapping,
}

impl LimitsFile {
    /// Makes the file with its first limits, at epoch 1. `mode` is the file's permissions (`0o600`, or `0o644` for a tenant under another
    /// account).
    ///
    /// # Errors
    /// [`Problem::Exists`], [`Problem::Limits`], or the system call that failed; then no file is left behind.
    pub fn create(path: &CStr, limits: &Limits, mode: u32) -> Result<Self, LedgerError> {
        limits.check().map_err(|fault| LedgerError::new(path, Problem::Limits(fault)))?;
        let fd = Fd::create(path, LIMITS_FILE_BYTES as u64, mode)?;
        let made = || {
            let id = fd.status(path)?.id;
            Ok((id, Mapping::new(path, &fd, LIMITS_FILE_BYTES, Access::ReadWrite)?))
        };
        let (id, mapping) = made().inspect_err(|_| unlink(path))?;
        let file = Self { path: path.into(), fd, id, mapping };
        file.layout().limits.write(&limits.encode());
        file.layout().header.finish(KIND);
        Ok(file)
    }

    /// Opens an existing file to read and change it.
    ///
    /// # Errors
    /// What is wrong with the file, or the system call that failed.
    pub fn open_rw(path: &CStr) -> Result<Self, LedgerError> {
        let (fd, id) = KIND.open(path, Access::ReadWrite)?;
        let mapping = Mapping::new(path, &fd, LIMITS_FILE_BYTES, Access::ReadWrite)?;
        Ok(Self { path: path.into(), fd, id, mapping })
    }

    fn layout(&self) -> &Layout {
        // SAFETY: the mapping has the size of the file, which is at least that of the layout; the layout is words.
        unsafe { self.mapping.as_ref() }
    }

    /// The current limits and their epoch.
    ///
    /// # Errors
    /// [`Problem::Limits`] if they are impossible, [`Problem::Busy`] if they change all the time.
    pub fn load(&self) -> Result<(u64, Limits), LedgerError> {
        load(&self.path, &self.layout().limits)
    }

    /// Replaces the limits and returns the new epoch. Every process of the tenant obeys them from its next launch or allocation on.
    ///
    /// # Errors
    /// As for [`LimitsFile::update`].
    pub fn store(&mut self, limits: &Limits) -> Result<u64, LedgerError> {
        self.locked(|file| file.publish(limits))
    }

    /// Changes the limits: no other writer's change comes between what `change` is shown and what it leaves. Returns the new epoch.
    ///
    /// # Errors
    /// [`Problem::Limits`] if the limits, as found or as changed, are impossible; [`Problem::Locked`] if another process holds the writers'
    /// lock for longer than writing takes; [`Problem::Replaced`] or [`Problem::Size`] if the file is not any more what was
    /// opened. In each case the limits are unchanged.
    pub fn update(&mut self, change: impl FnOnce(&mut Limits)) -> Result<u64, LedgerError> {
        self.locked(|file| {
            let (_, mut limits) = file.load()?;
            change(&mut limits);
            file.publish(&limits)
        })
    }

    fn publish(&self, limits: &Limits) -> Result<u64, LedgerError> {
        limits.check().map_err(|fault| LedgerError::new(&self.path, Problem::Limits(fault)))?;
        Ok(self.layout().limits.write(&limits.encode()))
    }

    /// Runs `action` under the writers' lock. `&mut`, because two threads with one description would not exclude each other.
    fn locked<T>(&mut self, action: impl FnOnce(&Self) -> Result<T, LedgerError>) -> Result<T, LedgerError> {
        let mut waited_ms = 0;
        while !lock::try_lock(&self.path, &self.fd, 0, LIMITS_FILE_BYTES)? {
            if waited_ms >= LOCK_WAIT_MS_MAX {
                return Err(LedgerError::new(&self.path, Problem::Locked { waited_ms }));
            }
            sleep(Duration::from_millis(1));
            waited_ms += 1;
        }
        let result = self.unchanged_file().and_then(|()| action(self));
        lock::unlock(&self.path, &self.fd, 0, LIMITS_FILE_BYTES)?;
        result
    }

    /// Writing to a mapping past the file's end is a SIGBUS, and writing to a file that was replaced would reach nobody.
    fn unchanged_file(&self) -> Result<(), LedgerError> {
        let (_, id) = KIND.open(&self.path, Access::ReadOnly)?;
        if id == self.id { Ok(()) } else { Err(LedgerError::new(&self.path, Problem::Replaced)) }
    }
}

fn sleep(time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: the argument is read only; a signal may cut the sleep short, which does no harm.
    unsafe { libc::nanosleep(&time, core::ptr::null_mut()) };
}

/// The limits changed during every one of many tries to read them: whoever writes them does it without pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitsBusy;

impl fmt::Display for LimitsBusy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tenant's limits change faster than they can be read; end what rewrites them")
    }
}

impl core::error::Error for LimitsBusy {}

/// The limits file as the tenant holds it: opened `O_RDONLY`, mapped `PROT_READ`, and without a way to write.
#[derive(Debug)]
pub struct LimitsMap {
    path: alloc::ffi::CString,
    mapping: Mapping,
}

impl LimitsMap {
    /// Maps an existing file. No descriptor stays open.
    ///
    /// # Errors
    /// What is wrong with the file, or the system call that failed.
    pub fn open_ro(path: &CStr) -> Result<Self, LedgerError> {
        let (fd, _) = KIND.open(path, Access::ReadOnly)?;
        let mapping = Mapping::new(path, &fd, LIMITS_FILE_BYTES, Access::ReadOnly)?;
        Ok(Self { path: path.into(), mapping })
    }

    #[inline]
    fn limits(&self) -> &DoubleBuffer<WORDS> {
        // SAFETY: the mapping has the size of the file, which is at least that of the layout; the layout is words, and reading a
        // double buffer only peeks.
        let layout: &Layout = unsafe { self.mapping.as_ref() };
        &layout.limits
    }

    /// The number of the current version; one more after each change. A caller that keeps what it derived from an epoch needs to
    /// read again only when this differs. One load from memory.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.limits().epoch()
    }

    /// The current limits and their epoch.
    ///
    /// # Errors
    /// [`Problem::Limits`] if they are impossible, [`Problem::Busy`] if they change all the time.
    pub fn load(&self) -> Result<(u64, Limits), LedgerError> {
        load(&self.path, self.limits())
    }

    /// The current disable mask (physical numbering, a set bit disables) and its epoch: the read of the launch path. No
    /// allocation, lock or system call, and six loads from two cache lines.
    ///
    /// # Errors
    /// [`LimitsBusy`] if the limits were replaced during each of 64 tries of a few nanoseconds. A writer cannot be as fast as
    /// that; if it happens, something is wrong with the owner, and the caller must refuse the launch or keep to the last mask it has
    /// read, not go without.
    #[inline]
    pub fn disable_words(&self) -> Result<(u64, [u32; 8]), LimitsBusy> {
        let (epoch, [a, b, c, d]) = self.limits().read::<4>().ok_or(LimitsBusy)?;
        let words = [a, b, c, d].map(|word| [word as u32, (word >> 32) as u32]);
        let [[w0, w1], [w2, w3], [w4, w5], [w6, w7]] = words;
        Ok((epoch, [w0, w1, w2, w3, w4, w5, w6, w7]))
    }

    /// The memory quota ([`NO_QUOTA`] for none) and the device's memory, in bytes. As cheap as [`LimitsMap::disable_words`].
    ///
    /// # Errors
    /// [`LimitsBusy`], as for [`LimitsMap::disable_words`].
    #[inline]
    pub fn memory_bytes(&self) -> Result<(u64, u64), LimitsBusy> {
        let (_, [.., quota, total]) = self.limits().read::<6>().ok_or(LimitsBusy)?;
        Ok((quota, total))
    }
}
