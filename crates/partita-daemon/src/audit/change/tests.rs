use std::collections::BTreeMap;

use partita::audit::Escape;
use partita::process::ProcessId;
use partita::registry::GpuMeta;
use proptest::prelude::*;

use super::*;

fn gpu(key: u8) -> GpuMeta {
    let (key, label) = (format!("gpu-{key}"), format!("GPU {key}"));
    GpuMeta { uuid: format!("UUID-{key}"), index: None, label, sim: None, key }
}

fn process(pid: u32) -> ProcessId {
    ProcessId { pid, start_ticks: 7 }
}

fn escape(key: u8, pid: u32) -> Finding {
    let escape = Escape { tenant: "leaky".to_owned(), gpu: gpu(key), process: process(pid) };
    Finding::Escape { escape, user: "eve".to_owned(), driver_bytes: None, is_ended: false }
}

fn stranger(key: u8, pid: u32) -> Finding {
    let gate = format!("/run/gpu-{key}/.gate");
    Finding::Stranger { gate, gpu: Some(gpu(key)), process: process(pid), user: "eve".to_owned() }
}

fn blind(key: Option<u8>) -> Finding {
    Finding::Blind { gpu: key.map(gpu), reason: "it is silent".to_owned() }
}

fn saw(findings: &[Finding]) -> Look {
    Look { findings: findings.to_vec(), ..Look::default() }
}

/// What keeps events, as the store does.
#[derive(Default)]
struct Kept {
    open: Vec<Open>,
    suspected: Vec<Finding>,
    next_id: i64,
    now: i64,
}

impl Kept {
    fn look(&mut self, look: &Look) -> Vec<Change> {
        self.now += 10;
        let outcome = changes(&self.open, &self.suspected, look, self.now);
        self.suspected = outcome.suspected;
        for change in &outcome.changes {
            assert_eq!(change.at_unix_ms, self.now);
            self.next_id += 1;
            match change.what {
                What::Began => self.open.push(Open {
                    began_id: self.next_id,
                    began_unix_ms: self.now,
                    finding: change.finding.clone(),
                }),
                What::Ended { began_id, began_unix_ms, .. } => {
                    let at = self.open.iter().position(|open| open.began_id == began_id).unwrap();
                    let open = self.open.remove(at);
                    assert_eq!((open.finding, open.began_unix_ms), (change.finding.clone(), began_unix_ms));
                }
            }
        }
        outcome.changes
    }

    /// The kinds of changes of an audit: `None` for a beginning.
    fn ends(&mut self, look: &Look) -> Vec<Option<End>> {
        let end = |change: Change| match change.what {
            What::Began => None,
            What::Ended { end, .. } => Some(end),
        };
        self.look(look).into_iter().map(end).collect()
    }
}

#[test]
fn an_escape_counts_when_it_is_seen_twice_and_is_reported_once() {
    let mut kept = Kept::default();
    let look = saw(&[escape(0, 4)]);
    assert_eq!(kept.ends(&look), []);
    assert_eq!(kept.suspected, [escape(0, 4)]);
    assert_eq!(kept.ends(&look), [None]);
    assert_eq!(kept.suspected, []);
    assert_eq!(kept.ends(&look), []);
    // Another process of the same number is another.
    let mut later = look.clone();
    if let Finding::Escape { escape, .. } = &mut later.findings[0] {
        escape.process.start_ticks = 8;
    }
    later.gone.insert(process(4));
    assert_eq!(kept.ends(&later), [Some(End::Gone)]);
    assert_eq!(kept.ends(&later), [None]);
}

#[test]
fn one_that_is_caught_as_it_ends_is_not_told_of() {
    let mut kept = Kept::default();
    assert_eq!(kept.ends(&saw(&[escape(0, 4), stranger(0, 5)])), []);
    assert_eq!(kept.ends(&saw(&[])), []);
    assert_eq!(kept.suspected, []);
    // Nor one that has ended between the driver's list and the end of the audit.
    kept.ends(&saw(&[escape(0, 4)]));
    let look = Look { gone: [process(4)].into(), ..saw(&[escape(0, 4)]) };
    assert_eq!(kept.ends(&look), []);
    assert_eq!((kept.suspected.len(), kept.open.len()), (0, 0));
}

#[test]
fn each_end_has_its_reason() {
    let all = [escape(0, 1), escape(0, 2), escape(0, 3), stranger(0, 4), stranger(0, 5)];
    let mut kept = Kept::default();
    kept.ends(&saw(&all));
    assert_eq!(kept.ends(&saw(&all)), [None; 5]);
    let look = Look {
        findings: Vec::new(),
        held: [2].map(|pid| ("gpu-0".to_owned(), process(pid))).into(),
        gone: [process(1), process(4)].into(),
    };
    let ends = [End::Gone, End::Held, End::Left, End::Gone, End::Left];
    assert_eq!(kept.ends(&look), ends.map(Some));
}

#[test]
fn what_cannot_be_seen_is_neither_new_nor_over() {
    let (one, other) = (escape(0, 1), escape(1, 2));
    let mut kept = Kept::default();
    kept.ends(&saw(&[one.clone(), other.clone(), stranger(0, 3)]));
    kept.ends(&saw(&[one.clone(), other.clone(), stranger(0, 3)]));
    // One GPU does not answer, which is reported at once: the other's processes are seen, and so
    // are the gates.
    assert_eq!(kept.ends(&saw(&[blind(Some(0))])), [Some(End::Left), Some(End::Left), None]);
    assert_eq!(kept.ends(&saw(&[blind(Some(0))])), []);
    assert_eq!(kept.open.len(), 2);
    // Nothing can be seen: the silence of the one is not over for that.
    assert_eq!(kept.ends(&saw(&[blind(None)])), [None]);
    assert_eq!(kept.open.len(), 3);
    // That a process has ended is seen all the same.
    let look = Look { gone: [process(1)].into(), ..saw(&[blind(None)]) };
    assert_eq!(kept.ends(&look), [Some(End::Gone)]);
    assert_eq!(kept.ends(&saw(&[])), [Some(End::Told), Some(End::Told)]);
}

#[test]
fn a_suspicion_outlasts_a_look_that_sees_nothing() {
    let mut kept = Kept::default();
    kept.ends(&saw(&[escape(0, 1)]));
    assert_eq!(kept.ends(&saw(&[blind(Some(0))])), [None]);
    assert_eq!(kept.ends(&saw(&[escape(0, 1)])), [Some(End::Told), None]);
}

/// The state of a process on a GPU in one audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    Escaped,
    Stranger,
    Held,
}

fn states() -> impl Strategy<Value = Vec<State>> {
    let state =
        prop_oneof![Just(State::Absent), Just(State::Escaped), Just(State::Stranger), Just(State::Held)];
    prop::collection::vec(state, 4)
}

/// Rounds: what four processes on two GPUs do, how many of them have ended for good, which GPU does
/// not answer (2: all), whether the daemon has restarted before.
fn rounds() -> impl Strategy<Value = Vec<(Vec<State>, usize, Option<u8>, bool)>> {
    let silent = prop_oneof![3 => Just(None), 1 => (0..3u8).prop_map(Some)];
    prop::collection::vec((states(), 0..5usize, silent, prop::bool::weighted(0.2)), 1..40)
}

proptest! {
    #[test]
    fn beginnings_and_ends_alternate_and_follow_from_what_was_seen(rounds in rounds()) {
        let mut kept = Kept::default();
        let mut is_open: BTreeMap<String, bool> = BTreeMap::new();
        let mut dead = 0;
        let mut before = Vec::new();
        for (states, ended, silent, restarted) in rounds {
            if restarted {
                kept.suspected.clear();
                before.clear();
            }
            dead = dead.max(ended);
            let mut look = Look::default();
            for (at, state) in (0u8..).zip(states) {
                let (key, pid) = (at % 2, u32::from(at));
                if usize::from(at) < dead {
                    look.gone.insert(process(pid));
                    continue;
                }
                let is_silent = silent.is_some_and(|silent| silent == 2 || silent == key);
                match state {
                    State::Escaped if !is_silent => look.findings.push(escape(key, pid)),
                    State::Stranger if silent != Some(2) => look.findings.push(stranger(key, pid)),
                    State::Held if !is_silent => {
                        look.held.insert((gpu(key).key, process(pid)));
                    }
                    _ => {}
                }
            }
            look.findings.extend(silent.map(|silent| blind(Some(silent).filter(|&silent| silent < 2))));
            let open_before = kept.open.clone();
            let events = kept.look(&look);
            for change in &events {
                let key = format!("{:?}", change.finding.key());
                let was_open = is_open.insert(key, change.what == What::Began).unwrap_or(false);
                // Every beginning is of something closed, every end of something open.
                prop_assert_eq!(was_open, change.what != What::Began);
                let is_seen = has(&look.findings, &change.finding);
                match &change.what {
                    What::Began => {
                        prop_assert!(is_seen);
                        let is_blind = matches!(change.finding, Finding::Blind { .. });
                        prop_assert!(is_blind || has(&before, &change.finding));
                    }
                    What::Ended { end: End::Gone, .. } => {
                        prop_assert!(change.finding.process().is_some_and(|id| look.gone.contains(&id)));
                    }
                    What::Ended { .. } => prop_assert!(!is_seen && look.tells_of(&change.finding)),
                }
            }
            // Open findings are those that have begun and not ended.
            let count = is_open.values().filter(|open| **open).count();
            prop_assert_eq!(kept.open.len(), count);
            // A finding of this and the last audit is open; findings of dead processes are over.
            for finding in &look.findings {
                let is_open = kept.open.iter().any(|open| open.finding.key() == finding.key());
                prop_assert_eq!(is_open, !kept.suspected.contains(finding), "{:?}", finding);
            }
            for open in &kept.open {
                prop_assert!(open.finding.process().is_none_or(|id| !look.gone.contains(&id)));
                let was_open = open_before.iter().any(|known| known.began_id == open.began_id);
                prop_assert!(was_open || has(&look.findings, &open.finding));
            }
            // The same audit again only confirms its suspects.
            let again = changes(&kept.open, &[], &look, 0);
            prop_assert!(again.changes.is_empty(), "{:?}", again.changes);
            before.extend(look.findings);
            before.retain(|finding| has(&kept.suspected, finding));
        }
    }
}
