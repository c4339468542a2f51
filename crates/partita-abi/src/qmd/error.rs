//! Why a launch descriptor cannot be read or written.

use core::fmt;

use super::{LaunchShape, QmdClass, QmdVersion};

/// Why a launch descriptor cannot be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QmdError {
    /// No compute class is known for the GPU.
    UnknownCapability {
        /// Major × 10 + minor.
        compute_capability: u32,
    },
    /// The descriptor has a version of its class without a TPC mask.
    NoMask {
        /// Major × 10 + minor.
        compute_capability: u32,
        /// The GPU's class.
        class: &'static QmdClass,
        /// The descriptor's version.
        version: QmdVersion,
    },
    /// The version byte is not one that the class's header defines.
    UnexpectedVersion {
        /// Major × 10 + minor.
        compute_capability: u32,
        /// The GPU's class.
        class: &'static QmdClass,
        /// The byte that was read.
        version_byte: u8,
    },
    /// The class has its version in one of two places, and the bytes there do not match exactly one
    /// of its versions.
    UnclearVersion {
        /// Major × 10 + minor.
        compute_capability: u32,
        /// The GPU's class.
        class: &'static QmdClass,
        /// The version byte of V04 (72).
        byte_72: u8,
        /// The version byte of V05 (58).
        byte_58: u8,
    },
    /// The descriptor launches no blocks.
    NotAGrid {
        /// The version of the layout.
        version: QmdVersion,
        /// Its `QMD_TYPE`.
        kind: u32,
    },
    /// This version cannot represent a launch of this shape.
    ShapeDoesNotFit {
        /// The version of the layout.
        version: QmdVersion,
        /// The shape.
        shape: LaunchShape,
    },
    /// This version cannot represent code at this address.
    ProgramDoesNotFit {
        /// The version of the layout.
        version: QmdVersion,
        /// The address, or offset.
        address: u64,
    },
    /// The image is shorter than a descriptor of its version.
    ImageTooShort {
        /// The version of the layout.
        version: QmdVersion,
        /// Length of the image, in 32-bit words.
        words: usize,
    },
}

/// Prints a compute capability as `9.0`.
struct Capability(u32);

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 10, self.0 % 10)
    }
}

/// Prints `V03_00 or V04_00`.
struct OneOf(&'static [QmdVersion]);

impl fmt::Display for OneOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, version) in self.0.iter().enumerate() {
            let separator = match index {
                0 => "",
                _ if index + 1 == self.0.len() => " or ",
                _ => ", ",
            };
            write!(f, "{separator}{version}")?;
        }
        Ok(())
    }
}

impl fmt::Display for QmdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UnknownCapability { compute_capability } => write!(
                f,
                "the layout of launch descriptors is unknown for compute capability {}; launches are \
                 left unmodified",
                Capability(compute_capability)
            ),
            Self::NoMask { compute_capability, class, version } => write!(
                f,
                "launch descriptor {version} of compute capability {} ({}) has no TPC mask; launches are left \
                 unmodified, and a driver that uses {} is needed",
                Capability(compute_capability),
                class.name,
                OneOf(class.masked)
            ),
            Self::UnexpectedVersion { compute_capability, class, version_byte } => write!(
                f,
                "launch descriptor has version byte {version_byte:#04x}, but compute capability {} ({}) uses {}; \
                 launches are left unmodified",
                Capability(compute_capability),
                class.name,
                OneOf(class.versions)
            ),
            Self::UnclearVersion { compute_capability, class, byte_72, byte_58 } => write!(
                f,
                "launch descriptor has {byte_72:#04x} at byte 72 and {byte_58:#04x} at byte 58, which is not exactly \
                 one of {} of compute capability {} ({}); launches are left unmodified",
                OneOf(class.versions),
                Capability(compute_capability),
                class.name
            ),
            Self::NotAGrid { version, kind } => {
                write!(f, "launch descriptor {version} of type {kind} launches no blocks")
            }
            Self::ShapeDoesNotFit { version, shape } => write!(
                f,
                "a {}launch of {:?} blocks in clusters of {:?} does not fit a {version} descriptor",
                if shape.cooperative == Some(true) { "cooperative " } else { "" },
                shape.grid,
                shape.cluster
            ),
            Self::ProgramDoesNotFit { version, address } => {
                write!(f, "a {version} descriptor cannot represent code at {address:#x}")
            }
            Self::ImageTooShort { version, words } => write!(
                f,
                "launch descriptor image of {} bytes is shorter than a {version} descriptor",
                words * 4
            ),
        }
    }
}

impl core::error::Error for QmdError {}
