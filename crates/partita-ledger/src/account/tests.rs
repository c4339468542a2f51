//! The accounting against a simple model, with processes that die, and against words that no
//! operation ever wrote.

use std::vec::Vec;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::sync::crash;

impl AsRef<Account> for Account {
    fn as_ref(&self) -> &Account {
        self
    }
}

/// A usage file with few slots.
pub(super) struct Usage {
    last: Word,
    slots: Vec<Account>,
}

impl Usage {
    pub(super) fn new(slots: usize) -> Self {
        Self { last: Word::new(0), slots: (0..slots).map(|_| Account::new()).collect() }
    }

    pub(super) fn book(&self) -> Book<'_, Account> {
        Book::new(&self.last, &self.slots)
    }

    pub(super) fn held(&self) -> Vec<u64> {
        (0..self.slots.len()).map(|slot| self.book().bytes(slot)).collect()
    }
}

/// More accesses than an undisturbed operation makes.
const STEPS_MAX: u32 = 26;

#[test]
fn names_keep_their_parts_and_their_order() {
    let name = Name::new(VERSION_MAX, 1, SLOTS - 1);
    assert_eq!((name.version(), name.entry(), name.slot(), name.0), (VERSION_MAX, 1, SLOTS - 1, u64::MAX));
    let name = Name::new(5, 0, 700);
    assert_eq!((name.version(), name.entry(), name.slot()), (5, 0, 700));
    assert!(Name::new(4, 1, SLOTS - 1) < name && name < Name::new(6, 0, 0));
}

#[test]
fn an_undisturbed_operation_takes_few_accesses() {
    let usage = Usage::new(2);
    let reserve = || usage.book().transact(1, Change::Reserve { bytes: 1, quota: 9 });
    let needed = (0..).find(|&steps| crash::after(steps, reserve).is_some()).unwrap();
    assert!((10..STEPS_MAX).contains(&needed), "{needed}");
}

/// An operation that dies before one of its accesses has happened or has not, and no process can
/// see that it was interrupted.
#[test]
fn death_at_every_access() {
    for change in [Change::Reserve { bytes: 5, quota: 100 }, Change::Release(3), Change::ReleaseAll] {
        let after = match change {
            Change::Pass { .. } => unreachable!(),
            Change::Reserve { .. } => 35,
            Change::Release(_) => 27,
            Change::ReleaseAll => 0,
        };
        let mut outcomes = Vec::new();
        for steps in 0..STEPS_MAX {
            let usage = Usage::new(3);
            for (slot, bytes) in [(0, 10), (1, 30), (2, 50)] {
                usage.book().transact(slot, Change::Reserve { bytes, quota: 100 }).unwrap();
            }
            // Entries are used in turn: let both have been in force.
            usage.book().transact(1, Change::Release(10)).unwrap();
            usage.book().transact(1, Change::Reserve { bytes: 10, quota: 100 }).unwrap();

            let finished = crash::after(steps, || usage.book().transact(1, change).unwrap()).is_some();
            let held = usage.book().bytes(1);
            assert!(held == 30 || held == after, "{change:?} {steps}: {held}");
            assert!(!finished || held == after);
            assert_eq!(usage.book().totals().used, 60 + held);

            // Others continue, exact to the byte.
            let free = 100 - 60 - held;
            let over = usage.book().transact(0, Change::Reserve { bytes: free + 1, quota: 100 });
            assert_eq!(over, Err(Fault::OverQuota { used: 60 + held }));
            usage.book().transact(0, Change::Reserve { bytes: free, quota: 100 }).unwrap();
            usage.book().transact(2, Change::Release(50)).unwrap();
            // The reaper finds the dead process's bytes.
            assert_eq!(usage.book().transact(1, Change::ReleaseAll), Ok(held));
            assert_eq!(usage.held(), [10 + free, 0, 0]);
            assert_eq!(usage.book().totals().used, 10 + free);
            outcomes.push(held);
        }
        // Before some access no operation has taken effect, from it on every one has.
        assert!(outcomes.contains(&30) && outcomes.contains(&after), "{outcomes:?}");
        assert!(outcomes.is_sorted_by_key(|&held| held != 30), "{outcomes:?}");
    }
}

/// Passed bytes are in one of the two slots, and the total never changes.
#[test]
fn death_at_every_access_of_passing_on() {
    let mut outcomes = Vec::new();
    for steps in 0..STEPS_MAX {
        let usage = Usage::new(4);
        for (slot, bytes) in [(0, 10), (1, 30), (3, 5)] {
            usage.book().transact(slot, Change::Reserve { bytes, quota: 100 }).unwrap();
        }
        let pass = Change::Pass { bytes: 12, to: 3 };
        let finished = crash::after(steps, || usage.book().transact(1, pass).unwrap()).is_some();
        let held = usage.held();
        assert!(held == [10, 30, 0, 5] || held == [10, 18, 0, 17], "{steps}: {held:?}");
        assert!(!finished || held[1] == 18);
        assert_eq!(usage.book().totals(), Totals { used: 45, peak: 45 });
        // Another operation starts before any process has settled the two.
        usage.book().transact(0, Change::Reserve { bytes: 55, quota: 100 }).unwrap();
        assert_eq!(usage.held(), [65, held[1], 0, held[3]]);
        for slot in [3, 1] {
            assert_eq!(usage.book().transact(slot, Change::ReleaseAll), Ok(held[slot]));
        }
        assert_eq!((usage.held(), usage.book().totals().used), ([65, 0, 0, 0].to_vec(), 65));
        outcomes.push(held[1]);
    }
    assert!(outcomes.contains(&30) && outcomes.contains(&18), "{outcomes:?}");
    assert!(outcomes.is_sorted_by_key(|&held| held != 30), "{outcomes:?}");
}

#[test]
fn the_last_version_is_refused_not_wrapped() {
    let usage = Usage::new(2);
    usage.last.store(Name::new(VERSION_MAX - 1, 0, 0).0);
    let reserve = || usage.book().transact(1, Change::Reserve { bytes: 1, quota: 9 });
    assert_eq!(reserve(), Ok(1));
    assert_eq!(reserve(), Err(Fault::Damaged));
    assert_eq!((usage.book().totals().used, usage.held()), (1, [0, 1].to_vec()));
}

#[test]
fn a_rewriter_cannot_hold_anybody_for_ever() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let usage = Usage::new(2);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut word = 0u64;
            while !done.load(Ordering::Relaxed) {
                word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
                usage.last.store(word & !(SLOTS as u64 - 1) | word >> 63);
            }
        });
        for _ in 0..50 {
            let result = usage.book().transact(0, Change::Reserve { bytes: 1, quota: u64::MAX });
            assert!(matches!(result, Ok(1) | Err(_)));
            usage.book().totals();
            usage.book().bytes(1);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[derive(Debug, Clone)]
struct Action {
    slot: usize,
    change: Change,
    /// The process dies before this access, if it makes so many; then its slot is reaped.
    dies_after: Option<u32>,
}

const SLOTS_TRIED: usize = 5;

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let amount = prop_oneof![0..20u64, Just(u64::MAX), Just(u64::MAX - 7)];
    let change = prop_oneof![
        4 => (amount.clone(), prop_oneof![0..60u64, Just(u64::MAX)])
            .prop_map(|(bytes, quota)| Change::Reserve { bytes, quota }),
        3 => amount.clone().prop_map(Change::Release),
        1 => Just(Change::ReleaseAll),
        2 => (amount, 0..SLOTS_TRIED).prop_map(|(bytes, to)| Change::Pass { bytes, to }),
    ];
    let action = (0..SLOTS_TRIED, change, proptest::option::weighted(0.3, 0..STEPS_MAX))
        .prop_map(|(slot, change, dies_after)| Action { slot, change, dies_after });
    vec(action, 0..60)
}

/// The effect of an operation on a table of bytes: the model.
fn expected(held: &mut [u64], slot: usize, change: Change) -> Result<u64, Fault> {
    let used: u64 = held.iter().sum();
    match change {
        Change::Reserve { bytes: 0, .. } => Ok(0),
        Change::Reserve { bytes, quota } if used.checked_add(bytes).is_none_or(|sum| sum > quota) => {
            Err(Fault::OverQuota { used })
        }
        Change::Reserve { bytes, .. } => {
            held[slot] += bytes;
            Ok(bytes)
        }
        Change::Release(bytes) if bytes > held[slot] => Err(Fault::NotHeld { held: held[slot] }),
        Change::Release(bytes) => {
            held[slot] -= bytes;
            Ok(bytes)
        }
        Change::ReleaseAll => Ok(core::mem::take(&mut held[slot])),
        Change::Pass { bytes: 0, .. } => Ok(0),
        Change::Pass { to, .. } if to == slot => Err(Fault::Damaged),
        Change::Pass { bytes, .. } if bytes > held[slot] => Err(Fault::NotHeld { held: held[slot] }),
        Change::Pass { bytes, to } => {
            held[slot] -= bytes;
            held[to] += bytes;
            Ok(bytes)
        }
    }
}

proptest! {
    #[test]
    fn agrees_with_the_model(actions in actions()) {
        let usage = Usage::new(SLOTS_TRIED);
        let mut held = [0; SLOTS_TRIED].to_vec();
        let mut peak = 0;
        for Action { slot, change, dies_after } in actions {
            let before = held.clone();
            let outcome = expected(&mut held, slot, change);
            let operation = || usage.book().transact(slot, change);
            match dies_after {
                None => prop_assert_eq!(operation(), outcome),
                Some(steps) => match crash::after(steps, operation) {
                    Some(result) => prop_assert_eq!(result, outcome),
                    None => {
                        if usage.held() == before {
                            held = before;
                        }
                    }
                }
            }
            peak = peak.max(held.iter().sum());
            prop_assert_eq!(&usage.held(), &held);
            prop_assert_eq!(usage.book().totals(), Totals { used: held.iter().sum(), peak });
            if dies_after.is_some() {
                prop_assert_eq!(usage.book().transact(slot, Change::ReleaseAll), Ok(held[slot]));
                held[slot] = 0;
            }
        }
    }

    #[test]
    fn any_words_are_survived(
        last in (any::<u64>(), 0..4u64),
        words in vec(prop_oneof![any::<u64>(), Just(u64::MAX), Just(0)], 8 * 3),
        bytes in any::<u64>(),
        quota in any::<u64>(),
    ) {
        let usage = Usage::new(3);
        usage.last.store(last.0 & !(SLOTS as u64 - 1) | last.1);
        for (account, words) in usage.slots.iter().zip(words.chunks_exact(8)) {
            account.settled.store(words[0]);
            account.partner.store(words[7]);
            for (entry, words) in account.entries.iter().zip(words[1..7].chunks_exact(3)) {
                entry.used.store(words[0]);
                entry.bytes.store(words[1]);
                entry.peak.store(words[2]);
            }
        }
        for slot in 0..4 {
            let book = usage.book();
            let _ = book.transact(slot, Change::Release(bytes));
            let _ = book.transact(slot, Change::Pass { bytes: bytes >> 1, to: (slot + 1) % 4 });
            if let Ok(moved) = book.transact(slot, Change::Reserve { bytes, quota }) {
                prop_assert!(moved == bytes && book.totals().used <= quota || bytes == 0);
            }
            book.totals();
            book.bytes(slot);
            if slot < 3 && book.transact(slot, Change::ReleaseAll).is_ok() {
                prop_assert_eq!(book.transact(slot, Change::ReleaseAll), Ok(0));
            }
        }
    }
}
