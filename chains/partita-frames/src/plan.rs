//! The plan of a chain, which its file has from its first byte on.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ffi::CStr;
use core::fmt;

use crate::layout::{FRAMES_MAX, PlanCells, ROLES_MAX};
use crate::sync::Word;

/// The longest name of a chain or of a role in bytes.
pub const CHAIN_NAME_BYTES_MAX: usize = 31;

/// The driver's alignment of allocations («CUDA C++ Programming Guide», device memory accesses).
const ALIGNMENT_BYTES: u64 = 256;
const _: () = assert!(ROLES_MAX as u64 * 4 <= ALIGNMENT_BYTES);

/// What happens to a frame if the next role's queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The sender waits: back-pressure up to the first role.
    #[default]
    Wait,
    /// It is dropped, and counted.
    DropNewest,
    /// The oldest frame of that queue is dropped, and counted.
    DropOldest,
}

impl Policy {
    /// Every policy with its name.
    pub const NAMES: [(&'static str, Self); 3] =
        [("wait", Self::Wait), ("drop-newest", Self::DropNewest), ("drop-oldest", Self::DropOldest)];

    /// The policy's name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, policy)| *policy == self).map_or("", |(name, _)| name)
    }

    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, policy)| *policy)
    }
}

/// The plan of a chain. It does not change while its file lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainPlan {
    /// The chain's name.
    pub name: String,
    /// The names of its roles, in the order in which frames pass them.
    pub roles: Vec<String>,
    /// Bytes of device memory of a frame.
    pub frame_bytes: u64,
    /// How many frames there are, in use and free.
    pub frames: u32,
    /// How many frames wait for a role at most.
    pub queue_max: u32,
    /// What happens to one more.
    pub policy: Policy,
    /// UUID of each role's GPU; empty if the roles share one that is unknown.
    pub role_gpus: Vec<[u8; 16]>,
}

/// An impossible plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanFault {
    /// No roles, or too many.
    Roles(u64),
    /// No frames, or too many.
    Frames(u64),
    /// A queue length of 0, or of more than the possible frames.
    Queue(u64),
    /// Frames of 0 bytes.
    FrameBytes,
    /// An unknown number of a policy.
    Policy(u64),
    /// A name that is empty, too long or not UTF-8: of the chain, or of a role.
    Name,
    /// Two roles with one name.
    SameName,
    /// A number of roles' GPUs that is neither 0 nor that of the roles.
    Gpus(u64),
}

impl fmt::Display for PlanFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Roles(n) => write!(f, "a chain of {n} roles, where 1 to {ROLES_MAX} are possible"),
            Self::Frames(n) => write!(f, "a chain of {n} frames, where 1 to {FRAMES_MAX} are possible"),
            Self::Queue(n) => write!(f, "queues of {n} frames, where 1 to {FRAMES_MAX} are possible"),
            Self::FrameBytes => write!(f, "frames of 0 bytes, where 1 and more are possible"),
            Self::Policy(n) => write!(f, "the queueing policy number {n}, where 0 to 2 are known"),
            Self::Name => write!(
                f,
                "a name that is not UTF-8 of 1 to {CHAIN_NAME_BYTES_MAX} bytes, of the chain or of a role"
            ),
            Self::SameName => write!(f, "two roles of the same name"),
            Self::Gpus(n) => write!(f, "the GPUs of {n} roles, where all roles or none are to be known"),
        }
    }
}

impl ChainPlan {
    /// Checks for impossible values. Every creation and every read of a file applies it.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), PlanFault> {
        let within = |n: u64, most: usize| (1..=most as u64).contains(&n);
        if !within(self.roles.len() as u64, ROLES_MAX) {
            return Err(PlanFault::Roles(self.roles.len() as u64));
        }
        if !within(self.frames.into(), FRAMES_MAX) {
            return Err(PlanFault::Frames(self.frames.into()));
        }
        if !within(self.queue_max.into(), FRAMES_MAX) {
            return Err(PlanFault::Queue(self.queue_max.into()));
        }
        if self.frame_bytes == 0 {
            return Err(PlanFault::FrameBytes);
        }
        let is_name =
            |name: &String| (1..=CHAIN_NAME_BYTES_MAX).contains(&name.len()) && !name.contains('\0');
        if !is_name(&self.name) || !self.roles.iter().all(is_name) {
            return Err(PlanFault::Name);
        }
        if self.roles.iter().enumerate().any(|(at, name)| self.roles[..at].contains(name)) {
            return Err(PlanFault::SameName);
        }
        if !self.role_gpus.is_empty() && self.role_gpus.len() != self.roles.len() {
            return Err(PlanFault::Gpus(self.role_gpus.len() as u64));
        }
        Ok(())
    }

    /// Offset of a frame's stamps from its start, in bytes: a four-byte number for each role, which
    /// the GPU writes when it is done with the role's work.
    pub fn stamps_offset_bytes(&self) -> u64 {
        self.frame_bytes.checked_next_multiple_of(ALIGNMENT_BYTES).unwrap_or(u64::MAX)
    }

    /// The distance of frames in an allocation, in bytes.
    pub fn stride_bytes(&self) -> u64 {
        self.stamps_offset_bytes().saturating_add(ALIGNMENT_BYTES)
    }

    /// The chain's GPUs, each once, in the order in which roles have them: the first has the first
    /// role. Empty if they are unknown.
    pub fn gpus(&self) -> Vec<[u8; 16]> {
        let mut gpus: Vec<[u8; 16]> = Vec::new();
        for uuid in &self.role_gpus {
            if !gpus.contains(uuid) {
                gpus.push(*uuid);
            }
        }
        gpus
    }

    /// The number of a role's GPU in [`ChainPlan::gpus`].
    pub fn gpu_of(&self, role: u8) -> u8 {
        let uuid = self.role_gpus.get(usize::from(role));
        let at = uuid.and_then(|uuid| self.gpus().iter().position(|known| known == uuid));
        at.map_or(0, |at| at as u8)
    }

    /// The number of the role with that name.
    pub fn role(&self, name: &str) -> Option<u8> {
        self.roles.iter().position(|role| role == name).map(|at| at as u8)
    }

    pub(crate) fn write(&self, cells: &PlanCells) {
        let policy = Policy::NAMES.iter().position(|(_, policy)| *policy == self.policy).unwrap_or(0);
        let numbers = [
            self.roles.len() as u64,
            self.frames.into(),
            self.queue_max.into(),
            policy as u64,
            self.frame_bytes,
        ];
        cells.numbers.iter().zip(numbers).for_each(|(cell, number)| cell.store(number));
        cells.knows_gpus.store(u64::from(!self.role_gpus.is_empty()));
        for (cells, uuid) in cells.role_gpus.iter().zip(&self.role_gpus) {
            for (cell, bytes) in cells.iter().zip(uuid.as_chunks::<8>().0) {
                cell.store(u64::from_ne_bytes(*bytes));
            }
        }
        for (cells, name) in cells.names.iter().zip(core::iter::once(&self.name).chain(&self.roles)) {
            let mut bytes = [0; CHAIN_NAME_BYTES_MAX + 1];
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            cells
                .iter()
                .zip(bytes.as_chunks::<8>().0)
                .for_each(|(cell, word)| cell.store(u64::from_ne_bytes(*word)));
        }
    }

    pub(crate) fn read(cells: &PlanCells) -> Result<Self, PlanFault> {
        let [roles, frames, queue_max, policy, frame_bytes] =
            core::array::from_fn(|at| cells.numbers[at].load());
        if !(1..=ROLES_MAX as u64).contains(&roles) {
            return Err(PlanFault::Roles(roles));
        }
        let name = |at: usize| {
            let words =
                cells.names.get(at).map(|cells| cells.each_ref().map(|cell| cell.load().to_ne_bytes()));
            let words = words.ok_or(PlanFault::Name)?;
            let text = CStr::from_bytes_until_nul(words.as_flattened()).map_err(|_| PlanFault::Name)?;
            text.to_str().map(ToString::to_string).map_err(|_| PlanFault::Name)
        };
        let uuid = |cells: &[Word; 2]| {
            let mut uuid = [0; 16];
            for (bytes, cell) in uuid.as_chunks_mut::<8>().0.iter_mut().zip(cells) {
                *bytes = cell.load().to_ne_bytes();
            }
            uuid
        };
        let known = if cells.knows_gpus.load() == 0 { 0 } else { roles as usize };
        let plan = Self {
            name: name(0)?,
            roles: (1..=roles as usize).map(name).collect::<Result<_, _>>()?,
            frame_bytes,
            frames: u32::try_from(frames).map_err(|_| PlanFault::Frames(frames))?,
            queue_max: u32::try_from(queue_max).map_err(|_| PlanFault::Queue(queue_max))?,
            policy: Policy::NAMES
                .get(policy as usize)
                .map(|(_, policy)| *policy)
                .ok_or(PlanFault::Policy(policy))?,
            role_gpus: cells.role_gpus.iter().take(known).map(uuid).collect(),
        };
        plan.check()?;
        Ok(plan)
    }
}
