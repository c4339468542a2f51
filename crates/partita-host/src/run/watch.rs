//! The view of `partita run` on the service while its program is a client: which clients a fault
//! hits, and which vanish.
//!
//! It is a thread of `partita run`, not of the tenant. It reads the service's logs and records
//! which clients are the tenant's while they live: when a fault is reported, their processes may be
//! gone already.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use partita_mps::fault::{Culprit, Evidence, Fault, ServerState, Tracker, Why, Work};
use partita_mps::log::{Event, Tail};
use partita_mps::{Pid, Service};

use super::noter::Noter;
use super::stall::{Policy, Stall};
use crate::error::Error;
use crate::mps::evidence::{self, Verdict};
use crate::mps::incident::{self, Incident, RestartCause, What, now_unix_ms};
use crate::process::ProcessId;
use crate::registry::{LEDGER_VARIABLE, Registry};

/// How often the logs are looked at.
const PERIOD: Duration = Duration::from_millis(50);
/// How often the program's progress is looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// How long the service may take to write down why a program failed that was a client, and other
/// tenants what they know of it.
const LAST_WORDS_LIMIT: Duration = Duration::from_millis(500);
/// How long before a program's end another tenant's incident can be its cause: an affected client
/// fails at its next call.
const INCIDENT_AGE_MAX: Duration = Duration::from_secs(10);
/// As [`LAST_WORDS_LIMIT`], for a process that was not a client, as far as is known.
const NO_CLIENT_LIMIT: Duration = Duration::from_millis(100);
/// How long a daemon that answers late is waited for: on a busy machine its log is late too.
const BUSY_LIMIT: Duration = Duration::from_secs(10);

/// The observations so far.
#[derive(Debug, Default)]
struct Seen {
    tracker: Tracker,
    /// Processes that are known to be the tenant's, clients or not.
    expected: BTreeSet<Pid>,
    /// How many times the logs have been read.
    reads: u64,
    /// Clients that are processes of the tenant, dead ones too.
    ours: BTreeSet<Pid>,
    /// The server's last message about itself since the program was started.
    server_failure: Option<String>,
    /// Why the program was ended from here.
    gave_up: Option<Error>,
}

/// Watches the service of one tenant. Ends with its value.
#[derive(Debug)]
pub struct Watch {
    noter: Noter,
    /// The tenant's directory.
    ledger: PathBuf,
    /// When the program was started, the last time.
    begun_unix_ms: AtomicU64,
    /// The times of restarts.
    restarts: Mutex<Vec<Instant>>,
    seen: Arc<Mutex<Seen>>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Why a program lost its work on the GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blame {
    /// By its own fault.
    Own {
        /// The server.
        server: Pid,
    },
    /// By the restart of a server.
    Recovered {
        /// The server.
        server: Pid,
        /// Why.
        because: RestartCause,
    },
    /// By the fault, or the end, of another tenant.
    Neighbour {
        /// The server; 0 where its log says nothing.
        server: Pid,
        /// Whose, in words.
        cause: String,
    },
}

impl Watch {
    /// Begins before the program starts. `ledger` is the tenant's directory; `policy` says what to
    /// do about a stuck server, if anything.
    #[must_use]
    pub fn begin(
        service: &Service,
        registry: &Registry,
        tenant: &str,
        ledger: &Path,
        policy: Option<Policy>,
    ) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let ending = Arc::new(AtomicBool::new(false));
        let dirs = service.dirs();
        let tails = [dirs.control_log(), dirs.server_log()].map(|path| Tail::from_start(&path));
        let noter = Noter::of(service, registry, tenant);
        let thread = {
            let (seen, ending, ledger) = (Arc::clone(&seen), Arc::clone(&ending), ledger.to_owned());
            let noter = noter.clone();
            let stall = policy.map(Stall::new);
            thread::Builder::new()
                .name("partita-mps".to_owned())
                .spawn(move || follow(tails, &ledger, &seen, &noter, stall, &ending))
                // The program runs without the thread too; only the cause of a failure is then
                // unknown.
                .ok()
        };
        Self {
            noter,
            ledger: ledger.to_owned(),
            begun_unix_ms: AtomicU64::new(now_unix_ms()),
            restarts: Mutex::new(Vec::new()),
            seen,
            ending,
            thread,
        }
    }

    /// Records that this process is the tenant's: one that lives only for a moment cannot be
    /// queried any more when its line in the log is read.
    pub fn expect(&self, pid: Pid) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).expected.insert(pid);
    }

    /// The tenant's processes that are or were clients.
    #[must_use]
    pub fn ours(&self) -> BTreeSet<Pid> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).ours.clone()
    }

    /// Records that a process of the tenant was killed from outside. Returns the other clients at
    /// that time; none if it was not a client, or alone.
    #[must_use]
    pub fn killed(&self, pid: Pid) -> Vec<Pid> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if !seen.ours.contains(&pid) {
            return Vec::new();
        }
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

    /// Records what is known of the work of a process of the tenant that has ended like this, if it
    /// was a client with neighbours and its work may be unfinished.
    pub fn ended(&self, pid: Pid, how: &str) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if !seen.ours.contains(&pid) {
            return;
        }
        let Some((server, faults)) = seen.server_beside(pid) else { return };
        drop(seen);
        let mut clients = evidence::of_tenant(&self.ledger, &BTreeSet::from([pid]));
        clients.iter_mut().for_each(|one| one.ended = Some(how.to_owned()));
        if clients.iter().any(|one| one.work != Work::Finished) {
            self.noter.note(What::Work { server, faults, clients });
        }
    }

    /// Whether a neighbour's fault, or end, ended the program's work, as far as is known: whose it
    /// was may follow a moment later. Waits for the service's log, for as long after the program's
    /// end as [`Watch::blame`] does.
    #[must_use]
    pub fn is_hit(&self, ended: Instant) -> bool {
        let mut last_words = LastWords::of(self, ended);
        loop {
            if self.recovered().is_some() {
                return true;
            }
            match self.fault_blame() {
                Some((Blame::Neighbour { .. }, _)) => return true,
                Some((_, true)) => return false,
                None if self.was_killed_beside() => return true,
                _ if last_words.are_over() => return false,
                _ => thread::sleep(PERIOD),
            }
        }
    }

    /// Why the program failed, if the service is involved: from its log, or others' incidents.
    /// Waits for either, for a moment after the program's end.
    #[must_use]
    pub fn blame(&self, ended: Instant) -> Option<Blame> {
        let mut last_words = LastWords::of(self, ended);
        loop {
            if let Some((server, because)) = self.recovered() {
                return Some(Blame::Recovered { server, because });
            }
            match self.fault_blame() {
                Some((blame, true)) => return Some(blame),
                Some((blame, false)) if last_words.are_over() => return Some(blame),
                Some(_) => {}
                // Not every driver logs what a client's violent end did to the others.
                None if self.was_killed_beside() => {
                    return self.killed_by_others().map(|cause| Blame::Neighbour { server: 0, cause });
                }
                None if last_words.are_over() => return None,
                None => {}
            }
            thread::sleep(PERIOD);
        }
    }

    /// The cause of a fault that has hit the program, and whether it is certain. A cause that is
    /// left when no other client had unfinished work is not, for a moment: the death of another may
    /// be in the log, and its evidence here, only after the fault.
    fn fault_blame(&self) -> Option<(Blame, bool)> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (ours, fault) = (seen.ours.clone(), seen.fault_of_ours()?.clone());
        drop(seen);
        let verdict = Verdict::of(&incident::all(&self.noter.service), &fault);
        let (server, culprit) = (fault.server, &verdict.culprit);
        let is_certain = matches!(culprit, Culprit::Known([one]) if one.why != Why::NoOther);
        if culprit.known().is_some_and(|pid| ours.contains(&pid)) {
            return Some((Blame::Own { server }, is_certain));
        }
        Some((Blame::Neighbour { server, cause: verdict.in_words() }, is_certain))
    }

    /// Incidents of all tenants just now, the newest first.
    fn recent_incidents(&self) -> impl Iterator<Item = Incident> {
        let begun_unix_ms = self.begun_unix_ms.load(Ordering::Relaxed);
        let age_max_ms = INCIDENT_AGE_MAX.as_millis() as u64;
        let oldest_unix_ms = begun_unix_ms.max(now_unix_ms().saturating_sub(age_max_ms));
        let incidents = incident::all(&self.noter.service).into_iter().rev();
        incidents.filter(move |one| one.time_unix_ms >= oldest_unix_ms)
    }

    /// Those of other tenants.
    fn others_incidents(&self) -> impl Iterator<Item = Incident> {
        self.recent_incidents().filter(|one| one.tenant != self.noter.tenant)
    }

    /// Whether another tenant's process was killed from outside just now, with one of this tenant's
    /// beside it.
    fn was_killed_beside(&self) -> bool {
        let ours = self.ours();
        self.others_incidents().any(|one| match one.what {
            What::Killed { neighbours, .. } => neighbours.iter().any(|pid| ours.contains(pid)),
            _ => false,
        })
    }

    /// The tenant whose process was killed from outside.
    fn killed_by_others(&self) -> Option<String> {
        self.others_incidents().find_map(|Incident { tenant, what, .. }| match what {
            What::Killed { pid, .. } => {
                Some(format!("of tenant {tenant}, whose process {pid} was killed from outside"))
            }
            _ => None,
        })
    }

    /// The server's message since the program was started: that it could not do its work.
    #[must_use]
    pub fn server_failure(&self) -> Option<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).server_failure.clone()
    }

    /// Why the program was ended from here, if it was.
    pub fn gave_up(&self) -> Option<Error> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).gave_up.take()
    }

    /// The server of the program that was restarted just now, and why.
    fn recovered(&self) -> Option<(Pid, RestartCause)> {
        if self.ours().is_empty() {
            return None;
        }
        self.recent_incidents().find_map(|one| match one.what {
            What::Recovered { server, because } => Some((server, because)),
            _ => None,
        })
    }

    /// Writes an incident of this tenant down.
    pub fn note(&self, what: What) {
        self.noter.note(what);
    }

    /// Records that the program is restarted, so long after its end.
    pub(crate) fn restarted(&self, waited: Duration) {
        let mut restarts = self.restarts.lock().unwrap_or_else(PoisonError::into_inner);
        restarts.push(Instant::now());
        // The new program is not responsible for what hit the old one.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.ours.clear();
        seen.server_failure = None;
        drop(seen);
        self.begun_unix_ms.store(now_unix_ms(), Ordering::Relaxed);
        self.note(What::Restarted { restarts: restarts.len() as u32, waited_ms: waited.as_millis() as u64 });
    }

    /// How many times the program was restarted within this time.
    pub(crate) fn restarts_within(&self, time: Duration) -> usize {
        let restarts = self.restarts.lock().unwrap_or_else(PoisonError::into_inner);
        restarts.iter().filter(|at| at.elapsed() < time).count()
    }

    /// The service.
    #[must_use]
    pub fn service(&self) -> &Service {
        &self.noter.service
    }
}

/// What the service may still write about a program that has ended.
struct LastWords<'a> {
    watch: &'a Watch,
    ended: Instant,
    /// How many times the logs have been read when all that is written by then is known.
    reads: Option<u64>,
}

impl<'a> LastWords<'a> {
    fn of(watch: &'a Watch, ended: Instant) -> Self {
        Self { watch, ended, reads: None }
    }

    /// Whether its time is over. The time alone does not tell on a busy machine: the daemon must
    /// have answered a query since the program's end, and the logs have been read since then.
    fn are_over(&mut self) -> bool {
        let elapsed = self.ended.elapsed();
        let limit = if self.watch.ours().is_empty() { NO_CLIENT_LIMIT } else { LAST_WORDS_LIMIT };
        if elapsed >= BUSY_LIMIT {
            return true;
        }
        if elapsed < limit {
            return false;
        }
        let reads = || self.watch.seen.lock().unwrap_or_else(PoisonError::into_inner).reads;
        let Some(enough) = self.reads else {
            // A daemon that does not answer writes nothing either.
            let _ = self.watch.service().control().with_limit(BUSY_LIMIT - elapsed).server_list();
            // The one that runs now may have read a log before the answer.
            self.reads = Some(reads() + 2);
            return false;
        };
        self.watch.thread.is_none() || reads() >= enough
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

impl Seen {
    /// The last fault that hit a client of the tenant, or that one of them may have caused by its
    /// death.
    fn fault_of_ours(&self) -> Option<&Fault> {
        let servers = self.tracker.states();
        let mut faults = servers.filter_map(|(server, _)| self.tracker.fault(server));
        faults.find(|fault| {
            [&fault.hit, &fault.left, &fault.lost, &fault.gone]
                .iter()
                .any(|clients| !clients.is_disjoint(&self.ours))
        })
    }

    /// The server with other clients than this one, and how many faults it has reported.
    fn server_beside(&self, client: Pid) -> Option<(Pid, u32)> {
        let mut servers = self.tracker.states().map(|(server, _)| server);
        let server = servers.find(|&server| {
            let fault = self.tracker.fault(server);
            let clients = fault.into_iter().flat_map(|fault| &fault.hit).copied();
            self.tracker.clients(server).chain(clients).any(|other| other != client)
        })?;
        Some((server, self.tracker.fault(server).map_or(0, |fault| fault.number)))
    }
}

fn follow(
    mut tails: [Tail; 2],
    ledger: &Path,
    seen: &Mutex<Seen>,
    noter: &Noter,
    mut stall: Option<Stall>,
    ending: &AtomicBool,
) {
    let mut looked = Instant::now();
    read(&mut tails, ledger, seen);
    // Whatever it was, it was before this program.
    seen.lock().unwrap_or_else(PoisonError::into_inner).server_failure = None;
    while !ending.load(Ordering::Relaxed) {
        thread::sleep(PERIOD);
        for (server, faults, clients) in read(&mut tails, ledger, seen) {
            let clients: Vec<Evidence> = evidence::of_tenant(ledger, &clients);
            noter.note(What::Work { server, faults, clients });
        }
        if let Some(stall) = &mut stall
            && looked.elapsed() >= LOOK_PERIOD
        {
            let ours = seen.lock().unwrap_or_else(PoisonError::into_inner).ours.clone();
            if let Some(error) = stall.look(ledger, &ours, noter) {
                // Before the end, at which it is asked why.
                seen.lock().unwrap_or_else(PoisonError::into_inner).gave_up = Some(error);
                Stall::end(&ours);
            }
            looked = Instant::now();
        }
    }
}

/// Reads new lines of the logs. Returns the servers that reported a fault, the number of their
/// faults, and the clients of the tenant that it may concern.
fn read(tails: &mut [Tail; 2], ledger: &Path, seen: &Mutex<Seen>) -> Vec<(Pid, u32, BTreeSet<Pid>)> {
    let mut faults = Vec::new();
    for tail in tails {
        // A log that cannot be read now may be readable later; the service works without.
        for entry in tail.poll().unwrap_or_default() {
            let client = match &entry.event {
                Some(Event::ClientConnected { client } | Event::ClientStatus { client, active: true }) => {
                    Some(client.pid)
                }
                _ => None,
            };
            let asked = client.is_some_and(|pid| is_ours(pid, ledger));
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(pid) = client.filter(|pid| asked || seen.expected.contains(pid)) {
                seen.ours.insert(pid);
            }
            if let Some(Event::ServerFailed { reason }) = &entry.event {
                seen.server_failure = Some(reason.clone());
            }
            let change = seen.tracker.apply(&entry);
            if let Some(server) = change.filter(|one| one.to == ServerState::Fault).map(|one| one.server)
                && let Some(fault) = seen.tracker.fault(server)
                && !seen.ours.is_empty()
            {
                faults.push((server, fault.number, seen.ours.clone()));
            }
        }
    }
    seen.lock().unwrap_or_else(PoisonError::into_inner).reads += 1;
    faults
}

fn is_ours(pid: Pid, ledger: &Path) -> bool {
    ProcessId::living(pid)
        .and_then(|process| process.variable(LEDGER_VARIABLE))
        .is_some_and(|value| value == ledger)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use partita_mps::{ControlBinary, ServiceDirs};

    use super::*;

    /// A service of which there is only a directory, and a watch over it for tenant `me` with
    /// process 100.
    struct Fixture {
        temp: tempfile::TempDir,
        watch: Watch,
    }

    impl Fixture {
        fn new() -> Self {
            Self::with_control("")
        }

        /// The control program is this script; `$LOG` is the server's log.
        fn with_control(script: &str) -> Self {
            let temp = tempfile::tempdir().unwrap();
            let program = temp.path().join("control");
            let log = temp.path().join("mps/log/server.log");
            let script = format!("#!/bin/sh\nLOG={}\n{script}\n", log.display());
            partita_testing::executable(&program, script.as_bytes());
            let dirs = ServiceDirs::new(&temp.path().join("mps")).unwrap();
            dirs.create().unwrap();
            let service = Service::new(ControlBinary::at(&program).unwrap(), dirs, "GPU-1");
            let registry = Registry::at(&temp.path().join("run")).unwrap();
            let watch = Watch::begin(&service, &registry, "me", temp.path(), None);
            watch.expect(100);
            Self { temp, watch }
        }

        /// Lines of server 7.
        fn log(&self, lines: &[&str]) {
            let path = self.temp.path().join("mps/log/server.log");
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
            for line in lines {
                writeln!(file, "[2026-11-21 10:00:00.000 Server 7] {line}").unwrap();
            }
        }

        fn incident(&self, age_ms: u64, what: What) {
            let incident =
                Incident { time_unix_ms: now_unix_ms() - age_ms, tenant: "other".to_owned(), what };
            incident::note(self.watch.service(), &incident);
        }

        fn until_ours(&self) {
            let begin = Instant::now();
            while self.watch.ours().is_empty() {
                assert!(begin.elapsed() < Duration::from_secs(20));
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    const CLIENTS: [&str; 2] =
        ["Client {PID: 100, Context ID: 0} connected", "Client {PID: 200, Context ID: 0} connected"];
    const FAULT: [&str; 4] = [
        "Server is handling a fatal GPU error.",
        "The following clients have a sticky error set:",
        "100",
        "200",
    ];

    #[test]
    fn a_fault_is_ours_or_a_neighbours() {
        for (named, expected) in [
            ("100", Blame::Own { server: 7 }),
            ("200", Blame::Neighbour { server: 7, cause: "of process 200: named by the server".to_owned() }),
        ] {
            let fixture = Fixture::new();
            fixture.log(&CLIENTS);
            fixture.until_ours();
            fixture.log(&FAULT);
            fixture.log(&[&format!("Client {{{named}, 1}} caused a fatal memory fault")]);
            assert_eq!(fixture.watch.blame(Instant::now()), Some(expected));
        }
    }

    #[test]
    fn a_daemon_that_answers_late_is_waited_for() {
        let stamp = "[2026-11-21 10:00:00.000 Server 7]";
        let lines: Vec<String> = FAULT.iter().map(|line| format!("echo '{stamp} {line}'")).collect();
        let late = LAST_WORDS_LIMIT.as_secs_f64() + 0.5;
        let fixture =
            Fixture::with_control(&format!("sleep {late}\n{{ {}; }} >> $LOG\necho 7", lines.join("; ")));
        fixture.log(&CLIENTS);
        fixture.until_ours();
        assert!(fixture.watch.is_hit(Instant::now()));
    }

    fn work(pid: Pid, work: Work, ended: Option<&str>) -> What {
        let ended = ended.map(str::to_owned);
        let one = Evidence { pid, work, ended, ..Evidence::default() };
        What::Work { server: 7, faults: 1, clients: vec![one] }
    }

    #[test]
    fn what_other_tenants_know_decides() {
        // Nothing is known of process 100: it has no ledger here.
        for (other, expected) in [
            (work(200, Work::Finished, None), Blame::Own { server: 7 }),
            (
                work(200, Work::Unfinished, None),
                Blame::Neighbour {
                    server: 7,
                    cause: "whose cause is not known; candidates, the most likely first: process 200 of \
                            tenant other (had unfinished work), process 100 of tenant me (its work is \
                            not known)"
                        .to_owned(),
                },
            ),
        ] {
            let fixture = Fixture::new();
            fixture.log(&CLIENTS);
            fixture.until_ours();
            fixture.log(&FAULT);
            fixture.incident(0, other);
            assert_eq!(fixture.watch.blame(Instant::now()), Some(expected));
        }
    }

    #[test]
    fn a_neighbour_that_died_at_work_is_named() {
        let fixture = Fixture::new();
        fixture.log(&CLIENTS);
        fixture.until_ours();
        fixture.log(&FAULT[..3]);
        fixture.log(&["Client process 200 disconnected"]);
        fixture.incident(0, work(200, Work::Unfinished, Some("signal 9")));
        let cause = "of process 200 of tenant other: died while its kernels ran; signal 9".to_owned();
        assert_eq!(fixture.watch.blame(Instant::now()), Some(Blame::Neighbour { server: 7, cause }));
    }

    #[test]
    fn a_neighbour_whose_death_is_logged_after_the_fault_is_waited_for() {
        let left = "[2026-11-21 10:00:00.000 Server 7] Client process 200 disconnected";
        let fixture = Fixture::with_control(&format!("echo '{left}' >> $LOG\necho 7"));
        fixture.log(&CLIENTS);
        fixture.until_ours();
        fixture.log(&FAULT[..3]);
        let begin = Instant::now();
        while fixture.watch.fault_blame() != Some((Blame::Own { server: 7 }, false)) {
            assert!(begin.elapsed() < Duration::from_secs(20));
        }
        assert!(fixture.watch.is_hit(Instant::now()));
    }

    #[test]
    fn an_incident_counts_for_those_who_were_there_and_not_for_long() {
        let killed = |neighbours: &[Pid]| What::Killed { pid: 200, neighbours: neighbours.to_vec() };
        for (age_ms, what, blamed) in [
            (0, killed(&[100]), true),
            (0, killed(&[300]), false),
            (60_000, killed(&[100]), false),
            (0, What::Caused { server: 7 }, false),
        ] {
            let fixture = Fixture::new();
            fixture.watch.begun_unix_ms.store(0, Ordering::Relaxed);
            fixture.log(&CLIENTS);
            fixture.until_ours();
            fixture.incident(age_ms, what.clone());
            assert_eq!(fixture.watch.blame(Instant::now()).is_some(), blamed, "{age_ms} {what:?}");
        }
    }

    #[test]
    fn who_was_beside_a_killed_client_is_written_down() {
        let fixture = Fixture::new();
        assert!(fixture.watch.killed(100).is_empty(), "no client yet");
        fixture.log(&CLIENTS);
        fixture.until_ours();
        let begin = Instant::now();
        while fixture.watch.killed(100) != [200] {
            assert!(begin.elapsed() < Duration::from_secs(20));
        }
        let incidents = incident::all(fixture.watch.service());
        assert_eq!(incidents[0].what, What::Killed { pid: 100, neighbours: vec![200] });
    }
}
