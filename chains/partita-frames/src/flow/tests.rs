//! Any sequence of operations and deaths, against a model: each lease is in one place, that of the
//! model.

extern crate std;
use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::sync::crash;

const ROLES: usize = 4;
const LEASES: usize = 6;
const SLOTS: usize = 4;
const DEPTH_MAX: u64 = 3;

struct Chain {
    leases: [Line; LEASES],
    edges: [Cells; ROLES - 1],
}

struct Cells(Ring<SLOTS>);

impl AsRef<Ring<SLOTS>> for Cells {
    fn as_ref(&self) -> &Ring<SLOTS> {
        &self.0
    }
}

impl Chain {
    fn new() -> Self {
        let free = || Line(Word::new(State(0).moved_to(Place::Free).0));
        let edge = || Cells(Ring::new());
        Self { leases: core::array::from_fn(|_| free()), edges: core::array::from_fn(|_| edge()) }
    }

    fn flow(&self) -> Flow<'_, Line, Cells, SLOTS> {
        Flow::new(&self.leases, &self.edges)
    }
}

/// The expected places of the leases, by number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Model {
    held: BTreeMap<u8, Vec<usize>>,
    queued: [VecDeque<usize>; ROLES - 1],
}

impl Model {
    fn of(chain: &Chain) -> Self {
        let mut model = Self::default();
        for role in 0..ROLES as u8 {
            let held: Vec<_> = chain.flow().all_at(Place::Held(role)).map(Ticket::lease).collect();
            if !held.is_empty() {
                model.held.insert(role, held);
            }
        }
        for (edge, queue) in (0..).zip(&mut model.queued) {
            let ring = chain.edges[usize::from(edge)].as_ref();
            for at in 0..ring.depth() {
                let ticket = Ticket(ring.slot(ring.head.0.load() + at).load());
                if chain.flow().is_at(ticket, Place::Queued(edge)) {
                    queue.push_back(ticket.lease());
                }
            }
        }
        model
    }

    fn hold(&mut self, role: u8, lease: usize) {
        let held = self.held.entry(role).or_default();
        held.push(lease);
        held.sort_unstable();
    }

    fn let_go(&mut self, role: u8) -> Option<usize> {
        let held = self.held.get_mut(&role)?;
        let lease = held.remove(0);
        if held.is_empty() {
            self.held.remove(&role);
        }
        Some(lease)
    }

    fn away(&self) -> usize {
        self.held.values().map(Vec::len).sum::<usize>() + self.queued.iter().map(VecDeque::len).sum::<usize>()
    }
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    /// Takes from the pool, or from the role before.
    Take(u8),
    /// Passes its first one on.
    Send(u8),
    /// Drops the oldest frame that it has sent.
    Steal(u8),
    /// Returns its first one.
    Free(u8),
    /// All memory is gone: that of the pool and of frames on their way.
    Recover(u8),
}

impl Operation {
    fn role(self) -> u8 {
        match self {
            Self::Take(role)
            | Self::Send(role)
            | Self::Steal(role)
            | Self::Free(role)
            | Self::Recover(role) => role,
        }
    }

    fn run(self, chain: &Chain) {
        let flow = chain.flow();
        match self {
            Self::Take(0) => _ = flow.take_free(0, Place::Held(0), |_| true),
            Self::Take(role) => _ = flow.take(role - 1, Place::Held(role)).unwrap(),
            Self::Send(role) => {
                if let Some(ticket) = flow.all_at(Place::Held(role)).next() {
                    _ = flow.queue(role, ticket, DEPTH_MAX);
                }
            }
            Self::Steal(role) => {
                if let Ok(Some(ticket)) = flow.take(role, Place::Held(role)) {
                    flow.pass(ticket, Place::Held(role), Place::Free).unwrap();
                }
            }
            Self::Free(role) => {
                if let Some(ticket) = flow.all_at(Place::Held(role)).next() {
                    flow.pass(ticket, Place::Held(role), Place::Free).unwrap();
                }
            }
            Self::Recover(role) => _ = flow.recover(role, |_| Place::Free),
        }
    }

    /// Its effect on the model when it is not disturbed.
    fn model(self, model: &mut Model) {
        match self {
            Self::Take(0) => {
                let taken: Vec<_> =
                    model.held.values().flatten().chain(model.queued.iter().flatten()).collect();
                if let Some(lease) = (0..LEASES).find(|lease| !taken.contains(&lease)) {
                    model.hold(0, lease);
                }
            }
            Self::Take(role) => {
                if let Some(lease) = model.queued[usize::from(role) - 1].pop_front() {
                    model.hold(role, lease);
                }
            }
            Self::Send(role) => {
                let room =
                    model.queued.get(usize::from(role)).is_some_and(|queue| queue.len() < DEPTH_MAX as usize);
                if room && let Some(lease) = model.let_go(role) {
                    model.queued[usize::from(role)].push_back(lease);
                }
            }
            Self::Steal(role) => {
                if let Some(queue) = model.queued.get_mut(usize::from(role)) {
                    queue.pop_front();
                }
            }
            Self::Free(role) => _ = model.let_go(role),
            Self::Recover(role) => _ = model.held.remove(&role),
        }
    }
}

fn operations() -> impl Strategy<Value = Operation> {
    (0..9u8, 0..ROLES as u8).prop_map(|(kind, role)| match kind {
        0..3 => Operation::Take(role),
        3..6 => Operation::Send(role),
        6 => Operation::Steal(role),
        7 => Operation::Free(role),
        _ => Operation::Recover(role),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_lease_is_where_the_model_says(operations in prop::collection::vec(operations(), 1..120)) {
        let (chain, mut model) = (Chain::new(), Model::default());
        for operation in operations {
            operation.run(&chain);
            operation.model(&mut model);
            prop_assert_eq!(&Model::of(&chain), &model, "after {:?}", operation);
            prop_assert_eq!(chain.flow().all_at(Place::Free).count() + model.away(), LEASES);
        }
    }

    /// The process that does the operation dies before one of its accesses, and its role is
    /// recovered: the operation has happened, or it has not, and the role's leases are free. Leases
    /// of other roles have not moved.
    #[test]
    fn a_dead_process_has_changed_the_value_or_has_not(
        operations in prop::collection::vec((operations(), prop::option::weighted(0.3, 0..30u32)), 1..80)
    ) {
        let chain = Chain::new();
        let mut model = Model::default();
        for (operation, dies) in operations {
            let Some(steps) = dies else {
                operation.run(&chain);
                operation.model(&mut model);
                continue;
            };
            let _ = crash::after(steps, || operation.run(&chain));
            let (mut undone, mut done) = (model.clone(), model);
            operation.model(&mut done);
            let recover = Operation::Recover(operation.role());
            let recovered = chain.flow().recover(operation.role(), |_| Place::Free);
            prop_assert_eq!(recovered.stranded, 0);
            recover.model(&mut undone);
            recover.model(&mut done);
            let now = Model::of(&chain);
            prop_assert!(now == undone || now == done, "{:?} after {} steps: {:?}", operation, steps, now);
            prop_assert_eq!(chain.flow().all_at(Place::Free).count() + now.away(), LEASES, "one is lost");
            model = now;
        }
    }

    /// Whatever the words hold, no operation panics or loops.
    #[test]
    fn odd_words_are_survived(
        words in prop::collection::vec(any::<u64>(), LEASES + (ROLES - 1) * (SLOTS + 2)),
        small in any::<bool>(),
        operations in prop::collection::vec(operations(), 1..40),
    ) {
        let chain = Chain::new();
        let mut words = words.into_iter().map(|word| if small { ((word % 9) << 16) | ((word >> 60) << 8) } else { word });
        let cells = chain.edges.iter().flat_map(|Cells(ring)| ring.slots.iter().chain([&ring.head.0, &ring.tail.0]));
        for (cell, word) in chain.leases.iter().map(|line| &line.0).chain(cells).zip(&mut words) {
            cell.store(word);
        }
        let flow = chain.flow();
        for operation in operations {
            match operation {
                Operation::Take(role) if role > 0 => _ = flow.take(role - 1, Place::Held(role)),
                Operation::Steal(role) => _ = flow.take(role, Place::Held(role)),
                other => other.run(&chain),
            }
        }
    }
}

/// A taker that slept through a whole round of the ring, at each point: it takes the oldest ticket,
/// not just the one that it sees.
#[test]
fn a_taker_that_slept_does_not_take_out_of_order() {
    use crate::sync::schedule::Leash;
    use std::sync::Arc;
    for steps in 1..8 {
        let chain = Chain::new();
        let flow = chain.flow();
        let send = |flow: &Flow<'_, Line, Cells, SLOTS>| {
            let ticket = flow.take_free(0, Place::Held(0), |_| true).unwrap();
            flow.queue(0, ticket, SLOTS as u64).unwrap();
            ticket.lease()
        };
        let first = send(&flow);
        let leash = Arc::new(Leash::default());
        std::thread::scope(|scope| {
            let sleeper = {
                let (leash, chain) = (Arc::clone(&leash), &chain);
                scope.spawn(move || {
                    leash.run(|| chain.flow().take(0, Place::Held(1)).map(|ticket| ticket.map(Ticket::lease)))
                })
            };
            let asleep = leash.advance(steps);
            // The thief takes all tickets, and the ring goes round.
            let mut sent = VecDeque::new();
            let stolen = flow.take(0, Place::Held(0)).unwrap();
            stolen.map(|ticket| flow.pass(ticket, Place::Held(0), Place::Free).unwrap());
            for _ in 0..SLOTS {
                sent.push_back(send(&flow));
            }
            while leash.advance(1) {}
            let taken = sleeper.join().unwrap();
            if stolen.is_some_and(|ticket| ticket.lease() == first) {
                assert!(asleep);
                assert_eq!(taken, Ok(sent.pop_front()), "after {steps} steps");
            } else {
                assert_eq!(taken, Ok(Some(first)), "after {steps} steps");
            }
            let rest = core::iter::from_fn(|| flow.take(0, Place::Held(2)).unwrap().map(Ticket::lease));
            assert_eq!(rest.collect::<VecDeque<_>>(), sent, "in order, after {steps} steps");
        });
    }
}
