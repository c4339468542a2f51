//! Errors of ledger files: each names the file, the reason and the remedy.

use alloc::ffi::CString;
use core::ffi::CStr;
use core::fmt;

/// An unusable ledger file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerError {
    path: CString,
    problem: Problem,
}

impl LedgerError {
    /// The problem of a file.
    pub fn new(path: &CStr, problem: Problem) -> Self {
        Self { path: path.into(), problem }
    }

    /// The file.
    pub fn path(&self) -> &CStr {
        &self.path
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Whether the file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self.problem(), Problem::System { errno: libc::ENOENT, .. })
    }
}

/// The problem of a ledger file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// A system call failed.
    System {
        /// The call.
        call: &'static str,
        /// Its `errno`.
        errno: i32,
    },
    /// The file to create exists already.
    Exists,
    /// It is a directory, pipe, device or symbolic link.
    NotAFile,
    /// It does not start with the magic bytes of this kind of file.
    Foreign {
        /// Its first eight bytes.
        found: [u8; 8],
        /// The expected bytes.
        expected: [u8; 8],
    },
    /// A Partita with another layout wrote it.
    Version {
        /// The version in the file.
        found: u32,
        /// The version that this Partita reads and writes.
        expected: u32,
    },
    /// It is shorter or longer than its layout.
    Size {
        /// Its size in bytes.
        found: u64,
        /// The size of its layout in bytes.
        expected: u64,
    },
    /// The size in its header differs from that of its layout.
    HeaderSize {
        /// The size in the header, in bytes.
        found: u32,
        /// The size of its layout in bytes.
        expected: u32,
    },
    /// The path leads to another file than the mapped one.
    Replaced,
    /// The program has closed the descriptor that holds the locks, which it did not open.
    Closed,
    /// A limit is impossible.
    Limits(LimitsFault),
    /// The limits changed during each of many attempts to read them.
    Busy,
    /// Another process held the writers' lock for longer than a write can take.
    Locked {
        /// How long this process waited, in milliseconds.
        waited_ms: u32,
    },
    /// Living processes hold all slots.
    Full {
        /// The number of slots.
        slots: usize,
    },
    /// Its words are out of range, or another program rewrites them without pause.
    Damaged,
    /// An owner with a process number of 0 or below.
    BadOwner {
        /// The process number.
        pid: i32,
    },
}

/// An impossible limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitsFault {
    /// The device has no TPC, or more than a mask has bits.
    TpcCount(u32),
    /// A TPC has no SM.
    SmsPerTpc,
    /// The device does not have an enabled TPC.
    SetBeyondDevice {
        /// The highest enabled TPC.
        tpc: u32,
        /// The number of TPCs of the device.
        tpc_count: u32,
    },
    /// It may borrow up to more TPCs than there are.
    Borrows {
        /// How many it may use.
        tpcs: u64,
        /// The number of TPCs of the device.
        tpc_count: u32,
    },
    /// A TPC's physical number has no bit in a mask.
    Physical {
        /// The logical number.
        tpc: u32,
        /// The physical number.
        physical: u16,
    },
    /// A time share above 1000 ‰.
    Time(u32),
    /// A quota above the device's memory.
    Quota {
        /// The quota in bytes.
        quota: u64,
        /// The device's memory in bytes.
        total: u64,
    },
    /// The name is not UTF-8 with a zero byte at its end.
    Name,
}

impl fmt::Display for LimitsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TpcCount(count) => write!(f, "a device of {count} TPCs, where 1 to 256 are possible"),
            Self::SmsPerTpc => write!(f, "TPCs without an SM"),
            Self::Borrows { tpcs, tpc_count } => {
                write!(f, "it may use up to {tpcs} TPCs, and the device has {tpc_count}")
            }
            Self::SetBeyondDevice { tpc, tpc_count } => {
                write!(
                    f,
                    "TPC {tpc} is enabled, but the device's TPCs are 0 to {}",
                    tpc_count.saturating_sub(1)
                )
            }
            Self::Physical { tpc, physical } => {
                write!(f, "TPC {tpc} has physical number {physical}, but a mask has bits 0 to 255")
            }
            Self::Time(permille) => write!(f, "a time share of {permille} per mille, above 1000"),
            Self::Quota { quota, total } => {
                write!(f, "a memory quota of {quota} bytes, above the device's {total} bytes")
            }
            Self::Name => write!(f, "a tenant name that is not UTF-8 of at most 63 bytes"),
        }
    }
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.to_string_lossy())?;
        match &self.problem {
            Problem::System { call, errno } => {
                write!(f, "{call} failed: {}", Errno(*errno))?;
                f.write_str(match *errno {
                    libc::ENOENT => "; the tenant is gone or was never made: start it with `partita run`",
                    libc::EACCES | libc::EPERM => {
                        "; use the account that started the tenant, or give this one access to its directory"
                    }
                    libc::ENOSPC | libc::EDQUOT => "; free space on that file system",
                    libc::EMFILE | libc::ENFILE => "; raise the limit on open files (`ulimit -n`)",
                    libc::ENOLCK | libc::EINVAL | libc::EOPNOTSUPP => {
                        "; keep the tenant's directory on a local file system, such as /dev/shm"
                    }
                    _ => "",
                })
            }
            Problem::Exists => {
                write!(f, "exists already; choose another tenant name, or remove what a tenant left there")
            }
            Problem::NotAFile => write!(f, "is not a regular file; remove it and start the tenant again"),
            Problem::Foreign { found: [0, 0, 0, 0, 0, 0, 0, 0], .. } => {
                write!(
                    f,
                    "is incomplete: the process that made it ended too early; remove it and start the \
                     tenant again"
                )
            }
            Problem::Foreign { found, expected } => write!(
                f,
                "is not a ledger file: it begins with \"{}\", not \"{}\"; remove it and start the tenant \
                 again",
                found.escape_ascii(),
                expected.escape_ascii()
            ),
            Problem::Version { found, expected } => write!(
                f,
                "has layout version {found}, this Partita has {expected}; use the `partita` and libpartita.so of one \
                 release, or start the tenant again"
            ),
            Problem::Size { found, expected } => write!(
                f,
                "is {found} bytes long instead of {expected}: truncated or foreign; remove it and start the tenant again"
            ),
            Problem::HeaderSize { found, expected } => write!(
                f,
                "has {found} as its size in the header instead of {expected}: damaged; remove it and start \
                 the tenant again"
            ),
            Problem::Replaced => {
                write!(f, "was replaced while it was in use; end the tenant's processes and start it again")
            }
            Problem::Closed => f.write_str(
                "cannot be locked: this program has closed a descriptor that it did not open; start the \
                 GPU's work before that, or close only the program's own descriptors",
            ),
            Problem::Limits(fault) => {
                write!(f, "holds {fault}; correct it with `partita set`, or start the tenant again")
            }
            Problem::Busy => {
                write!(f, "changes faster than it can be read; stop the program that rewrites it")
            }
            Problem::Locked { waited_ms } => write!(
                f,
                "another process has held its lock for {waited_ms} ms; end that process (/proc/locks lists it)"
            ),
            Problem::Full { slots } => {
                write!(
                    f,
                    "all {slots} slots are held by living processes; end some of the tenant's processes"
                )
            }
            Problem::Damaged => {
                write!(f, "was damaged from outside; end the tenant's processes and start it again")
            }
            Problem::BadOwner { pid } => {
                write!(f, "process number {pid} cannot own a slot; pass the caller's own number")
            }
        }
    }
}

impl core::error::Error for LedgerError {}

/// An `errno`, shown in the words of the C library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The calling thread's `errno`.
    pub fn last() -> Self {
        // SAFETY: the location is the calling thread's own and always valid.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0u8; 128];
        // SAFETY: the buffer is writable for the length that is passed.
        let failed = unsafe { libc::strerror_r(self.0, text.as_mut_ptr().cast(), text.len()) } != 0;
        match CStr::from_bytes_until_nul(&text) {
            Ok(text) if !failed => write!(f, "{} (errno {})", text.to_string_lossy(), self.0),
            _ => write!(f, "errno {}", self.0),
        }
    }
}
