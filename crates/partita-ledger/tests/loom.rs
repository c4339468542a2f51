//! Every interleaving that the memory model allows, of small versions of the lock-free parts:
//! orders that a stress test may never meet.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p partita-ledger --release
//! --test loom
//! ```
//!
//! Without `--cfg loom` this file is empty. Processes are loom threads. A killed process is a
//! thread that [`crash::after`] ends before one of its accesses to shared memory, tried for each
//! access.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use partita_ledger::account::{Account, Book, Change, Fault};
use partita_ledger::claims::Claims;
use partita_ledger::epoch::DoubleBuffer;
use partita_ledger::record::{Records, Shared};
use partita_ledger::sync::{Word, crash};

/// More accesses than an undisturbed operation makes.
const STEPS_MAX: u32 = 26;
const QUOTA: u64 = 10;

/// Explores with a bound on forced switches from one thread to another, to keep each test within
/// seconds.
fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

struct Cells(Account);

impl AsRef<Account> for Cells {
    fn as_ref(&self) -> &Account {
        &self.0
    }
}

/// A usage file with few slots.
struct Usage {
    last: Word,
    slots: Vec<Cells>,
}

impl Usage {
    fn new(slots: usize) -> Arc<Self> {
        let slots = (0..slots).map(|_| Cells(Account::new())).collect();
        Arc::new(Self { last: Word::new(0), slots })
    }

    fn book(&self) -> Book<'_, Cells> {
        Book::new(&self.last, &self.slots)
    }

    fn reserve(&self, slot: usize, bytes: u64) -> Result<u64, Fault> {
        self.book().transact(slot, Change::Reserve { bytes, quota: QUOTA })
    }

    fn release(&self, slot: usize, bytes: u64) {
        assert_eq!(self.book().transact(slot, Change::Release(bytes)), Ok(bytes));
    }

    fn reap(&self, slot: usize) -> u64 {
        self.book().transact(slot, Change::ReleaseAll).unwrap()
    }

    /// At rest, the total is the sum of the slots, and never was above the quota.
    fn check(&self, bytes: &[u64]) {
        let held: Vec<u64> = (0..self.slots.len()).map(|slot| self.book().bytes(slot)).collect();
        assert_eq!(held, bytes);
        let totals = self.book().totals();
        assert_eq!(totals.used, bytes.iter().sum::<u64>());
        assert!(totals.used <= totals.peak && totals.peak <= QUOTA);
    }
}

fn spawn<T: 'static>(
    usage: &Arc<Usage>,
    process: impl FnOnce(&Usage) -> T + 'static,
) -> thread::JoinHandle<T> {
    let usage = Arc::clone(usage);
    thread::spawn(move || process(&usage))
}

#[test]
fn limits_are_read_whole() {
    model(6, || {
        let buffer = Arc::new(DoubleBuffer::<2>::new());
        let writer = {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || {
                for epoch in 1..=3 {
                    assert_eq!(buffer.write(&[epoch, epoch * 10]), epoch);
                }
            })
        };
        let mut newest = 0;
        for _ in 0..2 {
            let (epoch, words) = buffer.read::<2>().unwrap();
            assert_eq!(words, [epoch, epoch * 10], "torn");
            assert!(epoch >= newest, "time went backwards");
            newest = epoch;
        }
        writer.join().unwrap();
        assert_eq!(buffer.read::<2>(), Some((3, [3, 30])));
    });
}

#[test]
fn a_writer_of_limits_dies_at_each_step() {
    for steps in 0..5 {
        model(4, move || {
            let buffer = Arc::new(DoubleBuffer::<2>::new());
            buffer.write(&[1, 10]);
            let writers = {
                let buffer = Arc::clone(&buffer);
                thread::spawn(move || {
                    let died = crash::after(steps, || buffer.write(&[2, 20])).is_none();
                    assert_eq!(died, steps < 4);
                    // The next one gets the lock when the first is gone, without knowledge of the
                    // first.
                    let epoch = buffer.epoch() + 1;
                    assert_eq!(buffer.write(&[epoch, epoch * 10]), epoch);
                })
            };
            let (epoch, words) = buffer.read::<2>().unwrap();
            assert_eq!(words, [epoch, epoch * 10], "torn");
            writers.join().unwrap();
            let (epoch, words) = buffer.read::<2>().unwrap();
            assert_eq!(words, [epoch, epoch * 10]);
            assert!(epoch >= 2);
        });
    }
}

#[test]
fn only_one_of_two_fits() {
    model(6, || {
        let usage = Usage::new(2);
        let other = spawn(&usage, |usage| usage.reserve(1, 6).is_ok());
        let own = usage.reserve(0, 6).is_ok();
        let other = other.join().unwrap();
        assert!(own ^ other, "{own} {other}");
        usage.check(&[u64::from(own) * 6, u64::from(other) * 6]);
    });
}

#[test]
fn what_is_passed_on_is_never_free() {
    // While 6 go from slot 0 to slot 2, they are in one of the two at every instant.
    model(4, || {
        let usage = Usage::new(3);
        usage.reserve(0, 6).unwrap();
        let other = spawn(&usage, |usage| (usage.reserve(1, 5), usage.reserve(1, 4)));
        assert_eq!(usage.book().transact(0, Change::Pass { bytes: 6, to: 2 }), Ok(6));
        assert_eq!(other.join().unwrap(), (Err(Fault::OverQuota { used: 6 }), Ok(4)));
        usage.check(&[0, 4, 6]);
        assert_eq!(usage.reap(2), 6);
        usage.check(&[0, 4, 0]);
    });
}

#[test]
fn both_fit_to_the_byte() {
    model(6, || {
        let usage = Usage::new(2);
        let other = spawn(&usage, |usage| usage.reserve(1, 4));
        assert_eq!(usage.reserve(0, 6), Ok(6));
        assert_eq!(other.join().unwrap(), Ok(4));
        usage.check(&[6, 4]);
        assert_eq!(usage.reserve(0, 1), Err(Fault::OverQuota { used: 10 }));
    });
}

#[test]
fn a_refusal_is_true_at_an_instant() {
    // The other process holds 6, then 0, then 4: 7 fit at one instant only, and a refusal must name
    // the bytes held.
    model(4, || {
        let usage = Usage::new(2);
        usage.reserve(1, 6).unwrap();
        let other = spawn(&usage, |usage| {
            usage.release(1, 6);
            usage.reserve(1, 4)
        });
        let own = usage.reserve(0, 7);
        match (own, other.join().unwrap()) {
            (Ok(7), Err(Fault::OverQuota { used: 7 })) => usage.check(&[7, 0]),
            (Err(Fault::OverQuota { used: 6 | 4 }), Ok(4)) => usage.check(&[0, 4]),
            outcome => panic!("{outcome:?}"),
        }
    });
}

#[test]
fn a_refusal_does_not_believe_an_unfinished_operation() {
    // The other process holds 3, then 2, then 4, and writes its last outcome over the first one: 7
    // do not fit beside 4, but only once that has taken effect.
    model(4, || {
        let usage = Usage::new(2);
        usage.reserve(1, 3).unwrap();
        let other = spawn(&usage, |usage| {
            usage.release(1, 1);
            usage.reserve(1, 2).is_ok()
        });
        match usage.reserve(0, 7) {
            Ok(7) => {}
            refusal => {
                assert_eq!(refusal, Err(Fault::OverQuota { used: 4 }));
                assert_eq!(usage.book().totals().used, 4);
            }
        }
        other.join().unwrap();
    });
}

#[test]
fn three_processes_at_the_quota() {
    model(3, || {
        let usage = Usage::new(3);
        let others = [1, 2].map(|slot| spawn(&usage, move |usage| usage.reserve(slot, 5).is_ok()));
        let own = usage.reserve(0, 5).is_ok();
        let [first, second] = others.map(|other| other.join().unwrap());
        assert_eq!([own, first, second].iter().filter(|fits| **fits).count(), 2);
        usage.check(&[own, first, second].map(|fits| u64::from(fits) * 5));
    });
}

#[test]
fn an_observer_sees_only_what_was() {
    model(4, || {
        let usage = Usage::new(2);
        let other = spawn(&usage, |usage| {
            usage.reserve(1, 6).unwrap();
            usage.release(1, 2);
        });
        let totals = usage.book().totals();
        assert!([(0, 0), (6, 6), (4, 6)].contains(&(totals.used, totals.peak)), "{totals:?}");
        let bytes = usage.book().bytes(1);
        assert!([0, 6, 4].contains(&bytes), "{bytes}");
        other.join().unwrap();
        usage.check(&[0, 4]);
    });
}

/// A process dies before access `steps` of an operation while another one works; then it is reaped
/// while the other still works.
fn dies_and_is_reaped(first: impl Fn(&Usage) + Copy + Send + Sync + 'static) {
    for steps in 0..STEPS_MAX {
        model(3, move || {
            let usage = Usage::new(2);
            let other = spawn(&usage, |usage| {
                // At most 6 are held beside it: these 4 always fit.
                assert_eq!(usage.reserve(1, 4), Ok(4));
                usage.release(1, 1);
            });
            crash::after(steps, || first(&usage));
            let before = usage.book().bytes(0);
            assert_eq!(usage.reap(0), before, "every byte, once");
            assert_eq!(usage.reap(0), 0);
            other.join().unwrap();
            usage.check(&[0, 3]);
        });
    }
}

#[test]
fn dies_while_it_reserves() {
    dies_and_is_reaped(|usage| {
        usage.reserve(0, 6).unwrap();
    });
}

#[test]
fn dies_while_it_releases() {
    for steps in 0..STEPS_MAX {
        model(3, move || {
            let usage = Usage::new(2);
            usage.reserve(0, 6).unwrap();
            let other = spawn(&usage, |usage| usage.reserve(1, 4));
            crash::after(steps, || usage.release(0, 6));
            let before = usage.book().bytes(0);
            assert!(before == 6 || before == 0);
            assert_eq!(usage.reap(0), before);
            assert_eq!(other.join().unwrap(), Ok(4));
            usage.check(&[0, 4]);
        });
    }
}

#[test]
fn its_reaper_dies_too() {
    for steps in 0..STEPS_MAX {
        model(3, move || {
            let usage = Usage::new(2);
            usage.reserve(0, 6).unwrap();
            let other = spawn(&usage, |usage| usage.reserve(1, 4));
            crash::after(steps, || usage.reap(0));
            let left = usage.book().bytes(0);
            assert_eq!(usage.reap(0), left);
            // The slot's next owner starts from zero.
            assert_eq!(other.join().unwrap(), Ok(4));
            assert_eq!(usage.reserve(0, 6), Ok(6));
            usage.check(&[6, 4]);
        });
    }
}

/// A value of two words that processes share.
struct Value {
    current: Word,
    writers: Vec<Records<2>>,
}

impl Value {
    fn new(writers: usize) -> Arc<Self> {
        let records = || [(); 2].map(|()| [(); 2].map(|()| Word::new(0)));
        Arc::new(Self { current: Word::new(0), writers: (0..writers).map(|_| records()).collect() })
    }

    fn shared(&self) -> Shared<'_, 2> {
        Shared::new(&self.current, &self.writers)
    }

    /// Counts one, in both words.
    fn count(&self, writer: usize) -> Option<u64> {
        let change = |&[a, b]: &[u64; 2]| {
            assert_eq!(b, a * 10, "torn");
            ([a + 1, (a + 1) * 10], a)
        };
        self.shared().update(writer, change).map(|(version, _)| version)
    }
}

#[test]
fn a_shared_value_is_changed_whole_and_no_change_is_lost() {
    model(4, || {
        let value = Value::new(2);
        let other = {
            let value = Arc::clone(&value);
            thread::spawn(move || [value.count(1), value.count(1)].map(Option::unwrap))
        };
        let own = [value.count(0), value.count(0)].map(Option::unwrap);
        let [a, b] = value.shared().load().unwrap();
        assert_eq!(b, a * 10, "torn");
        let mut versions = [own, other.join().unwrap()].concat();
        versions.sort_unstable();
        assert_eq!(versions, [1, 2, 3, 4], "each change has its own version");
        assert_eq!(value.shared().load(), Some([4, 40]));
    });
}

#[test]
fn a_process_that_changes_a_shared_value_may_die_at_each_step() {
    for steps in 0..8 {
        model(4, move || {
            let value = Value::new(2);
            value.count(1).unwrap();
            let victim = {
                let value = Arc::clone(&value);
                thread::spawn(move || {
                    let died = crash::after(steps, || value.count(1)).is_none();
                    // Another process takes its seat, without knowledge of it.
                    value.count(1).unwrap();
                    died
                })
            };
            value.count(0).unwrap();
            let died = victim.join().unwrap();
            let all = 4 - u64::from(died);
            assert_eq!(value.shared().load(), Some([all, all * 10]));
        });
    }
}

#[test]
fn two_borrowers_never_hold_the_same_tpc() {
    model(4, || {
        let places = Arc::new([Claims::new(), Claims::new()]);
        places[0].put([0b1000, 0, 0, 0]);
        let other = {
            let places = Arc::clone(&places);
            thread::spawn(move || places[1].take([0b1110, 0, 0, 0], places.iter()))
        };
        let own = places[0].take([0b0111, 0, 0, 0], places.iter());
        let other = other.join().unwrap();
        assert_eq!(own[0] & other[0], 0, "{own:?} {other:?}");
        assert_eq!(own[0] & 0b1001, 0b1001, "what no other wants, and what it had");
        assert_eq!([places[0].get(), places[1].get()], [own, other]);
    });
}

#[test]
fn a_borrower_may_die_at_each_step() {
    for steps in 0..16 {
        model(3, move || {
            let places = Arc::new([Claims::new(), Claims::new()]);
            places[1].put([0b10, 0, 0, 0]);
            let victim = {
                let places = Arc::clone(&places);
                thread::spawn(move || crash::after(steps, || places[1].take([0b01, 0, 0, 0], places.iter())))
            };
            let own = places[0].take([0b11, 0, 0, 0], places.iter());
            let held = victim.join().unwrap().unwrap_or([0b10, 0, 0, 0]);
            assert_eq!(own[0] & held[0], 0, "{own:?} {held:?}");
            // Once it is cleared, all can be had.
            places[1].put([0; 4]);
            assert_eq!(places[0].take([0b11, 0, 0, 0], places.iter())[0], 0b11);
        });
    }
}
