//! The state of a running chain, for `ps`, `watch` and the daemon.

use std::io;
use std::path::{Path, PathBuf};

use partita_frames::{CHAIN_FILE_NAME, ChainFile, Reach, RoleStatus, monotonic_ns};
use partita_host::error::Error;
use partita_host::files;
use partita_host::process::{ProcessId, user_name};
use partita_host::registry::{Registry, Tenant, c_path};
use partita_host::system;
use serde::{Deserialize, Serialize};

use super::show::show;
use super::supervisor::is_supervised;
use super::{Definition, Method, Steering, place};

/// The file in the chain's directory with the state of the process that runs the chain.
const FILE: &str = "chain.state.json";
/// The longest such file, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// The number of last events that are stored.
pub const EVENTS_MAX: usize = 256;

/// What the process that runs a chain knows about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChainState {
    /// The chain's definition.
    pub definition: Definition,
    /// That process.
    pub supervisor: ProcessId,
    /// When it started, in seconds since 1970.
    pub started_unix_s: u64,
    /// How the compute units are divided.
    pub steering: Steering,
    /// The state of the optimizer.
    pub phase: Phase,
    /// Number of measured periods.
    pub periods: u64,
    /// Frames per second of the last period; `None` before the first.
    pub throughput_fps: Option<f64>,
    /// TPCs of each component; `None` before the first division.
    pub tpcs: Option<Vec<u32>>,
    /// TPCs of the whole chain, on all of its GPUs together.
    pub tpcs_of_chain: u32,
    /// The chain's GPUs, in the order in which components have them.
    #[serde(default)]
    pub gpus: Vec<GpuState>,
    /// The components, in order.
    pub components: Vec<ComponentState>,
    /// The last events, [`EVENTS_MAX`] at most.
    pub events: Vec<Event>,
}

/// The state of the optimizer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It waits for the first frames.
    #[default]
    Waiting,
    /// It tries divisions.
    Searching,
    /// It has chosen one, and watches the throughput.
    Settled,
    /// No algorithm divides the compute units.
    Off,
}

/// A GPU of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuState {
    /// Its short name.
    pub gpu: String,
    /// TPCs of the whole chain there: the most that a component there can have.
    pub tpcs: u32,
}

/// What the process that runs a chain knows about a component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentState {
    /// Its name.
    pub name: String,
    /// Its process; `None` while it does not run.
    pub process: Option<ProcessId>,
    /// Number of restarts.
    pub restarts: u32,
    /// How it last ended; `None` if it never did.
    pub ended: Option<String>,
    /// The short name of its GPU.
    #[serde(default)]
    pub gpu: String,
}

/// An event of a chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, in seconds since the start of the chain.
    pub at_s: f64,
    /// What.
    pub what: String,
    /// Frames per second of the last period at that time; `None` before the first.
    pub throughput_fps: Option<f64>,
    /// The new TPCs of each component; `None` if they did not change.
    pub tpcs: Option<Vec<u32>>,
}

impl ChainState {
    /// Records an event.
    pub(super) fn note(&mut self, at_s: f64, what: String, tpcs: Option<Vec<u32>>) {
        if self.events.len() == EVENTS_MAX {
            self.events.remove(0);
        }
        self.events.push(Event { at_s, what, throughput_fps: self.throughput_fps, tpcs });
    }

    /// Writes it for readers into the chain's directory.
    pub(super) fn write(&self, dir: &Path) -> Result<(), Error> {
        show(&dir.join(FILE), self)
    }

    pub(super) fn read(dir: &Path) -> Result<Option<Self>, Error> {
        let path = dir.join(FILE);
        match files::read_json(&path, BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some).map_err(Error::io(path.display().to_string())),
        }
    }
}

/// The view of a running chain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChainView {
    /// Its name.
    pub name: String,
    /// The short names of its GPUs, with commas between them.
    pub gpu: String,
    /// Whether the process that runs it is alive. Otherwise the state is old, and failed components
    /// are not restarted.
    pub supervised: bool,
    /// What the process that runs it last wrote.
    #[serde(flatten)]
    pub state: ChainState,
    /// What the chain file says about each component.
    pub roles: Vec<RoleView>,
    /// Frames that have left the chain.
    pub frames_finished: u64,
    /// Frames that are in no queue and in no component: 0, except in a damaged file.
    pub frames_lost: u32,
}

/// What a chain file says about a component. Counts begin with the chain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RoleView {
    /// Its name.
    pub name: String,
    /// Whether a living process has its place.
    pub live: bool,
    /// The process's id in its own namespace; 0 before the first.
    pub pid: u64,
    /// How many processes have taken its place so far.
    pub incarnation: u64,
    /// Frames that it received.
    pub frames_in: u64,
    /// Frames that it passed on.
    pub frames_out: u64,
    /// Frames that wait for it; for the first component, free frames.
    pub queued: u32,
    /// Frames that it holds.
    pub held: u32,
    /// Frames that were dropped: because the next queue was full, by the component itself, and
    /// because a component died.
    pub dropped_full: u64,
    /// See above.
    pub dropped_by_owner: u64,
    /// See above.
    pub dropped_of_dead: u64,
    /// Time at work, in nanoseconds.
    pub busy_ns: u64,
    /// Time waiting for frames, in nanoseconds.
    pub wait_in_ns: u64,
    /// Time waiting for room, in nanoseconds.
    pub wait_out_ns: u64,
    /// Time since it last moved a frame or gave up waiting, in nanoseconds; `None` if it never did.
    pub seen_ago_ns: Option<u64>,
    /// The TPCs that it shall use; `None` without a division.
    pub tpcs: Option<String>,
    /// Whether it uses only these.
    pub obeys: bool,
    /// Whether it cannot use these. Its standard error has the reason.
    pub refuses: bool,
    /// The method by which it applied its last division; `None` before one.
    pub steer: Option<Method>,
    /// How frames come from the component before, if that is on another GPU: `peer` from that GPU's
    /// memory, `host` through host memory; `None` if it is on the same GPU, or not known yet.
    pub frames_by: Option<&'static str>,
}

impl RoleView {
    fn of(name: &str, status: &RoleStatus, now_ns: u64) -> Self {
        let set = status.suggested.map(|(_, words)| partita_core::TpcSet::from_words(words));
        Self {
            name: name.to_owned(),
            live: status.live,
            pid: status.pid,
            incarnation: status.incarnation,
            frames_in: status.frames_in,
            frames_out: status.frames_out,
            queued: status.queued,
            held: status.held,
            dropped_full: status.dropped_newest + status.dropped_oldest,
            dropped_by_owner: status.dropped_by_owner,
            dropped_of_dead: status.dropped_of_dead,
            busy_ns: status.busy_ns,
            wait_in_ns: status.wait_in_ns,
            wait_out_ns: status.wait_out_ns,
            seen_ago_ns: (status.seen_ns != 0).then(|| now_ns.saturating_sub(status.seen_ns)),
            tpcs: set.map(|set| set.to_string()),
            obeys: status.suggested.is_some_and(|(epoch, _)| epoch == status.applied_epoch),
            refuses: status.suggested.is_some_and(|(epoch, _)| epoch == status.refused_epoch),
            steer: Method::of_code(status.applied_how),
            frames_by: match status.reach {
                Reach::Unknown => None,
                Reach::Peer => Some("peer"),
                Reach::Host => Some("host"),
            },
        }
    }
}

/// All running chains of the current user. Other users' chains are not opened: a reader maps the
/// chain file and dies if its owner truncates it.
///
/// # Errors
/// [`Error::RunDirectory`], [`Error::Io`].
pub fn running(registry: &Registry) -> Result<Vec<ChainView>, Error> {
    let tenants = registry.lock()?.tenants()?;
    if registry.is_client() {
        place::sweep();
    }
    // A chain that ends meanwhile is left out.
    let own = tenants.iter().filter(|tenant| tenant.is_of_own_user());
    Ok(own.filter_map(|tenant| view_of(tenant).ok().flatten()).collect())
}

/// A running chain.
///
/// # Errors
/// [`Error::Refused`] if no chain of this name runs. [`Error::Io`] or [`Error::Refused`] if its
/// files cannot be read.
pub fn view(registry: &Registry, name: &str) -> Result<ChainView, Error> {
    let tenant = tenant(registry, name)?;
    view_of(&tenant)?.ok_or_else(|| not_begun(name))
}

/// Changes how a running chain's compute units are divided.
///
/// # Errors
/// As [`view`]; [`Error::NotYours`]; [`Error::Refused`] for invalid numbers, and if the process
/// that runs the chain has died.
pub fn steer(registry: &Registry, name: &str, steering: &Steering) -> Result<(), Error> {
    let tenant = tenant(registry, name)?;
    let dir = place::of(&tenant.dir).ok_or_else(|| not_begun(name))?;
    let state = ChainState::read(&dir)?.ok_or_else(|| not_begun(name))?;
    steering.check(name, state.definition.components.len())?;
    if !is_supervised(&dir) {
        return Err(Error::Refused {
            what: format!("chain {name}"),
            reason: format!(
                "the process that ran it has died, so its compute units stay as they are; restart the \
                 chain with `partita chain start {name}`"
            ),
        });
    }
    steering.write(&dir)
}

/// The tenant of a chain of the current user.
fn tenant(registry: &Registry, name: &str) -> Result<Tenant, Error> {
    let (tenant, _) = parts(registry, name)?;
    if tenant.is_of_own_user() {
        return Ok(tenant);
    }
    tenant.check_of(rustix::process::geteuid().as_raw())?;
    Err(Error::Refused {
        what: format!("chain {name}"),
        reason: format!(
            "it belongs to {}, who alone watches and steers it; `partita kill {name}` ends it",
            user_name(tenant.user)
        ),
    })
}

/// The tenant of a chain: its first part, which has the chain file, and all parts.
pub(super) fn parts(registry: &Registry, name: &str) -> Result<(Tenant, Vec<Tenant>), Error> {
    partita_host::registry::check_name(name)?;
    let parts = registry.lock()?.tenant(name).map_err(|error| match error {
        Error::NoSuchTenant { .. } => {
            system::of_another_user(registry, name).unwrap_or_else(|| no_chain(name))
        }
        other => other,
    })?;
    let first = parts.first().cloned().ok_or_else(|| no_chain(name))?;
    Ok((first, parts))
}

fn no_chain(name: &str) -> Error {
    Error::Refused {
        what: format!("chain {name}"),
        reason: format!(
            "no chain of that name runs; `partita chain ps` lists running chains, `partita chain start \
             {name}` starts it"
        ),
    }
}

/// A tenant without files of a chain.
pub(super) fn not_begun(name: &str) -> Error {
    Error::Refused {
        what: format!("chain {name}"),
        reason: format!(
            "the tenant of that name is not a chain, or the chain has not started yet; try again, or \
             see `partita ps`; `partita kill {name}` ends it"
        ),
    }
}

fn view_of(tenant: &Tenant) -> Result<Option<ChainView>, Error> {
    let Some(dir) = place::of(&tenant.dir) else { return Ok(None) };
    let Some(state) = ChainState::read(&dir)? else { return Ok(None) };
    let file = open_file(&dir)?;
    let now_ns = monotonic_ns();
    let statuses = (0..file.roles()).map(|role| file.status(role)).collect::<Result<Vec<_>, _>>();
    let statuses = statuses.map_err(|error| of_file(&tenant.name, &error))?;
    let names = &file.plan().roles;
    let gpus: Vec<&str> = state.gpus.iter().map(|gpu| gpu.gpu.as_str()).collect();
    Ok(Some(ChainView {
        name: tenant.name.clone(),
        gpu: if gpus.is_empty() { tenant.gpu_label().to_owned() } else { gpus.join(", ") },
        roles: names.iter().zip(&statuses).map(|(name, status)| RoleView::of(name, status, now_ns)).collect(),
        supervised: is_supervised(&dir),
        frames_finished: file.frames_finished(),
        frames_lost: file.census().lost,
        state,
    }))
}

/// The path of the chain file in a chain's directory.
pub(super) fn file_path(dir: &Path) -> PathBuf {
    dir.join(CHAIN_FILE_NAME.to_str().unwrap_or_default())
}

pub(super) fn open_file(dir: &Path) -> Result<ChainFile, Error> {
    let path = file_path(dir);
    ChainFile::open(&c_path(&path)?).map_err(|error| of_file(&path.display().to_string(), &error))
}

/// The chain file is damaged, or the system refuses to open it.
pub(super) fn of_file(chain: &str, error: &dyn std::error::Error) -> Error {
    Error::io(format!("chain {chain}"))(io::Error::other(error.to_string()))
}
