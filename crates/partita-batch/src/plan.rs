//! What jobs share, what to undo, and what that means for the node. Pure.

use serde::Serialize;

pub use super::group::Group;
use super::job::{JobId, System};
use super::record::{Phase, Record};
pub use super::trouble::Blame;

/// The future of a group's service when a job leaves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The job does not use it.
    None,
    /// It is the machine's, in system mode.
    Machine,
    /// Other jobs use it.
    Keep {
        /// Which.
        jobs: Vec<JobId>,
    },
    /// No other job uses it.
    Stop,
}

/// Whether a record of this boot holds its group's service: it may be in use, or about to be.
fn holds(record: &Record, boot: &str) -> bool {
    record.boot == boot && record.needs_own_service() && !matches!(record.phase, Phase::Refused { .. })
}

/// The future of the service of `leaving`, by the existing records (its own may be among them).
///
/// `damaged` records belong to unknown jobs: they may be of this group, and hold it.
pub fn fate<'a>(
    leaving: &Record,
    records: impl IntoIterator<Item = &'a Record>,
    boot: &str,
    damaged: usize,
) -> Fate {
    match leaving.request.needs_service() {
        false => return Fate::None,
        true if leaving.is_system => return Fate::Machine,
        true => {}
    }
    let others = records.into_iter().filter(|other| other.job != leaving.job && other.group == leaving.group);
    let jobs: Vec<JobId> = others.filter(|other| holds(other, boot)).map(|other| other.job.clone()).collect();
    if jobs.is_empty() && damaged == 0 { Fate::Stop } else { Fate::Keep { jobs } }
}

/// Which script runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Before the job.
    Prolog,
    /// After it.
    Epilog,
}

/// The result for the batch system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The script's exit code.
    pub exit: u8,
    /// Whether the node shall take no more jobs.
    pub drain: bool,
}

/// The meaning of a trouble for the batch system.
///
/// | | Slurm | PBS |
/// |---|---|---|
/// | none | 0 | 0 |
/// | the job's, prolog | 0, and its tasks are refused: a failing Prolog would drain the node | 1: the job is aborted |
/// | the node's, prolog | 1: the node drains, the job is queued again | 2: the job is queued again |
/// | the node's, epilog | 1: the node drains | 1 |
///
/// No exit code drains a node of PBS, so it needs a command: see [`Verdict::drain`].
pub fn verdict(system: System, stage: Stage, trouble: Option<Blame>) -> Verdict {
    let exit = match (system, stage, trouble) {
        (_, _, None)
        | (System::Slurm, Stage::Prolog, Some(Blame::Job))
        | (_, Stage::Epilog, Some(Blame::Job)) => 0,
        (System::Pbs, Stage::Prolog, Some(Blame::Job)) => 1,
        (System::Pbs, Stage::Prolog, Some(Blame::Node)) => 2,
        (System::Slurm, Stage::Prolog, Some(Blame::Node)) | (_, Stage::Epilog, Some(Blame::Node)) => 1,
    };
    Verdict { exit, drain: trouble == Some(Blame::Node) }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::super::record::VERSION;
    use super::super::request::Request;
    use super::*;

    fn record(id: u32, group: &Group) -> Record {
        Record {
            version: VERSION,
            job: JobId::new(System::Slurm, &id.to_string()).unwrap(),
            group: group.clone(),
            user_group: 0,
            request: Request::Service,
            run_dir: None,
            is_system: false,
            boot: "now".to_owned(),
            phase: Phase::Ready,
            written_unix_s: 0,
        }
    }

    fn group(user: u32, gpus: &str) -> Group {
        Group::new(user, &gpus.split(',').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn groups_are_users_and_sets_of_gpus() {
        assert_eq!(group(1, "10,2,2"), group(1, "2,10"));
        assert_eq!(group(1, "10,2").selectors(), "2,10");
        assert_ne!(group(1, "0"), group(2, "0"));
        assert_ne!(group(1, "0"), group(1, "0,1"));
    }

    #[test]
    fn only_jobs_that_use_it_hold_a_service() {
        let here = group(1, "0");
        let mine = record(1, &here);
        let other = record(2, &here);
        let fate_beside = |other: &Record| fate(&mine, [&mine, other], "now", 0);
        assert_eq!(fate(&mine, [&mine], "now", 0), Fate::Stop);
        assert_eq!(fate(&mine, [], "now", 0), Fate::Stop);
        assert_eq!(fate(&mine, [], "now", 1), Fate::Keep { jobs: vec![] });
        assert_eq!(fate_beside(&other), Fate::Keep { jobs: vec![other.job.clone()] });
        let starting = Record { phase: Phase::Starting, ..other.clone() };
        assert_eq!(fate_beside(&starting), Fate::Keep { jobs: vec![other.job.clone()] });
        let own = Request::parse("isolation=own").unwrap();
        for idle in [
            Record { boot: "before".to_owned(), ..other.clone() },
            Record { phase: Phase::Refused { reason: String::new() }, ..other.clone() },
            Record { request: own, ..other.clone() },
            Record { group: group(1, "1"), ..other.clone() },
            Record { group: group(2, "0"), ..other.clone() },
        ] {
            assert_eq!(fate_beside(&idle), Fate::Stop, "{idle:?}");
        }
        assert_eq!(fate(&Record { request: own, ..mine.clone() }, [&other], "now", 0), Fate::None);
        // The machine's service is neither held nor stopped by a job.
        let of_system = |record: &Record| Record { is_system: true, ..record.clone() };
        assert_eq!(fate_beside(&of_system(&other)), Fate::Stop);
        assert_eq!(fate(&of_system(&mine), [&other], "now", 1), Fate::Machine);
        assert_eq!(fate(&Record { request: own, ..of_system(&mine) }, [], "now", 0), Fate::None);
    }

    #[test]
    fn a_users_mistake_takes_no_node_away() {
        for system in [System::Slurm, System::Pbs] {
            for stage in [Stage::Prolog, Stage::Epilog] {
                let none = verdict(system, stage, None);
                assert_eq!(none, Verdict { exit: 0, drain: false });
                assert!(!verdict(system, stage, Some(Blame::Job)).drain);
                let node = verdict(system, stage, Some(Blame::Node));
                assert!(node.drain && node.exit != 0);
            }
        }
        // Slurm drains a node whose Prolog fails.
        assert_eq!(verdict(System::Slurm, Stage::Prolog, Some(Blame::Job)).exit, 0);
        assert_eq!(verdict(System::Pbs, Stage::Prolog, Some(Blame::Job)).exit, 1);
        assert_eq!(verdict(System::Pbs, Stage::Prolog, Some(Blame::Node)).exit, 2);
    }

    proptest! {
        /// In any order of jobs, a service runs exactly while its group has a job.
        #[test]
        fn a_service_lives_as_long_as_its_jobs(steps in prop::collection::vec((0u32..6, 0u32..3, any::<bool>()), 1..60)) {
            let mut records: BTreeMap<u32, Record> = BTreeMap::new();
            let mut running: BTreeSet<Group> = BTreeSet::new();
            for (id, gpu, comes) in steps {
                if comes && !records.contains_key(&id) {
                    let record = record(id, &group(1, &gpu.to_string()));
                    running.insert(record.group.clone());
                    records.insert(id, record);
                } else if let Some(leaving) = records.get(&id).cloned() {
                    let fate = fate(&leaving, records.values(), "now", 0);
                    records.remove(&id);
                    match fate {
                        Fate::Stop => prop_assert!(running.remove(&leaving.group)),
                        Fate::Keep { jobs } => prop_assert!(!jobs.is_empty()),
                        Fate::None | Fate::Machine => prop_assert!(false),
                    }
                }
                let used: BTreeSet<Group> = records.values().map(|record| record.group.clone()).collect();
                prop_assert_eq!(&running, &used);
            }
        }
    }
}
