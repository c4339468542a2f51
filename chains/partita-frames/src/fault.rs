//! A chain's refusals.

use core::fmt;

use crate::layout::{FRAMES_MAX, SLABS_MAX};
use crate::plan::PlanFault;

/// Why a chain refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainFault {
    /// An impossible plan.
    Plan(PlanFault),
    /// It has no role with that number.
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
        /// The process, in its own PID namespace.
        pid: u64,
    },
    /// Only the first role adds memory.
    NotFirst {
        /// The role that tried.
        role: u8,
    },
    /// All places for allocations are in use.
    SlabsFull,
    /// An allocation without room for a frame, or with an impossible offset.
    SlabBytes {
        /// Its size in bytes.
        bytes: u64,
        /// Bytes of a frame.
        lease_bytes: u64,
    },
    /// The role does not, or no longer, hold the frame.
    NotHeld {
        /// The lease's number.
        lease: usize,
    },
    /// A child of `fork` is another process than the one that has the role.
    Forked,
}

impl fmt::Display for ChainFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(fault) => write!(f, "holds {fault}; define the chain again"),
            Self::NoRole { role, roles } => {
                write!(f, "has no role {role}: it has roles 0 to {}", roles.saturating_sub(1))
            }
            Self::RoleHeld { role, pid } => {
                write!(f, "role {role} is held by a living process ({pid}); end it, or take another role")
            }
            Self::NotFirst { role } => {
                write!(f, "role {role} cannot add memory; only role 0 can")
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
                write!(f, "this role no longer holds frame {lease}; use each frame once")
            }
            Self::Forked => {
                write!(f, "is used by a child of `fork`; attach to the chain in the process that uses it")
            }
        }
    }
}
