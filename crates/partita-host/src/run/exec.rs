//! `partita exec`: another program in a tenant that runs.
//!
//! As in a container, the tenant lasts as long as its first program. A program that `exec` starts
//! has the tenant's limits and shares them with the tenant's other processes. It does not hold the
//! tenant's locks, so the tenant's end does not wait for it.

use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::{Gid, Uid, User};
use partita_mps::Service;
use partita_mps::partition::PartitionName;
use rustix::process::Signal;

use super::client::{self, Attended};
use super::command::{Place, command_in, hook, spawn};
use super::watch::Watch;
use super::{check_outside, clean, exit_code, find_program};
use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpus::{self, Selectors};
use crate::install::Install;
use crate::limits::LimitSet;
use crate::mps;
use crate::mps::end_work::end_work_before;
use crate::mps::ready::READY_LIMIT;
use crate::process::ProcessId;
use crate::program;
use crate::registry::{Isolation, Meta, Registry, Tenant};
use crate::signals::Signals;
use crate::system;

/// How often the end of the tenant's first program is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// The time between SIGTERM and SIGKILL after the end of the tenant's first program.
const GRACE: Duration = Duration::from_secs(5);

/// Runs a program in the living tenant `name` until it ends, and returns its exit code: its own, or
/// 128 and the signal's number. `say` gets the messages for stderr. Root's call for a tenant of
/// another user runs the program as that user, and does not return.
///
/// # Errors
/// Any [`Error`]; the program was not started then.
pub fn exec(
    install: &Install,
    name: &str,
    command: &[OsString],
    mut say: impl FnMut(&str) + Clone + Send,
) -> Result<u8, Error> {
    let mut signals = Signals::take_over(false).map_err(Error::io("signal handlers"))?;
    check_outside()?;
    let registry = Registry::open()?;
    let missing = |error| system::of_another_user(&registry, name).unwrap_or(error);
    let parts = registry.lock()?.tenant(name).map_err(missing)?;
    let own = rustix::process::geteuid();
    parts.iter().try_for_each(|part| part.check_of(own.as_raw()))?;
    let first = parts.first().ok_or_else(|| gone(name))?;
    if first.user != own.as_raw() {
        match become_user(install, first, name, command)? {}
    }
    let program = find_program(command, "partita exec")?;
    let meta = first.meta()?;
    if meta.is_prepared() {
        return Err(Error::NotOffered {
            option: format!("`exec` in tenant {name}"),
            reason: format!(
                "it is for containers; start a container with `--device {}={name}`",
                crate::registry::CDI_KIND
            ),
        });
    }
    program::check_debugger(&program, meta.isolation)?;
    let hook = hook(install)?;
    let gpus = gpus_of(install, name, meta)?;
    let limits = LimitSet::of(Some(first.limits()?), Some(meta));
    let service = match meta.isolation {
        Isolation::Shared => Some(mps::service(install, &registry, &gpus)?),
        Isolation::Own => None,
    };
    let partition = meta.mps_partition.as_deref().map(str::parse::<PartitionName>).transpose();
    let partition = partition.map_err(|reason| Error::Refused { what: format!("tenant {name}"), reason })?;
    if let Some(service) = &service {
        admit(&registry, service, &gpus)?;
    }
    let place = Place {
        gpus: &gpus,
        hook: &hook,
        ledger: &first.dir,
        service: service.as_ref(),
        priority: limits.priority(),
        mps_partition: partition.as_ref(),
    };
    let mut command = command_in(&place, &program, command);
    let watch = service.as_ref().map(|service| Watch::begin(service, &registry, name, &first.dir, None));
    if signals.take_over_job().map_err(Error::io("signal handlers"))? {
        command.process_group(0);
    }
    let life = Life { registry: &registry, name, dir: &first.dir, run: meta.run, child: OnceLock::new() };
    if !life.lasts() {
        return Err(gone(name));
    }
    let mut child = spawn(&mut command, &program)?;
    watch.iter().for_each(|watch| watch.expect(child.id()));
    let dir = &first.dir;
    let attended = watch.as_ref().map(|watch| Attended { install, registry: &registry, name, dir, watch });
    let process = ProcessId::living(child.id());
    let is_over = AtomicBool::new(false);
    let mut say_of_end = say.clone();
    let status = thread::scope(|scope| {
        let ender = scope.spawn(|| life.end_after(process, service.as_ref(), &is_over, &mut say_of_end));
        let status = client::attend(attended.as_ref(), &mut signals, &mut child);
        is_over.store(true, Ordering::Relaxed);
        ender.thread().unpark();
        status
    });
    let status = status.map_err(Error::io("waiting for the program"))?;
    if let Some(one) = &attended {
        one.after(child.id(), status, None, READY_LIMIT, &mut say)?;
    }
    if !life.lasts() {
        // The tenant's own command may have left its files to the last process.
        clean(&registry);
    }
    Ok(exit_code(status))
}

fn gone(name: &str) -> Error {
    Error::NoSuchTenant {
        name: name.to_owned(),
        present: "its first program has ended; start it again with `partita run`".to_owned(),
    }
}

/// Continues this command as the user of a tenant, from the beginning: all that follows then sees
/// the machine as that user's own command does.
fn become_user(
    install: &Install,
    tenant: &Tenant,
    name: &str,
    command: &[OsString],
) -> Result<Infallible, Error> {
    let user = Uid::from_raw(tenant.user);
    let failed = |error: nix::Error| Error::io(format!("becoming user {user}"))(error.into());
    let account = User::from_uid(user).map_err(failed)?;
    let mut again = Command::new(install.program());
    again.args(["exec", name, "--"]).args(command);
    let groups = match account {
        Some(account) => {
            again.env("HOME", &account.dir).env("USER", &account.name).env("LOGNAME", &account.name);
            let login = CString::new(account.name).map_err(|_| failed(nix::Error::EINVAL))?;
            nix::unistd::initgroups(&login, account.gid).map(|()| account.gid)
        }
        // As in a container: the group of its first program.
        None => {
            again.env("HOME", "/").env_remove("USER").env_remove("LOGNAME");
            let run = std::fs::metadata(format!("/proc/{}", tenant.meta()?.run.pid));
            let group = run.map_err(|_| gone(name))?.gid();
            nix::unistd::setgroups(&[]).map(|()| Gid::from_raw(group))
        }
    };
    groups.and_then(nix::unistd::setgid).and_then(|()| nix::unistd::setuid(user)).map_err(failed)?;
    if let Some(sim) = &tenant.meta()?.gpu.sim {
        again.env("PARTITA_SIM_DIR", &sim.dir);
    }
    // Those of root are no directories of this user.
    again.env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME").env_remove("XDG_RUNTIME_DIR");
    Err(Error::io(install.program().display().to_string())(again.exec()))
}

/// The GPUs of a tenant, in the order in which its programs see them.
pub(crate) fn gpus_of(install: &Install, name: &str, meta: &Meta) -> Result<Vec<Gpu>, Error> {
    let selectors = Selectors::List(meta.all_gpus().iter().map(|gpu| gpu.selector()).collect());
    let gpus = gpus::select_to_start(install, Some(&selectors), |_| true)?.gpus;
    if gpus.iter().map(Gpu::key).eq(meta.all_gpus().iter().map(|gpu| gpu.key.clone())) {
        return Ok(gpus);
    }
    let dir = meta.gpu.sim.as_ref().map(|sim| sim.dir.display().to_string()).unwrap_or_default();
    Err(Error::Refused {
        what: format!("tenant {name}"),
        reason: format!("it is on another simulated GPU than this command sees; set PARTITA_SIM_DIR={dir}"),
    })
}

/// Refuses one more client for which the service has no room, and waits until it takes clients.
fn admit(registry: &Registry, service: &Service, gpus: &[Gpu]) -> Result<(), Error> {
    if !registry.is_client() {
        service.ensure()?;
        mps::ready::admit(service, gpus, mps::tenants_of(registry, gpus)? + 1)?;
    }
    mps::ready::wait(service, READY_LIMIT).map(drop)
}

/// How long a tenant lasts: as long as the process that runs its first program, or that program, if
/// the process was killed.
struct Life<'a> {
    registry: &'a Registry,
    name: &'a str,
    dir: &'a Path,
    run: ProcessId,
    /// The first program, read after the end of `run`, which may restart it.
    child: OnceLock<Option<ProcessId>>,
}

impl Life<'_> {
    fn lasts(&self) -> bool {
        self.run.lives() || self.child.get_or_init(|| self.left_child()).is_some_and(ProcessId::lives)
    }

    fn left_child(&self) -> Option<ProcessId> {
        let parts = self.registry.lock().ok()?.tenant(self.name).ok()?;
        let meta = parts.first()?.meta().ok()?;
        meta.child.filter(|_| meta.run == self.run)
    }

    /// Waits for the tenant's end and then ends `process`, unless it `is_over` before.
    fn end_after(
        &self,
        process: Option<ProcessId>,
        service: Option<&Service>,
        is_over: &AtomicBool,
        say: &mut dyn FnMut(&str),
    ) {
        let is_over = || is_over.load(Ordering::Relaxed);
        while self.lasts() {
            if is_over() {
                return;
            }
            thread::park_timeout(LOOK);
        }
        let Some(process) = process.filter(|process| process.lives()) else { return };
        say(&format!("tenant {}: its first program has ended, and this one ends with it", self.name));
        for signal in [Signal::TERM, Signal::KILL] {
            // A client that dies with work in flight takes its neighbours with it.
            service.iter().for_each(|service| _ = end_work_before(service, signal, process, self.dir));
            // It may end at any moment; then there is no receiver.
            let _ = process.signal(signal);
            let begin = Instant::now();
            while begin.elapsed() < GRACE && !is_over() {
                thread::park_timeout(LOOK);
            }
        }
    }
}
