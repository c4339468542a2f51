//! `partita run`: a program in a partition.

mod attend;
mod client;
mod command;
mod exec;
mod noter;
mod place;
mod plan;
mod quota;
mod select;
mod stall;
mod turn;
mod wait;
mod watch;

use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use partita_core::ByteSize;
use partita_mps::Service;
use rustix::process::Signal;

use self::attend::{Started, attend};
use self::command::{Place, command_in, spawn_owner};
pub(crate) use self::command::{below_others, places};
pub use self::command::{hook, variables};
pub use self::exec::exec;
pub(crate) use self::exec::gpus_of;
use self::place::Candidate;
pub(crate) use self::place::ranked_for;
pub(crate) use self::plan::make;
pub use self::plan::{DryRun, dry_run};
pub use self::select::check_usable;
use self::select::select;
use self::stall::Policy;
use self::watch::Watch;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::holder;
use crate::install::Install;
use crate::mps;
use crate::partition;
use crate::process::ProcessId;
use crate::program;
pub use crate::registry::LEDGER_VARIABLE;
use crate::registry::{Isolation, OwnedTenant, Registry, Tenant, check_name};
pub use crate::request::{RunRequest, wait_time};
use crate::signals::{self, Signals};
use crate::slo::Standby;
use crate::system;

/// How long a new tenant waits for the room or the name of those whose `partita run` has ended.
/// Their holders release most of them within 2 s, and later on a loaded machine.
const LEAVING_LIMIT: Duration = Duration::from_secs(10);
const LEAVING_LOOK: Duration = Duration::from_millis(50);
/// A wait that is longer is reported.
const SAID_AFTER: Duration = Duration::from_secs(1);

/// Runs the program until it ends and returns its exit code: its own, or 128 and the signal's
/// number. `on_start` gets the tenant's name and the program's process number once it runs. `say`
/// gets the messages for stderr before the program starts, and why a client of MPS lost its work
/// after it has ended.
///
/// # Errors
/// Any [`Error`]; the program was not started then, and nothing is left behind.
pub fn run(
    install: &Install,
    request: &RunRequest,
    on_start: impl FnOnce(&str, u32),
    say: impl FnMut(&str) + Clone + Send + 'static,
) -> Result<u8, Error> {
    let on_start = |name: &str, pid| {
        on_start(name, pid);
        Ok(())
    };
    run_apart(install, request, None, on_start, say)
}

/// The same for a program that may be apart: without a terminal and with `output` for its stdout
/// and stderr. An error of `on_start` ends the program.
pub(crate) fn run_apart(
    install: &Install,
    request: &RunRequest,
    output: Option<BorrowedFd<'_>>,
    on_start: impl FnOnce(&str, u32) -> Result<(), Error>,
    mut say: impl FnMut(&str) + Clone + Send + 'static,
) -> Result<u8, Error> {
    let mut signals = Signals::take_over(output.is_some()).map_err(Error::io("signal handlers"))?;
    let mut started =
        start(install, request, &signals, output, [Box::new(say.clone()), Box::new(say.clone())], &mut say)?;
    let begun = on_start(&started.name, started.child.id());
    if begun.is_err() {
        // As if its user ended it at once.
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TERM);
    }
    let status = attend(install, request, &mut started, &mut signals, &mut say);
    let Started { tenant, registry, watch, standby, .. } = started;
    drop((watch, standby));
    finish(&registry, tenant);
    begun.and(status).map(exit_code)
}

/// The exit code that shells report: the program's own, or 128 and the signal's number.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Refuses a tenant inside a tenant.
fn check_outside() -> Result<(), Error> {
    let Some(ledger) = std::env::var_os(LEDGER_VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(());
    };
    let name = Path::new(&ledger).file_name().unwrap_or(&ledger).to_string_lossy().into_owned();
    Err(Error::NotOffered {
        option: "a tenant inside a tenant".to_owned(),
        reason: format!("this process runs in tenant {name} already; run the program directly"),
    })
}

/// The file of the program that a command line begins with.
fn find_program(words: &[OsString], command: &str) -> Result<PathBuf, Error> {
    let first = words.first().filter(|word| !word.is_empty()).ok_or_else(|| Error::NoProgram {
        program: command.to_owned(),
        reason: "no program named; give one after `--`".to_owned(),
    })?;
    program::find(first)
}

/// Makes a tenant; if it is refused while others leave, again until they have left.
pub(crate) fn make_after_others(
    registry: &Registry,
    make: impl Fn() -> Result<OwnedTenant, Error>,
    say: &mut dyn FnMut(&str),
) -> Result<OwnedTenant, Error> {
    let begin = Instant::now();
    let mut is_said = false;
    let mut is_last = false;
    loop {
        let made = make();
        let error = match made {
            Err(error @ (Error::NameInUse { .. } | Error::Plan { .. } | Error::MemoryPromised { .. })) => {
                error
            }
            made => return made,
        };
        signals::check()?;
        let tenants = registry.lock()?.tenants()?;
        let left =
            |tenant: &&Tenant| tenant.meta().is_ok_and(|meta| !meta.run.lives() && !meta.is_prepared());
        let Some(leaves) = tenants.iter().find(left).filter(|_| begin.elapsed() < LEAVING_LIMIT) else {
            if is_last {
                return Err(error);
            }
            // The last one may have left since the refusal.
            is_last = true;
            continue;
        };
        is_last = false;
        if begin.elapsed() > SAID_AFTER && !std::mem::replace(&mut is_said, true) {
            say(&format!(
                "waiting up to {} s for tenant {}, of which something has not ended",
                LEAVING_LIMIT.as_secs(),
                leaves.meta()?.name
            ));
        }
        thread::sleep(LEAVING_LOOK);
    }
}

/// Where messages go while a program runs.
type Say = Box<dyn FnMut(&str) + Send>;

fn start(
    install: &Install,
    request: &RunRequest,
    signals: &Signals,
    output: Option<BorrowedFd<'_>>,
    [say_of_stall, say_of_target]: [Say; 2],
    say: &mut dyn FnMut(&str),
) -> Result<Started, Error> {
    check_outside()?;
    // Cheap and common errors first.
    let program = find_program(&request.command, "partita run")?;
    program::check_debugger(&program, request.limits.isolation())?;
    let name = match &request.name {
        Some(name) => name.clone(),
        None => default_name(&program),
    };
    check_name(&name)?;
    if request.limits.memory == Some(ByteSize(0).into()) {
        return Err(Error::QuotaZero);
    }
    let hook = hook(install)?;
    let registry = Registry::open()?;

    let gpus = select(install, request, &mut *say)?;
    let candidates = place::candidates(install, request, &registry, gpus)?;
    let (gpus, asked, made) = make_where_it_fits(install, request, &registry, candidates, &name, &mut *say)?;
    let asked = &asked;
    let MadeTenant { request, tenant, service, socket } = made;
    let request = &request;
    let place = Place {
        gpus: &gpus,
        hook: &hook,
        ledger: tenant.dir(),
        service: service.as_ref(),
        priority: request.limits.priority(),
        mps_partition: request.mps_partition.as_ref(),
    };
    let mut command = command_in(&place, &program, &request.command);
    if let Some(output) = output {
        let stream = || output.try_clone_to_owned().map(Stdio::from).map_err(Error::io("its output"));
        match (stream(), stream()) {
            (Ok(stdout), Ok(stderr)) => _ = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr),
            (Err(error), _) | (_, Err(error)) => {
                finish(&registry, tenant);
                return Err(error);
            }
        }
    }
    let ready = |service: &Service| {
        mps::partitions::check_named(service, &gpus, request.mps_partition.as_ref())?;
        if !registry.is_client() {
            mps::ready::admit(service, &gpus, mps::tenants_of(&registry, &gpus)?)?;
        }
        mps::ready::check_memory(service, &gpus, request.limits.memory)?;
        mps::ready::wait(service, request.mps_limit()).map(drop)
    };
    let child = start_service(service.as_ref()).and_then(|started| {
        let ready = service.as_ref().map_or(Ok(()), ready);
        let policy = Policy {
            install: install.clone(),
            gpus: gpus.clone(),
            limit: request.mps_limit(),
            recovers: request.limits.restart.is_some(),
            say: say_of_stall,
        };
        let begin_watch = |service| Watch::begin(service, &registry, &name, tenant.dir(), Some(policy));
        let watch = service.as_ref().map(begin_watch);
        let holder = match service {
            Some(_) => holder::start(install, &tenant, socket),
            None => Ok(()),
        };
        let mut begin = || {
            if signals.take_over_job().map_err(Error::io("signal handlers"))? {
                command.process_group(0);
            }
            tell_what_it_gets(asked, request, &name, &tenant, say);
            spawn_owner(&mut command, &tenant, &program)
        };
        ready
            .and(holder)
            .and_then(|()| Ok((begin()?, watch)))
            .inspect_err(|_| give_up_service(service.as_ref(), started))
    });
    match child {
        Ok((child, watch)) => {
            let keys = gpus.iter().map(Gpu::key).collect();
            let standby = Standby::begin(&registry, keys, &name, tenant.dir().to_owned(), say_of_target);
            Ok(Started { tenant, registry, name, program, command, child, watch, standby })
        }
        Err(error) => {
            finish(&registry, tenant);
            Err(error)
        }
    }
}

/// A tenant, and what was settled for it.
struct MadeTenant {
    request: RunRequest,
    tenant: OwnedTenant,
    service: Option<Service>,
    /// Of its holder, if root has made it.
    socket: Option<OwnedFd>,
}

/// Makes the tenant on the best of the GPUs that have room now; if none has, it waits for the best
/// one, if it is to wait. Returns its GPUs and the request for them, too.
fn make_where_it_fits(
    install: &Install,
    request: &RunRequest,
    registry: &Registry,
    candidates: Vec<Candidate>,
    name: &str,
    say: &mut dyn FnMut(&str),
) -> Result<(Vec<Gpu>, RunRequest, MadeTenant), Error> {
    let is_choice = candidates.len() > 1;
    // The best one, of those that this user may use.
    let mut waits_on = None;
    let on = |candidate: &Candidate, wait, say: &mut dyn FnMut(&str)| {
        let asked = RunRequest { wait, placed: candidate.reason.clone(), ..request.clone() };
        let attempt =
            |say: &mut dyn FnMut(&str)| make_tenant(install, &asked, registry, &candidate.gpus, name, say);
        let keys: Vec<String> = candidate.gpus.iter().map(Gpu::key).collect();
        let made = wait::for_room(registry, &keys, wait, attempt, say)?;
        Ok((asked, made))
    };
    let wait = request.wait.filter(|_| !is_choice);
    let made = place::first(candidates, |candidate| {
        let made = on(candidate, wait, &mut *say);
        if is_choice && request.wait.is_some() && !matches!(made, Err(Error::OtherGroup { .. })) {
            waits_on.get_or_insert_with(|| candidate.clone());
        }
        made
    });
    let (candidate, (asked, made)) = match (made, waits_on) {
        (Err(Error::Plan { .. } | Error::MemoryPromised { .. } | Error::Queued { .. }), Some(best)) => {
            let made = on(&best, request.wait, &mut *say)?;
            (best, made)
        }
        (made, _) => made?,
    };
    candidate.reason.iter().for_each(|reason| say(&place::said(reason)));
    Ok((candidate.gpus, asked, made))
}

/// Makes the tenant beside those that are there now. Returns what was settled for it, and its
/// service.
fn make_tenant(
    install: &Install,
    request: &RunRequest,
    registry: &Registry,
    gpus: &[Gpu],
    name: &str,
    say: &mut dyn FnMut(&str),
) -> Result<MadeTenant, Error> {
    let service = |request: &RunRequest| match request.limits.isolation() {
        Isolation::Shared => mps::service(install, registry, gpus).map(Some),
        Isolation::Own => Ok(None),
    };
    if registry.is_client() {
        // `partitad` starts the service with the tenant.
        let has_holder = request.limits.isolation() == Isolation::Shared && holder::is_wanted();
        let (request, tenant, socket) = system::make(registry, request, gpus, name, has_holder)?;
        return match service(&request) {
            Ok(service) => Ok(MadeTenant { request, tenant, service, socket }),
            Err(error) => {
                finish(registry, tenant);
                Err(error)
            }
        };
    }
    let request = request.settled(registry, gpus)?;
    let service = service(&request)?;
    let run = ProcessId::own().map_err(Error::io("/proc/self"))?;
    let make = || make(install, &request, registry, gpus, name, run);
    let tenant = make_after_others(registry, make, say)?;
    if request.is_put_in_turns {
        say("it takes turns: with masks it could not meet this target before (`--via mask` for masks)");
    }
    Ok(MadeTenant { request, tenant, service, socket: None })
}

/// Says which resources the program gets without a limit that was asked for.
fn tell_what_it_gets(
    asked: &RunRequest,
    request: &RunRequest,
    name: &str,
    tenant: &OwnedTenant,
    say: &mut dyn FnMut(&str),
) {
    if asked.shares_evenly() && request.takes_turns() {
        let turns = request.limits.time.map_or_else(
            || format!("--priority {}", request.limits.priority()),
            |share| format!("--time {share}"),
        );
        say(&format!("no --sm: {name} takes turns with the tenants that are there, as with `{turns}`"));
    }
    if request.shares_evenly() {
        let by_policy = tenant.meta().share.is_some();
        for (gpu, sms, sms_of_device) in tenant.units() {
            let has = format!("no --sm: {name} has {sms} of {sms_of_device} SMs of {gpu}");
            if by_policy {
                say(&format!("{has} by the policy of this site; `partita policy show` prints it"));
                continue;
            }
            say(&format!(
                "{has}, as many as each other tenant without --sm; that changes as tenants come and go, and \
                 `--sm 100%` keeps all"
            ));
        }
    }
    for (gpu, bytes) in tenant.memory_rests() {
        say(&format!(
            "no --mem: {name} is held to {} of {gpu}, its part of what other tenants were not promised; a \
             later promise lowers it",
            ByteSize(bytes).approximate()
        ));
    }
}

/// The answer to a program that the policy of the site has made a tenant.
pub(crate) fn of_outside(tenant: &OwnedTenant) -> String {
    let quotas: Vec<(&str, u64)> = tenant.memory_quotas().collect();
    let on = |(gpu, sms, sms_of_device): (&str, u32, u32)| {
        let quota = quotas.iter().find(|(of, _)| *of == gpu);
        let memory =
            quota.map_or_else(String::new, |(_, bytes)| format!(" and {}", ByteSize(*bytes).approximate()));
        format!("{sms} of {sms_of_device} SMs{memory} of {gpu}")
    };
    format!(
        "by the policy of this site this program runs as tenant {} with {}; `partita run` asks for other \
         limits, and `partita ps {0}` shows these",
        tenant.meta().name,
        tenant.units().map(on).collect::<Vec<_>>().join(", ")
    )
}

/// A tenant's processes are clients of a service that runs; returns whether this call started it.
fn start_service(service: Option<&Service>) -> Result<bool, Error> {
    signals::check()?;
    let started = match service {
        Some(service) => service.ensure()?.started,
        None => false,
    };
    signals::check().inspect_err(|_| give_up_service(service, started))?;
    Ok(started)
}

/// Ends a service that this command started in vain, unless others use it by now.
fn give_up_service(service: Option<&Service>, started: bool) {
    if let (Some(service), true) = (service, started) {
        let _ = service.stop_if_unused();
    }
}

/// Lets go of the tenant and removes it, unless processes of it live on.
fn finish(registry: &Registry, tenant: OwnedTenant) {
    drop(tenant);
    clean(registry);
}

/// Removes what ended tenants left, and divides among tenants without a share what they had.
fn clean(registry: &Registry) {
    // Whatever goes wrong here, the next command removes the remains.
    if registry.is_client() {
        let _ = system::clean(registry);
    } else if let Ok(lock) = registry.lock_to_plan() {
        let _ = partition::divide_after_end(&lock);
    }
}

/// The default name of a tenant: its program's name and this process's number.
fn default_name(program: &Path) -> String {
    format!("{}-{}", program_name(program), std::process::id())
}

/// What a tenant's name can have of a program's.
pub(crate) fn program_name(program: &Path) -> String {
    let stem: String = program
        .file_name()
        .unwrap_or(OsStr::new("program"))
        .to_string_lossy()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c))
        .take(40)
        .collect();
    let stem = stem.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    if stem.is_empty() { "program" } else { stem }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_names_are_names() {
        for program in ["/usr/bin/python3", "./a.out", "/x/..hidden", "/x/ü", "/x/-", &"/y".repeat(90)] {
            check_name(&default_name(Path::new(program))).unwrap();
        }
        assert!(default_name(Path::new("/usr/bin/python3")).starts_with("python3-"));
    }
}
