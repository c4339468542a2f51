//! A chain's leases: handed over while the producer steals, and while a process dies. Every
//! interleaving, as in the test of this name of partita-ledger.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use partita_frames::flow::{Flow, Line, NotQueued, Ring};
use partita_frames::state::{Place, State, Ticket};
use partita_ledger::sync::{Word, crash, see_each_other};

/// Explores with a bound on forced switches from one thread to another, which keeps each test
/// within seconds.
fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

/// A chain of two or three roles, in small.
struct Chain {
    leases: Vec<Line>,
    edges: Vec<Edge>,
}

struct Edge(Ring<2>);

impl AsRef<Ring<2>> for Edge {
    fn as_ref(&self) -> &Ring<2> {
        &self.0
    }
}

impl Chain {
    fn new(leases: usize, roles: usize) -> Arc<Self> {
        let free = || Line(Word::new(State(0).moved_to(Place::Free).0));
        let leases = (0..leases).map(|_| free()).collect();
        Arc::new(Self { leases, edges: (1..roles).map(|_| Edge(Ring::new())).collect() })
    }

    fn flow(&self) -> Flow<'_, Line, Edge, 2> {
        Flow::new(&self.leases, &self.edges)
    }

    /// Starts a frame and passes it on, dropping the oldest if there is no room. Returns the sent
    /// lease.
    fn send(&self) -> usize {
        let flow = self.flow();
        let ticket = flow.take_free(0, Place::Held(0), |_| true).expect("more leases than can be away");
        while let Err(fault) = flow.queue(0, ticket, 2) {
            assert_eq!(fault, NotQueued::Full);
            if let Some(oldest) = flow.take(0, Place::Held(0)).unwrap() {
                flow.pass(oldest, Place::Held(0), Place::Free).expect("it was just taken");
            }
        }
        ticket.lease()
    }

    fn receive(&self) -> Option<Ticket> {
        self.flow().take(0, Place::Held(1)).unwrap()
    }

    fn finish(&self, ticket: Ticket) {
        self.flow().pass(ticket, Place::Held(1), Place::Free).expect("it is held");
    }

    /// At rest, every lease is in its place.
    fn check(&self, free: usize, queued: usize) {
        let at = |place| self.flow().all_at(place).count();
        let found = (at(Place::Free), at(Place::Queued(0)), at(Place::Held(0)), at(Place::Held(1)));
        assert_eq!(found, (free, queued, 0, 0));
        assert_eq!(found.0 + found.1, self.leases.len(), "none is lost");
        let rest = std::iter::from_fn(|| self.receive()).count();
        assert_eq!(rest, queued, "what is queued can be had");
    }
}

#[test]
fn a_lease_goes_to_the_consumer_or_to_the_thief() {
    model(4, || {
        let chain = Chain::new(4, 2);
        chain.send();
        chain.send();
        let consumer = {
            let chain = Arc::clone(&chain);
            thread::spawn(move || {
                let got = [chain.receive(), chain.receive()];
                got.iter().flatten().for_each(|ticket| chain.finish(*ticket));
                got.map(|ticket| ticket.map(Ticket::lease))
            })
        };
        // Two more, for which the thief may have to make room.
        let (third, fourth) = (chain.send(), chain.send());
        let got = consumer.join().unwrap();
        assert_ne!(got[0], None, "there was always one");
        assert_ne!(got[0], got[1]);
        let mut left: Vec<usize> = Vec::new();
        while let Some(ticket) = chain.receive() {
            left.push(ticket.lease());
            chain.finish(ticket);
        }
        let newest = if got[1] == Some(fourth) { vec![] } else { vec![fourth] };
        assert!(
            left.ends_with(&newest) && left.len() <= 2,
            "{got:?}, then {left:?}, of {third} and {fourth}"
        );
        chain.check(4, 0);
    });
}

#[test]
fn a_consumer_gets_frames_in_order_despite_stealing() {
    model(3, || {
        let chain = Chain::new(4, 2);
        let number = |ticket: Ticket| ticket.lease();
        // Leases are taken by number, and none comes back before all are sent: numbers are the
        // order.
        let taken: Vec<_> =
            (0..4).map(|lease| chain.flow().take_free(lease, Place::Held(0), |_| true).unwrap()).collect();
        let consumer = {
            let chain = Arc::clone(&chain);
            thread::spawn(move || [chain.receive(), chain.receive()].map(|ticket| ticket.map(number)))
        };
        let mut stolen = Vec::new();
        for ticket in taken {
            while chain.flow().queue(0, ticket, 2) == Err(NotQueued::Full) {
                stolen.extend(chain.flow().take(0, Place::Held(2)).unwrap().map(number));
            }
        }
        let got: Vec<_> = consumer.join().unwrap().into_iter().flatten().collect();
        assert!(got.is_sorted() && stolen.is_sorted(), "{got:?} {stolen:?}");
        let rest: Vec<_> = std::iter::from_fn(|| chain.receive()).map(number).collect();
        let mut all = [got, stolen, rest].concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3], "each once");
    });
}

#[test]
fn a_sender_dies_at_each_step_while_the_consumer_takes() {
    for steps in 0..16 {
        model(3, move || {
            let chain = Chain::new(3, 2);
            let consumer = {
                let chain = Arc::clone(&chain);
                thread::spawn(move || chain.receive().map(|ticket| chain.finish(ticket)).is_some())
            };
            let sent = crash::after(steps, || chain.send()).is_some();
            let recovered = chain.flow().recover(0, |_| Place::Free);
            assert_eq!(recovered.stranded, 0);
            assert!(!sent || recovered.completed + recovered.dropped == 0, "{recovered:?}");
            // The next owner continues.
            chain.send();
            let got = usize::from(consumer.join().unwrap());
            let queued = 1 + usize::from(sent) + recovered.completed as usize - got;
            chain.check(3 - queued, queued);
        });
    }
}

#[test]
fn a_thief_dies_at_each_step() {
    for steps in 0..24 {
        model(2, move || {
            let chain = Chain::new(4, 2);
            chain.send();
            chain.send();
            let consumer = {
                let chain = Arc::clone(&chain);
                thread::spawn(move || chain.receive().map(|ticket| chain.finish(ticket)).is_some())
            };
            crash::after(steps, || chain.send());
            assert_eq!(chain.flow().recover(0, |_| Place::Free).stranded, 0);
            assert!(consumer.join().unwrap(), "two were there, and one of them at most was stolen");
            let queued = chain.flow().all_at(Place::Queued(0)).count();
            chain.check(4 - queued, queued);
        });
    }
}

#[test]
fn a_consumer_dies_at_each_step_while_the_sender_steals() {
    for steps in 0..12 {
        model(2, move || {
            let chain = Chain::new(4, 2);
            chain.send();
            let victim = {
                let chain = Arc::clone(&chain);
                thread::spawn(move || {
                    crash::after(steps, || chain.receive().map(|ticket| chain.finish(ticket)));
                    let recovered = chain.flow().recover(1, |_| Place::Free);
                    assert!(recovered.dropped <= 1 && recovered.stranded == 0);
                })
            };
            chain.send();
            chain.send();
            victim.join().unwrap();
            let queued = chain.flow().all_at(Place::Queued(0)).count();
            chain.check(4 - queued, queued);
        });
    }
}

/// Of a process that is about to sleep and one that has a frame for it, at least one sees the
/// other: a futex alone cannot ensure that.
#[test]
fn no_waiter_misses_a_change() {
    model(6, || {
        let words = Arc::new((Word::new(0), Word::new(0)));
        let waker = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                words.0.store(1);
                see_each_other();
                words.1.load() != 0
            })
        };
        words.1.store(1);
        see_each_other();
        let saw = words.0.load() != 0;
        assert!(waker.join().unwrap() || saw);
    });
}
