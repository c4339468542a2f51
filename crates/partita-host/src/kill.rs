//! `partita kill`: ends a tenant without hurting its neighbours.
//!
//! A process that is killed while its kernels run under MPS takes the other
//! clients of the service along: their next call fails. So each process that
//! is a client is first made to end its work on the GPU (`terminate_client`),
//! and only then gets signals.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use partita_mps::MpsError;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::dead;
use crate::error::Error;
use crate::gpus::Selectors;
use crate::install::Install;
use crate::mps::{self, end_work::end_work};
use crate::process::{self, ProcessId};
use crate::registry::{GpuMeta, LEDGER_VARIABLE, Registry, RegistryLock, Tenant, acting_user, check_name};
use crate::system;

/// Default time between SIGTERM and SIGKILL.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(5);
/// How long the kernel may take to end processes after SIGKILL. A process in the driver ends when
/// the driver lets it, and one whose pages were swapped out when they are back.
pub const KILL_LIMIT: Duration = Duration::from_secs(30);
/// How long processes that a fault hit may take to end by themselves, before they are ended: the
/// server waits for them.
const LEFTOVERS_GRACE: Duration = Duration::from_secs(5);
/// How long the holder may take to let go of the dead of a tenant for containers.
const LET_GO_LIMIT: Duration = Duration::from_secs(2);
/// How long the work of the dead may go on when such a tenant is to be removed.
const DEAD_LIMIT: Duration = Duration::from_secs(5);
/// How long a tenant without processes may take to go.
const REMOVE_LIMIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);
/// The file in a tenant's directory that says that it was ended on purpose.
const ENDED_MARK: &str = "ended";

/// A tenant that was ended, in the JSON of `partita kill`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ended {
    /// Its name.
    pub name: String,
    /// How many processes were ended.
    pub processes: usize,
}

/// The result of `kill`.
#[derive(Debug, Clone, Default)]
pub struct KillOutcome {
    /// How many processes were ended.
    pub processes: usize,
    /// Problems that did not prevent the tenant's end.
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
    kill_for(install, registry, name, grace, acting_user())
}

/// The same for another calling user, if both that user and the current one may do it.
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
    check_name(name)?;
    let found = registry.lock()?.tenant_of_user(name, user);
    let tenant = match found {
        Err(missing @ Error::NoSuchTenant { .. }) => {
            return end_waiting(registry, name, user, grace)?.ok_or(missing);
        }
        found => found?,
    };
    check_may_end(&tenant, user)?;
    end(install, registry, name, &tenant, grace)
}

/// Ends the user's `partita run` that waits for room under this name. `None` if none waits.
///
/// # Errors
/// [`Error::Child`] if it does not die.
fn end_waiting(
    registry: &Registry,
    name: &str,
    user: u32,
    grace: Duration,
) -> Result<Option<KillOutcome>, Error> {
    let waiter = registry.queue()?.into_iter().find(|waiter| waiter.name == name && waiter.user == user);
    let Some(run) = waiter.map(|waiter| waiter.run) else { return Ok(None) };
    for (signal, patience) in [(Signal::TERM, grace), (Signal::KILL, KILL_LIMIT)] {
        run.signal(signal).map_err(Error::io(format!("process {}", run.pid)))?;
        let deadline = Instant::now() + patience;
        while run.lives() && Instant::now() < deadline {
            thread::sleep(POLL);
        }
    }
    if run.lives() {
        return Err(does_not_die(name, run));
    }
    let notices = vec![format!("{name} waited for room, and its program had not started")];
    Ok(Some(KillOutcome { processes: 1, notices }))
}

/// Whether both the current user and the calling user may end a tenant.
///
/// # Errors
/// [`Error::NotYours`].
pub fn check_may_end(tenant: &[Tenant], user: u32) -> Result<(), Error> {
    let own = rustix::process::geteuid().as_raw();
    tenant.iter().try_for_each(|part| part.check_of(own).and_then(|()| part.check_of(user)))
}

/// Ends every process of a tenant that the caller may end, and removes the tenant.
///
/// # Errors
/// [`Error::Child`] if a process does not die.
pub fn end(
    install: &Install,
    registry: &Registry,
    name: &str,
    tenant: &[Tenant],
    grace: Duration,
) -> Result<KillOutcome, Error> {
    if registry.is_client() {
        return end_by_daemon(registry, name, grace);
    }
    // Before the mark, at which the holder lets go of them.
    let dead: Vec<_> = tenant.iter().flat_map(Tenant::dead).collect();
    tenant.iter().for_each(|part| part.leave_mark(ENDED_MARK));
    if tenant.iter().any(Tenant::is_prepared) {
        // It stays: the mark is for those who are dead by now.
        let deadline = Instant::now() + LET_GO_LIMIT;
        while tenant.iter().any(|part| !part.dead().is_empty()) && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        tenant.iter().for_each(|part| part.remove_mark(ENDED_MARK));
    }
    let mut outcome = end_processes(install, registry, name, tenant, grace)?;
    outcome.notices.extend(dead.iter().map(|process| {
        format!(
            "{name}: the work of its dead process {} on the GPU was let go of; if another client of MPS \
             fails now, that is why",
            process.pid
        )
    }));
    if tenant.iter().any(Tenant::is_prepared) {
        outcome
            .notices
            .push(format!("{name} stays prepared for containers; `partita cdi remove {name}` removes it"));
        return Ok(outcome);
    }
    remove(registry, tenant)?;
    Ok(outcome)
}

/// Has `partitad` end a tenant of this user, which it alone can mark and remove in system mode.
fn end_by_daemon(registry: &Registry, name: &str, grace: Duration) -> Result<KillOutcome, Error> {
    let words = ["kill", "--json", "--grace", &grace.as_secs().to_string(), name].map(str::to_owned);
    let printed = system::command(registry, words.into())?;
    if let Some(reason) = printed.failure() {
        return Err(Error::Served { reason });
    }
    let ended: Vec<Ended> = serde_json::from_slice(&printed.stdout)
        .map_err(|error| Error::Served { reason: format!("partita kill {name}: {error}") })?;
    let said = String::from_utf8_lossy(&printed.stderr);
    let notices = said.lines().map(|line| line.trim_start_matches("partita: ").to_owned()).collect();
    Ok(KillOutcome { processes: ended.iter().map(|one| one.processes).sum(), notices })
}

/// Whether `partita kill` has ended the tenant in this directory.
pub fn was_asked_for(dir: &std::path::Path) -> bool {
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
/// [`Error::Child`] if a process does not die.
pub fn end_those(
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
                // One that was being started by one that has died since may show itself a moment
                // later.
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
                // Uses the processes just found: one that has started since is not one that does
                // not die.
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
pub fn processes(tenant: &[Tenant]) -> BTreeSet<ProcessId> {
    let own = std::process::id();
    let mut all = BTreeSet::new();
    for (part, at) in tenant.iter().zip(0..) {
        // The variable names the directory on the first GPU.
        let mut found = match at {
            0 => process::with_variable(LEDGER_VARIABLE, part.dir.as_os_str()),
            _ => Vec::new(),
        };
        found.extend(own_processes(part));
        // The files belong to the owner: they can only speak for the owner's processes.
        found.retain(|process| process.pid != own && process.user() == Some(part.user));
        if at == 0 && part.is_prepared() {
            // The mounts of a container tell, for each user in it.
            found = process::pids().filter_map(ProcessId::living).collect();
            found.retain(|process| process.pid != own && part.is_in_container(*process));
        }
        all.extend(found);
    }
    all
}

/// The living processes that a tenant's files name: its program, and those that use its GPU.
pub(crate) fn own_processes(part: &Tenant) -> Vec<ProcessId> {
    let mut found: Vec<ProcessId> = Vec::new();
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
    found
}

/// Ends the GPU work of those of these processes that are clients of MPS.
fn terminate_clients(
    install: &Install,
    registry: &Registry,
    tenant: &[Tenant],
    processes: &BTreeSet<ProcessId>,
) -> Result<(), Error> {
    // All its GPUs have one service.
    let Some(first) = tenant.first() else { return Ok(()) };
    let Some(service) = mps::service_of(install, registry, first)? else { return Ok(()) };
    if registry.is_client() {
        let gpus = Selectors::List(first.meta()?.all_gpus().iter().map(GpuMeta::selector).collect());
        let pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
        return system::end_work(registry, &service, &gpus, &pids).map(drop);
    }
    let clients = match service.clients() {
        Err(MpsError::NotRunning { .. }) => return Ok(()),
        clients => clients?,
    };
    let control = service.control();
    for (server, client) in clients {
        if let Some(process) = processes.iter().find(|process| process.pid == client)
            && end_work(&control, server, client)?
        {
            // No fence of it passes any more.
            dead::note_work_ended(&first.dir, *process);
        }
    }
    Ok(())
}

/// Waits for the tenant's `partita run` to notice and exit, then removes the tenant.
///
/// # Errors
/// [`Error::Child`] if the tenant still exists: a process of it could not be found or ended.
fn remove(registry: &Registry, tenant: &[Tenant]) -> Result<(), Error> {
    let deadline = Instant::now() + REMOVE_LIMIT;
    let is_part = |other: &Tenant| tenant.iter().any(|part| part.dir == other.dir);
    loop {
        let lock = registry.lock()?;
        let left: Vec<Tenant> = lock.tenants()?.into_iter().filter(is_part).collect();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            // Something that is no process of the tenant holds its lock; without
            // processes the tenant is over all the same.
            return still_there(&lock, &left)?.map_or(Ok(()), |part| Err(not_gone(part)));
        }
        drop(lock);
        thread::sleep(POLL);
    }
}

/// Removes the tenant's parts, once no process has a slot there. One that was killed is no process
/// any more before the driver has taken everything from it, and its slot is free after that (seen
/// on an H200).
///
/// # Errors
/// [`Error::Child`] if some process still has one after [`KILL_LIMIT`], or a dead one after
/// [`DEAD_LIMIT`], because its work goes on.
pub(crate) fn remove_parts<'a>(registry: &'a Registry, parts: &[Tenant]) -> Result<RegistryLock<'a>, Error> {
    let began = Instant::now();
    loop {
        let lock = registry.lock_to_plan()?;
        let Some(part) = still_there(&lock, parts)? else { return Ok(lock) };
        drop(lock);
        let limit = if parts.iter().any(|part| !part.dead().is_empty()) { DEAD_LIMIT } else { KILL_LIMIT };
        if began.elapsed() >= limit {
            return Err(not_gone(part));
        }
        thread::sleep(POLL);
    }
}

/// Removes these parts of a tenant. Returns one that stays, because a process has a slot there.
fn still_there<'p>(lock: &RegistryLock<'_>, parts: &'p [Tenant]) -> Result<Option<&'p Tenant>, Error> {
    let mut there = None;
    for part in parts {
        if !lock.remove(part)? {
            there = Some(part);
        }
    }
    Ok(there)
}

fn not_gone(part: &Tenant) -> Error {
    let dead = part.dead().first().map(|process| process.describe(&part.name));
    let unknown = || {
        format!(
            "a process holds it that is not found by its environment, as one in a container; end that process, which \
             `sudo fuser {0}/owner {0}/usage` names, and try again",
            part.dir.display()
        )
    };
    Error::Child { job: format!("tenant {}", part.name), reason: dead.unwrap_or_else(unknown) }
}

/// Ends the remaining processes of a tenant of this process's user.
///
/// # Errors
/// [`Error::NoSuchTenant`]; [`Error::NotYours`]; [`Error::Child`] if a process does not die.
pub(crate) fn end_leftovers(install: &Install, registry: &Registry, name: &str) -> Result<(), Error> {
    let tenant = registry.lock()?.tenant(name)?;
    tenant.iter().try_for_each(Tenant::check_yours)?;
    end_processes(install, registry, name, &tenant, LEFTOVERS_GRACE).map(drop)
}
