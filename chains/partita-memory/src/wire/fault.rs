//! What can be wrong with a frame, and what the keeper answers then.

use thiserror::Error;

use super::{FRAME_BYTES_MAX, HEADER_BYTES, VERSION};
use crate::name::BadName;

/// Why a frame is not understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadFrame {
    /// It has no whole header.
    #[error("a frame of {bytes} bytes: its header alone has {HEADER_BYTES}")]
    Short {
        /// Its bytes.
        bytes: usize,
    },
    /// It is longer than any.
    #[error("a frame of more than {FRAME_BYTES_MAX} bytes: none is longer")]
    Long,
    /// Its header says another length.
    #[error("a frame of {bytes} bytes says that it has {said}: one message is one frame")]
    Length {
        /// Its bytes.
        bytes: usize,
        /// What the header says.
        said: u32,
    },
    /// No frame of that number, in this direction.
    #[error("kind {kind} of a frame is not known to version {VERSION}")]
    Kind {
        /// The number.
        kind: u16,
    },
    /// What must be zero is not.
    #[error("bytes of the frame's header that must be zero are {found:#06x}")]
    Reserved {
        /// What stands there.
        found: u16,
    },
    /// It ends before its last field, or goes on behind it.
    #[error("a {kind} frame of {bytes} bytes has not the fields of its kind")]
    Fields {
        /// The kind.
        kind: &'static str,
        /// The frame's bytes.
        bytes: usize,
    },
    /// None, or too many items.
    #[error("a {kind} frame with {count} items: 1 to {most} are possible")]
    Count {
        /// The kind.
        kind: &'static str,
        /// How many it says.
        count: u32,
        /// The most.
        most: usize,
    },
    /// A number that means nothing in its field.
    #[error("field `{field}` of a {kind} frame is {found}, which means nothing")]
    Value {
        /// The kind.
        kind: &'static str,
        /// The field.
        field: &'static str,
        /// What stands there.
        found: u64,
    },
    /// No tenant's name.
    #[error(transparent)]
    Name(#[from] BadName),
    /// A descriptor too few or too many came with it.
    #[error("a {kind} frame with {found} descriptors: it takes {expected}")]
    Descriptors {
        /// The kind.
        kind: &'static str,
        /// How many came.
        found: usize,
        /// How many belong to it.
        expected: usize,
    },
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        /// What kind of error the keeper answers; the text beside it says the rest.
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
    /// A frame that is not understood.
    BadFrame = 1;
    /// Another version of the frames.
    Version = 2;
    /// A request before the greeting, or a second greeting.
    Greeting = 3;
    /// A request that this user, or a client without a tenant, may not make.
    NotAllowed = 4;
    /// Something that is not known, or not any more.
    Unknown = 5;
    /// A number out of its bounds.
    Bounds = 6;
    /// Over the tenant's quota.
    Quota = 7;
    /// The GPU has no more memory, or none that may be leased.
    OutOfMemory = 8;
    /// Too many of something at one time.
    TooMany = 9;
    /// A file that is no chain's, or whose chain nobody runs.
    NotAChain = 10;
    /// The driver refused.
    Driver = 11;
    /// It would take memory from those who have leased it.
    InUse = 12;
}
