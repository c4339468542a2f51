//! The state and the clients of a service: for `partita mps status` and `clients`, and for metrics.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use partita_mps::admission::Capacity;
use partita_mps::fault::{Culprit, Fault, ServerState, Tracker};
use partita_mps::log::{Event, Tail};
use partita_mps::{ClientPriority, DeviceName, MpsError, Pid, ServerStatus, Service, ServiceDirs, State};
use serde::Serialize;

use super::evidence::Verdict;
use super::incident::{self, Incident, What};
use crate::error::Error;
use crate::gpu::Gpu;
use crate::install::Install;
use crate::process::ProcessId;
use crate::registry::{LEDGER_VARIABLE, Registry};

/// Where a service is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    /// It does not run.
    Stopped,
    /// Its daemon is gone and left its files; the next start replaces them.
    Stale,
    /// It runs and answers.
    Running,
}

/// One service.
#[derive(Debug, Clone, Serialize)]
pub struct ServiceStatus {
    /// Its GPUs.
    pub gpus: Vec<GpuName>,
    /// Where it is in its life.
    pub state: ServiceState,
    /// The control daemon.
    pub daemon: Option<Pid>,
    /// The CUDA version of its program.
    pub version: Option<String>,
    /// `CUDA_MPS_PIPE_DIRECTORY` of its clients.
    pub pipe_directory: PathBuf,
    /// Where its logs are.
    pub log_directory: PathBuf,
    /// Whether it takes every user's programs.
    pub all_users: bool,
    /// The most client contexts of a GPU.
    pub contexts_max: u32,
    /// The limits of its next server, or of its next clients.
    pub limits: Option<DefaultLimits>,
    /// Its servers.
    pub servers: Vec<ServerRow>,
    /// The counts of its logs.
    pub counts: Counts,
}

/// A GPU of a service.
#[derive(Debug, Clone, Serialize)]
pub struct GpuName {
    /// For people.
    pub label: String,
    /// `GPU-…`.
    pub uuid: String,
}

/// The limits of servers that are yet to start.
#[derive(Debug, Clone, Serialize)]
pub struct DefaultLimits {
    /// Active thread percentage.
    pub thread_percentage: f64,
    /// Priority of clients; `None` if this driver does not report it.
    pub priority: Option<ClientPriority>,
    /// Limit of device memory for each client, in bytes, by the GPU's UUID; only those that are
    /// set.
    pub memory_bytes: BTreeMap<String, u64>,
}

/// A server.
#[derive(Debug, Clone, Serialize)]
pub struct ServerRow {
    /// Its process.
    pub pid: Pid,
    /// Its user.
    pub user: Option<u32>,
    /// Its state; `None` if it does not report it.
    pub status: Option<ServerStatus>,
    /// The limit of future clients.
    pub thread_percentage: Option<f64>,
    /// Its clients.
    pub clients: Vec<Client>,
    /// The last fault, over or not.
    pub fault: Option<FaultRow>,
    /// Whether it runs no kernels any more, as far as a tenant has noticed.
    pub stuck: bool,
}

/// A client process on one device.
#[derive(Debug, Clone, Serialize)]
pub struct Client {
    /// Its process.
    pub pid: Pid,
    /// Its number with the server.
    pub id: Option<u32>,
    /// The beginning of the device's UUID.
    pub device: Option<String>,
    /// The program.
    pub command: Option<String>,
    /// Its tenant; `None` for a program that was started without Partita, or another user's.
    pub tenant: Option<String>,
}

/// A fault, with its cause in words.
#[derive(Debug, Clone, Serialize)]
pub struct FaultRow {
    /// Everything that is known of it.
    #[serde(flatten)]
    pub fault: Fault,
    /// Its cause.
    #[serde(flatten)]
    pub culprit: Culprit,
    /// The same in words, as the end of a sentence.
    pub in_words: String,
    /// The tenants of its processes, as far as they are known.
    #[serde(skip)]
    pub tenants: BTreeMap<Pid, String>,
}

/// The counts of a service's logs, since its directory was made.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counts {
    /// Servers that were started.
    pub servers_started: u64,
    /// Servers that ended with a status other than 0.
    pub servers_failed: u64,
    /// Client contexts and processes that were connected.
    pub clients_connected: u64,
    /// Fatal faults.
    pub faults: u64,
    /// Clients that faults hit.
    pub clients_hit: u64,
    /// Clients that were killed from outside with other clients beside them.
    pub clients_killed: u64,
    /// Programs that were restarted after a neighbour's fault.
    pub restarts: u64,
}

/// Asks a service everything.
///
/// # Errors
/// [`Error::Mps`] if the daemon runs and does not answer as it should.
pub fn status(service: &Service, gpus: &[Gpu]) -> Result<ServiceStatus, Error> {
    let incidents = incident::all(service);
    let (counts, tracker) = read_logs(service, &incidents);
    let mut status = unasked(service, gpus, counts);
    match service.state()? {
        State::Stopped => {}
        State::Stale { .. } => status.state = ServiceState::Stale,
        State::Running { pid } => {
            status.state = ServiceState::Running;
            status.daemon = Some(pid);
            status.limits = Some(default_limits(service, gpus)?);
            for server in service.control().server_list()? {
                status.servers.extend(server_row(service, server, &tracker, &incidents)?);
            }
        }
    }
    Ok(status)
}

/// How long all commands to all services may take where many are looked at.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// The longest log that is counted, in bytes.
const LOG_BYTES_MAX: u64 = 256 << 20;

/// The current user's service of each of these GPUs, and those of the tenants there. They are
/// queried in parallel, with one deadline for all: one that does not answer, as another user's may
/// not, is reported as if it did not run, and delays no other.
///
/// # Errors
/// As [`Registry::lock`]; [`Error::Mps`] without a control program.
pub fn all(install: &Install, registry: &Registry, gpus: &[Gpu]) -> Result<Vec<ServiceStatus>, Error> {
    let mut services: Vec<(Service, Vec<Gpu>)> = Vec::new();
    let mut add = |service: Service, gpus: Vec<Gpu>| {
        if services.iter().all(|(known, _)| known.dirs().root() != service.dirs().root()) {
            services.push((service, gpus));
        }
    };
    for gpu in gpus {
        add(super::service(install, registry, std::slice::from_ref(gpu))?, vec![gpu.clone()]);
    }
    let tenants = registry.lock()?.tenants()?;
    for tenant in &tenants {
        let Ok(meta) = &tenant.meta else { continue };
        let of_tenant: Option<Vec<Gpu>> = meta
            .all_gpus()
            .iter()
            .map(|one| gpus.iter().find(|gpu| gpu.facts.uuid == one.uuid).cloned())
            .collect();
        // On GPUs that are not asked for, too.
        let Some(of_tenant) = of_tenant else { continue };
        if let Ok(Some(service)) = super::service_of(install, registry, tenant) {
            add(service, of_tenant);
        }
    }
    let deadline = Instant::now() + LOOK_LIMIT;
    let ask = |(service, gpus): &(Service, Vec<Gpu>)| {
        let service = service.clone().with_deadline(deadline);
        status(&service, gpus)
            .unwrap_or_else(|_| unasked(&service, gpus, read_logs(&service, &incident::all(&service)).0))
    };
    let ask = &ask;
    Ok(thread::scope(|scope| {
        let asked: Vec<_> = services
            .iter()
            .map(|one| thread::Builder::new().spawn_scoped(scope, move || ask(one)).ok())
            .collect();
        let told = asked.into_iter().map(|thread| thread.and_then(|thread| thread.join().ok()));
        let of_none = |(service, gpus): &(Service, Vec<Gpu>)| unasked(service, gpus, Counts::default());
        told.zip(&services).map(|(told, one)| told.unwrap_or_else(|| of_none(one))).collect()
    }))
}

/// Another service of the same user that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beside {
    /// The UUIDs of its GPUs, with commas between them.
    pub gpus: String,
    /// The control daemon.
    pub daemon: Pid,
}

/// The running services of the current user for other sets of GPUs. Without a `partita mps stop` a
/// service runs on when its last tenant has ended.
pub fn beside(registry: &Registry, service: &Service) -> Vec<Beside> {
    let homes = fs::read_dir(registry.gpu_dir("")).into_iter().flatten().flatten();
    let entries = homes.flat_map(|gpu| fs::read_dir(gpu.path()).into_iter().flatten().flatten());
    let is_service = |name: &OsStr| name.as_encoded_bytes().starts_with(b".mps-");
    let roots = entries.filter(|entry| is_service(&entry.file_name())).map(|entry| entry.path());
    let found = roots.filter(|root| root != service.dirs().root()).filter_map(|root| {
        let dirs = ServiceDirs::new(&root).ok()?;
        let daemon = dirs.recorded_pid()?;
        let process = ProcessId::living(daemon)?;
        // The number may be another process's by now.
        let is_its =
            process.variable("CUDA_MPS_PIPE_DIRECTORY").is_some_and(|pipe| dirs.pipe() == Path::new(&pipe));
        let gpus = process.variable("CUDA_VISIBLE_DEVICES").filter(|_| is_its)?;
        Some(Beside { gpus: gpus.into_string().ok()?, daemon })
    });
    let mut found: Vec<Beside> = found.collect();
    found.sort_by(|one, other| one.gpus.cmp(&other.gpus));
    found
}

/// The data about a service that need no query.
fn unasked(service: &Service, gpus: &[Gpu], counts: Counts) -> ServiceStatus {
    let dirs = service.dirs();
    ServiceStatus {
        gpus: gpus.iter().map(|gpu| GpuName { label: gpu.label(), uuid: gpu.facts.uuid.clone() }).collect(),
        state: ServiceState::Stopped,
        daemon: None,
        version: service.binary().version().ok().map(|version| version.to_string()),
        pipe_directory: dirs.pipe(),
        log_directory: dirs.log(),
        all_users: service.is_for_all_users(),
        contexts_max: capacity(service, gpus).contexts_max,
        limits: None,
        servers: Vec::new(),
        counts,
    }
}

/// How many clients fit on the GPUs of a service: on the one that takes the fewest.
#[must_use]
pub fn capacity(service: &Service, gpus: &[Gpu]) -> Capacity {
    let version = service.binary().version().ok().map(|version| version.number);
    gpus.iter()
        .map(|gpu| Capacity::of(gpu.facts.compute_capability, version))
        .min_by_key(|capacity| capacity.contexts_max)
        .unwrap_or(Capacity::of((7, 0), version))
}

/// The answer to a command that older drivers do not know, or whose subject has ended meanwhile or
/// is just starting: then the daemon answers nothing (580.159.04).
fn if_told<T>(answer: Result<T, MpsError>) -> Result<Option<T>, MpsError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(MpsError::UnknownCommand { .. } | MpsError::NoSuchServer { .. }) => Ok(None),
        Err(MpsError::Reply { reply, .. }) if reply.trim().is_empty() => Ok(None),
        Err(error) => Err(error),
    }
}

fn default_limits(service: &Service, gpus: &[Gpu]) -> Result<DefaultLimits, Error> {
    let control = service.control();
    let mut memory_bytes = BTreeMap::new();
    for gpu in gpus {
        let uuid = &gpu.facts.uuid;
        // The form of this answer is published nowhere: where it is not understood, nothing is said
        // of it.
        if let Ok(Some(bytes)) = control.default_device_memory_limit(&DeviceName::Uuid(uuid.clone())) {
            memory_bytes.insert(uuid.clone(), bytes);
        }
    }
    Ok(DefaultLimits {
        thread_percentage: control.default_active_thread_percentage()?,
        priority: if_told(control.default_client_priority())?,
        memory_bytes,
    })
}

fn server_row(
    service: &Service,
    pid: Pid,
    tracker: &Tracker,
    incidents: &[Incident],
) -> Result<Option<ServerRow>, Error> {
    let control = service.control();
    let Some(list) = if_told(control.client_list(pid))? else { return Ok(None) };
    let rows = if_told(control.ps(Some(pid)))?.unwrap_or_default();
    let mut clients: Vec<Client> = rows
        .into_iter()
        .map(|row| Client {
            pid: row.pid,
            id: Some(row.id),
            device: Some(row.device),
            command: Some(row.command),
            tenant: tenant_of(row.pid),
        })
        .collect();
    // A client that has no context yet is in the one list alone.
    for client in list {
        if clients.iter().all(|known| known.pid != client) {
            clients.push(Client {
                pid: client,
                id: None,
                device: None,
                command: None,
                tenant: tenant_of(client),
            });
        }
    }
    let fault = tracker.fault(pid).map(|fault| {
        let verdict = Verdict::of(incidents, fault);
        let pids = fault.hit.iter().chain(&fault.spared).chain(&fault.staying);
        let tenant = |pid| verdict.tenant(pid).map(str::to_owned).or_else(|| tenant_of(pid));
        let tenants = pids.filter_map(|&pid| Some((pid, tenant(pid)?))).collect();
        FaultRow { fault: fault.clone(), in_words: verdict.in_words(), tenants, culprit: verdict.culprit }
    });
    Ok(Some(ServerRow {
        pid,
        user: ProcessId::living(pid).and_then(ProcessId::user),
        status: if_told(control.server_status(pid))?,
        thread_percentage: if_told(control.active_thread_percentage(pid))?,
        clients,
        fault,
        stuck: incident::is_stuck(incidents, pid),
    }))
}

/// The tenant that a process belongs to, as far as its environment may be read.
#[must_use]
pub fn tenant_of(pid: Pid) -> Option<String> {
    let ledger = ProcessId::living(pid)?.variable(LEDGER_VARIABLE)?;
    Some(Path::new(&ledger).file_name()?.to_string_lossy().into_owned())
}

/// Reads both logs from their beginning, and counts these incidents.
fn read_logs(service: &Service, incidents: &[Incident]) -> (Counts, Tracker) {
    let mut counts = Counts::default();
    let mut tracker = Tracker::new();
    let mut entries = Vec::new();
    for path in [service.dirs().control_log(), service.dirs().server_log()] {
        // A log that cannot be read, as another user's may not, or is too long counts nothing.
        if path.metadata().is_ok_and(|meta| meta.len() <= LOG_BYTES_MAX) {
            entries.extend(Tail::from_start(&path).poll().unwrap_or_default());
        }
    }
    // Stable: within a millisecond the daemon's words come first.
    entries.sort_by_key(|entry| entry.time);
    for entry in &entries {
        let change = tracker.apply(entry);
        match &entry.event {
            Some(Event::ServerStarting { .. }) => counts.servers_started += 1,
            Some(Event::ServerExited { status, .. }) if *status != 0 => counts.servers_failed += 1,
            Some(Event::ClientConnected { .. }) => counts.clients_connected += 1,
            Some(Event::FaultClient { .. }) => counts.clients_hit += 1,
            _ => {}
        }
        counts.faults += u64::from(change.is_some_and(|change| change.to == ServerState::Fault));
    }
    for Incident { what, .. } in incidents {
        match what {
            What::Killed { .. } => counts.clients_killed += 1,
            What::Restarted { .. } => counts.restarts += 1,
            What::Hit { .. }
            | What::Caused { .. }
            | What::Work { .. }
            | What::Canary { .. }
            | What::Recovered { .. }
            | What::Released { .. } => {}
        }
    }
    (counts, tracker)
}
