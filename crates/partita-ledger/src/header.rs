//! The first bytes of every file: magic, layout version and size.

use core::ffi::CStr;

use crate::LAYOUT_VERSION;
use crate::error::{LedgerError, Problem};
use crate::file::{Access, Fd, FileId, Mapping, unlink};
use crate::sync::{Word, acquire};

/// The header as it lies at the start of a file.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Header {
    magic: Word,
    version_and_bytes: Word,
}

/// What tells one kind of file from another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) magic: [u8; 8],
    pub(crate) bytes: u32,
}

impl Header {
    /// Marks a file as complete: the magic comes last, so that nobody takes a half-made file for a whole one.
    pub(crate) fn finish(&self, kind: Kind) {
        self.version_and_bytes.store(u64::from(LAYOUT_VERSION) | u64::from(kind.bytes) << 32);
        self.magic.store(u64::from_ne_bytes(kind.magic));
    }
}

impl Kind {
    /// Makes a file of this kind, all zero, and maps it; [`Header::finish`] completes it. `mode` is its permissions. On an error no file is
    /// left behind.
    pub(crate) fn create(self, path: &CStr, mode: u32) -> Result<(Fd, FileId, Mapping), LedgerError> {
        let fd = Fd::create(path, u64::from(self.bytes), mode)?;
        let made = || {
            let id = fd.status(path)?.id;
            Ok((id, Mapping::new(path, &fd, self.bytes as usize, Access::ReadWrite)?))
        };
        let (id, mapping) = made().inspect_err(|_| unlink(path))?;
        Ok((fd, id, mapping))
    }

    /// Opens a complete file of this kind and maps it, to read and write.
    pub(crate) fn map(self, path: &CStr) -> Result<(Fd, FileId, Mapping), LedgerError> {
        let (fd, id) = self.open(path, Access::ReadWrite)?;
        let mapping = Mapping::new(path, &fd, self.bytes as usize, Access::ReadWrite)?;
        Ok((fd, id, mapping))
    }

    /// Opens a file and checks that it is a complete one of this kind, without mapping it.
    pub(crate) fn open(self, path: &CStr, access: Access) -> Result<(Fd, FileId), LedgerError> {
        let fd = Fd::open(path, access)?;
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
        // The magic was stored last with release ordering.
        acquire();
        Ok((fd, status.id))
    }
}
