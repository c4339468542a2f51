//! The first bytes of every file: magic, layout version and size.

use core::ffi::CStr;

use crate::LAYOUT_VERSION;
use crate::error::{LedgerError, Problem};
use crate::file::{Access, At, Fd, FileId};
use crate::sync::{Word, acquire};

/// The layout of the header at the start of a file.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Header {
    magic: Word,
    version_and_bytes: Word,
}

/// The properties of a kind of file.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// The first bytes of the file.
    pub magic: [u8; 8],
    /// Its size in bytes.
    pub bytes: u32,
}

impl Header {
    /// Marks a file as complete: writes the magic last, so that no process uses an incomplete file.
    pub fn finish(&self, kind: Kind) {
        self.version_and_bytes.store(u64::from(LAYOUT_VERSION) | u64::from(kind.bytes) << 32);
        self.magic.store(u64::from_ne_bytes(kind.magic));
    }
}

impl Kind {
    /// Opens a file and checks that it is a complete one of this kind, without mapping it.
    pub fn open(self, at: At<'_>, access: Access) -> Result<(Fd, FileId), LedgerError> {
        let path = at.path;
        let fd = Fd::open(at, access)?;
        let status = fd.status(path)?;
        let wrong = |problem| Err(LedgerError::new(path, problem));
        if !status.regular {
            return wrong(Problem::NotAFile);
        }
        let expected = u64::from(self.bytes);
        let mut head = [0; 16];
        if !fd.read_at(path, 0, &mut head)? {
            return wrong(Problem::Size { found: status.bytes, expected });
        }
        let [m0, m1, m2, m3, m4, m5, m6, m7, v0, v1, v2, v3, s0, s1, s2, s3] = head;
        let found = [m0, m1, m2, m3, m4, m5, m6, m7];
        let version = u32::from_ne_bytes([v0, v1, v2, v3]);
        let bytes = u32::from_ne_bytes([s0, s1, s2, s3]);
        if found != self.magic {
            return wrong(Problem::Foreign { found, expected: self.magic });
        }
        if version != LAYOUT_VERSION {
            return wrong(Problem::Version { found: version, expected: LAYOUT_VERSION });
        }
        if bytes != self.bytes {
            return wrong(Problem::HeaderSize { found: bytes, expected: self.bytes });
        }
        if status.bytes != expected {
            return wrong(Problem::Size { found: status.bytes, expected });
        }
        // The creator stored the magic last, with release ordering.
        acquire();
        Ok((fd, status.id))
    }

    /// Reads from a file of this kind without mapping it, so that truncation meanwhile is an error
    /// and not a SIGBUS.
    pub fn read(self, path: &CStr, fd: &Fd, offset: usize, bytes: &mut [u8]) -> Result<(), LedgerError> {
        if fd.read_at(path, offset as u64, bytes)? {
            return Ok(());
        }
        let found = fd.status(path)?.bytes;
        Err(LedgerError::new(path, Problem::Size { found, expected: self.bytes.into() }))
    }

    /// As [`Kind::read`], for words.
    pub fn read_words<const N: usize>(
        self,
        path: &CStr,
        fd: &Fd,
        offset: usize,
    ) -> Result<[u64; N], LedgerError> {
        let mut words = [[0; 8]; N];
        self.read(path, fd, offset, words.as_flattened_mut())?;
        Ok(words.map(u64::from_ne_bytes))
    }
}
