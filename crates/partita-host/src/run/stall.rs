//! A program that makes no progress as a client of MPS: is its server stuck?
//!
//! `partita run` looks at the ledger. If the program has become a client and its count of launches
//! and waits stands still, a canary says whether the service runs kernels at all. A program that
//! goes on never causes one, so it costs a usual start nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use partita_ledger::Waited;
use partita_mps::{MpsError, Pid};
use rustix::process::Signal;

use super::noter::Noter;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpus::Selectors;
use crate::install::Install;
use crate::mps::canary::{self, Found, LAUNCH_LIMIT, RESTART_LIMIT, Waiting};
use crate::mps::evidence;
use crate::mps::incident::{RestartCause, What};
use crate::mps::recover;
use crate::process::ProcessId;
use crate::registry::Registry;
use crate::system;

/// How long a program makes no progress before each canary. The series starts again when it makes
/// some: kernels may be long, and each canary takes memory of the GPU for a moment.
const STANDS_STILL: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(30)];
/// How often a server that is stuck is looked at again.
const AGAIN: Duration = Duration::from_secs(5);

/// What a program does about a stuck server.
pub(super) struct Policy {
    pub install: Install,
    /// The tenant's GPUs, all of one service.
    pub gpus: Vec<Gpu>,
    /// When the program is ended.
    pub limit: Duration,
    /// Whether the server is restarted at once.
    pub recovers: bool,
    pub say: Box<dyn FnMut(&str) + Send>,
}

impl core::fmt::Debug for Policy {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Policy").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// Follows the progress of one program.
#[derive(Debug)]
pub(super) struct Stall {
    policy: Policy,
    progress: Progress,
    since: Instant,
    canaries: usize,
    stuck: Option<(Pid, Instant)>,
    /// The canary that waits for the server.
    waiting: Option<Waiting>,
    looked: Instant,
}

/// A value that changes when a program goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Progress {
    launches: u64,
    finished_ns: u64,
    /// Whether it may be waiting for the GPU: it has launched nothing yet, or its work is
    /// unfinished.
    may_wait: bool,
}

impl Progress {
    fn of(ledger: &Path, clients: &BTreeSet<Pid>) -> Self {
        let mut sum = Self::default();
        for (_, slot) in evidence::slots_of(ledger, clients) {
            sum.launches = sum.launches.wrapping_add(slot.launches);
            sum.finished_ns = sum.finished_ns.max(slot.finished_ns);
            let has_finished = slot.waited == Waited::ForAll { launches: slot.launches };
            sum.may_wait |= slot.live && (slot.launches == 0 || !has_finished);
        }
        sum
    }
}

impl Stall {
    pub fn new(policy: Policy) -> Self {
        let now = Instant::now();
        Self {
            policy,
            progress: Progress::default(),
            since: now,
            canaries: 0,
            stuck: None,
            waiting: None,
            looked: now,
        }
    }

    /// Looks at the program with these clients. Returns the error with which it must be ended, if
    /// it must.
    pub fn look(&mut self, ledger: &Path, clients: &BTreeSet<Pid>, noter: &Noter) -> Option<Error> {
        let progress = Progress::of(ledger, clients);
        if progress != self.progress {
            self.progress = progress;
            self.since = Instant::now();
            self.canaries = 0;
        }
        if !progress.may_wait {
            return None;
        }
        if let Some((server, found)) = self.stuck
            && found.elapsed() >= self.policy.limit
        {
            return Some(MpsError::Stuck { server, waited_s: found.elapsed().as_secs() }.into());
        }
        let is_due = match self.stuck {
            Some(_) => self.looked.elapsed() >= AGAIN,
            None => STANDS_STILL.get(self.canaries).is_some_and(|still| self.since.elapsed() >= *still),
        };
        if is_due {
            self.canaries += 1;
            self.send(noter);
            self.looked = Instant::now();
        }
        None
    }

    /// Ends a program that waits in vain.
    pub fn end(clients: &BTreeSet<Pid>) {
        for process in clients.iter().filter_map(|&pid| ProcessId::living(pid)) {
            let _ = process.signal(Signal::KILL);
        }
    }

    fn send(&mut self, noter: &Noter) {
        let Policy { install, gpus, recovers, limit, say } = &mut self.policy;
        let Some(gpu) = gpus.first() else { return };
        // One that waits still shows as much as another would.
        let found = match self.waiting.take() {
            Some(waiting) => waiting.again(LAUNCH_LIMIT),
            None => canary::send(install, gpu, &noter.service, LAUNCH_LIMIT),
        };
        let tenant = &noter.tenant;
        let (server, waiting) = match (found, self.stuck) {
            (Ok(Found::Stuck(waiting)), None) if let Some(server) = waiting.server() => (server, waiting),
            (Ok(Found::Works { .. }), Some((server, _))) => {
                self.stuck = None;
                noter.note(What::Canary { server, works: true });
                return say(&format!("tenant {tenant}: the MPS service runs kernels again"));
            }
            (Ok(Found::Stuck(waiting)), _) => return self.waiting = Some(waiting),
            // Not known.
            _ => return,
        };
        self.stuck = Some((server, Instant::now()));
        noter.note(What::Canary { server, works: false });
        say(&format!(
            "tenant {tenant}: waits for MPS server {server}, which is stuck: it did not run a test kernel \
             of Partita's either; {}",
            match recovers {
                true => "restarts it if it does not go on".to_owned(),
                false => format!(
                    "`partita mps recover` restarts it, which ends the work of all of its clients; gives up \
                     in {} s",
                    limit.as_secs()
                ),
            }
        ));
        if !*recovers {
            return self.waiting = Some(waiting);
        }
        let restarted = match &noter.system {
            Some(registry) => restart_by_partitad(registry, gpus),
            None => restart(waiting, noter, server),
        };
        if let Err(error) = restarted {
            say(&format!("tenant {tenant}: {error}"));
        }
    }
}

/// Restarts a server for which the canary still waits after some more time.
fn restart(waiting: Waiting, noter: &Noter, server: Pid) -> Result<(), Error> {
    match waiting.again(RESTART_LIMIT)? {
        Found::Stuck(_) => recover::end_server(&noter.service, &noter.tenant, server, RestartCause::Stuck),
        Found::Works { .. } | Found::Unknown { .. } => Ok(()),
    }
}

/// Has `partitad` do it, which sends canaries of its own: in system mode the server is root's.
fn restart_by_partitad(registry: &Registry, gpus: &[Gpu]) -> Result<(), Error> {
    let gpus = Selectors::List(gpus.iter().map(Gpu::selector).collect());
    let words = ["mps", "recover", &format!("--gpu={gpus}")].map(str::to_owned);
    let printed = system::command(registry, words.to_vec())?;
    match printed.code {
        0 => Ok(()),
        _ => Err(Error::Served { reason: String::from_utf8_lossy(&printed.stderr).trim().to_owned() }),
    }
}
