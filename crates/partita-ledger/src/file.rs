//! Open, create and map files by plain system calls.

use alloc::ffi::CString;
use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

use crate::error::{Errno, LedgerError, Problem};

/// The place of a file: a path, relative to an open directory or to the working directory.
///
/// Code that has opened a directory and checked its owner names its files by the descriptor: the
/// path of a directory may lead elsewhere a moment later.
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    directory: c_int,
    pub(crate) path: &'a CStr,
}

impl<'a> At<'a> {
    /// A path relative to the directory that `directory` is open on.
    pub fn new(directory: c_int, path: &'a CStr) -> Self {
        Self { directory, path }
    }
}

impl<'a> From<&'a CStr> for At<'a> {
    fn from(path: &'a CStr) -> Self {
        Self { directory: libc::AT_FDCWD, path }
    }
}

impl<'a> From<&'a CString> for At<'a> {
    fn from(path: &'a CString) -> Self {
        path.as_c_str().into()
    }
}

/// An owned place: it keeps its directory open.
#[derive(Debug)]
pub struct Place {
    /// `None` for paths relative to the working directory.
    directory: Option<Fd>,
    pub path: CString,
}

impl Place {
    pub fn of(at: At<'_>) -> Result<Self, LedgerError> {
        let directory = match at.directory {
            libc::AT_FDCWD => None,
            // SAFETY: a plain system call.
            number => match unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) } {
                copy if copy >= 0 => Some(Fd(copy)),
                _ => return Err(failed(at.path, "fcntl(F_DUPFD_CLOEXEC)")),
            },
        };
        Ok(Self { directory, path: at.path.into() })
    }

    pub fn at(&self) -> At<'_> {
        self.beside(&self.path)
    }

    /// Another path relative to the same directory.
    pub fn beside<'a>(&self, path: &'a CStr) -> At<'a> {
        At { directory: self.directory.as_ref().map_or(libc::AT_FDCWD, Fd::raw), path }
    }
}

/// An open file; closed when dropped.
#[derive(Debug)]
pub struct Fd(c_int);

/// The identity of a file, whatever its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Its number in its file system.
    pub fn inode(self) -> u64 {
        self.inode
    }
}

/// The result of `fstat`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Status {
    pub id: FileId,
    pub bytes: u64,
    pub regular: bool,
}

/// Whether a file is opened and mapped for writing too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading.
    ReadOnly,
    /// For reading and writing.
    ReadWrite,
}

pub(crate) fn failed(path: &CStr, call: &'static str) -> LedgerError {
    LedgerError::new(path, Problem::System { call, errno: Errno::last().0 })
}

impl Fd {
    /// Opens an existing file. Does not follow a symbolic link in the last component, and does not
    /// wait for the other end of a pipe.
    pub fn open(at: At<'_>, access: Access) -> Result<Self, LedgerError> {
        let mode = match access {
            Access::ReadOnly => libc::O_RDONLY,
            Access::ReadWrite => libc::O_RDWR,
        };
        match Self::open_raw(at, mode | libc::O_NONBLOCK, 0) {
            Err(e)
                if matches!(
                    e.problem(),
                    Problem::System { errno: libc::ELOOP | libc::ENXIO | libc::EISDIR, .. }
                ) =>
            {
                Err(LedgerError::new(at.path, Problem::NotAFile))
            }
            result => result,
        }
    }

    /// Creates a file of `bytes` zeros with its blocks allocated, so that a full file system is an
    /// error now and not a SIGBUS at a later write. Its permissions are exactly `mode`, whatever
    /// the umask.
    pub fn create(at: At<'_>, bytes: u64, mode: u32) -> Result<Self, LedgerError> {
        let fd = match Self::open_raw(at, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o600) {
            Err(e) if matches!(e.problem(), Problem::System { errno: libc::EEXIST, .. }) => {
                return Err(LedgerError::new(at.path, Problem::Exists));
            }
            result => result?,
        };
        fd.allocate(at.path, bytes, mode).inspect_err(|_| unlink(at))?;
        Ok(fd)
    }

    /// Opens a file that only holds locks, and creates it if it is missing: only its owner can open
    /// it.
    pub fn for_locks(at: At<'_>) -> Result<Self, LedgerError> {
        Self::open_raw(at, libc::O_RDWR | libc::O_CREAT | libc::O_NONBLOCK, 0o600)
    }

    fn allocate(&self, path: &CStr, bytes: u64, mode: u32) -> Result<(), LedgerError> {
        loop {
            // SAFETY: a plain system call on an open descriptor.
            match unsafe { libc::posix_fallocate(self.0, 0, bytes as libc::off_t) } {
                0 => break,
                libc::EINTR => {}
                errno => {
                    return Err(LedgerError::new(path, Problem::System { call: "posix_fallocate", errno }));
                }
            }
        }
        // SAFETY: as above.
        if unsafe { libc::fchmod(self.0, mode as libc::mode_t) } != 0 {
            return Err(failed(path, "fchmod"));
        }
        Ok(())
    }

    fn open_raw(at: At<'_>, flags: c_int, mode: libc::mode_t) -> Result<Self, LedgerError> {
        let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NOCTTY;
        loop {
            // SAFETY: the path is a C string; the mode is passed as the call wants it.
            let fd = unsafe { libc::openat(at.directory, at.path.as_ptr(), flags, mode as libc::c_uint) };
            if fd >= 0 {
                return Ok(Self(fd));
            }
            let error = failed(at.path, "open");
            if !matches!(error.problem(), Problem::System { errno: libc::EINTR, .. }) {
                return Err(error);
            }
        }
    }

    /// The descriptor's number.
    pub fn raw(&self) -> c_int {
        self.0
    }

    pub(crate) fn status(&self, path: &CStr) -> Result<Status, LedgerError> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the buffer is as large as the call wants it.
        if unsafe { libc::fstat(self.0, stat.as_mut_ptr()) } != 0 {
            return Err(failed(path, "fstat"));
        }
        // SAFETY: the call succeeded, so it has filled the buffer.
        let stat = unsafe { stat.assume_init() };
        Ok(Status {
            id: FileId { device: stat.st_dev, inode: stat.st_ino },
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            regular: stat.st_mode & libc::S_IFMT == libc::S_IFREG,
        })
    }

    /// Reads exactly `buffer.len()` bytes at `offset`; false if the file ends before.
    pub fn read_at(&self, path: &CStr, offset: u64, buffer: &mut [u8]) -> Result<bool, LedgerError> {
        let mut done = 0;
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            // SAFETY: `rest` is writable for its length.
            let n = unsafe {
                libc::pread(
                    self.0,
                    rest.as_mut_ptr().cast(),
                    rest.len(),
                    (offset + done as u64) as libc::off_t,
                )
            };
            match n {
                0 => return Ok(false),
                1.. => done += n as usize,
                _ if Errno::last().0 == libc::EINTR => {}
                _ => return Err(failed(path, "pread")),
            }
        }
        Ok(true)
    }

    /// Whether the descriptor is still open on the file `id`. A program that closes descriptors
    /// which it does not know may have reused the number for another file.
    pub fn is(&self, id: FileId) -> bool {
        self.status(c"").is_ok_and(|status| status.id == id)
    }

    /// Forgets the number without closing it.
    pub fn disown(&mut self) {
        self.0 = -1;
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if self.0 >= 0 {
            // SAFETY: the descriptor is owned by this value. The result is of no use: Linux frees
            // the number in any case.
            unsafe { libc::close(self.0) };
        }
    }
}

/// Removes an incomplete file. The caller reports the first error, so this one's is dropped.
pub fn unlink(at: At<'_>) {
    // SAFETY: the path is a C string.
    unsafe { libc::unlinkat(at.directory, at.path.as_ptr(), 0) };
}

/// A shared mapping of a whole file; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory that any thread may use; it contains only atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` bytes of the file; the caller has checked that the file has them.
    pub fn new(path: &CStr, fd: &Fd, bytes: usize, access: Access) -> Result<Self, LedgerError> {
        let protection = match access {
            Access::ReadOnly => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd.raw(), 0) };
        match NonNull::new(base) {
            Some(base) if base.as_ptr() != libc::MAP_FAILED => Ok(Self { base: base.cast(), bytes }),
            _ => Err(failed(path, "mmap")),
        }
    }

    /// The start of the mapping as a `T`.
    ///
    /// # Safety
    /// `T` consists of [`crate::sync::Word`]s and unused padding only, is no larger than the
    /// mapping and has at most a page's alignment; code only peeks at the words of a read-only
    /// mapping.
    #[inline]
    pub unsafe fn as_ref<T>(&self) -> &T {
        debug_assert!(size_of::<T>() <= self.bytes);
        // SAFETY: the caller vouches for size and alignment; any bytes are valid atomics, and other
        // processes' writes to atomics are not a race.
        unsafe { self.base.cast::<T>().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and references into it have ended with the borrow of
        // it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
