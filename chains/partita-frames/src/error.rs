//! Errors of operations on a chain's file.

use alloc::ffi::CString;
use core::ffi::CStr;
use core::fmt;

use partita_ledger::LedgerError;

use crate::fault::ChainFault;

/// An operation on a chain's file failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainError {
    /// The file is unusable.
    File(LedgerError),
    /// The chain refuses the operation.
    Refused {
        /// The file.
        path: CString,
        /// The reason.
        fault: ChainFault,
    },
}

impl ChainError {
    pub(crate) fn refused(path: &CStr, fault: ChainFault) -> Self {
        Self::Refused { path: path.into(), fault }
    }
}

impl From<LedgerError> for ChainError {
    fn from(error: LedgerError) -> Self {
        Self::File(error)
    }
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => write!(f, "{error}"),
            Self::Refused { path, fault } => write!(f, "{}: {fault}", path.to_string_lossy()),
        }
    }
}

impl core::error::Error for ChainError {}
