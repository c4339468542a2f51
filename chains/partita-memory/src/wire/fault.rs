//! Faults of a frame, and the keeper's codes for them.

use thiserror::Error;

use super::{FRAME_BYTES_MAX, HEADER_BYTES, VERSION};
use crate::name::BadName;

/// Why a frame is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadFrame {
    /// It has no complete header.
    #[error("a frame of {bytes} bytes: its header alone has {HEADER_BYTES}")]
    Short { bytes: usize },
    /// It is longer than allowed.
    #[error("a frame of more than {FRAME_BYTES_MAX} bytes: none is longer")]
    Long,
    /// Its header says another length.
    #[error("a frame of {bytes} bytes says that it has {said}: one message is one frame")]
    Length {
        bytes: usize,
        /// The header's length.
        said: u32,
    },
    /// An unknown kind, in this direction.
    #[error("kind {kind} of a frame is not known to version {VERSION}")]
    Kind {
        /// The number.
        kind: u16,
    },
    /// Bytes that must be zero are not.
    #[error("bytes of the frame's header that must be zero are {found:#06x}")]
    Reserved {
        /// Their value.
        found: u16,
    },
    /// It ends before its last field, or has bytes after it.
    #[error("a {kind} frame of {bytes} bytes does not have the fields of its kind")]
    Fields {
        kind: &'static str,
        /// The frame's bytes.
        bytes: usize,
    },
    /// Zero, or too many items.
    #[error("a {kind} frame with {count} items: 1 to {most} are possible")]
    Count {
        kind: &'static str,
        /// The frame's count.
        count: u32,
        most: usize,
    },
    /// A number that is invalid in its field.
    #[error("field `{field}` of a {kind} frame is {found}, which is invalid")]
    Value {
        kind: &'static str,
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// An invalid tenant's name.
    #[error(transparent)]
    Name(#[from] BadName),
    /// A descriptor too few or too many came with it.
    #[error("a {kind} frame with {found} descriptors: it needs {expected}")]
    Descriptors {
        kind: &'static str,
        /// How many came.
        found: usize,
        /// The required number.
        expected: usize,
    },
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        /// The kind of the keeper's error; the text beside it has the details.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$doc])* $name = $number,)*
        }

        impl Code {
            pub(crate) fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// An invalid frame.
    BadFrame = 1;
    /// Another version of the frames.
    Version = 2;
    /// A request before the greeting, or a second greeting.
    Greeting = 3;
    /// A request that this user, or a client without a tenant, may not make.
    NotAllowed = 4;
    /// An unknown id, or one that has ended.
    Unknown = 5;
    /// A number out of its bounds.
    Bounds = 6;
    /// Over the tenant's quota.
    Quota = 7;
    /// The GPU has no more memory, or no more that may be leased.
    OutOfMemory = 8;
    /// Too many of a kind at one time.
    TooMany = 9;
    /// A file that is not a chain's, or whose chain no process runs.
    NotAChain = 10;
    /// The driver refused.
    Driver = 11;
    /// It would take leased memory away.
    InUse = 12;
}
