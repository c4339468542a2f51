//! What `partita run` sees of the service while its program is a client: whom faults hit, and who vanished.
//!
//! A thread of `partita run`, not of the tenant. It reads the service's logs and notes which clients are the tenant's own while they
//! live: when a fault is reported their processes may be gone already.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use partita_mps::fault::{Culprit, Fault, Part, Tracker};
use partita_mps::log::{Event, Tail};
use partita_mps::{Pid, Service};

use super::incident::{self, Incident, What, now_unix_ms};
use crate::process::ProcessId;
use crate::run::LEDGER_VARIABLE;

/// How often the logs are looked at.
const PERIOD: Duration = Duration::from_millis(50);
/// How long the service may take to write down why a program failed that was a client.
const LAST_WORDS_LIMIT: Duration = Duration::from_millis(500);
/// The same for one that was none, as far as is known.
const NO_CLIENT_LIMIT: Duration = Duration::from_millis(100);

/// What is known.
#[derive(Debug, Default)]
struct Seen {
    tracker: Tracker,
    /// Processes that are known to be the tenant's, clients or not.
    expected: BTreeSet<Pid>,
    /// Clients that are processes of the tenant, dead ones too.
    ours: BTreeSet<Pid>,
}

/// Watches the service of one tenant. Ends with its value.
#[derive(Debug)]
pub struct Watch {
    service: Service,
    tenant: String,
    /// When the program was started, the last time.
    begun_unix_ms: AtomicU64,
    restarts: Mutex<u32>,
    seen: Arc<Mutex<Seen>>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Why a program lost its work on the GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blame {
    /// By a fault of its own.
    Own {
        /// The server.
        server: Pid,
    },
    /// By somebody else's fault, or end.
    Neighbour {
        /// The server; 0 where its log says nothing.
        server: Pid,
        /// Whose, in words.
        cause: String,
    },
}

impl Watch {
    /// Begins before the program starts. `ledger` is the tenant's directory.
    #[must_use]
    pub fn begin(service: &Service, tenant: &str, ledger: &Path) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let ending = Arc::new(AtomicBool::new(false));
        let dirs = service.dirs();
        let tails = [dirs.control_log(), dirs.server_log()].map(|path| Tail::from_start(&path));
        let thread = {
            let (seen, ending, ledger) = (Arc::clone(&seen), Arc::clone(&ending), ledger.to_owned());
            thread::Builder::new()
                .name("partita-mps".to_owned())
                .spawn(move || follow(tails, &ledger, &seen, &ending))
                // Without a thread the program runs as well; only nobody will know why it failed.
                .ok()
        };
        Self {
            service: service.clone(),
            tenant: tenant.to_owned(),
            begun_unix_ms: AtomicU64::new(now_unix_ms()),
            restarts: Mutex::new(0),
            seen,
            ending,
            thread,
        }
    }

    /// Takes that this process is the tenant's: one that lives for a moment alone cannot be asked any more when its line in the log is
    /// read.
    pub fn expect(&self, pid: Pid) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).expected.insert(pid);
    }

    /// The tenant's processes that are or were clients.
    #[must_use]
    pub fn ours(&self) -> BTreeSet<Pid> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).ours.clone()
    }

    /// Takes that a process of the tenant was killed from outside. Returns the clients that were there beside it; none if it was no
    /// client, or alone.
    #[must_use]
    pub fn killed(&self, pid: Pid) -> Vec<Pid> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if !seen.ours.contains(&pid) {
            return Vec::new();
        }
        seen.tracker.killed(pid);
        let servers: Vec<Pid> = seen.tracker.states().map(|(server, _)| server).collect();
        let clients: BTreeSet<Pid> =
            servers.iter().flat_map(|&server| seen.tracker.clients(server)).collect();
        let hit =
            servers.iter().filter_map(|&server| seen.tracker.fault(server)).flat_map(|fault| &fault.staying);
        let neighbours: Vec<Pid> =
            clients.iter().chain(hit).copied().filter(|client| !seen.ours.contains(client)).collect();
        drop(seen);
        if !neighbours.is_empty() {
            self.note(What::Killed { pid, neighbours: neighbours.clone() });
        }
        neighbours
    }

    /// Why the program failed, if the service has to do with it: what its log says, or others' incidents. Waits a moment for either.
    #[must_use]
    pub fn blame(&self) -> Option<Blame> {
        let begin = Instant::now();
        let limit = if self.ours().is_empty() { NO_CLIENT_LIMIT } else { LAST_WORDS_LIMIT };
        loop {
            let found = self.fault_blame().or_else(|| self.incident_blame());
            if found.is_some() || begin.elapsed() >= limit {
                return found;
            }
            thread::sleep(PERIOD);
        }
    }

    fn fault_blame(&self) -> Option<Blame> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let servers: Vec<Pid> = seen.tracker.states().map(|(server, _)| server).collect();
        let faults = servers.iter().filter_map(|&server| seen.tracker.fault(server));
        let hit = faults.into_iter().find(|fault| !fault.hit.is_disjoint(&seen.ours))?;
        let server = hit.server;
        if seen.ours.iter().any(|&pid| hit.part_of(pid) == Part::Caused) {
            return Some(Blame::Own { server });
        }
        // Where the log does not name anybody, an incident of another tenant may.
        let cause = self.killed_neighbour().unwrap_or_else(|| in_words(hit));
        Some(Blame::Neighbour { server, cause })
    }

    fn incident_blame(&self) -> Option<Blame> {
        self.killed_neighbour().map(|cause| Blame::Neighbour { server: 0, cause })
    }

    /// A tenant whose process was killed from outside since the program began, with this one's beside it.
    fn killed_neighbour(&self) -> Option<String> {
        let begun_unix_ms = self.begun_unix_ms.load(Ordering::Relaxed);
        incident::all(&self.service).into_iter().rev().find_map(|Incident { time_unix_ms, tenant, what }| {
            match what {
                What::Killed { pid, .. } if time_unix_ms >= begun_unix_ms && tenant != self.tenant => {
                    Some(format!("of tenant {tenant}, whose process {pid} was killed from outside"))
                }
                _ => None,
            }
        })
    }

    /// Writes an incident of this tenant down.
    pub fn note(&self, what: What) {
        incident::note(&self.service, &Incident::now(&self.tenant, what));
    }

    /// Writes down that the program is started anew, so long after its end.
    pub(crate) fn restarted(&self, waited: Duration) {
        let mut restarts = self.restarts.lock().unwrap_or_else(PoisonError::into_inner);
        *restarts += 1;
        // A new program is not to be blamed for what hit the old one.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).ours.clear();
        self.begun_unix_ms.store(now_unix_ms(), Ordering::Relaxed);
        self.note(What::Restarted { restarts: *restarts, waited_ms: waited.as_millis() as u64 });
    }

    /// The service.
    #[must_use]
    pub fn service(&self) -> &Service {
        &self.service
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn follow(mut tails: [Tail; 2], ledger: &Path, seen: &Mutex<Seen>, ending: &AtomicBool) {
    while !ending.load(Ordering::Relaxed) {
        for tail in &mut tails {
            // A log that cannot be read now may be readable later; the service works without.
            for entry in tail.poll().unwrap_or_default() {
                let client = match &entry.event {
                    Some(
                        Event::ClientConnected { client } | Event::ClientStatus { client, active: true },
                    ) => Some(client.pid),
                    _ => None,
                };
                let asked = client.is_some_and(|pid| is_ours(pid, ledger));
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(pid) = client.filter(|pid| asked || seen.expected.contains(pid)) {
                    seen.ours.insert(pid);
                }
                seen.tracker.apply(&entry);
            }
        }
        thread::sleep(PERIOD);
    }
}

fn is_ours(pid: Pid, ledger: &Path) -> bool {
    ProcessId::living(pid)
        .and_then(|process| process.variable(LEDGER_VARIABLE))
        .is_some_and(|value| value == ledger)
}

/// Who caused a fault, as the end of a sentence.
fn in_words(fault: &Fault) -> String {
    match fault.culprit() {
        Culprit::Named(pid) => format!("caused by process {pid}"),
        Culprit::Killed(pid) => format!("caused by process {pid}, which was killed at work"),
        Culprit::Alone(pid) => format!("of process {pid}"),
        Culprit::OneOf(pids) => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            format!("caused by one of the processes {}", pids.join(", "))
        }
    }
}
