//! What a chain refuses.

use core::fmt;

use crate::layout::{FRAMES_MAX, SLABS_MAX};
use crate::plan::PlanFault;

/// Why a chain refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainFault {
    /// No chain is made of that.
    Plan(PlanFault),
    /// It has no role of that number.
    NoRole {
        /// The number.
        role: u8,
        /// How many it has.
        roles: usize,
    },
    /// A living process has the role.
    RoleHeld {
        /// The number.
        role: u8,
        /// The process, as it saw itself.
        pid: u64,
    },
    /// Memory is given by whoever has the first role.
    NotFirst {
        /// The role that tried.
        role: u8,
    },
    /// Every place for an allocation is in use.
    SlabsFull,
    /// An allocation with no room for a frame, or with an offset that no address has.
    SlabBytes {
        /// Its size in bytes.
        bytes: u64,
        /// Bytes of a frame.
        lease_bytes: u64,
    },
    /// The frame is not, or no longer, with the role.
    NotHeld {
        /// The lease's number.
        lease: usize,
    },
    /// A child of `fork` is not the process that has the role.
    Forked,
}

impl fmt::Display for ChainFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(fault) => write!(f, "holds {fault}; define the chain anew"),
            Self::NoRole { role, roles } => {
                write!(f, "has no role {role}: it has roles 0 to {}", roles.saturating_sub(1))
            }
            Self::RoleHeld { role, pid } => {
                write!(f, "role {role} is held by a living process ({pid}); end it, or take another role")
            }
            Self::NotFirst { role } => {
                write!(f, "role {role} gives memory, which is for role 0 to do")
            }
            Self::SlabsFull => write!(
                f,
                "all {SLABS_MAX} places for allocations are in use; allocate more frames at a time (at most {FRAMES_MAX})"
            ),
            Self::SlabBytes { bytes, lease_bytes } => {
                write!(
                    f,
                    "an allocation of {bytes} bytes does not hold frames of {lease_bytes}; make it larger"
                )
            }
            Self::NotHeld { lease } => {
                write!(f, "frame {lease} is not with this role any more; use each frame once")
            }
            Self::Forked => {
                write!(f, "is used by a child of `fork`; attach to the chain in the process that uses it")
            }
        }
    }
}
