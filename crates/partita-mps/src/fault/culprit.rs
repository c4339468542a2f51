//! Which client caused a fault, from what is known of each: a pure policy.
//!
//! A server of driver 580 does not name the culprit: all clients get the same error at the same
//! moment, and the line that names one names the oldest (H200, H100). So the facts decide:
//!
//! * A client whose work had finished did not cause it.
//! * A client that died while its kernels ran takes its neighbours with it. It is not among those
//!   that the server lists, and it has not seen an error. The others get error 700, and no other.
//!   The server then names one of these as the process that triggered the error.
//! * If neither leaves one client, the cause is not known. The order of the errors says nothing: on
//!   an H200 the culprit and its neighbours got them within a millisecond, 110 to 197 ms after the
//!   fault, in either order.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Fault;
use crate::Pid;

/// The error that the death of a client gives to its neighbours: `CUDA_ERROR_ILLEGAL_ADDRESS`.
const ERROR_OF_A_DEATH: u32 = 700;

/// Whether a client's kernels could be running when the fault happened, or when it died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// The client had waited for everything that it launched.
    Finished,
    /// The client had launched kernels and not waited for their end.
    Unfinished,
    /// It is not known.
    #[default]
    Unknown,
}

/// What is known of a client.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Evidence {
    /// Its process.
    pub pid: Pid,
    /// Its work.
    pub work: Work,
    /// When all of its work had last finished, on the monotonic clock in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_ns: Option<u64>,
    /// How its process ended, such as `signal 9`; `None` while it lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The CUDA error that it got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<u32>,
}

/// Why a client is, or may be, the culprit. The most likely reason comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The server named it.
    Named,
    /// Its process died with unfinished work.
    DiedAtWork,
    /// Its process died, and nothing is known of its work.
    Died,
    /// No other client can have caused it.
    NoOther,
    /// Its work was unfinished.
    Unfinished,
    /// Nothing is known of its work.
    Unknown,
}

impl Why {
    /// The reason, after the client's name.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Named => "named by the server",
            Self::DiedAtWork => "died while its kernels ran",
            Self::Died => "died, its work is not known",
            Self::NoOther => "no other client had unfinished work",
            Self::Unfinished => "had unfinished work",
            Self::Unknown => "its work is not known",
        }
    }
}

/// A client that caused a fault, or may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Its process.
    pub pid: Pid,
    /// Why.
    pub why: Why,
}

/// The cause of a fault, as far as known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "cause", content = "candidates", rename_all = "snake_case")]
pub enum Culprit {
    /// This client.
    Known([Candidate; 1]),
    /// One of these clients, the most likely one first.
    OneOf(Vec<Candidate>),
}

impl Culprit {
    /// The clients that may be the culprit.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        match self {
            Self::Known(one) => one,
            Self::OneOf(several) => several,
        }
    }

    /// The culprit, if it is known.
    #[must_use]
    pub fn known(&self) -> Option<Pid> {
        match self {
            Self::Known([one]) => Some(one.pid),
            Self::OneOf(_) => None,
        }
    }
}

/// The role of a client in a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// It caused the fault.
    Caused,
    /// The fault hit it, and nothing shows that it was the cause.
    Hit,
    /// It continued.
    Spared,
    /// It was not a client then.
    Absent,
}

impl Fault {
    /// The cause, by what is known of the clients.
    #[must_use]
    pub fn culprit(&self, evidence: &BTreeMap<Pid, Evidence>) -> Culprit {
        let known = |pid, why| Culprit::Known([Candidate { pid, why }]);
        if let Some(pid) = self.named {
            return known(pid, Why::Named);
        }
        let work_of = |pid: &Pid| evidence.get(pid).map_or(Work::Unknown, |one| one.work);
        let error_of = |pid: &Pid| evidence.get(pid).and_then(|one| one.error);
        let may_be_death = self.hit.iter().filter_map(error_of).all(|error| error == ERROR_OF_A_DEATH);
        let dead = |pid: &&Pid| may_be_death && error_of(pid).is_none() && work_of(pid) != Work::Finished;
        let why_dead = |pid: &Pid| match work_of(pid) {
            Work::Unfinished => Why::DiedAtWork,
            Work::Finished | Work::Unknown => Why::Died,
        };
        // The server still had it as a client when the fault came: its end is not another matter.
        let has_ended = |pid: &&Pid| evidence.get(pid).is_some_and(|one| one.ended.is_some());
        let spared = || self.spared.iter().filter(has_ended);
        let clients = self.left.iter().chain(self.lost.iter().filter(has_ended)).chain(spared());
        let mut at_work = clients.filter(dead).filter(|pid| work_of(pid) == Work::Unfinished);
        if let (Some(pid), None) = (at_work.next(), at_work.next()) {
            return known(*pid, Why::DiedAtWork);
        }
        let why_hit = |pid: &Pid| match work_of(pid) {
            Work::Finished => None,
            Work::Unfinished => Some(Why::Unfinished),
            Work::Unknown => Some(Why::Unknown),
        };
        let absent = || self.left.iter().chain(&self.lost).chain(&self.gone).chain(spared());
        // One that got the error may have ended before the server wrote its list.
        let hit = self.hit.iter().chain(absent().filter(|pid| error_of(pid).is_some()));
        let hit = hit.filter_map(|pid| Some(Candidate { pid: *pid, why: why_hit(pid)? }));
        let dead = absent().filter(dead).map(|pid| Candidate { pid: *pid, why: why_dead(pid) });
        let mut candidates: Vec<Candidate> = dead.chain(hit).collect();
        if candidates.is_empty() {
            // What is known contradicts itself.
            candidates.extend(self.hit.iter().map(|&pid| Candidate { pid, why: Why::Unknown }));
        }
        if let [one] = candidates[..] {
            return known(one.pid, if one.why == Why::DiedAtWork { one.why } else { Why::NoOther });
        }
        // Work that has been unfinished for longest comes first.
        let finished_ns = |pid: Pid| evidence.get(&pid).and_then(|one| one.finished_ns);
        candidates.sort_by_key(|one| (one.why, Reverse(finished_ns(one.pid).map(Reverse)), one.pid));
        Culprit::OneOf(candidates)
    }

    /// The role of one client, with the culprit that is known.
    #[must_use]
    pub fn part_of(&self, client: Pid, culprit: &Culprit) -> Part {
        if culprit.known() == Some(client) {
            return Part::Caused;
        }
        match client {
            _ if self.hit.contains(&client) => Part::Hit,
            _ if self.spared.contains(&client) => Part::Spared,
            _ => Part::Absent,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// What was seen on an H200: the context of 2281 had ended, and its connection had not.
    #[test]
    fn a_client_that_has_lost_its_context_may_have_died() {
        let mut all = evidence(&[(2238, Work::Unfinished), (2281, Work::Unfinished)]);
        let mut fault = fault(&[2238], &[], &[]);
        fault.lost.insert(2281);
        let culprit = fault.culprit(&all);
        assert_eq!(culprit.candidates()[0], Candidate { pid: 2281, why: Why::DiedAtWork });
        assert_eq!((culprit.candidates().len(), culprit.known()), (2, None));
        all.get_mut(&2281).unwrap().ended = Some("signal 9".to_owned());
        assert_eq!(fault.culprit(&all).known(), Some(2281));
    }

    /// As a server of an H100 is for a moment.
    #[test]
    fn a_client_that_has_ended_and_has_not_left_yet_may_have_died() {
        let mut all = evidence(&[(2238, Work::Unfinished), (2281, Work::Unfinished)]);
        let mut fault = fault(&[2238], &[], &[]);
        fault.spared.insert(2281);
        assert_eq!(fault.culprit(&all).known(), Some(2238));
        all.get_mut(&2281).unwrap().ended = Some("signal 9".to_owned());
        assert_eq!(fault.culprit(&all), Culprit::Known([Candidate { pid: 2281, why: Why::DiedAtWork }]));
        all.get_mut(&2281).unwrap().work = Work::Unknown;
        assert_eq!(fault.culprit(&all).known(), None);
    }

    fn fault(hit: &[Pid], left: &[Pid], gone: &[Pid]) -> Fault {
        let mut fault = Fault::new(7, 1, None, std::iter::empty());
        fault.hit = hit.iter().copied().collect();
        fault.left = left.iter().copied().collect();
        fault.gone = gone.iter().copied().collect();
        fault
    }

    fn evidence(all: &[(Pid, Work)]) -> BTreeMap<Pid, Evidence> {
        all.iter().map(|&(pid, work)| (pid, Evidence { pid, work, ..Evidence::default() })).collect()
    }

    #[test]
    fn a_client_that_died_at_work_caused_it_and_the_only_one_left_did_not() {
        // What was measured on an H100: 2238 lives and is hit, 2281 died.
        let all = evidence(&[(2238, Work::Unfinished), (2281, Work::Unfinished)]);
        let culprit = fault(&[2238], &[2281], &[]).culprit(&all);
        assert_eq!(culprit, Culprit::Known([Candidate { pid: 2281, why: Why::DiedAtWork }]));
        // One that died in peace.
        let all = evidence(&[(2238, Work::Unfinished), (2281, Work::Finished)]);
        let culprit = fault(&[2238], &[2281], &[]).culprit(&all);
        assert_eq!(culprit, Culprit::Known([Candidate { pid: 2238, why: Why::NoOther }]));
        // Nothing is known of either.
        let Culprit::OneOf(candidates) = fault(&[2238], &[2281], &[]).culprit(&BTreeMap::new()) else {
            panic!("it cannot be known")
        };
        assert_eq!(candidates[0], Candidate { pid: 2281, why: Why::Died });
    }

    #[test]
    fn an_assertion_is_not_the_death_of_another() {
        let mut all = evidence(&[(1, Work::Unfinished), (2, Work::Unfinished)]);
        all.get_mut(&1).unwrap().error = Some(710);
        let culprit = fault(&[1], &[2], &[]).culprit(&all);
        assert_eq!(culprit.known(), Some(1));
    }

    #[test]
    fn the_work_that_is_unfinished_for_longest_comes_first() {
        let mut all = evidence(&[(1, Work::Unfinished), (2, Work::Unfinished), (3, Work::Unknown)]);
        all.get_mut(&1).unwrap().finished_ns = Some(900);
        all.get_mut(&2).unwrap().finished_ns = Some(100);
        let culprit = fault(&[1, 2, 3, 4], &[], &[]).culprit(&all);
        let order: Vec<Pid> = culprit.candidates().iter().map(|one| one.pid).collect();
        assert_eq!(order, [2, 1, 3, 4]);
    }

    fn work() -> impl Strategy<Value = Work> {
        prop_oneof![Just(Work::Finished), Just(Work::Unfinished), Just(Work::Unknown)]
    }

    proptest! {
        /// Whatever the others did: the true culprit is named, or among the candidates.
        #[test]
        fn no_other_is_named(
            others in prop::collection::vec((work(), 0u8..4), 0..8),
            is_dead: bool,
            has_error: bool,
            is_seen: bool,
            in_time: bool,
        ) {
            let true_work = if is_seen { Work::Unfinished } else { Work::Unknown };
            let mut all = evidence(&[(1, true_work)]);
            all.get_mut(&1).unwrap().error = has_error.then_some(ERROR_OF_A_DEATH);
            let (mut hit, mut left, mut gone) = (vec![], vec![], vec![]);
            match (is_dead, in_time) {
                (false, _) => hit.push(1),
                (true, true) => left.push(1),
                (true, false) => gone.push(1),
            }
            for (pid, (work, place)) in (2..).zip(others) {
                all.insert(pid, Evidence { pid, work, ..Evidence::default() });
                match place {
                    0 | 1 => hit.push(pid),
                    // A client that the server still had at the fault, and that died at work,
                    // is the cause.
                    2 if work != Work::Unfinished => left.push(pid),
                    _ => gone.push(pid),
                }
            }
            let culprit = fault(&hit, &left, &gone).culprit(&all);
            let candidates: BTreeSet<Pid> = culprit.candidates().iter().map(|one| one.pid).collect();
            prop_assert!(candidates.contains(&1), "{culprit:?}");
            prop_assert_eq!(candidates.len(), culprit.candidates().len());
            // It is known if everything is known and all others had finished.
            let all_known = all.iter().all(|(&pid, one)| pid == 1 || one.work == Work::Finished);
            if all_known {
                prop_assert_eq!(culprit.known(), Some(1));
            }
        }
    }
}
