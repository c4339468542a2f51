//! The memory that a policy keeps on a GPU.

use partita_core::memory::Reserve;

use super::{Moment, Policy, User, Who};
use crate::gpu::Selector;

/// Memory that a reservation keeps on a GPU now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The reservation's line in the file.
    pub line: usize,
    /// For whom.
    pub who: Who,
    /// How much, and for which of the users that were asked about.
    pub reserve: Reserve,
}

impl Policy {
    /// Whether any reservation is of memory.
    pub fn keeps_memory(&self) -> bool {
        self.reservations.iter().any(|entry| entry.memory.is_some())
    }

    /// The memory that is kept at a moment on a GPU of `total_bytes`, in the order of the file.
    /// `is_gpu` says whether that GPU is the one that an entry names; `users` are those of its
    /// tenants, by number.
    pub fn kept_memory(
        &self,
        now: Moment,
        is_gpu: impl Fn(&Selector) -> bool,
        total_bytes: u64,
        users: &[(u32, User)],
    ) -> Vec<Kept> {
        let here = self.reservations.iter().filter(|entry| entry.holds(now, &is_gpu));
        here.filter_map(|entry| {
            let its = users.iter().filter(|(_, user)| entry.who.includes(user));
            let users = its.map(|(number, _)| *number).collect();
            let bytes = entry.memory?.bytes(total_bytes, 0).0;
            Some(Kept { line: entry.line, who: entry.who.clone(), reserve: Reserve { bytes, users } })
        })
        .collect()
    }
}
