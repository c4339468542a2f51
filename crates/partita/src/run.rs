//! `partita run`: a program in a partition.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{SystemTime, UNIX_EPOCH};

use partita_core::{ByteSize, Compaction, Share, Topology};
use partita_ledger::Limits;
use partita_mps::Service;
use rustix::io::FdFlags;
use serde::Serialize;

use crate::calibration::{Cache, without_mps};
use crate::error::Error;
use crate::gpu::{self, Gpu, Selector};
use crate::install::{self, Install};
use crate::limits::{self, OnMisfit};
use crate::mps;
use crate::partition::{self, MoveRow, PartitionRow, Place, Wanted};
use crate::process::ProcessId;
use crate::program;
use crate::registry::{
    GpuMeta, Isolation, Meta, OwnedTenant, Registry, RegistryLock, SimMeta, Tenant, check_name,
};
use crate::signals::{self, Signals};

/// What the value of `PARTITA_LEDGER` is: the tenant's directory.
pub const LEDGER_VARIABLE: &str = "PARTITA_LEDGER";

/// What to run and how.
#[derive(Debug, Clone, Default)]
pub struct RunRequest {
    /// `--gpu`.
    pub gpu: Option<Selector>,
    /// `--sm`; none for every TPC that is free.
    pub share: Option<Share>,
    /// `--mem`; none for no quota.
    pub memory: Option<ByteSize>,
    /// `--name`; none for one made of the program's name.
    pub name: Option<String>,
    /// `--isolation`.
    pub isolation: Isolation,
    /// `--on-misfit`.
    pub on_misfit: OnMisfit,
    /// `--place`; none for packed.
    pub place: Option<Place>,
    /// `--compact`: others make room, as few as need be.
    pub compact: bool,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// Runs the program to its end and returns its exit code: its own, or 128 and
/// the signal's number. `say` gets what is to be told on stderr before the
/// program starts.
///
/// # Errors
/// Any [`Error`]; the program was not started then, and nothing is left behind.
pub fn run(install: &Install, request: &RunRequest, say: impl FnMut(&str)) -> Result<u8, Error> {
    let signals = Signals::take_over().map_err(Error::io("signal handlers"))?;
    let (mut tenant, registry, mut child) = start(install, request, say)?;
    let _ = tenant.update_meta(|meta| meta.child = ProcessId::living(child.id()));
    let status = signals.attend(&mut child);
    finish(&registry, tenant);
    let status = status.map_err(Error::io("waiting for the program"))?;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

fn start(
    install: &Install,
    request: &RunRequest,
    mut say: impl FnMut(&str),
) -> Result<(OwnedTenant, Registry, Child), Error> {
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

    let selected = gpu::select(install, request.gpu.as_ref())?;
    if let Some(notice) = &selected.notice {
        say(notice);
    }
    let gpu = selected.gpu;
    check_usable(&gpu)?;
    let service = match request.isolation {
        Isolation::Shared => Some(mps::service(install, &registry, &gpu)?),
        Isolation::Own => None,
    };
    let tenant = make(install, request, &registry, &gpu, &name)?;
    let started = start_service(service.as_ref()).and_then(|started| {
        let mut command = Command::new(&program);
        command.arg0(program_name).args(arguments);
        scrub(&mut command);
        command.envs(variables(&gpu, &hook, tenant.dir(), service.as_ref()));
        spawn(&mut command, &tenant, &program).inspect_err(|_| give_up_service(service.as_ref(), started))
    });
    match started {
        Ok(child) => Ok((tenant, registry, child)),
        Err(error) => {
            finish(&registry, tenant);
            Err(error)
        }
    }
}

/// A partition that was planned beside the tenants that are there.
struct Planned<'a> {
    lock: RegistryLock<'a>,
    tenants: Vec<Tenant>,
    topology: Topology,
    chosen: Compaction,
    limits: Limits,
}

/// Plans the partition; the registry stays locked. `name` is none for a tenant that is not to be made.
fn plan<'a>(
    install: &Install,
    request: &RunRequest,
    registry: &'a Registry,
    gpu: &Gpu,
    name: Option<&str>,
) -> Result<Planned<'a>, Error> {
    let measured = Cache::open().get(install, gpu)?;
    let unproved = |reason| Error::Unproved { driver: gpu.driver_version.clone(), gpu: gpu.label(), reason };
    let topology = measured.topology().map_err(unproved)?;
    limits::check_share(request.share.as_ref(), measured.gpcs_proved)?;
    partition::check_place(request.place, request.share.as_ref(), measured.gpcs_proved)?;

    let lock = registry.lock()?;
    let tenants = lock.tenants()?;
    let key = gpu.key();
    let present = RegistryLock::present(&tenants, &key)?;
    if let Some(other) = tenants.iter().find(|tenant| Some(tenant.name.as_str()) == name) {
        return Err(other.name_in_use());
    }
    let chosen = partition::plan(&Wanted {
        topology: &topology,
        tenants: &tenants,
        gpu_key: &key,
        name: None,
        share: limits::share_or_free(&topology, &present, request.share.as_ref()),
        place: request.place.unwrap_or_default(),
        compact: request.compact,
    })?;
    if let Some(quota) = request.memory {
        let others = tenants.iter().filter(|tenant| tenant.gpu_key == key);
        limits::check_quota(quota, measured.memory_total_bytes, &gpu.label(), others)?;
    }
    let (name, uuid) = (name.unwrap_or("dry-run"), &gpu.facts.uuid);
    let mut limits = limits::new_limits(name, uuid, &measured, &topology, &chosen.plan.set, request.memory)
        .map_err(unproved)?;
    request.on_misfit.put(&mut limits);
    Ok(Planned { lock, tenants, topology, chosen, limits })
}

/// Plans the partition, has others make room, and makes the tenant, in one hold of the registry's lock.
fn make(
    install: &Install,
    request: &RunRequest,
    registry: &Registry,
    gpu: &Gpu,
    name: &str,
) -> Result<OwnedTenant, Error> {
    let planned = plan(install, request, registry, gpu, Some(name))?;
    let meta = new_meta(request, gpu, name)?;
    partition::store(&planned.chosen.stores, &planned.tenants, &gpu.key(), &planned.topology)?;
    planned.lock.create(&gpu.key(), meta, &planned.limits)
}

/// What a run would get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DryRun {
    /// The GPU's short name.
    pub gpu: String,
    /// Its UUID.
    pub gpu_uuid: String,
    /// SMs of the device.
    pub sms_of_device: u32,
    /// The partition.
    #[serde(flatten)]
    pub partition: PartitionRow,
    /// Who would make room.
    pub moves: Vec<MoveRow>,
}

/// Plans as [`run`] does, and makes and starts nothing.
///
/// # Errors
/// As [`run`], as far as the partition is concerned.
pub fn dry_run(install: &Install, request: &RunRequest, mut say: impl FnMut(&str)) -> Result<DryRun, Error> {
    let registry = Registry::open()?;
    let selected = gpu::select(install, request.gpu.as_ref())?;
    if let Some(notice) = &selected.notice {
        say(notice);
    }
    let gpu = selected.gpu;
    check_usable(&gpu)?;
    let planned = plan(install, request, &registry, &gpu, request.name.as_deref())?;
    let unproved = |reason| Error::Unproved { driver: gpu.driver_version.clone(), gpu: gpu.label(), reason };
    Ok(DryRun {
        gpu: gpu.label(),
        gpu_uuid: gpu.facts.uuid.clone(),
        sms_of_device: planned.topology.sm_count(),
        partition: PartitionRow::of(&planned.limits).map_err(unproved)?,
        moves: planned.chosen.moves.iter().map(MoveRow::from).collect(),
    })
}

fn new_meta(request: &RunRequest, gpu: &Gpu, name: &str) -> Result<Meta, Error> {
    Ok(Meta {
        version: crate::registry::META_VERSION,
        name: name.to_owned(),
        gpu: GpuMeta {
            uuid: gpu.facts.uuid.clone(),
            label: gpu.label(),
            sim: gpu.sim().map(|sim| SimMeta { device: sim.device().to_owned(), dir: sim.dir().to_owned() }),
        },
        run: ProcessId::own().map_err(Error::io("/proc/self"))?,
        child: None,
        command: request.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        share: request.share.map(|share| share.to_string()),
        place: request.place.unwrap_or_default(),
        isolation: request.isolation,
    })
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
    gpu: &Gpu,
    hook: &Path,
    ledger: &Path,
    service: Option<&Service>,
) -> Vec<(&'static str, OsString)> {
    let mut variables = gpu.variables();
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
    variables.push((LEDGER_VARIABLE, ledger.into()));
    variables
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
    // The program inherits the tenant's lock: the tenant lives as long as any
    // of its processes, also when this one is killed.
    let owner = tenant.owner_file().as_fd();
    let inherit = |flags| rustix::io::fcntl_setfd(owner, flags);
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
    if let Ok(lock) = registry.lock() {
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
fn check_usable(gpu: &Gpu) -> Result<(), Error> {
    let label = gpu.label();
    if gpu.facts.mig_enabled == Some(true) {
        return Err(Error::NotOffered {
            option: label,
            reason: format!(
                "it is cut up by MIG, where masks are not proved; turn MIG off with `nvidia-smi -i {} -mig 0`",
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
