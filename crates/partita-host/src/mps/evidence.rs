//! The evidence about a service's clients after a fault, and the verdict.
//!
//! Only a tenant's own `partita run` sees how its processes end, and its ledger goes with it. So
//! each records what it knows of its own clients as an incident, when the server reports a fault
//! and when its program ends. A report about a fault reads all incidents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use partita_ledger::{HookState, SlotInfo, USAGE_FILE_NAME, UsageView, Waited};
use partita_mps::Pid;
use partita_mps::fault::{Candidate, Culprit, Evidence, Fault, Work};

use super::incident::{Incident, What};

/// What the ledger in `dir` says of these clients of its tenant.
#[must_use]
pub fn of_tenant(dir: &Path, clients: &BTreeSet<Pid>) -> Vec<Evidence> {
    let slots: BTreeMap<Pid, SlotInfo> = slots_of(dir, clients).into_iter().collect();
    let of_client = |&pid: &Pid| {
        slots.get(&pid).map_or_else(|| Evidence { pid, ..Evidence::default() }, |slot| of_slot(pid, slot))
    };
    clients.iter().map(of_client).collect()
}

/// The slots of these clients in the ledger in `dir`.
pub(crate) fn slots_of(dir: &Path, clients: &BTreeSet<Pid>) -> Vec<(Pid, SlotInfo)> {
    let Some(view) = c_path(dir).and_then(|path| UsageView::open(path.as_c_str()).ok()) else {
        return Vec::new();
    };
    let slots = view.slots().filter_map(Result::ok).filter(|slot| !slot.shared);
    let of_client = |slot: SlotInfo| {
        let pid = Pid::try_from(slot.pid).ok().filter(|pid| clients.contains(pid))?;
        Some((pid, slot))
    };
    slots.filter_map(of_client).collect()
}

fn c_path(dir: &Path) -> Option<std::ffi::CString> {
    let path = dir.join(USAGE_FILE_NAME.to_str().ok()?);
    std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).ok()
}

fn of_slot(pid: Pid, slot: &SlotInfo) -> Evidence {
    let counts = slot.state.flags & HookState::MASK_VERIFIED != 0;
    let work = match slot.waited {
        _ if !counts => Work::Unknown,
        Waited::ForAll { launches } if launches == slot.launches => Work::Finished,
        Waited::ForAll { .. } => Work::Unfinished,
        Waited::ForSome { launches } if launches != slot.launches => Work::Unfinished,
        Waited::ForSome { .. } | Waited::Unknown => Work::Unknown,
    };
    Evidence {
        pid,
        work,
        finished_ns: Some(slot.finished_ns).filter(|&ns| ns != 0),
        ended: (!slot.live).then(|| "its end was not seen".to_owned()),
        error: Some(slot.error).filter(|&code| code != 0),
    }
}

/// The cause of a fault, with what is known of the candidates.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The cause.
    pub culprit: Culprit,
    records: BTreeMap<Pid, (String, Evidence)>,
}

impl Verdict {
    /// Of a fault, by the incidents that the tenants of its service have recorded so far.
    #[must_use]
    pub fn of(incidents: &[Incident], fault: &Fault) -> Self {
        let records = records_of(incidents.iter().map(|one| (one.tenant.as_str(), &one.what)), fault);
        let evidence = records.iter().map(|(pid, (_, evidence))| (*pid, evidence.clone())).collect();
        Self { culprit: fault.culprit(&evidence), records }
    }

    /// The tenant of a candidate, if it recorded anything.
    #[must_use]
    pub fn tenant(&self, pid: Pid) -> Option<&str> {
        self.records.get(&pid).map(|(tenant, _)| tenant.as_str())
    }

    /// The cause, as the end of a sentence about a fault.
    #[must_use]
    pub fn in_words(&self) -> String {
        match &self.culprit {
            Culprit::Known([one]) => format!("of {}: {}", self.name(one.pid), self.why(one)),
            Culprit::OneOf(candidates) if candidates.is_empty() => "whose cause is not known".to_owned(),
            Culprit::OneOf(candidates) => {
                let one = |one: &Candidate| format!("{} ({})", self.name(one.pid), self.why(one));
                let list: Vec<String> = candidates.iter().map(one).collect();
                format!("whose cause is not known; candidates, the most likely first: {}", list.join(", "))
            }
        }
    }

    fn name(&self, pid: Pid) -> String {
        let tenant = self.tenant(pid).map_or(String::new(), |tenant| format!(" of tenant {tenant}"));
        format!("process {pid}{tenant}")
    }

    fn why(&self, one: &Candidate) -> String {
        let ended = self.records.get(&one.pid).and_then(|(_, evidence)| evidence.ended.as_ref());
        let ended = ended.map_or(String::new(), |how| format!("; {how}"));
        format!("{}{ended}", one.why.in_words())
    }
}

/// The newest record of each client that is about this fault.
fn records_of<'a>(
    incidents: impl Iterator<Item = (&'a str, &'a What)>,
    fault: &Fault,
) -> BTreeMap<Pid, (String, Evidence)> {
    let mut records: BTreeMap<Pid, (String, Evidence)> = BTreeMap::new();
    for (tenant, what) in incidents {
        let What::Work { server, faults, clients } = what else { continue };
        if *server != fault.server {
            continue;
        }
        for one in clients {
            // A process that died may have been seen before the fault was.
            let before = one.ended.is_some() && *faults + 1 == fault.number;
            if *faults != fault.number && !before {
                continue;
            }
            let contradicts = records.get(&one.pid).is_some_and(|(other, _)| other != tenant);
            let one = match contradicts {
                // A tenant could clear its own process by blaming another's.
                true => Evidence { pid: one.pid, ..Evidence::default() },
                false => one.clone(),
            };
            // The first record of its end says how it ended.
            let ended = records.remove(&one.pid).and_then(|(_, before)| before.ended).or(one.ended);
            records.insert(one.pid, (tenant.to_owned(), Evidence { ended, ..one }));
        }
    }
    records
}

#[cfg(test)]
mod tests {
    use partita_mps::fault::Tracker;
    use partita_mps::log::LogReader;

    use super::*;

    fn second_fault() -> Fault {
        let mut log = String::new();
        for _ in 0..2 {
            log += "[2026-11-21 10:00:01.000 Server 7] Client {PID: 5, Context ID: 0} connected
[2026-11-21 10:00:01.000 Server 7] Server is handling a fatal GPU error.
[2026-11-21 10:00:01.000 Server 7] Creating server context on device 0\n";
        }
        let mut tracker = Tracker::new();
        for entry in LogReader::new().push(log.as_bytes()) {
            let _ = tracker.apply(&entry);
        }
        tracker.fault(7).unwrap().clone()
    }

    fn work(faults: u32, pid: Pid, work: Work, ended: Option<&str>) -> What {
        let ended = ended.map(str::to_owned);
        What::Work { server: 7, faults, clients: vec![Evidence { pid, work, ended, ..Evidence::default() }] }
    }

    #[test]
    fn records_of_other_faults_and_of_two_tenants_do_not_count() {
        let fault = second_fault();
        assert_eq!(fault.number, 2);
        let records = |all: &[(&str, What)]| {
            let records = records_of(all.iter().map(|(tenant, what)| (*tenant, what)), &fault);
            records.get(&5).map(|(_, evidence)| evidence.work)
        };
        assert_eq!(records(&[("a", work(2, 5, Work::Finished, None))]), Some(Work::Finished));
        assert_eq!(records(&[("a", work(1, 5, Work::Finished, None))]), None, "an earlier fault");
        assert_eq!(records(&[("a", work(1, 5, Work::Unfinished, Some("signal 9")))]), Some(Work::Unfinished));
        assert_eq!(records(&[("a", work(0, 5, Work::Unfinished, Some("signal 9")))]), None);
        let both = [("a", work(2, 5, Work::Unfinished, None)), ("b", work(2, 5, Work::Finished, None))];
        assert_eq!(records(&both), Some(Work::Unknown), "two tenants claim it");
    }
}
