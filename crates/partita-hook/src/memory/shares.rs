//! Memory that several processes of the tenant hold: charged to one account that they share.
//!
//! How two processes know that they mean the same memory: a legacy handle (`CUipcMemHandle`) and a
//! fabric handle are bytes that are the same for both. A file descriptor does not identify the
//! memory behind it, so the exporting process marks it: with a lock on the open file description,
//! which is sent with the descriptor, conflicts with no other lock, and is listed in
//! `/proc/self/fdinfo` of every holder. The lock's start is a random number and its length the
//! memory's size. A descriptor without a mark comes from a process without the hook; its memory is
//! charged when it is mapped.

use core::ffi::{CStr, c_int};

use hashbrown::HashMap;
use partita_abi::CuResult;
use partita_ledger::mutex::{Guard, Mutex};
use partita_ledger::{AccountError, Key, Share};

use crate::account::gpu::{Account, Charge, Gpu};
use crate::account::tenant::Tenant;
use crate::sys::fork::{in_child, renew};

/// The first word of the keys of marked descriptors.
const OF_DESCRIPTOR: u64 = u64::from_le_bytes(*b"descript");
/// Bits of a mark's random number, above those of the size: an offset in a file is below 2^63.
const MARK_BITS: u32 = 62;

/// This process's shares, and how often it holds each.
struct Shares {
    held: Option<HashMap<(u8, Key), (Share, u32)>>,
}

static SHARES: Mutex<Shares> = Mutex::new(Shares::new());

// Forgets the parent's.
in_child! {
    renew(&SHARES, Shares::new());
}

/// The process's shares, locked.
fn lock() -> Guard<'static, Shares> {
    SHARES.lock()
}

impl Shares {
    /// None.
    const fn new() -> Self {
        Self { held: None }
    }
}

/// The key of memory that is known by bytes which all of its processes have.
pub fn key_of_bytes(bytes: &[u8]) -> Key {
    // FNV-1a, twice from different starts: the bytes are the driver's, and hold a random secret.
    let hash = |start: u64| {
        bytes.iter().fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    };
    Key([hash(0xcbf2_9ce4_8422_2325) | 1, hash(0x84bd_25a1_6c2f_9e37)])
}

/// The mark of a descriptor: the key and the size of the memory behind it.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    number: u64,
    /// Bytes of device memory.
    pub bytes: u64,
}

impl Mark {
    /// A new one.
    pub fn new(bytes: u64) -> Option<Self> {
        let mut number = 0u64;
        // SAFETY: room for as many bytes as said.
        let got = unsafe { libc::getrandom((&raw mut number).cast(), size_of::<u64>(), 0) };
        let number = number >> (u64::BITS - MARK_BITS) | 1;
        (got == size_of::<u64>() as isize && bytes > 0 && bytes < 1 << MARK_BITS)
            .then_some(Self { number, bytes })
    }

    /// The mark of memory that has a key of marks already.
    pub fn again(key: Key, bytes: u64) -> Option<Self> {
        let Key([kind, number]) = key;
        (kind == OF_DESCRIPTOR).then_some(Self { number, bytes })
    }

    /// The key of the memory that it marks.
    pub fn key(&self) -> Key {
        Key([OF_DESCRIPTOR, self.number])
    }

    /// Marks a descriptor; false if its file takes no lock.
    pub fn put_on(&self, descriptor: c_int) -> bool {
        // SAFETY: numbers only, for which zero is a value; the process number must be zero here.
        let mut lock: libc::flock = unsafe { core::mem::zeroed() };
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        lock.l_start = self.number as libc::off_t;
        lock.l_len = self.bytes as libc::off_t;
        // One kind needs a descriptor to read by, the other one to write by. Random ranges do not
        // meet.
        [libc::F_RDLCK, libc::F_WRLCK].into_iter().any(|kind| {
            lock.l_type = kind as libc::c_short;
            // SAFETY: the argument is the structure that this command reads.
            unsafe { libc::fcntl(descriptor, libc::F_OFD_SETLK, &lock) == 0 }
        })
    }

    /// The mark of a descriptor, if it has one.
    pub fn of(descriptor: c_int) -> Option<Self> {
        let mut text = [0u8; 2048];
        let mut path = [0u8; 48];
        let mut writer = Line { bytes: &mut path, length: 0 };
        core::fmt::write(&mut writer, format_args!("/proc/self/fdinfo/{descriptor}\0")).ok()?;
        let path = CStr::from_bytes_until_nul(&path).ok()?;
        // SAFETY: a valid path and a buffer of the length that is passed.
        let read = unsafe {
            let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            if file < 0 {
                return None;
            }
            let read = libc::read(file, text.as_mut_ptr().cast(), text.len());
            libc::close(file);
            read
        };
        core::str::from_utf8(text.get(..usize::try_from(read).ok()?)?).ok()?.lines().find_map(Self::of_line)
    }

    /// The mark that a line of `fdinfo` shows, such as
    /// `lock: 1: OFDLCK  ADVISORY  READ -1 00:05:1 START END`.
    fn of_line(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("lock:")?.split_ascii_whitespace().skip(1);
        let is_ours = words.next()? == "OFDLCK" && words.next()? == "ADVISORY";
        let (start, end) = (words.nth(3)?, words.next()?);
        let (start, end): (u64, u64) = (start.parse().ok()?, end.parse().ok()?);
        let bytes = end.checked_sub(start)?.checked_add(1)?;
        is_ours.then_some(Self { number: start, bytes })
    }
}

struct Line<'b> {
    bytes: &'b mut [u8],
    length: usize,
}

impl core::fmt::Write for Line<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(core::fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// Moves a charge of this process to an account shared under `key`. It stays this process's own if
/// the ledger has no room for another shared memory.
pub fn share(tenant: &Tenant, charge: Charge, key: Key) -> Charge {
    let Some(gpu) = tenant.gpu(charge.gpu) else { return charge };
    if charge.account != Account::Own || charge.bytes == 0 {
        return charge;
    }
    let mut shares = lock();
    let held = shares.held.get_or_insert_default();
    if held.contains_key(&(charge.gpu, key)) {
        return charge;
    }
    match gpu.slot.share(key, charge.bytes) {
        Ok(Some(share)) => {
            held.insert((charge.gpu, key), (share, 1));
            Charge { account: Account::Shared(key), ..charge }
        }
        Ok(None) | Err(_) => charge,
    }
}

/// Charges `bytes` of memory that comes from another process, if no process of the tenant holds
/// it.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY`; the caller words it as its call documents.
pub fn join(gpu: &Gpu, key: Key, bytes: u64) -> Result<Charge, CuResult> {
    let charge = Charge { gpu: gpu.index, bytes, account: Account::Shared(key) };
    let mut shares = lock();
    let held = shares.held.get_or_insert_default();
    if let Some((_, count)) = held.get_mut(&(gpu.index, key)) {
        *count += 1;
        return Ok(charge);
    }
    let take = |quota_bytes| gpu.slot.join_or_reserve(key, bytes, quota_bytes);
    match gpu.within_quota(take, |share| share.into_iter().for_each(|share| gpu.slot.leave(share))) {
        Ok(Some(share)) => {
            held.insert((gpu.index, key), (share, 1));
            Ok(charge)
        }
        // Without room for another shared memory it is charged to each of its processes: too
        // much, not too little.
        Ok(None) if gpu.reserve(bytes) => Ok(Charge { account: Account::Own, ..charge }),
        Ok(None) | Err(AccountError::OverQuota { .. }) => Err(CuResult::OUT_OF_MEMORY),
        Err(_) => Err(CuResult::OUT_OF_MEMORY),
    }
}

/// Gives up one hold of a share.
pub fn leave(gpu: &Gpu, key: Key) {
    let mut shares = lock();
    let held = shares.held.get_or_insert_default();
    let Some((_, count)) = held.get_mut(&(gpu.index, key)) else { return };
    *count -= 1;
    if *count == 0
        && let Some((share, _)) = held.remove(&(gpu.index, key))
    {
        gpu.slot.leave(share);
    }
}
