//! What a chain shows to whoever watches it.

use alloc::vec::Vec;

use crate::error::ChainError;
use crate::file::ChainFile;
use crate::state::Place;

/// What a role shows. Counts are since the file was made; one that was killed may have left out
/// what it was just counting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleStatus {
    /// Its number.
    pub role: u8,
    /// Whether a living process has it.
    pub live: bool,
    /// The process that has or had it last, as it saw itself; 0 for none.
    pub pid: u64,
    /// When that started, in clock ticks since boot.
    pub start_ticks: u64,
    /// How often it was attached to.
    pub incarnation: u64,
    /// Frames that it got.
    pub frames_in: u64,
    /// Frames that it passed on, or finished as the last role.
    pub frames_out: u64,
    /// Frames of its own that it dropped because the next role's queue was full.
    pub dropped_newest: u64,
    /// Frames that it took from the next role's full queue, and dropped.
    pub dropped_oldest: u64,
    /// Frames that it chose to drop.
    pub dropped_by_owner: u64,
    /// Frames that were dropped because somebody died.
    pub dropped_of_dead: u64,
    /// Sends that a dead owner had begun, and that were finished for it.
    pub completed_of_dead: u64,
    /// How long it worked, in nanoseconds.
    pub busy_ns: u64,
    /// How long it waited for frames, in nanoseconds.
    pub wait_in_ns: u64,
    /// How long it waited for room, in nanoseconds.
    pub wait_out_ns: u64,
    /// Ages of the frames that it finished, as the last role, added up, in nanoseconds.
    pub latency_ns: u64,
    /// When it last got or passed on a frame, or gave up waiting, by the monotonic clock, in
    /// nanoseconds.
    pub seen_ns: u64,
    /// Frames that wait for the role; free ones for the first.
    pub queued: u32,
    /// Frames that it holds.
    pub held: u32,
    /// The epoch and the set that were last suggested to it.
    pub suggested: Option<(u64, [u64; 4])>,
    /// The epoch of the suggestion that it obeys; 0 for none.
    pub applied_epoch: u64,
    /// How it obeys, in a word of the client library's.
    pub applied_how: u64,
}

/// Where a chain's leases are. At rest, and with nobody dead who is not recovered, the sum is the
/// number of frames that have memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Census {
    /// In the pool, those that rest included.
    pub free: u32,
    /// With each role.
    pub held: Vec<u32>,
    /// Behind each role.
    pub queued: Vec<u32>,
    /// Of those, how many whose memory is gone.
    pub unbacked: u32,
    /// In none of these places: lost.
    pub lost: u32,
}

impl Census {
    /// All that have a place.
    pub fn total(&self) -> u32 {
        self.free + self.held.iter().chain(&self.queued).sum::<u32>()
    }
}

impl ChainFile {
    /// What a role shows.
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
        })
    }

    /// Frames that the last role has finished so far: what a throughput is computed from. Two
    /// loads.
    pub fn frames_finished(&self) -> u64 {
        self.role_cells(self.roles() - 1).counters.frames_out.load()
    }

    /// Where the leases are, each at an instant of its own.
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
