//! What a running chain shows, and to whom: to `ps`, `watch` and the daemon.

use std::io;
use std::path::{Path, PathBuf};

use partita_frames::{CHAIN_FILE_NAME, ChainFile, RoleStatus, monotonic_ns};
use partita_host::error::Error;
use partita_host::files;
use partita_host::process::ProcessId;
use partita_host::registry::{Registry, Tenant, c_path};
use serde::{Deserialize, Serialize};

use super::show::show;
use super::supervisor::is_supervised;
use super::{Definition, Steering};

/// The file in the tenant's directory with what the process that runs the chain knows.
const FILE: &str = "chain.state.json";
/// Of that file, at most.
const BYTES_MAX: u64 = 1 << 20;
/// Events that are kept.
pub const EVENTS_MAX: usize = 256;

/// What the process that runs a chain knows of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChainState {
    /// What it runs.
    pub definition: Definition,
    /// That process.
    pub supervisor: ProcessId,
    /// When it began, in seconds since 1970.
    pub started_unix_s: u64,
    /// Who divides the compute units.
    pub steering: Steering,
    /// What the optimizer is doing.
    pub phase: Phase,
    /// Periods that were measured.
    pub periods: u64,
    /// Frames per second of the period before this one; none before the first.
    pub throughput_fps: Option<f64>,
    /// TPCs of each component; none before the first division.
    pub tpcs: Option<Vec<u32>>,
    /// TPCs that the chain has in all.
    pub tpcs_of_chain: u32,
    /// What the process knows of the components.
    pub components: Vec<ComponentState>,
    /// What happened last, [`EVENTS_MAX`] at most.
    pub events: Vec<Event>,
}

/// What the optimizer is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It waits for the first frames.
    #[default]
    Waiting,
    /// It tries divisions.
    Searching,
    /// It has found one, and watches the throughput.
    Settled,
    /// Nobody optimizes.
    Off,
}

/// What the process that runs a chain knows of a component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentState {
    /// Its name.
    pub name: String,
    /// Its process; none while it does not run.
    pub process: Option<ProcessId>,
    /// How often it was started anew.
    pub restarts: u32,
    /// How it ended last; none if it never did.
    pub ended: Option<String>,
}

/// Something that happened to a chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, in seconds since the chain began.
    pub at_s: f64,
    /// What.
    pub what: String,
    /// Frames per second of the last period then; none if none was measured.
    pub throughput_fps: Option<f64>,
    /// TPCs of each component since then; none if they did not change.
    pub tpcs: Option<Vec<u32>>,
}

impl ChainState {
    /// Notes that something happened.
    pub(super) fn note(&mut self, at_s: f64, what: String, tpcs: Option<Vec<u32>>) {
        if self.events.len() == EVENTS_MAX {
            self.events.remove(0);
        }
        self.events.push(Event { at_s, what, throughput_fps: self.throughput_fps, tpcs });
    }

    /// Writes it for others to read.
    pub(super) fn write(&self, tenant: &Path) -> Result<(), Error> {
        show(&tenant.join(FILE), self)
    }

    fn read(tenant: &Path) -> Result<Option<Self>, Error> {
        let path = tenant.join(FILE);
        match files::read_json(&path, BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some).map_err(Error::io(path.display().to_string())),
        }
    }
}

/// A chain that runs, as it shows itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChainView {
    /// Its name.
    pub name: String,
    /// Its GPU's short name.
    pub gpu: String,
    /// Whether that process lives. Otherwise what it knew is old, and components that fail are not
    /// started anew.
    pub supervised: bool,
    /// What the process that runs it knows.
    #[serde(flatten)]
    pub state: ChainState,
    /// What its file says of each component.
    pub roles: Vec<RoleView>,
    /// Frames that have passed through it.
    pub frames_finished: u64,
    /// Frames that are nowhere: 0, but for a damaged file.
    pub frames_lost: u32,
}

/// What a chain's file says of a component. Counts are since the chain began.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RoleView {
    /// Its name.
    pub name: String,
    /// Whether a living process has its place.
    pub live: bool,
    /// That process, as it sees itself; 0 for none yet.
    pub pid: u64,
    /// How often a process took its place.
    pub incarnation: u64,
    /// Frames that it got.
    pub frames_in: u64,
    /// Frames that it passed on.
    pub frames_out: u64,
    /// Frames that wait for it; free ones for the first.
    pub queued: u32,
    /// Frames that it holds.
    pub held: u32,
    /// Frames that were dropped because there was no room behind it, by itself, and because
    /// somebody died.
    pub dropped_full: u64,
    /// See above.
    pub dropped_by_owner: u64,
    /// See above.
    pub dropped_of_dead: u64,
    /// How long it worked, in nanoseconds.
    pub busy_ns: u64,
    /// How long it waited for frames, in nanoseconds.
    pub wait_in_ns: u64,
    /// How long it waited for room, in nanoseconds.
    pub wait_out_ns: u64,
    /// How long ago it last moved a frame or gave up waiting, in nanoseconds; none if it never did.
    pub seen_ago_ns: Option<u64>,
    /// The TPCs that it was told to use; none if it was told nothing.
    pub tpcs: Option<String>,
    /// Whether it does.
    pub obeys: bool,
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
        }
    }
}

/// Every chain of the current user that runs. Those of others are not looked into: a chain's file
/// is mapped, and whoever cuts a mapped file short ends those who read it.
///
/// # Errors
/// [`Error::RunDirectory`], [`Error::Io`].
pub fn running(registry: &Registry) -> Result<Vec<ChainView>, Error> {
    let tenants = registry.lock()?.tenants()?;
    // One that ends while it is looked at is none.
    let own = tenants.iter().filter(|tenant| tenant.is_own());
    Ok(own.filter_map(|tenant| view_of(tenant).ok().flatten()).collect())
}

/// A chain that runs.
///
/// # Errors
/// [`Error::Refused`] if no chain of this name runs. [`Error::Io`] or [`Error::Refused`] if its files
/// cannot be read.
pub fn view(registry: &Registry, name: &str) -> Result<ChainView, Error> {
    let tenant = tenant(registry, name)?;
    tenant.check_yours()?;
    view_of(&tenant)?.ok_or_else(|| not_begun(name))
}

/// Has a running chain's compute units divided so from now on.
///
/// # Errors
/// As [`view`]; [`Error::NotYours`]; [`Error::Refused`] for numbers that the chain cannot have, and
/// if the process that would do it has died.
pub fn steer(registry: &Registry, name: &str, steering: &Steering) -> Result<(), Error> {
    let tenant = tenant(registry, name)?;
    tenant.check_yours()?;
    let state = ChainState::read(&tenant.dir)?.ok_or_else(|| not_begun(name))?;
    steering.check(name, state.definition.components.len())?;
    if !is_supervised(&tenant.dir) {
        return Err(Error::Refused {
            what: format!("chain {name}"),
            reason: format!(
                "the process that ran it has died, so nobody divides its compute units; `partita chain start {name}` begins it anew"
            ),
        });
    }
    steering.leave(&tenant.dir)
}

fn tenant(registry: &Registry, name: &str) -> Result<Tenant, Error> {
    Ok(parts(registry, name)?.0)
}

/// The tenant of a chain: its first part, which the chain's file is in, and all of them.
pub(super) fn parts(registry: &Registry, name: &str) -> Result<(Tenant, Vec<Tenant>), Error> {
    partita_host::registry::check_name(name)?;
    let parts = registry.lock()?.tenant(name).map_err(|error| match error {
        Error::NoSuchTenant { .. } => no_chain(name),
        other => other,
    })?;
    let first = parts.first().cloned().ok_or_else(|| no_chain(name))?;
    Ok((first, parts))
}

fn no_chain(name: &str) -> Error {
    Error::Refused {
        what: format!("chain {name}"),
        reason: format!(
            "no chain of that name runs; `partita chain ps` lists those that do, `partita chain start {name}` starts it"
        ),
    }
}

/// A tenant that shows nothing of a chain.
fn not_begun(name: &str) -> Error {
    Error::Refused {
        what: format!("chain {name}"),
        reason: format!(
            "the tenant of that name is no chain, or one that has not begun yet; try again, or see `partita ps`; `partita kill {name}` ends it"
        ),
    }
}

fn view_of(tenant: &Tenant) -> Result<Option<ChainView>, Error> {
    let Some(state) = ChainState::read(&tenant.dir)? else { return Ok(None) };
    let file = open_file(&tenant.dir)?;
    let now_ns = monotonic_ns();
    let statuses = (0..file.roles()).map(|role| file.status(role)).collect::<Result<Vec<_>, _>>();
    let statuses = statuses.map_err(|error| of_file(&tenant.name, &error))?;
    let names = &file.plan().roles;
    Ok(Some(ChainView {
        name: tenant.name.clone(),
        gpu: tenant.gpu_label().to_owned(),
        roles: names.iter().zip(&statuses).map(|(name, status)| RoleView::of(name, status, now_ns)).collect(),
        supervised: is_supervised(&tenant.dir),
        frames_finished: file.frames_finished(),
        frames_lost: file.census().lost,
        state,
    }))
}

/// The path of the chain's file in a tenant's directory.
pub(super) fn file_path(tenant: &Path) -> PathBuf {
    tenant.join(CHAIN_FILE_NAME.to_str().unwrap_or_default())
}

pub(super) fn open_file(tenant: &Path) -> Result<ChainFile, Error> {
    let path = file_path(tenant);
    ChainFile::open(&c_path(&path)?).map_err(|error| of_file(&path.display().to_string(), &error))
}

/// A chain's file cannot be used: it is damaged, or the system refuses it.
pub(super) fn of_file(chain: &str, error: &dyn std::error::Error) -> Error {
    Error::io(format!("chain {chain}"))(io::Error::other(error.to_string()))
}
