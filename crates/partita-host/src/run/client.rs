//! A tenant's program as a client: what happens before a signal ends it, and after it has ended.

use std::cell::Cell;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use partita_mps::MpsError;
use rustix::process::Signal;

use super::watch::{Blame, Watch};
use crate::child::describe;
use crate::error::Error;
use crate::holder;
use crate::install::Install;
use crate::kill::{self, end_leftovers};
use crate::limits::Restart;
use crate::mps::end_work::end_work_before;
use crate::mps::incident::What;
use crate::mps::ready;
use crate::process::ProcessId;
use crate::registry::Registry;
use crate::signals::{self, Signals};
use crate::system;

/// How often a pause looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);

/// Faults that follow each other by less have to do with each other.
const LOOP_TIME: Duration = Duration::from_secs(120);

/// How long a program waits before a restart, after so many recent ones: the first time not at all,
/// then longer and longer. The source of a fault is unknown, so this program may cause the faults.
fn pause_after(restarts: usize) -> Duration {
    match restarts {
        0 => Duration::ZERO,
        more => Duration::from_secs(1 << (more - 1).min(5)),
    }
}

/// The tenant whose program is attended.
pub(super) struct Attended<'a> {
    pub install: &'a Install,
    pub registry: &'a Registry,
    pub name: &'a str,
    pub dir: &'a Path,
    pub watch: &'a Watch,
}

/// Waits for a program, and passes signals on. A program that was to die of a signal, and whose
/// work was ended before that, has died of it, also if it was quicker and exited because of the
/// lost work.
///
/// # Errors
/// The system's.
pub(super) fn attend(
    attended: Option<&Attended<'_>>,
    signals: &mut Signals,
    child: &mut Child,
) -> io::Result<ExitStatus> {
    let (pid, doomed) = (child.id(), Cell::new(None));
    let before = |signal, process: ProcessId| {
        if attended.is_some_and(|one| one.before(signal, process)) && process.pid == pid {
            doomed.set(Some(signal));
        }
    };
    let status = signals.attend(child, before)?;
    Ok(match doomed.get() {
        Some(signal) if !status.success() => ExitStatus::from_raw(signal.as_raw()),
        _ => status,
    })
}

impl Attended<'_> {
    /// Call it before `process` gets a signal. If the process would die of it at once, its GPU work
    /// is ended first, because a client that dies with work in flight takes its neighbours with it.
    /// A program with a signal handler is left alone: it may want to save its results. Returns
    /// whether work was ended: the program may see that error, and exit, before the signal comes.
    pub fn before(&self, signal: Signal, process: ProcessId) -> bool {
        end_work_before(self.watch.service(), signal, process, self.dir)
    }

    /// Call it after the program has ended: reports why, if the service is involved, records it,
    /// and returns whether to restart the program; then the service takes clients again.
    ///
    /// # Errors
    /// [`Error::Mps`] if the service is not ready in time; [`Error::Interrupted`].
    pub fn after(
        &self,
        pid: u32,
        status: ExitStatus,
        restart: Option<Restart>,
        limit: Duration,
        say: &mut dyn FnMut(&str),
    ) -> Result<bool, Error> {
        if !kill::was_asked_for(self.dir) {
            self.watch.ended(pid, &describe(status));
        }
        if status.success() || kill::was_asked_for(self.dir) || signals::ending().is_some() {
            return Ok(false);
        }
        let (name, ended) = (self.name, Instant::now());
        if status.signal() == Some(Signal::KILL.as_raw()) {
            let neighbours = self.watch.killed(pid);
            if !neighbours.is_empty() {
                let neighbours: Vec<String> = neighbours.iter().map(u32::to_string).collect();
                let neighbours = neighbours.join(", ");
                let what = match holder::is_in(self.dir) {
                    true => format!(
                        "its work on the GPU is held until it has ended, so that clients {neighbours} go on"
                    ),
                    false => format!("which may have broken clients {neighbours}"),
                };
                say(&format!(
                    "tenant {name}: process {pid} was killed from outside while it was a client of MPS; \
                     {what}; `partita kill {name}` ends its work on the GPU first"
                ));
            }
            return Ok(false);
        }
        let is_to_restart = restart == Some(Restart::OnNeighbourFault) && self.watch.is_hit(ended);
        if !is_to_restart {
            self.tell(ended, say);
            return Ok(false);
        }
        // Others may own up while it is made ready.
        let (is_hit, ready) = thread::scope(|scope| {
            let ready = scope.spawn(|| self.make_ready(limit));
            (self.tell(ended, say), ready.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        if !is_hit {
            return Ok(false);
        }
        ready?;
        Ok(self.pause(ended))
    }

    /// Says and writes down why the program failed, if the service has to do with it. Returns
    /// whether it was a neighbour.
    fn tell(&self, ended: Instant, say: &mut dyn FnMut(&str)) -> bool {
        let name = self.name;
        match self.watch.blame(ended) {
            None => {
                if let Some(reason) = self.watch.server_failure() {
                    say(&format!("tenant {name}: {}", MpsError::ServerFailed { reason }));
                }
                false
            }
            Some(Blame::Own { server }) => {
                say(&format!(
                    "tenant {name}: its work caused a fault of MPS server {server}, which has hit the other clients too"
                ));
                self.watch.note(What::Caused { server });
                false
            }
            Some(Blame::Recovered { server, because }) => {
                say(&format!(
                    "tenant {name}: its work on the GPU was lost, because MPS server {server} {}",
                    because.describe()
                ));
                true
            }
            Some(Blame::Neighbour { server, cause }) => {
                say(&format!("tenant {name}: its work on the GPU was lost by a fault {cause}"));
                self.watch.note(What::Hit { server, cause });
                true
            }
        }
    }

    /// Ends the rest of the program and waits until the service takes clients again.
    fn make_ready(&self, limit: Duration) -> Result<(), Error> {
        if self.registry.is_client() {
            system::end_processes(self.registry, self.name)?;
        } else {
            end_leftovers(self.install, self.registry, self.name)?;
        }
        match ready::wait(self.watch.service(), limit) {
            // The daemon went with it.
            Err(Error::Mps(MpsError::NotRunning { .. })) => Ok(self.watch.service().ensure().map(drop)?),
            waited => waited.map(drop),
        }
    }

    /// Pauses before the restart of a program that ended then; returns whether to restart it.
    fn pause(&self, ended: Instant) -> bool {
        let pause = pause_after(self.watch.restarts_within(LOOP_TIME));
        let over = Instant::now() + pause;
        while Instant::now() < over && !kill::was_asked_for(self.dir) && signals::ending().is_none() {
            thread::sleep(LOOK);
        }
        // The tenant may have been ended meanwhile.
        if kill::was_asked_for(self.dir) || !self.dir.exists() {
            return false;
        }
        self.watch.restarted(ended.elapsed());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_in_a_row_wait_for_longer_and_longer() {
        let pauses: Vec<u64> = (0..9).map(|restarts| pause_after(restarts).as_secs()).collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 32, 32]);
    }
}
