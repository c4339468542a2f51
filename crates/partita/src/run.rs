//! `partita run`: a program in a partition.

mod attend;

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use partita_core::time::{Policy, Priority};
use partita_core::{ByteSize, Compaction, Share, Topology};
use partita_ledger::{FLAG_GATED, Limits, MECHANISM_NONE};
use partita_mps::Service;
use partita_mps::partition::{PARTITION_VARIABLE, PartitionName};
use rustix::io::FdFlags;
use serde::Serialize;

use self::attend::{Started, attend};
use crate::calibration::{Cache, Measured, without_mps};
use crate::error::Error;
use crate::gpu::{Gpu, INSTANCES_INSTEAD};
use crate::gpus::{self, Selectors};
use crate::install::{self, Install};
use crate::limits::{self, OnMisfit, Spill};
use crate::mps;
use crate::mps::attend::Restart;
use crate::mps::ready::READY_LIMIT;
use crate::mps::watch::Watch;
use crate::offered::{TimeShare, Via};
use crate::partition::{self, MoveRow, PartitionRow, Place, Wanted};
use crate::process::ProcessId;
use crate::program;
use crate::registry::{
    GpuMeta, Isolation, Meta, NewPart, OwnedTenant, Registry, RegistryLock, Tenant, check_name,
};
use crate::signals::{self, Signals};
use crate::time;

/// What the value of `PARTITA_LEDGER` is: the tenant's directory.
pub const LEDGER_VARIABLE: &str = "PARTITA_LEDGER";

/// What to run and how.
#[derive(Debug, Clone, Default)]
pub struct RunRequest {
    /// `--gpu`.
    pub gpus: Option<Selectors>,
    /// `--sm`, on each of the GPUs; none for every TPC that is free.
    pub share: Option<Share>,
    /// `--mem`, on each of the GPUs; none for no quota.
    pub memory: Option<ByteSize>,
    /// `--name`; none for one made of the program's name.
    pub name: Option<String>,
    /// `--isolation`.
    pub isolation: Isolation,
    /// `--on-misfit`.
    pub on_misfit: OnMisfit,
    /// `--priority`.
    pub priority: Priority,
    /// `--time`, on each of the GPUs; none for no share of time, which cannot be given later.
    pub time: Option<TimeShare>,
    /// `--time-policy`.
    pub time_policy: Policy,
    /// `--via`.
    pub via: Via,
    /// `--restart`.
    pub restart: Restart,
    /// `--mps-deadline`: how long to wait for a server that is not ready; none for [`READY_LIMIT`].
    pub mps_deadline: Option<Duration>,
    /// `--spill`.
    pub spill: Spill,
    /// `--place`; none for packed.
    pub place: Option<Place>,
    /// `--compact`: others make room, as few as need be.
    pub compact: bool,
    /// `--mps-partition`: a static partition of the GPU's MPS service instead of a mask.
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
    let service = match request.isolation {
        Isolation::Shared => Some(mps::service(install, &registry, &gpus)?),
        Isolation::Own => None,
    };
    let tenant = make(install, request, &registry, &gpus, &name)?;
    let mut command = Command::new(&program);
    command.arg0(program_name).args(arguments);
    scrub(&mut command);
    command.envs(variables(&gpus, &hook, tenant.dir(), service.as_ref()));
    command.envs(below_others(request.priority, service.as_ref()));
    command.envs(request.mps_partition.iter().map(|name| (PARTITION_VARIABLE, name.to_string())));
    let ready = |service: &Service| {
        mps::partitions::check_named(service, &gpus, request.mps_partition.as_ref())?;
        mps::ready::admit(service, &gpus, mps::tenants_of(&registry, &gpus)?)?;
        mps::ready::wait(service, request.mps_limit()).map(drop)
    };
    let child = start_service(service.as_ref()).and_then(|started| {
        let ready = service.as_ref().map_or(Ok(()), ready);
        let watch = service.as_ref().map(|service| Watch::begin(service, &name, tenant.dir()));
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
    let selected = gpus::select(install, request.gpus.as_ref())?;
    if let Some(notice) = &selected.notice {
        say(notice);
    }
    selected.gpus.iter().try_for_each(check_usable)?;
    Ok(selected.gpus)
}

/// Partitions that were planned beside the tenants that are there.
struct Planned<'a> {
    lock: RegistryLock<'a>,
    tenants: Vec<Tenant>,
    /// One for each GPU.
    parts: Vec<PlannedPart>,
}

/// A partition on one GPU.
struct PlannedPart {
    topology: Topology,
    chosen: Compaction,
    limits: Limits,
}

/// Plans the partitions; the registry stays locked. `name` is none for a tenant that is not to be made.
fn plan<'a>(
    install: &Install,
    request: &RunRequest,
    registry: &'a Registry,
    gpus: &[Gpu],
    name: Option<&str>,
) -> Result<Planned<'a>, Error> {
    let cache = Cache::open();
    let measured = gpus.iter().map(|gpu| cache.get(install, gpu)).collect::<Result<Vec<_>, Error>>()?;
    let lock = registry.lock()?;
    let tenants = lock.tenants()?;
    if let Some(other) = tenants.iter().find(|tenant| Some(tenant.name.as_str()) == name) {
        return Err(other.name_in_use());
    }
    if request.isolation == Isolation::Shared {
        mps::check_shared(gpus, &tenants)?;
    }
    let parts = gpus.iter().zip(&measured).map(|(gpu, measured)| {
        plan_on(gpu, measured, request, &tenants, name).map_err(|error| match gpus.len() {
            1 => error,
            // Otherwise it would not say which.
            _ => error.on_gpu(&gpu.label()),
        })
    });
    let parts = parts.collect::<Result<_, Error>>()?;
    Ok(Planned { lock, tenants, parts })
}

fn plan_on(
    gpu: &Gpu,
    measured: &Measured,
    request: &RunRequest,
    tenants: &[Tenant],
    name: Option<&str>,
) -> Result<PlannedPart, Error> {
    let unproved = |reason| Error::Unproved { driver: gpu.driver_version.clone(), gpu: gpu.label(), reason };
    let topology = measured.topology().map_err(unproved)?;
    limits::check_share(request.share.as_ref(), measured.gpcs_proved)?;
    partition::check_place(request.place, request.share.as_ref(), measured.gpcs_proved)?;
    let key = gpu.key();
    let present = RegistryLock::present(tenants, &key)?;
    let is_whole = request.is_whole();
    // Those who take turns have every TPC, and are in nobody's way who does. What MPS gives is planned by MPS.
    let is_in_way = |tenant: &&Tenant| match request.mps_partition {
        Some(_) => false,
        None => !(is_whole && time::is_whole(tenant)),
    };
    let beside: Vec<Tenant> = tenants.iter().filter(is_in_way).cloned().collect();
    let chosen = partition::plan(&Wanted {
        topology: &topology,
        tenants: &beside,
        gpu_key: &key,
        name: None,
        share: match is_whole {
            true => Share::Exact(topology.all()),
            false => limits::share_or_free(&topology, &present, request.share.as_ref()),
        },
        place: request.place.unwrap_or_default(),
        compact: request.compact,
    })?;
    if let Some(quota) = request.memory {
        let others = tenants.iter().filter(|tenant| tenant.gpu_key == key);
        limits::check_quota(quota, measured.memory_total_bytes, &gpu.label(), others)?;
    }
    let (name, uuid) = (name.unwrap_or("dry-run"), &gpu.facts.uuid);
    let mut limits = limits::new_limits(name, uuid, measured, &topology, &chosen.plan.set, request.memory)
        .map_err(unproved)?;
    request.on_misfit.put(&mut limits);
    if request.priority != Priority::Normal {
        limits.flags |= FLAG_GATED;
        limits.priority = request.priority as u32;
    }
    if let Some(time) = request.time {
        time::put_new(&mut limits, time, request.time_policy);
    }
    if is_whole {
        let others = tenants.iter().filter(|tenant| tenant.gpu_key == key);
        time::check_sum(&limits, &gpu.label(), others)?;
        limits.mechanism = MECHANISM_NONE;
    }
    if request.mps_partition.is_some() {
        // It has none of the TPCs that plans divide.
        limits.set = Default::default();
    }
    request.spill.put(&mut limits);
    Ok(PlannedPart { topology, chosen, limits })
}

/// Plans the partitions, has others make room, and makes the tenant, in one hold of the registry's lock.
fn make(
    install: &Install,
    request: &RunRequest,
    registry: &Registry,
    gpus: &[Gpu],
    name: &str,
) -> Result<OwnedTenant, Error> {
    let Planned { lock, tenants, parts } = plan(install, request, registry, gpus, Some(name))?;
    let metas =
        gpus.iter().map(|gpu| new_meta(request, gpu, gpus, name)).collect::<Result<Vec<_>, Error>>()?;
    for (gpu, part) in gpus.iter().zip(&parts) {
        partition::store(&part.chosen.stores, &tenants, &gpu.key(), &part.topology)?;
    }
    let parts = gpus.iter().zip(parts).zip(metas);
    lock.create(
        parts.map(|((gpu, part), meta)| NewPart { gpu_key: gpu.key(), meta, limits: part.limits }).collect(),
    )
}

/// What a run would get on one GPU.
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

/// Plans as [`run`] does, and makes and starts nothing. One for each GPU.
///
/// # Errors
/// As [`run`], as far as the partitions are concerned.
pub fn dry_run(install: &Install, request: &RunRequest, say: impl FnMut(&str)) -> Result<Vec<DryRun>, Error> {
    let registry = Registry::open()?;
    let gpus = select(install, request, say)?;
    let planned = plan(install, request, &registry, &gpus, request.name.as_deref())?;
    let row = |(gpu, part): (&Gpu, PlannedPart)| {
        let unproved =
            |reason| Error::Unproved { driver: gpu.driver_version.clone(), gpu: gpu.label(), reason };
        Ok(DryRun {
            gpu: gpu.label(),
            gpu_uuid: gpu.facts.uuid.clone(),
            sms_of_device: part.topology.sm_count(),
            partition: PartitionRow::of(&part.limits).map_err(unproved)?,
            moves: part.chosen.moves.iter().map(MoveRow::from).collect(),
        })
    };
    gpus.iter().zip(planned.parts).map(row).collect()
}

fn new_meta(request: &RunRequest, gpu: &Gpu, gpus: &[Gpu], name: &str) -> Result<Meta, Error> {
    Ok(Meta {
        version: crate::registry::META_VERSION,
        name: name.to_owned(),
        gpu: GpuMeta::of(gpu),
        gpus: if gpus.len() == 1 { Vec::new() } else { gpus.iter().map(GpuMeta::of).collect() },
        run: ProcessId::own().map_err(Error::io("/proc/self"))?,
        child: None,
        command: match &request.description {
            Some(text) => vec![text.clone()],
            None => request.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        },
        started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        share: request.share.map(|share| share.to_string()),
        place: request.place.unwrap_or_default(),
        isolation: request.isolation,
        mps_partition: request.mps_partition.as_ref().map(PartitionName::to_string),
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
    variables.push((LEDGER_VARIABLE, ledger.into()));
    variables
}

/// The gate stops no kernel that runs. As a client below normal, its blocks that still wait give way to those of others.
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
