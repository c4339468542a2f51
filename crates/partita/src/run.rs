//! `partita run`: a program in a partition.

mod attend;
mod plan;
mod text;

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use partita_core::time::{Policy, Priority};
use partita_core::{ByteSize, Share};
use partita_mps::Service;
use partita_mps::partition::{PARTITION_VARIABLE, PartitionName};
use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};

use self::attend::{Started, attend};
pub(crate) use self::plan::make;
pub use self::plan::{DryRun, dry_run};
use crate::calibration::without_mps;
use crate::error::Error;
use crate::gpu::{Gpu, INSTANCES_INSTEAD};
use crate::gpus::{self, Selectors};
use crate::install::{self, Install};
use crate::limits::{OnMisfit, SmCount, Spill};
use crate::mps;
use crate::mps::attend::Restart;
use crate::mps::ready::READY_LIMIT;
use crate::mps::watch::Watch;
use crate::offered::{TimeShare, Via};
use crate::partition::Place;
use crate::process::ProcessId;
use crate::program;
use crate::registry::{Isolation, OwnedTenant, Registry, check_name};
use crate::signals::{self, Signals};
use crate::system;

/// What the value of `PARTITA_LEDGER` is: the tenant's directory.
pub const LEDGER_VARIABLE: &str = "PARTITA_LEDGER";

/// What to run and how. Its serialized form is what a command sends to `partitad` in system mode.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RunRequest {
    /// `--gpu`.
    #[serde(with = "text")]
    pub gpus: Option<Selectors>,
    /// `--sm`, on each of the GPUs; none for every TPC that is free.
    #[serde(with = "text")]
    pub share: Option<Share>,
    /// `--mem`, on each of the GPUs; none for no quota.
    #[serde(with = "text")]
    pub memory: Option<ByteSize>,
    /// `--mem-driver`; none for [`DRIVER_ALLOWANCE_BYTES`](partita_ledger::DRIVER_ALLOWANCE_BYTES).
    #[serde(with = "text")]
    pub driver_allowance: Option<ByteSize>,
    /// `--name`; none for one made of the program's name.
    pub name: Option<String>,
    /// `--isolation`.
    pub isolation: Isolation,
    /// `--on-misfit`.
    pub on_misfit: OnMisfit,
    /// `--sm-count`.
    pub sm_count: SmCount,
    /// `--priority`.
    #[serde(with = "text::named")]
    pub priority: Priority,
    /// `--time`, on each of the GPUs; none for no share of time, which cannot be given later.
    pub time: Option<TimeShare>,
    /// `--time-policy`.
    #[serde(with = "text::named")]
    pub time_policy: Policy,
    /// `--via`.
    pub via: Via,
    /// `--restart`. Only the command itself needs it, and the next one.
    #[serde(skip)]
    pub restart: Restart,
    /// `--mps-deadline`: how long to wait for a server that is not ready; none for [`READY_LIMIT`].
    #[serde(skip)]
    pub mps_deadline: Option<Duration>,
    /// `--spill`.
    pub spill: Spill,
    /// `--place`; none for packed.
    pub place: Option<Place>,
    /// `--compact`: others make room, as few as need be.
    pub compact: bool,
    /// `--mps-partition`: a static partition of the GPU's MPS service instead of a mask.
    #[serde(with = "text")]
    pub mps_partition: Option<PartitionName>,
    /// What `ps` calls the program; none for its command line.
    pub description: Option<String>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

impl RunRequest {
    /// Whether it has no mask: the whole GPU in turns, or what MPS gives.
    fn is_whole(&self) -> bool {
        self.via == Via::Time || self.mps_partition.is_some()
    }

    fn mps_limit(&self) -> Duration {
        self.mps_deadline.unwrap_or(READY_LIMIT)
    }
}

/// Runs the program to its end and returns its exit code: its own, or 128 and
/// the signal's number. `say` gets what is to be told on stderr before the
/// program starts, and why a client of MPS lost its work after it has ended.
///
/// # Errors
/// Any [`Error`]; the program was not started then, and nothing is left behind.
pub fn run(install: &Install, request: &RunRequest, mut say: impl FnMut(&str)) -> Result<u8, Error> {
    let mut signals = Signals::take_over().map_err(Error::io("signal handlers"))?;
    let mut started = start(install, request, &signals, &mut say)?;
    let status = attend(install, request, &mut started, &mut signals, &mut say);
    let Started { tenant, registry, watch, .. } = started;
    drop(watch);
    finish(&registry, tenant);
    let status = status?;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

fn start(
    install: &Install,
    request: &RunRequest,
    signals: &Signals,
    say: &mut dyn FnMut(&str),
) -> Result<Started, Error> {
    if let Some(ledger) = std::env::var_os(LEDGER_VARIABLE).filter(|value| !value.is_empty()) {
        let name = Path::new(&ledger).file_name().unwrap_or(&ledger).to_string_lossy().into_owned();
        return Err(Error::NotOffered {
            option: "a tenant inside a tenant".to_owned(),
            reason: format!("this process runs in tenant {name} already; run the program directly"),
        });
    }
    // What is cheap and common goes wrong first.
    let (program_name, arguments) = request.command.split_first().ok_or_else(|| Error::Program {
        program: "partita run".to_owned(),
        reason: "no program named; give one after `--`".to_owned(),
    })?;
    let program = program::find(program_name)?;
    let name = match &request.name {
        Some(name) => name.clone(),
        None => default_name(&program),
    };
    check_name(&name)?;
    if request.memory == Some(ByteSize(0)) {
        return Err(Error::QuotaZero);
    }
    let hook = hook(install)?;
    let registry = Registry::open()?;

    let gpus = select(install, request, say)?;
    let service = || match request.isolation {
        Isolation::Shared => mps::service(install, &registry, &gpus).map(Some),
        Isolation::Own => Ok(None),
    };
    let (tenant, service) = if registry.is_client() {
        // `partitad` starts the service with the tenant.
        let tenant = system::make(&registry, request, &gpus, &name)?;
        match service() {
            Ok(service) => (tenant, service),
            Err(error) => {
                finish(&registry, tenant);
                return Err(error);
            }
        }
    } else {
        let service = service()?;
        let run = ProcessId::own().map_err(Error::io("/proc/self"))?;
        (make(install, request, &registry, &gpus, &name, run)?, service)
    };
    let mut command = Command::new(&program);
    command.arg0(program_name).args(arguments);
    scrub(&mut command);
    command.envs(variables(&gpus, &hook, tenant.dir(), service.as_ref()));
    command.envs(below_others(request.priority, service.as_ref()));
    command.envs(request.mps_partition.iter().map(|name| (PARTITION_VARIABLE, name.to_string())));
    let ready = |service: &Service| {
        mps::partitions::check_named(service, &gpus, request.mps_partition.as_ref())?;
        if !registry.is_client() {
            mps::ready::admit(service, &gpus, mps::tenants_of(&registry, &gpus)?)?;
        }
        mps::ready::wait(service, request.mps_limit()).map(drop)
    };
    let child = start_service(service.as_ref()).and_then(|started| {
        let ready = service.as_ref().map_or(Ok(()), ready);
        let watch = service.as_ref().map(|service| Watch::begin(service, &registry, &name, tenant.dir()));
        let mut begin = || {
            if signals.take_over_job().map_err(Error::io("signal handlers"))? {
                command.process_group(0);
            }
            spawn(&mut command, &tenant, &program)
        };
        ready.and_then(|()| Ok((begin()?, watch))).inspect_err(|_| give_up_service(service.as_ref(), started))
    });
    match child {
        Ok((child, watch)) => Ok(Started { tenant, registry, name, program, command, child, watch }),
        Err(error) => {
            finish(&registry, tenant);
            Err(error)
        }
    }
}

/// The GPUs to run on.
fn select(install: &Install, request: &RunRequest, mut say: impl FnMut(&str)) -> Result<Vec<Gpu>, Error> {
    let usable = |gpu: &Gpu| check_usable(gpu).is_ok();
    let selected = gpus::select_to_start(install, request.gpus.as_ref(), usable)?;
    if let Some(notice) = &selected.notice {
        say(notice);
    }
    selected.gpus.iter().try_for_each(check_usable)?;
    Ok(selected.gpus)
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

/// The variables that hold a process to the limits of the tenant in `ledger`.
pub(crate) fn variables(
    gpus: &[Gpu],
    hook: &Path,
    ledger: &Path,
    service: Option<&Service>,
) -> Vec<(&'static str, OsString)> {
    let mut variables = gpus::variables(gpus);
    match service {
        Some(service) => variables.extend(service.client_env()),
        None => variables.extend(without_mps().map(|(key, value)| (key, value.into()))),
    }
    let mut preload = hook.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    variables.push(("LD_PRELOAD", preload));
    variables.push((SANITIZER_VARIABLE, behind_another_library(std::env::var_os(SANITIZER_VARIABLE))));
    variables.push((LEDGER_VARIABLE, ledger.into()));
    variables
}

/// The options of programs that are built with AddressSanitizer.
const SANITIZER_VARIABLE: &str = "ASAN_OPTIONS";

/// The sanitizer refuses to start unless its runtime is the first library, which a preloaded one
/// is. It works behind the hook as well, and has an option for that. Whatever else the user has set
/// stays.
fn behind_another_library(set: Option<OsString>) -> OsString {
    const OPTION: &str = "verify_asan_link_order";
    let mut options = set.unwrap_or_default();
    if !options.to_string_lossy().contains(OPTION) {
        if !options.is_empty() {
            options.push(":");
        }
        options.push(OPTION);
        options.push("=0");
    }
    options
}

/// The gate stops no kernel that runs. As a client below normal, its blocks that still wait give
/// way to those of others.
fn below_others(priority: Priority, service: Option<&Service>) -> Option<(&'static str, &'static str)> {
    (priority == Priority::Low && service.is_some()).then_some(("CUDA_MPS_CLIENT_PRIORITY", "1"))
}

/// Limits of MPS's own would come on top of ours; a percentage even changes the
/// SM count that libraries see, and with it their results.
fn scrub(command: &mut Command) {
    for (key, _) in std::env::vars_os() {
        if key.as_encoded_bytes().starts_with(b"CUDA_MPS_") {
            command.env_remove(key);
        }
    }
    command.env_remove("PARTITA_GPU");
}

fn spawn(command: &mut Command, tenant: &OwnedTenant, program: &Path) -> Result<Child, Error> {
    // The program inherits the tenant's locks: the tenant lives as long as any
    // of its processes, also when this one is killed.
    let inherit =
        |flags| tenant.owner_files().try_for_each(|owner| rustix::io::fcntl_setfd(owner.as_fd(), flags));
    inherit(FdFlags::empty()).map_err(|error| Error::io("the tenant's lock")(error.into()))?;
    let spawned = command.spawn();
    let _ = inherit(FdFlags::CLOEXEC);
    spawned.map_err(|error| Error::Program {
        program: program.display().to_string(),
        reason: format!("it cannot be started: {error}; check it with `{} --help`", program.display()),
    })
}

/// Lets go of the tenant and removes it, unless processes of it live on.
fn finish(registry: &Registry, tenant: OwnedTenant) {
    drop(tenant);
    // Whatever goes wrong here, the next command removes the remains.
    if registry.is_client() {
        let _ = system::clean(registry);
    } else if let Ok(lock) = registry.lock() {
        let _ = lock.tenants();
    }
}

/// The library to preload.
pub(crate) fn hook(install: &Install) -> Result<PathBuf, Error> {
    let hook = install.part(install::HOOK)?;
    let text = hook.as_os_str().as_encoded_bytes();
    if text.iter().any(|byte| matches!(byte, b':' | b' ' | b'\t' | b'\n')) {
        return Err(Error::NotOffered {
            option: format!("preloading {}", hook.display()),
            reason: "the loader splits LD_PRELOAD at spaces and colons; move Partita to a path without them"
                .to_owned(),
        });
    }
    Ok(hook)
}

/// Whether masks mean anything on the GPU as it is set up.
pub(crate) fn check_usable(gpu: &Gpu) -> Result<(), Error> {
    let label = gpu.label();
    if gpu.facts.mig_enabled == Some(true) {
        return Err(Error::NotOffered {
            option: label,
            reason: format!(
                "it is cut up by MIG; {INSTANCES_INSTEAD}; `nvidia-smi -i {} -mig 0` turns MIG off",
                gpu.facts.index
            ),
        });
    }
    if gpu.facts.compute_mode == "prohibited" {
        return Err(Error::NotOffered {
            option: label,
            reason: format!(
                "its compute mode is PROHIBITED; `nvidia-smi -i {} -c DEFAULT` opens it",
                gpu.facts.index
            ),
        });
    }
    Ok(())
}

/// A name for a tenant that was given none: its program's and this process's number.
fn default_name(program: &Path) -> String {
    let stem: String = program
        .file_name()
        .unwrap_or(OsStr::new("program"))
        .to_string_lossy()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c))
        .take(40)
        .collect();
    let stem = stem.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let stem = if stem.is_empty() { "program" } else { stem };
    format!("{stem}-{}", std::process::id())
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
