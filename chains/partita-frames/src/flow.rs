//! Leases that pass through a chain: lock-free, and whole at every instruction at which a process
//! may die.
//!
//! # The state
//! Each lease has a word with its place ([`State`]) and a version that grows with each move. The
//! word is authoritative: a lease is in exactly one place because a word has one value, and every
//! move is one compare-and-swap of it. Between role *k* and role *k* + 1 there is a [`Ring`] of
//! *tickets*: leases at a version. Tickets are hints. A ticket whose lease has moved on is stale,
//! and is skipped.
//!
//! # Sending
//! Role *k*, the only writer of the tail: 1. writes into the slot at the tail the ticket that the
//! lease will have; 2. moves the lease from `Held(k)` to `Queued(k)`; 3. increments the tail. If it
//! dies before 2, the lease is still held, and [`Flow::recover`] frees it. If it dies between 2 and
//! 3, the lease is queued and its ticket is at the tail: an unfinished send can be only there, so
//! the process that recovers the role looks there, and does 3.
//!
//! # Taking
//! 1. Reads the head, the tail, the ticket at the head, *and the head again*; 2. moves the lease
//!    from `Queued(k)` to its new place;
//! 3. advances the head by a compare-and-swap.
//!
//! The consumer takes, and so does a producer that drops the oldest. If one dies between 2 and 3,
//! the ticket is stale; the next taker skips it, as does a process that recovers the role.
//!
//! **Why the head again.** A slot is reused only after the head has passed it. A taker that slept
//! between reading the head and reading the slot may have read a ticket of a later round, perhaps
//! of an unfinished send. The writer of that ticket had seen a later head before it stored
//! (release) the word that the taker has loaded (acquire), so the second read finds that later
//! head. If it finds the same head, the ticket belongs to this position, and the head does not
//! advance before its lease has been taken.
//!
//! **Why a stale ticket may be skipped.** Versions do not repeat, so a ticket that does not fit its
//! lease never will.
//!
//! # Hostile files
//! Every index is checked or comes from a modulus, and attempts are counted ([`TRIES_MAX`]):
//! damaged words yield missing leases or [`Damaged`], never a panic or an endless loop.

use crate::state::{Place, State, Ticket};
use crate::sync::Word;

/// How often a move starts again because others moved first; far more often than scheduling can
/// cause.
pub const TRIES_MAX: u32 = 1 << 16;

/// No operation can have written these words, or another program rewrites them without pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damaged;

/// A word with a separate cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Line(pub Word);

impl AsRef<Word> for Line {
    fn as_ref(&self) -> &Word {
        &self.0
    }
}

/// The queue between two roles.
#[derive(Debug)]
#[repr(C)]
pub struct Ring<const N: usize> {
    /// How many tickets were taken or skipped so far.
    pub head: Line,
    /// How many were added so far.
    pub tail: Line,
    slots: [Word; N],
}

#[cfg(any(test, loom))]
impl<const N: usize> Ring<N> {
    /// An empty one.
    pub fn new() -> Self {
        let line = || Line(Word::new(0));
        Self { head: line(), tail: line(), slots: core::array::from_fn(|_| Word::new(0)) }
    }
}

#[cfg(any(test, loom))]
impl<const N: usize> Default for Ring<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Ring<N> {
    fn slot(&self, position: u64) -> &Word {
        &self.slots[(position % N as u64) as usize]
    }

    /// The number of its tickets, stale ones included.
    pub fn depth(&self) -> u64 {
        let tail = self.tail.0.load();
        tail.wrapping_sub(self.head.0.load()).min(N as u64)
    }
}

/// Why a lease was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotQueued {
    /// The queue has its largest length already.
    Full,
    /// The role does not hold the ticket's lease.
    NotHeld,
    /// See [`Damaged`].
    Damaged,
}

/// The remains of a dead owner of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Sends that the dead process had not finished, and that are finished now.
    pub completed: u32,
    /// Leases that it held, back in the pool.
    pub dropped: u32,
    /// Queued leases without a ticket: 0, unless the file was damaged from outside.
    pub stranded: u32,
}

/// The leases and rings of a chain, in (shared) memory.
#[derive(Debug)]
pub struct Flow<'m, L, E, const N: usize> {
    leases: &'m [L],
    edges: &'m [E],
}

impl<L, E, const N: usize> Clone for Flow<'_, L, E, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L, E, const N: usize> Copy for Flow<'_, L, E, N> {}

impl<'m, L: AsRef<Word>, E: AsRef<Ring<N>>, const N: usize> Flow<'m, L, E, N> {
    /// The chain whose edge *k* leads from role *k* to role *k* + 1.
    pub fn new(leases: &'m [L], edges: &'m [E]) -> Self {
        Self { leases, edges }
    }

    fn ring(&self, edge: u8) -> Option<&'m Ring<N>> {
        self.edges.get(usize::from(edge)).map(AsRef::as_ref)
    }

    pub fn state(&self, lease: usize) -> Option<State> {
        Some(State(self.leases.get(lease)?.as_ref().load()))
    }

    /// Moves the lease of a ticket, and returns its new one; `None` if it is not, or no longer, in
    /// that place.
    pub fn pass(&self, ticket: Ticket, from: Place, to: Place) -> Option<Ticket> {
        let word = self.leases.get(ticket.lease())?.as_ref();
        let state = State(word.load());
        if state.version() != ticket.version() || state.place() != Some(from) {
            return None;
        }
        let moved = state.moved_to(to);
        word.replace(state.0, moved.0).then(|| Ticket::new(ticket.lease(), moved))
    }

    /// Whether the lease of a ticket is in that place.
    pub fn is_at(&self, ticket: Ticket, place: Place) -> bool {
        let state = self.state(ticket.lease());
        state.is_some_and(|state| state.version() == ticket.version() && state.place() == Some(place))
    }

    /// Every lease in a place, each at a different instant.
    pub fn all_at(&self, place: Place) -> impl Iterator<Item = Ticket> + use<'m, L, E, N> {
        let flow = *self;
        (0..self.leases.len()).filter_map(move |lease| {
            let state = flow.state(lease)?;
            (state.place() == Some(place)).then(|| Ticket::new(lease, state))
        })
    }

    /// Takes a lease from the pool: the first that is `ready`, from number `from` on (and then from
    /// 0).
    pub fn take_free(&self, from: usize, to: Place, ready: impl Fn(usize) -> bool) -> Option<Ticket> {
        let count = self.leases.len();
        (0..count).map(|n| (from % count.max(1) + n) % count).find_map(|lease| {
            let state = self.state(lease)?;
            if state.place() != Some(Place::Free) || !ready(lease) {
                return None;
            }
            self.pass(Ticket::new(lease, state), Place::Free, to)
        })
    }

    /// Queues a lease that `role` holds for the next one, if fewer than `depth_max` are queued. The
    /// caller is the only process that queues there.
    pub fn queue(&self, role: u8, ticket: Ticket, depth_max: u64) -> Result<(), NotQueued> {
        let ring = self.ring(role).ok_or(NotQueued::Damaged)?;
        let tail = ring.tail.0.load();
        let depth = tail.wrapping_sub(ring.head.0.load());
        if depth > N as u64 {
            return Err(NotQueued::Damaged);
        }
        if depth >= depth_max.min(N as u64) {
            return Err(NotQueued::Full);
        }
        if !self.is_at(ticket, Place::Held(role)) {
            return Err(NotQueued::NotHeld);
        }
        let state = self.state(ticket.lease()).ok_or(NotQueued::NotHeld)?;
        ring.slot(tail).store(Ticket::new(ticket.lease(), state.moved_to(Place::Queued(role))).0);
        self.pass(ticket, Place::Held(role), Place::Queued(role)).ok_or(NotQueued::NotHeld)?;
        ring.tail.0.store(tail.wrapping_add(1));
        Ok(())
    }

    /// Takes the oldest lease of an edge; `None` if it is empty.
    pub fn take(&self, edge: u8, to: Place) -> Result<Option<Ticket>, Damaged> {
        let ring = self.ring(edge).ok_or(Damaged)?;
        for _ in 0..TRIES_MAX {
            let head = ring.head.0.load();
            let depth = ring.tail.0.load().wrapping_sub(head);
            if depth == 0 {
                return Ok(None);
            }
            let ticket = Ticket(ring.slot(head).load());
            if ring.head.0.load() != head {
                continue;
            }
            if depth > N as u64 {
                return Err(Damaged);
            }
            let taken = self.pass(ticket, Place::Queued(edge), to);
            // If it fails, another process has done it.
            let _ = ring.head.0.replace(head, head.wrapping_add(1));
            if taken.is_some() {
                return Ok(taken);
            }
        }
        Err(Damaged)
    }

    /// As the new owner of `role`, repairs what its former owner left at its death: finishes its
    /// last send, and frees its leases, which go to `freed`: [`Place::Free`] or [`Place::Vacant`].
    pub fn recover(&self, role: u8, mut freed: impl FnMut(usize) -> Place) -> Recovered {
        let mut recovered = Recovered::default();
        // It may have taken a lease, from the role before it or back from the queue after it,
        // without advancing the head.
        role.checked_sub(1).into_iter().chain([role]).for_each(|edge| self.pass_over(edge));
        if let Some(ring) = self.ring(role) {
            let tail = ring.tail.0.load();
            let depth = tail.wrapping_sub(ring.head.0.load());
            let last = Ticket(ring.slot(tail).load());
            if depth < N as u64 && self.is_at(last, Place::Queued(role)) {
                ring.tail.0.store(tail.wrapping_add(1));
                recovered.completed = 1;
            }
            for ticket in self.all_at(Place::Queued(role)) {
                if !Self::is_in(ring, ticket)
                    && self.pass(ticket, Place::Queued(role), freed(ticket.lease())).is_some()
                {
                    recovered.stranded += 1;
                }
            }
        }
        for ticket in self.all_at(Place::Held(role)) {
            if self.pass(ticket, Place::Held(role), freed(ticket.lease())).is_some() {
                recovered.dropped += 1;
            }
        }
        recovered
    }

    /// Advances the head of an edge over stale tickets.
    fn pass_over(&self, edge: u8) {
        let Some(ring) = self.ring(edge) else { return };
        for _ in 0..N {
            let head = ring.head.0.load();
            let depth = ring.tail.0.load().wrapping_sub(head);
            let ticket = Ticket(ring.slot(head).load());
            let genuine = ring.head.0.load() == head;
            if genuine && (depth == 0 || self.is_at(ticket, Place::Queued(edge))) {
                return;
            }
            if genuine {
                let _ = ring.head.0.replace(head, head.wrapping_add(1));
            }
        }
    }

    /// Whether a ticket that was just queued is still in the ring. If it is not and its lease has
    /// not moved, it never will be: a lease moves before the head does.
    fn is_in(ring: &Ring<N>, ticket: Ticket) -> bool {
        let head = ring.head.0.load();
        let depth = ring.tail.0.load().wrapping_sub(head).min(N as u64);
        (0..depth).any(|at| ring.slot(head.wrapping_add(at)).load() == ticket.0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
