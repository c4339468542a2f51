//! A file that is mapped for writing and locked by its description: the base of every map of this
//! crate.

use core::ffi::{CStr, c_int};

use crate::error::{LedgerError, Problem};
use crate::file::{Access, At, Fd, FileId, Mapping, Place, unlink};
use crate::header::Kind;
use crate::lock::{self, Byte};

/// A whole file, mapped, and its descriptor.
#[derive(Debug)]
pub struct MappedFile {
    /// The path at `open`.
    pub place: Place,
    id: FileId,
    /// Held beside the mapping: on some file systems (overlayfs) a mapping alone does not keep a
    /// lock.
    fd: Fd,
    mapping: Mapping,
    kind: Kind,
}

impl MappedFile {
    /// Creates a file of this kind, all zero, and maps it;
    /// [`Header::finish`](crate::header::Header::finish) completes it. `mode` is its permissions.
    /// An error removes the file.
    pub fn create(kind: Kind, at: At<'_>, mode: u32) -> Result<Self, LedgerError> {
        let fd = Fd::create(at, u64::from(kind.bytes), mode)?;
        let id = fd.status(at.path).map(|status| status.id);
        id.and_then(|id| Self::map(kind, at, fd, id)).inspect_err(|_| unlink(at))
    }

    /// Opens a complete file of this kind and maps it.
    pub fn open(kind: Kind, at: At<'_>) -> Result<Self, LedgerError> {
        let (fd, id) = kind.open(at, Access::ReadWrite)?;
        Self::map(kind, at, fd, id)
    }

    fn map(kind: Kind, at: At<'_>, fd: Fd, id: FileId) -> Result<Self, LedgerError> {
        let mapping = Mapping::new(at.path, &fd, kind.bytes as usize, Access::ReadWrite)?;
        Ok(Self { place: Place::of(at)?, id, fd, mapping, kind })
    }

    /// The path at `open`, for messages.
    pub fn path(&self) -> &CStr {
        &self.place.path
    }

    /// The descriptor that holds this map's locks.
    ///
    /// # Errors
    /// [`Problem::Closed`]: a program that closes descriptors which it does not know may have
    /// reused the number, and would find locks on a file of its own.
    fn held(&self) -> Result<&Fd, LedgerError> {
        if self.fd.is(self.id) { Ok(&self.fd) } else { Err(LedgerError::new(self.path(), Problem::Closed)) }
    }

    /// Locks a range for this map's description alone; false, without waiting, if another holds any
    /// byte of it.
    ///
    /// # Errors
    /// [`Problem::Closed`], or the failed system call.
    pub fn try_lock(&self, start: usize, bytes: usize) -> Result<bool, LedgerError> {
        lock::try_lock(self.path(), self.held()?, start, bytes)
    }

    /// Locks a range together with others that do the same; false, without waiting, if another
    /// description holds any byte of it alone.
    ///
    /// # Errors
    /// [`Problem::Closed`], or the failed system call.
    pub fn try_lock_shared(&self, start: usize, bytes: usize) -> Result<bool, LedgerError> {
        lock::try_lock_shared(self.path(), self.held()?, start, bytes)
    }

    /// Releases a lock of this map's description.
    ///
    /// # Errors
    /// [`Problem::Closed`], or the failed system call.
    pub fn unlock(&self, start: usize, bytes: usize) -> Result<(), LedgerError> {
        lock::unlock(self.path(), self.held()?, start, bytes)
    }

    /// Whether another description holds any byte of a range.
    ///
    /// # Errors
    /// [`Problem::Closed`], or the failed system call.
    pub fn is_locked(&self, start: usize, bytes: usize) -> Result<bool, LedgerError> {
        lock::is_locked(self.path(), self.held()?, start, bytes)
    }

    /// Takes a byte that excludes others, as [`Byte::take`] does.
    pub(crate) fn byte(&self, offset: usize) -> Option<Byte<'_>> {
        Byte::take(self.path(), self.held().ok()?, offset)
    }

    /// The number of the descriptor that holds this map's locks.
    pub fn descriptor(&self) -> c_int {
        self.fd.raw()
    }

    /// A second description of the same file: locks exclude descriptions from each other, not
    /// threads.
    ///
    /// # Errors
    /// [`Problem::Replaced`] if the path leads to another file by now, or the file's problem.
    pub fn reopened(&self, access: Access) -> Result<Fd, LedgerError> {
        let (fd, id) = self.kind.open(self.place.at(), access)?;
        if id == self.id { Ok(fd) } else { Err(LedgerError::new(self.path(), Problem::Replaced)) }
    }

    /// The file's number in its file system.
    pub fn inode(&self) -> u64 {
        self.id.inode()
    }

    /// The start of the mapping as a `T`.
    ///
    /// # Safety
    /// `T` consists of [`Word`](crate::sync::Word)s and unused padding only, is no larger than the
    /// file and has at most a page's alignment.
    #[inline]
    pub unsafe fn as_ref<T>(&self) -> &T {
        // SAFETY: the caller guarantees it.
        unsafe { self.mapping.as_ref() }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // As for `held`.
        if !self.fd.is(self.id) {
            self.fd.disown();
        }
    }
}
