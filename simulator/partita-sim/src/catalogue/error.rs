//! Errors of device names and device files.

use core::fmt;

use super::{NAMES, SEED};

/// Why a name has no device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no device with this name.
    Unknown(UnknownDevice),
    /// The text after `?seed=` is not a number.
    Seed {
        /// The requested name.
        name: String,
    },
    /// A device file is invalid.
    File(FileError),
}

/// No device of that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDevice {
    /// The requested name.
    pub name: String,
}

/// The fault of a device file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    pub file: String,
    /// The fault: the field or line, and the accepted values.
    pub reason: String,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(error) => error.fmt(f),
            Self::Seed { name } => {
                write!(
                    f,
                    "'{name}' names no board: behind {SEED} a number from 0 to {} is accepted",
                    u64::MAX
                )
            }
            Self::File(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for DeviceError {}

impl From<UnknownDevice> for DeviceError {
    fn from(error: UnknownDevice) -> Self {
        Self::Unknown(error)
    }
}

impl From<FileError> for DeviceError {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

impl fmt::Display for UnknownDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no simulated device is called '{}'; known are", self.name)?;
        for (i, name) in NAMES.iter().enumerate() {
            write!(f, "{} sim:{name}", if i == 0 { "" } else { "," })?;
        }
        f.write_str(", and the path of a device file, as sim:/path/to/device.toml")
    }
}

impl core::error::Error for UnknownDevice {}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.reason)
    }
}

impl core::error::Error for FileError {}
