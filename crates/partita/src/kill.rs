//! `partita kill`: ends a tenant without hurting its neighbours.
//!
//! A process that is killed while its kernels run under MPS takes the other
//! clients of the service along: their next call fails. So each process that
//! is a client is first made to end its work on the GPU (`terminate_client`),
//! and only then gets signals.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use partita_mps::MpsError;
use rustix::process::Signal;

use crate::error::Error;
use crate::install::Install;
use crate::mps::{self, end_work::end_work};
use crate::process::{self, ProcessId};
use crate::registry::{Registry, Tenant};
use crate::run::LEDGER_VARIABLE;

/// How long processes get between SIGTERM and SIGKILL unless told otherwise.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(5);
/// How long the kernel may take to end processes after SIGKILL. One in the
/// driver ends when the driver lets it, and one whose pages the machine has
/// taken away when they are back.
pub(crate) const KILL_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// The file in a tenant's directory that says that it was ended on purpose.
const ENDED_MARK: &str = "ended";

/// What `kill` did.
#[derive(Debug, Clone, Default)]
pub struct KillOutcome {
    /// How many processes were ended.
    pub processes: usize,
    /// What did not go as it should, though the tenant is gone.
    pub notices: Vec<String>,
}

/// Ends every process of the tenant and removes the tenant.
///
/// # Errors
/// [`Error::NoSuchTenant`], [`Error::NotYours`], and [`Error::Child`] if a process does not die.
pub fn kill(
    install: &Install,
    registry: &Registry,
    name: &str,
    grace: Duration,
) -> Result<KillOutcome, Error> {
    kill_for(install, registry, name, grace, rustix::process::geteuid().as_raw())
}

/// The same for another user who asks, where that user may do it and the current one may, too.
///
/// # Errors
/// As [`kill`].
pub fn kill_for(
    install: &Install,
    registry: &Registry,
    name: &str,
    grace: Duration,
    user: u32,
) -> Result<KillOutcome, Error> {
    let tenant = registry.lock()?.tenant(name)?;
    check_may_end(&tenant, user)?;
    end(install, registry, name, &tenant, grace)
}

/// Whether the current user may end a tenant, and so may the one who asks.
///
/// # Errors
/// [`Error::NotYours`].
pub(crate) fn check_may_end(tenant: &[Tenant], user: u32) -> Result<(), Error> {
    tenant.iter().try_for_each(|part| part.check_yours().and_then(|()| part.check_of(user)))
}

/// Ends every process of a tenant that the caller may end, and removes the tenant.
///
/// # Errors
/// [`Error::Child`] if a process does not die.
pub(crate) fn end(
    install: &Install,
    registry: &Registry,
    name: &str,
    tenant: &[Tenant],
    grace: Duration,
) -> Result<KillOutcome, Error> {
    for part in tenant {
        mark_as_ended(&part.dir);
    }
    let outcome = end_processes(install, registry, name, tenant, grace)?;
    remove(registry, tenant)?;
    Ok(outcome)
}

/// Marks a tenant, so that its `partita run` knows who ended it. A tenant that has just ended needs no mark.
///
/// The directory is its owner's, and who ends it may be root: what is there under that name, a link or a pipe, is left alone.
fn mark_as_ended(dir: &Path) {
    let _ = std::fs::OpenOptions::new().write(true).create_new(true).open(dir.join(ENDED_MARK));
}

/// Whether `partita kill` has ended the tenant in this directory.
pub(crate) fn was_asked_for(dir: &Path) -> bool {
    dir.join(ENDED_MARK).exists()
}

/// Ends every process of the tenant but the caller's, its work on the GPU first.
///
/// # Errors
/// [`Error::Child`] if a process does not die.
pub(crate) fn end_processes(
    install: &Install,
    registry: &Registry,
    name: &str,
    tenant: &[Tenant],
    grace: Duration,
) -> Result<KillOutcome, Error> {
    end_those(install, registry, name, tenant, grace, |_| true)
}

/// The same for those of them that are meant.
///
/// # Errors
/// As [`end_processes`].
pub(crate) fn end_those(
    install: &Install,
    registry: &Registry,
    name: &str,
    tenant: &[Tenant],
    grace: Duration,
    is_meant: impl Fn(ProcessId) -> bool,
) -> Result<KillOutcome, Error> {
    let mut outcome = KillOutcome::default();
    let mut seen = BTreeSet::new();
    for (signal, patience) in [(Signal::TERM, grace), (Signal::KILL, KILL_LIMIT)] {
        let deadline = Instant::now() + patience;
        let mut told = BTreeSet::new();
        let mut nobody_left = false;
        loop {
            let mut processes = processes(tenant);
            processes.retain(|process| is_meant(*process));
            if processes.is_empty() {
                // One that was being started by one that has died since may show itself a moment later.
                if nobody_left || signal == Signal::TERM {
                    break;
                }
                nobody_left = true;
                thread::sleep(POLL);
                continue;
            }
            nobody_left = false;
            let fresh: BTreeSet<ProcessId> = processes.difference(&told).copied().collect();
            if !fresh.is_empty() {
                if let Err(error) = terminate_clients(install, registry, tenant, &fresh) {
                    outcome.notices.push(format!(
                        "{name}: its work on the GPU could not be ended through MPS first, which may hurt other tenants: {error}"
                    ));
                }
                for process in &fresh {
                    process.signal(signal).map_err(Error::io(format!("process {}", process.pid)))?;
                }
                told.extend(&fresh);
                seen.extend(fresh);
            }
            if Instant::now() >= deadline {
                // Judged by what was just seen: one that has begun since is not one that does not die.
                if let (Signal::KILL, Some(process)) = (signal, processes.first()) {
                    return Err(does_not_die(name, *process));
                }
                break;
            }
            thread::sleep(POLL);
        }
    }
    outcome.processes = seen.len();
    outcome.notices.dedup();
    Ok(outcome)
}

fn does_not_die(name: &str, process: ProcessId) -> Error {
    Error::Child {
        job: format!("tenant {name}"),
        reason: format!(
            "process {} does not die within {} s of SIGKILL ({}); see `cat /proc/{}/stack`",
            process.pid,
            KILL_LIMIT.as_secs(),
            process.what_it_does(),
            process.pid
        ),
    }
}

/// Every living process of the tenant, but the one that asks.
pub(crate) fn processes(tenant: &[Tenant]) -> BTreeSet<ProcessId> {
    let own = std::process::id();
    let mut all = BTreeSet::new();
    for (part, at) in tenant.iter().zip(0..) {
        // The variable names the directory on the first GPU.
        let mut found = match at {
            0 => process::with_variable(LEDGER_VARIABLE, part.dir.as_os_str()),
            _ => Vec::new(),
        };
        if let Ok(meta) = &part.meta {
            found.extend(meta.child.filter(|child| child.lives()));
        }
        if let Ok(usage) = part.usage() {
            found.extend(usage.slots().flatten().filter(|slot| slot.live).filter_map(|slot| {
                let process = ProcessId::living(u32::try_from(slot.pid).ok()?)?;
                // In a container a process has another number than here; then the start time differs.
                (process.start_ticks == slot.start_ticks).then_some(process)
            }));
        }
        // The files are the owner's: what they name is believed only of the owner's processes.
        found.retain(|process| process.pid != own && process.user() == Some(part.user));
        all.extend(found);
    }
    all
}

/// Ends what these processes have on the GPU, for those that are clients of MPS.
fn terminate_clients(
    install: &Install,
    registry: &Registry,
    tenant: &[Tenant],
    processes: &BTreeSet<ProcessId>,
) -> Result<(), Error> {
    // All its GPUs have one service.
    let Some(first) = tenant.first() else { return Ok(()) };
    let Some(service) = mps::service_of(install, registry, first)? else { return Ok(()) };
    let clients = match service.clients() {
        Err(MpsError::NotRunning { .. }) => return Ok(()),
        clients => clients?,
    };
    let control = service.control();
    for (server, client) in clients {
        if processes.iter().any(|process| process.pid == client) {
            end_work(&control, server, client)?;
        }
    }
    Ok(())
}

/// Waits for the tenant's `partita run` to notice and leave, then removes the tenant.
fn remove(registry: &Registry, tenant: &[Tenant]) -> Result<(), Error> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let lock = registry.lock()?;
        let is_there = |other: &Tenant| tenant.iter().any(|part| part.dir == other.dir);
        if !lock.tenants()?.iter().any(is_there) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            // Something that is no process of the tenant holds its lock; without
            // processes the tenant is over all the same.
            return tenant.iter().try_for_each(|part| lock.remove(&part.dir));
        }
        drop(lock);
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_never_written_through_what_the_owner_put_there() {
        let dir = tempfile::tempdir().unwrap();
        let (tenant, precious) = (dir.path().join("tenant"), dir.path().join("precious"));
        std::fs::create_dir(&tenant).unwrap();
        std::fs::write(&precious, "root's").unwrap();
        let mark = tenant.join(ENDED_MARK);
        for target in [&precious, &dir.path().join("none")] {
            std::os::unix::fs::symlink(target, &mark).unwrap();
            mark_as_ended(&tenant);
            std::fs::remove_file(&mark).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "root's");
        assert!(!dir.path().join("none").exists());
        mark_as_ended(&tenant);
        assert!(was_asked_for(&tenant));
    }
}
