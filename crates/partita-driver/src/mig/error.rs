//! Errors of NVML's calls for MIG.

use alloc::string::String;
use core::fmt;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MigError {
    /// The library cannot be loaded.
    Load(String),
    /// The library is too old for MIG.
    MissingSymbol(&'static str),
    /// A call failed with a code of `nvmlReturn_t`.
    Call {
        /// The function.
        name: &'static str,
        /// The code.
        code: u32,
    },
    /// NVML's answers contradict each other, or are no text.
    Answer(String),
}

/// The codes that have a remedy of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigFailure {
    /// Not on this device, or not while MIG is off.
    NotSupported,
    /// Only root may do this.
    NoPermission,
    /// A process uses the instance, or the GPU.
    InUse,
    /// The place is taken, or there are too many.
    NoRoom,
    /// Anything else.
    Other,
}

impl MigError {
    /// Its kind.
    #[must_use]
    pub fn failure(&self) -> MigFailure {
        match self {
            Self::Call { code: NOT_SUPPORTED, .. } => MigFailure::NotSupported,
            Self::Call { code: NO_PERMISSION, .. } => MigFailure::NoPermission,
            Self::Call { code: IN_USE, .. } => MigFailure::InUse,
            Self::Call { code: INSUFFICIENT_RESOURCES, .. } => MigFailure::NoRoom,
            _ => MigFailure::Other,
        }
    }
}

// `nvmlReturn_t`.
pub(super) const INVALID_ARGUMENT: u32 = 2;
pub(super) const NOT_SUPPORTED: u32 = 3;
const NO_PERMISSION: u32 = 4;
pub(super) const NOT_FOUND: u32 = 6;
pub(super) const INSUFFICIENT_SIZE: u32 = 7;
const IN_USE: u32 = 19;
const INSUFFICIENT_RESOURCES: u32 = 23;

fn words(code: u32) -> &'static str {
    match code {
        1 => "not initialised",
        INVALID_ARGUMENT => "invalid argument",
        NOT_SUPPORTED => "not supported",
        NO_PERMISSION => "insufficient permissions",
        NOT_FOUND => "not found",
        INSUFFICIENT_SIZE => "insufficient size",
        9 => "the driver is not loaded",
        15 => "the GPU is lost",
        16 => "the GPU requires a reset",
        18 => "the libraries and the kernel module are of different versions",
        IN_USE => "in use by another client",
        INSUFFICIENT_RESOURCES => "insufficient resources",
        25 => "argument version mismatch",
        _ => "an error of NVML",
    }
}

impl fmt::Display for MigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(reason) => write!(f, "libnvidia-ml.so.1: {reason}"),
            Self::MissingSymbol(name) => {
                write!(f, "libnvidia-ml.so.1 has no {name}; it takes a driver from 525 on")
            }
            Self::Call { name, code } => write!(f, "{name}: {} (code {code})", words(*code)),
            Self::Answer(reason) => write!(f, "NVML: {reason}"),
        }
    }
}

impl core::error::Error for MigError {}
