//! The status of a chain, for observers.

use alloc::vec::Vec;

use crate::error::ChainError;
use crate::file::ChainFile;
use crate::state::Place;

/// How frames of the role before, which is on another GPU, reach a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reach {
    /// The role has not tried yet.
    #[default]
    Unknown,
    /// It copies them from the other GPU's memory.
    Peer,
    /// It has no access to that memory: they go through host memory.
    Host,
}

impl Reach {
    pub(crate) fn to_word(self) -> u64 {
        match self {
            Self::Unknown => 0,
            Self::Peer => 1,
            Self::Host => 2,
        }
    }

    fn from_word(word: u64) -> Self {
        match word {
            1 => Self::Peer,
            2 => Self::Host,
            _ => Self::Unknown,
        }
    }
}

/// The status of a role. Counts are since the creation of the file; a process that was killed may
/// have missed its last count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleStatus {
    /// Its number.
    pub role: u8,
    /// Whether a living process has it.
    pub live: bool,
    /// The last process with the role, in its own PID namespace; 0 for none.
    pub pid: u64,
    /// When that process started, in clock ticks since boot.
    pub start_ticks: u64,
    /// How often a process attached to it.
    pub incarnation: u64,
    /// Frames that it received.
    pub frames_in: u64,
    /// Frames that it passed on, or finished as the last role.
    pub frames_out: u64,
    /// Own frames that it dropped because the next role's queue was full.
    pub dropped_newest: u64,
    /// Frames that it dropped from the next role's full queue.
    pub dropped_oldest: u64,
    /// Frames that it chose to drop.
    pub dropped_by_owner: u64,
    /// Frames dropped because a process died.
    pub dropped_of_dead: u64,
    /// Sends that a dead owner had started, and that were finished for it.
    pub completed_of_dead: u64,
    /// How long it worked, in nanoseconds.
    pub busy_ns: u64,
    /// How long it waited for frames, in nanoseconds.
    pub wait_in_ns: u64,
    /// How long it waited for room, in nanoseconds.
    pub wait_out_ns: u64,
    /// Sum of the ages of the frames that it finished, as the last role, in nanoseconds.
    pub latency_ns: u64,
    /// When it last received or passed on a frame, or stopped waiting, by the monotonic clock, in
    /// nanoseconds.
    pub seen_ns: u64,
    /// Frames that wait for the role; free ones for the first.
    pub queued: u32,
    /// Frames that it holds.
    pub held: u32,
    /// The epoch and the set of the last suggestion to it.
    pub suggested: Option<(u64, [u64; 4])>,
    /// The epoch of the suggestion in force; 0 for none.
    pub applied_epoch: u64,
    /// Its method, as a word of the client library.
    pub applied_how: u64,
    /// The epoch of the last suggestion that its owner could not apply; 0 for none.
    pub refused_epoch: u64,
    /// How frames of the role before reach it, if that is on another GPU.
    pub reach: Reach,
}

/// The places of a chain's leases. At rest, with every dead process recovered, the sum is the
/// number of frames that have memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Census {
    /// In the pool, including resting ones.
    pub free: u32,
    /// Held by each role.
    pub held: Vec<u32>,
    /// Queued after each role.
    pub queued: Vec<u32>,
    /// The number of those whose memory is gone.
    pub unbacked: u32,
    /// In none of these places: lost.
    pub lost: u32,
}

impl Census {
    /// All leases that have a place.
    pub fn total(&self) -> u32 {
        self.free + self.held.iter().chain(&self.queued).sum::<u32>()
    }
}

impl ChainFile {
    /// The status of a role.
    ///
    /// # Errors
    /// As [`ChainFile::is_held`].
    pub fn status(&self, role: u8) -> Result<RoleStatus, ChainError> {
        let cells = self.role_cells(role);
        let counters = &cells.counters;
        let waits_at = role.checked_sub(1).map_or(Place::Free, Place::Queued);
        let count = |place| self.flow().all_at(place).count() as u32;
        Ok(RoleStatus {
            role,
            live: self.is_held(role)?,
            pid: cells.pid.load(),
            start_ticks: cells.start_ticks.load(),
            incarnation: self.incarnation(role),
            frames_in: counters.frames_in.load(),
            frames_out: counters.frames_out.load(),
            dropped_newest: counters.dropped_newest.load(),
            dropped_oldest: counters.dropped_oldest.load(),
            dropped_by_owner: counters.dropped_by_owner.load(),
            dropped_of_dead: counters.dropped_of_dead.load(),
            completed_of_dead: counters.completed_of_dead.load(),
            busy_ns: counters.busy_ns.load(),
            wait_in_ns: counters.wait_in_ns.load(),
            wait_out_ns: counters.wait_out_ns.load(),
            latency_ns: counters.latency_ns.load(),
            seen_ns: counters.seen_ns.load(),
            queued: count(waits_at),
            held: count(Place::Held(role)),
            suggested: self.suggestion(role),
            applied_epoch: cells.applied_epoch.load(),
            applied_how: cells.applied_how.load(),
            refused_epoch: self.refused_epoch(role),
            reach: self.reach(role),
        })
    }

    /// How frames of the role before reach a role, if that is on another GPU. One load.
    pub fn reach(&self, role: u8) -> Reach {
        Reach::from_word(self.role_cells(role).reach.load())
    }

    /// The epoch of the last suggestion that a role's owner could not apply; 0 for none. One load.
    pub fn refused_epoch(&self, role: u8) -> u64 {
        self.role_cells(role).refused_epoch.load()
    }

    /// Frames that the last role has finished so far, for computing a throughput. Two loads.
    pub fn frames_finished(&self) -> u64 {
        self.role_cells(self.roles() - 1).counters.frames_out.load()
    }

    /// The places of the leases, each at a different instant.
    pub fn census(&self) -> Census {
        let roles = self.plan().roles.len();
        let mut census =
            Census { held: alloc::vec![0; roles], queued: alloc::vec![0; roles - 1], ..Census::default() };
        for (lease, state) in (0..).map_while(|lease| Some((lease, self.flow().state(lease)?))) {
            let cell = match state.place() {
                Some(Place::Vacant) => continue,
                Some(Place::Free) => Some(&mut census.free),
                Some(Place::Held(role)) => census.held.get_mut(usize::from(role)),
                Some(Place::Queued(edge)) => census.queued.get_mut(usize::from(edge)),
                None => None,
            };
            *cell.unwrap_or(&mut census.lost) += 1;
            census.unbacked += u32::from(!self.is_backed(lease));
        }
        census
    }
}
