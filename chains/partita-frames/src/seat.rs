//! A role, for its process.

use core::ops::Deref;

use crate::error::ChainError;
use crate::fault::ChainFault;
use crate::file::{ChainFile, RoleClaim};
use crate::flow::{NotQueued, Recovered};
use crate::layout::{HANDLE_BYTES, RoleCells};
use crate::lease::{Lease, Note, Recorder};
use crate::plan::Policy;
use crate::slabs::{SlabOwner, SlabPlan, SlabRef};
use crate::state::{Place, Ticket};
use crate::status::Reach;
use crate::sync::Word;
use crate::wait::{monotonic_ns, wake, while_idle};
use partita_ledger::shared::Process;
use partita_ledger::{Owner, Problem};

/// How long a role that should end waits between two looks at its neighbours, in nanoseconds.
const LOOK_NS: u64 = 5_000_000;

/// The result of waiting for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Got {
    /// A frame, which the role now holds.
    Frame(Lease),
    /// No frame until the deadline.
    Late,
    /// No frame, the chain is stopped, and no frame is on its way that living roles would pass on
    /// to this one.
    Stopping,
}

/// The result of sending a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It was sent.
    Queued,
    /// It was sent, and this many older ones were dropped for it.
    DroppedOldest(u32),
    /// It was dropped: there was no room.
    DroppedNewest,
    /// There was no room until the deadline; the role still holds it.
    Late,
    /// There is no room, the chain is stopped, and the next role has ended; the role still holds
    /// it.
    Stopping,
}

/// A role of a chain, for the process that took it. It is released when this is dropped or the
/// process ends.
///
/// One thread at a time uses it. The next owner frees what it holds when it is dropped.
#[derive(Debug)]
pub struct ChainSeat {
    chain: ChainFile,
    role: u8,
    process: Process,
    /// Where the search for a free lease starts: after the last one, so that memory rests as long
    /// as it can.
    next_free: core::cell::Cell<usize>,
}

impl Deref for ChainSeat {
    type Target = ChainFile;

    fn deref(&self) -> &ChainFile {
        &self.chain
    }
}

impl RoleClaim {
    /// Takes the role, and frees what its former owner held, as [`ChainFile::recover`] does.
    ///
    /// # Errors
    /// [`Problem::BadOwner`].
    pub fn take(self, owner: Owner, rests_until_ns: u64) -> Result<(ChainSeat, Recovered), ChainError> {
        let Self { chain, role } = self;
        if owner.pid <= 0 {
            return Err(chain.wrong(Problem::BadOwner { pid: owner.pid }));
        }
        let recovered = chain.recover_locked(role, rests_until_ns);
        let cells = chain.role_cells(role);
        cells.incarnation.store(cells.incarnation.load().wrapping_add(1));
        cells.applied_epoch.store(0);
        cells.applied_how.store(0);
        cells.refused_epoch.store(0);
        cells.reach.store(0);
        cells.start_ticks.store(owner.start_ticks);
        cells.pid.store(owner.pid as u64);
        let process = Process::current();
        let seat = ChainSeat { chain, role, process, next_free: core::cell::Cell::new(0) };
        seat.give_up_stale_slabs();
        Ok((seat, recovered))
    }
}

fn add(cell: &Word, n: u64) {
    cell.store(cell.load().wrapping_add(n));
}

impl ChainSeat {
    /// The role's number.
    pub fn role(&self) -> u8 {
        self.role
    }

    /// Whether frames start here.
    pub fn is_first(&self) -> bool {
        self.role == 0
    }

    /// Whether frames end here.
    pub fn is_last(&self) -> bool {
        self.role + 1 == self.roles()
    }

    fn cells(&self) -> &RoleCells {
        self.role_cells(self.role)
    }

    fn own(&self) -> Place {
        Place::Held(self.role)
    }

    fn fault<T>(&self, fault: ChainFault) -> Result<T, ChainError> {
        Err(self.refuse(fault))
    }

    fn check_process(&self) -> Result<(), ChainError> {
        if self.process.is_another() { self.fault(ChainFault::Forked) } else { Ok(()) }
    }

    fn damaged(&self) -> ChainError {
        self.wrong(Problem::Damaged)
    }

    /// Takes free memory for a new frame, as the first role; `None` without free memory.
    ///
    /// # Errors
    /// [`ChainError::Refused`] in a child of `fork`, and for another role.
    pub fn acquire(&self) -> Result<Option<Lease>, ChainError> {
        self.check_process()?;
        if !self.is_first() {
            return self.fault(ChainFault::NotFirst { role: self.role });
        }
        let now_ns = monotonic_ns();
        let rested = |lease: usize| self.frame_cells(lease).rests_until_ns.load() <= now_ns;
        while let Some(ticket) = self.flow().take_free(self.next_free.get(), self.own(), rested) {
            let lease = ticket.lease();
            self.next_free.set((lease + 1) % self.plan().frames as usize);
            if !self.is_backed(lease) {
                self.flow().pass(ticket, self.own(), Place::Vacant);
                continue;
            }
            self.frame_cells(lease).rests_until_ns.store(0);
            let begun = &self.layout().common.begun.0;
            let sequence = begun.load();
            begun.store(sequence.wrapping_add(1));
            self.set_note(
                lease,
                &Note { sequence, bytes: self.plan().frame_bytes, born_ns: now_ns, ..Note::default() },
            );
            add(&self.cells().counters.frames_in, 1);
            return Ok(Some(self.lease(ticket)));
        }
        Ok(None)
    }

    /// Takes the oldest frame in this role's queue; `None` if it is empty.
    ///
    /// # Errors
    /// [`ChainError::Refused`] in a child of `fork`; [`Problem::Damaged`].
    pub fn take(&self) -> Result<Option<Lease>, ChainError> {
        self.check_process()?;
        let Some(edge) = self.role.checked_sub(1) else { return self.acquire() };
        while let Some(ticket) = self.flow().take(edge, self.own()).map_err(|_| self.damaged())? {
            wake(&self.layout().edges[usize::from(edge)].0.head.0, &self.role_cells(edge).sleeping);
            if !self.is_backed(ticket.lease()) {
                self.flow().pass(ticket, self.own(), Place::Vacant);
                add(&self.cells().counters.dropped_of_dead, 1);
                continue;
            }
            add(&self.cells().counters.frames_in, 1);
            return Ok(Some(self.lease(ticket)));
        }
        Ok(None)
    }

    /// As [`ChainSeat::take`], or [`ChainSeat::acquire`] as the first role, and waits until
    /// `deadline_ns` by the monotonic clock: first spins for `spin_ns`, then sleeps.
    ///
    /// # Errors
    /// As [`ChainSeat::take`].
    pub fn take_until(&self, spin_ns: u64, deadline_ns: u64) -> Result<Got, ChainError> {
        let began_ns = monotonic_ns();
        let got = loop {
            if self.is_first() && self.is_stopping() {
                break Got::Stopping;
            }
            if let Some(lease) = self.take()? {
                break Got::Frame(lease);
            }
            let is_stopping = self.is_stopping();
            // In this order: a frame on its way may have arrived meanwhile.
            if is_stopping && !self.is_fed()? && !self.has_frame() {
                break Got::Stopping;
            }
            // The clock alone frees a resting frame, and no process reports that an earlier role
            // has ended.
            let now_ns = monotonic_ns();
            let rested_ns = if self.is_first() { self.resting_until(now_ns) } else { None };
            let until_ns = match rested_ns {
                _ if is_stopping => deadline_ns.min(now_ns.saturating_add(LOOK_NS)),
                Some(rested_ns) => deadline_ns.min(rested_ns),
                None => deadline_ns,
            };
            let word = match self.role.checked_sub(1) {
                Some(edge) => &self.layout().edges[usize::from(edge)].0.tail.0,
                None => &self.layout().common.freed.0,
            };
            let idle = || self.is_stopping() == is_stopping && !self.has_frame();
            let came = while_idle(word, &self.cells().sleeping, spin_ns, until_ns, idle);
            if !came && until_ns == deadline_ns {
                break Got::Late;
            }
        };
        let now_ns = monotonic_ns();
        add(&self.cells().counters.wait_in_ns, now_ns.saturating_sub(began_ns));
        self.cells().counters.seen_ns.store(now_ns);
        Ok(got)
    }

    /// Whether a frame is on its way here, which the living roles between its place and this one
    /// will pass on.
    fn is_fed(&self) -> Result<bool, ChainError> {
        let mut from = self.role;
        while let Some(before) = from.checked_sub(1)
            && self.is_held(before)?
        {
            from = before;
        }
        let is_any = |place| self.flow().all_at(place).next().is_some();
        // From the far end on: a frame that moves meanwhile is seen later.
        let mut roles = from..self.role;
        Ok(roles.any(|role| {
            role.checked_sub(1).is_some_and(|edge| is_any(Place::Queued(edge))) || is_any(Place::Held(role))
        }))
    }

    /// When the next of the resting leases may be used.
    fn resting_until(&self, now_ns: u64) -> Option<u64> {
        let rests = |ticket: Ticket| self.frame_cells(ticket.lease()).rests_until_ns.load();
        self.flow().all_at(Place::Free).map(rests).filter(|until_ns| *until_ns > now_ns).min()
    }

    fn has_frame(&self) -> bool {
        match self.role.checked_sub(1) {
            Some(edge) => self.layout().edges[usize::from(edge)].0.depth() > 0,
            None => {
                let now_ns = monotonic_ns();
                let rested =
                    |ticket: Ticket| self.frame_cells(ticket.lease()).rests_until_ns.load() <= now_ns;
                self.flow().all_at(Place::Free).any(rested)
            }
        }
    }

    /// Describes a frame that the role holds.
    ///
    /// # Errors
    /// [`ChainError::Refused`] if it does not hold it.
    pub fn describe(&self, lease: &Lease, note: &Note) -> Result<(), ChainError> {
        self.check_held(lease)?;
        self.set_note(lease.ticket.lease(), note);
        Ok(())
    }

    fn check_held(&self, lease: &Lease) -> Result<(), ChainError> {
        self.check_process()?;
        if self.flow().is_at(lease.ticket, self.own()) {
            return Ok(());
        }
        self.fault(ChainFault::NotHeld { lease: lease.ticket.lease() })
    }

    /// Stores the handle of the event that this role records for a lease that it holds.
    ///
    /// # Errors
    /// As [`ChainSeat::describe`].
    pub fn leave_event(&self, lease: &Lease, handle: &[u8; HANDLE_BYTES]) -> Result<(), ChainError> {
        self.check_held(lease)?;
        self.set_event_handle(lease.ticket.lease(), self.recorder_of_own(), handle);
        Ok(())
    }

    /// This role, in the form in which it records an event.
    pub fn recorder_of_own(&self) -> Recorder {
        Recorder { role: self.role, incarnation: self.incarnation(self.role) }
    }

    /// Records that this role's event was recorded for a lease that it holds; or that there is
    /// nothing to wait for.
    ///
    /// # Errors
    /// As [`ChainSeat::describe`].
    pub fn note_recorded(&self, lease: &Lease, recorded: bool) -> Result<(), ChainError> {
        self.check_held(lease)?;
        self.set_recorder(lease.ticket.lease(), recorded.then(|| self.recorder_of_own()));
        Ok(())
    }

    /// Records that the GPU is done with all work that this role recorded: its events may be
    /// destroyed, and processes that have not opened them yet need not.
    pub fn note_all_done(&self) {
        self.clear_recorded(self.recorder_of_own());
    }

    /// Passes a frame on to the next role by the chain's policy; waits for room until `deadline_ns`
    /// if the policy says so.
    ///
    /// # Errors
    /// [`ChainError::Refused`] if the role does not hold it, or is the last one;
    /// [`Problem::Damaged`].
    pub fn send_until(&self, lease: &Lease, spin_ns: u64, deadline_ns: u64) -> Result<Sent, ChainError> {
        self.check_process()?;
        let roles = usize::from(self.roles());
        if self.is_last() {
            return self.fault(ChainFault::NoRole { role: self.role + 1, roles });
        }
        let ring = &self.layout().edges[usize::from(self.role)].0;
        let counters = &self.cells().counters;
        let depth_max = self.plan().queue_max.into();
        let mut dropped = 0;
        loop {
            match self.flow().queue(self.role, lease.ticket, depth_max) {
                Ok(()) => {
                    wake(&ring.tail.0, &self.role_cells(self.role + 1).sleeping);
                    add(&counters.frames_out, 1);
                    counters.seen_ns.store(monotonic_ns());
                    return Ok(if dropped == 0 { Sent::Queued } else { Sent::DroppedOldest(dropped) });
                }
                Err(NotQueued::NotHeld) => {
                    return self.fault(ChainFault::NotHeld { lease: lease.ticket.lease() });
                }
                Err(NotQueued::Damaged) => return Err(self.damaged()),
                Err(NotQueued::Full) => {}
            }
            match self.plan().policy {
                Policy::Wait => {
                    let began_ns = monotonic_ns();
                    let is_full = || ring.depth() >= depth_max;
                    // The next role makes room before it ends, if it lives.
                    let is_stopping = self.is_stopping();
                    if is_stopping && !self.is_held(self.role + 1)? {
                        return Ok(Sent::Stopping);
                    }
                    let until_ns = match is_stopping {
                        true => deadline_ns.min(began_ns.saturating_add(LOOK_NS)),
                        false => deadline_ns,
                    };
                    let idle = || is_full() && self.is_stopping() == is_stopping;
                    let room = while_idle(&ring.head.0, &self.cells().sleeping, spin_ns, until_ns, idle);
                    add(&counters.wait_out_ns, monotonic_ns().saturating_sub(began_ns));
                    if !room && until_ns == deadline_ns {
                        return Ok(Sent::Late);
                    }
                }
                Policy::DropNewest => {
                    self.release(lease)?;
                    add(&counters.dropped_newest, 1);
                    return Ok(Sent::DroppedNewest);
                }
                Policy::DropOldest => {
                    let oldest = self.flow().take(self.role, self.own()).map_err(|_| self.damaged())?;
                    if let Some(ticket) = oldest {
                        self.release(&self.lease(ticket))?;
                        add(&counters.dropped_oldest, 1);
                        dropped += 1;
                    }
                }
            }
        }
    }

    /// Returns a frame, as the last role: its work is done.
    ///
    /// # Errors
    /// As [`ChainSeat::describe`].
    pub fn finish(&self, lease: &Lease) -> Result<(), ChainError> {
        let born_ns = self.note(lease).born_ns;
        self.release(lease)?;
        let counters = &self.cells().counters;
        let now_ns = monotonic_ns();
        add(&counters.latency_ns, now_ns.saturating_sub(born_ns));
        counters.seen_ns.store(now_ns);
        add(&counters.frames_out, 1);
        Ok(())
    }

    /// Returns a frame that will not be passed on, and counts it.
    ///
    /// # Errors
    /// As [`ChainSeat::describe`].
    pub fn discard(&self, lease: &Lease) -> Result<(), ChainError> {
        self.release(lease)?;
        add(&self.cells().counters.dropped_by_owner, 1);
        Ok(())
    }

    /// As [`ChainSeat::discard`], for a frame whose sender died before the GPU was done with it.
    ///
    /// # Errors
    /// As [`ChainSeat::describe`].
    pub fn discard_of_dead(&self, lease: &Lease, rests_until_ns: u64) -> Result<(), ChainError> {
        self.check_held(lease)?;
        self.set_recorder(lease.ticket.lease(), None);
        self.frame_cells(lease.ticket.lease()).rests_until_ns.store(rests_until_ns);
        self.release(lease)?;
        add(&self.cells().counters.dropped_of_dead, 1);
        Ok(())
    }

    fn release(&self, lease: &Lease) -> Result<(), ChainError> {
        let number = lease.ticket.lease();
        let to = if self.is_backed(number) { Place::Free } else { Place::Vacant };
        if self.flow().pass(lease.ticket, self.own(), to).is_none() {
            return self.fault(ChainFault::NotHeld { lease: number });
        }
        self.note_freed();
        Ok(())
    }

    /// Adds memory to the chain, as the first role, and makes frames of it.
    ///
    /// # Errors
    /// [`ChainError::Refused`] for another role, if there is no place for it or no room in it.
    pub fn add_slab(&self, plan: &SlabPlan) -> Result<SlabRef, ChainError> {
        self.check_process()?;
        if !self.is_first() {
            return self.fault(ChainFault::NotFirst { role: self.role });
        }
        self.enter_slab(plan)
    }

    /// Removes memory that is gone, as the first role. Returns how many frames were on their way in
    /// it.
    ///
    /// # Errors
    /// [`ChainError::Refused`] for another role.
    pub fn retire_slab(&self, slab: SlabRef) -> Result<u32, ChainError> {
        self.check_process()?;
        if !self.is_first() {
            return self.fault(ChainFault::NotFirst { role: self.role });
        }
        let dropped = self.give_up_slab(slab);
        add(&self.cells().counters.dropped_of_dead, dropped.into());
        Ok(dropped)
    }

    /// As a new owner of the first role: memory that the former one allocated itself is gone; a
    /// slab that it had not finished dividing is now divided.
    fn give_up_stale_slabs(&self) {
        if !self.is_first() {
            return;
        }
        let current = self.incarnation(0);
        for info in self.slabs() {
            if info.live && matches!(info.plan.owner, SlabOwner::FirstRole(of) if of != current) {
                let dropped = self.give_up_slab(info.slab);
                add(&self.cells().counters.dropped_of_dead, dropped.into());
            }
        }
        self.divide_slabs();
    }

    /// Records how long the role worked.
    pub fn note_busy(&self, busy_ns: u64) {
        add(&self.cells().counters.busy_ns, busy_ns);
    }

    /// Records which suggestion is in force, and its method, as a word of the client library.
    pub fn note_applied(&self, epoch: u64, how: u64) {
        self.cells().applied_how.store(how);
        self.cells().applied_epoch.store(epoch);
    }

    /// Records that this suggestion cannot be applied.
    pub fn note_refused(&self, epoch: u64) {
        self.cells().refused_epoch.store(epoch);
    }

    /// Records how frames of the role before reach this one.
    pub fn note_reach(&self, reach: Reach) {
        self.cells().reach.store(reach.to_word());
    }

    /// The epoch of the last suggestion to this role: one load from memory.
    #[inline]
    pub fn suggestion_epoch(&self) -> u64 {
        self.cells().suggestion.epoch()
    }
}
