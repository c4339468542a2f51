//! One tenant as others see it.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use partita_core::slo::{Goal, Slo, Target};
use partita_core::{Placement, TpcSet, words};
use partita_ledger::{
    At, LIMITS_FILE_NAME, LedgerError, Limits, LimitsFile, MECHANISM_MASK, MECHANISM_PERSISTENT,
    TIME_FILE_NAME, TimeMap, TimeView, USAGE_FILE_NAME, UsageView,
};
use serde::{Deserialize, Serialize};

use super::dir::{Dir, own_user};
use super::layout::{Home, META, OWNER, container_dir, is_owned};
use super::user::acting_user;
use crate::dead::{self, DeadProcess};
use crate::error::Error;
use crate::escape::escape_all;
use crate::gpu::{Gpu, Selector};
use crate::process::{ProcessId, user_name};
use crate::simenv::SimEnvironment;

/// The version of `meta.json` that this build writes and reads.
pub const META_VERSION: u32 = 1;
const LIMITS: &str = "limits";
/// The most that is read of a `meta.json`, in bytes: a long command line fits.
const META_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The remaining limits of reading a user's tenants in one pass. The reader pays for the reading,
/// so that of other users' files is limited.
#[derive(Debug)]
pub(super) struct Patience {
    tenants: usize,
    meta_bytes: u64,
}

impl Patience {
    /// For the tenants in a directory of this user.
    pub fn with(home: &Dir) -> Self {
        if home.is_own() {
            Self { tenants: usize::MAX, meta_bytes: u64::MAX }
        } else {
            Self { tenants: 256, meta_bytes: 1024 * 1024 }
        }
    }

    /// Whether one more tenant is looked at.
    pub fn takes_one(&mut self) -> bool {
        let left = self.tenants.checked_sub(1);
        self.tenants = left.unwrap_or_default();
        left.is_some()
    }
}

words! {
    /// Whether a tenant runs beside the others or takes turns with them.
    // A client of the GPU's MPS service, or outside of it, where no fault of others reaches it.
    pub enum Isolation: Shared {
        /// At the same time as other tenants.
        Shared => "shared",
        /// In turns with other tenants.
        Own => "own",
    }
}

words! {
    /// Who wanted a tenant.
    pub enum Origin: Request {
        /// Somebody asked for it.
        Request => "request",
        /// The policy of the site, of a program that was started without Partita.
        Policy => "policy",
    }
}

/// The simulated board of a tenant's GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimMeta {
    /// The device's name in the catalogue.
    pub device: String,
    /// The board's directory.
    pub dir: PathBuf,
}

/// A tenant's GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuMeta {
    /// [`Gpu::key`]: the name of its directory.
    #[serde(default)]
    pub key: String,
    /// Its UUID.
    pub uuid: String,
    /// NVML's index of it, or its place in the simulated machine, when the tenant was made.
    #[serde(default)]
    pub index: Option<u32>,
    /// Its short name for people.
    pub label: String,
    /// The board, if it is simulated.
    pub sim: Option<SimMeta>,
}

impl GpuMeta {
    /// The form for `--gpu` that names it again.
    pub(crate) fn selector(&self) -> Selector {
        match &self.sim {
            Some(sim) => Selector::Sim(sim.device.clone(), self.index.unwrap_or_default()),
            None => Selector::Uuid(self.uuid.clone()),
        }
    }

    /// The stored data of a GPU.
    pub fn of(gpu: &Gpu) -> Self {
        let sim =
            |sim: &SimEnvironment| SimMeta { device: sim.device().to_owned(), dir: sim.dir().to_owned() };
        Self {
            key: gpu.key(),
            uuid: gpu.facts.uuid.clone(),
            index: Some(gpu.facts.index),
            label: gpu.label(),
            sim: gpu.sim().map(sim),
        }
    }

    /// Whether `--gpu` with this value means it. An index is also that of a simulated machine: the
    /// tenant's other GPUs are of the same one.
    pub fn is(&self, selector: &Selector) -> bool {
        match selector {
            Selector::Index(index) => self.index == Some(*index),
            Selector::Uuid(uuid) => self.uuid.to_ascii_lowercase().starts_with(&uuid.to_ascii_lowercase()),
            Selector::Sim(device, index) => {
                self.sim.as_ref().is_some_and(|sim| sim.device == *device) && self.index == Some(*index)
            }
        }
    }
}

/// `meta.json`: data about a tenant beside its limits. Its owner writes it, so it is trusted only
/// as far as its owner could act anyway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// [`META_VERSION`].
    pub version: u32,
    /// The tenant's name.
    pub name: String,
    /// The GPU that this part of the tenant is on.
    pub gpu: GpuMeta,
    /// Every GPU of it, in the order in which its programs see them; empty where it has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuMeta>,
    /// The `partita run` that made it.
    pub run: ProcessId,
    /// The program that it runs; `None` before it is started.
    pub child: Option<ProcessId>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// When it was made, in seconds since 1970.
    pub started_unix_s: u64,
    /// `--sm` as given; `None` for an even part of what the shares of others leave.
    pub share: Option<String>,
    /// `--place`.
    #[serde(default, with = "crate::text")]
    pub place: Placement,
    /// Whether it is a client of MPS.
    #[serde(with = "crate::text")]
    pub isolation: Isolation,
    /// How many kernels the GPU runs at once; none if that was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_slots: Option<u32>,
    /// `--mps-partition`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps_partition: Option<String>,
    /// `--slo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo: Option<String>,
    /// `--goal`.
    #[serde(default, with = "crate::text")]
    pub goal: Goal,
    /// Why it is on its GPU, if Partita chose that (`--gpu any`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<String>,
    /// Partita chose that it takes turns, since its target could not be met with masks before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_put_in_turns: bool,
    /// Whether it was started with a ceiling: then its launches look for idle TPCs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_ceiling: bool,
    /// For a tenant that was made for containers (`cdi`), the boot in which that was:
    /// it lives without a process until it is removed, or until the machine starts again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared_boot: Option<String>,
    /// For such a tenant, the limits as they were asked for; none once `set` has changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared_limits: Option<String>,
    /// Who wanted it.
    #[serde(default, with = "crate::text")]
    pub origin: Origin,
}

impl Meta {
    /// Whether it was made for containers since the machine started.
    pub fn is_prepared(&self) -> bool {
        self.prepared_boot.as_ref().is_some_and(|made| boot().is_ok_and(|now| *made == now))
    }

    /// Every GPU of the tenant, in the order in which its programs see them.
    pub fn all_gpus(&self) -> &[GpuMeta] {
        if self.gpus.is_empty() { std::slice::from_ref(&self.gpu) } else { &self.gpus }
    }

    /// Its target, if it has one.
    pub fn target(&self) -> Option<Target> {
        match self.slo.as_ref()?.parse() {
            Ok(Slo::Target(target)) => Some(target),
            Ok(Slo::None) | Err(_) => None,
        }
    }

    /// Whether a controller looks at it: it has a target or a goal.
    pub fn is_controlled(&self) -> bool {
        self.goal != Goal::None || self.target().is_some()
    }
}

/// A tenant of this machine on one GPU; one on several GPUs is one of these for each, of the same
/// name.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// The name of its GPU's directory.
    pub gpu_key: String,
    /// Its directory's path, for messages and for its processes. Its files are opened from `home`.
    pub dir: PathBuf,
    /// The open directory of its user.
    pub(super) home: Arc<Dir>,
    /// Its user.
    pub user: u32,
    /// The user whose processes change it: the same one, or root in system mode.
    keeper: u32,
    /// Whether a process of it lives.
    pub alive: bool,
    /// Its metadata, or the defect of the file.
    pub meta: Result<Meta, String>,
    /// Its limits, or the defect of the file.
    pub limits: Result<Limits, String>,
}

impl Tenant {
    /// Reads the tenant in `dir`. Nothing in it is mapped, and another user's files are trusted
    /// only about that user's processes.
    pub(super) fn read(home: &Home, gpu_key: &str, name: &str, dir: &Dir, patience: &mut Patience) -> Self {
        let user = home.user;
        let limits = Limits::read(dir.at(LIMITS_FILE_NAME)).map(|(_, limits)| limits);
        let meta = read_meta(dir, user, patience).and_then(|meta| {
            if meta.name == name { Ok(meta) } else { Err(format!("it is that of tenant {:?}", meta.name)) }
        });
        let has_child = || {
            let child = meta.as_ref().ok().and_then(|meta| meta.child);
            child.is_some_and(|child| child.lives() && child.user() == Some(user))
        };
        // Only its own user could remove one.
        let is_prepared = || dir.is_own() && meta.as_ref().is_ok_and(Meta::is_prepared);
        Self {
            name: name.to_owned(),
            gpu_key: gpu_key.to_owned(),
            dir: dir.path().to_owned(),
            home: Arc::clone(&home.dir),
            user,
            keeper: dir.user,
            // The slots of others' tenants only root can read. A program that has closed its lock
            // is a child still.
            alive: is_owned(dir) || has_live_slot(dir) || (!dir.is_own() && has_child()) || is_prepared(),
            meta,
            limits: limits.map_err(|error| error.to_string()),
        }
    }

    /// Whether this process may change it: it belongs to the user for whom the process acts, or
    /// this is a command of root in system mode.
    pub fn is_own(&self) -> bool {
        let (own, acting) = (own_user(), acting_user());
        self.keeper == own && (acting == own || acting == self.user)
    }

    /// Whether it belongs to the user of this process. In system mode that user asks `partitad` to
    /// change it.
    pub fn is_of_own_user(&self) -> bool {
        self.user == own_user()
    }

    /// Whether plans include it: an unreadable tenant of another user is promised nothing.
    pub(crate) fn counts(&self) -> bool {
        self.is_own() || self.limits.is_ok()
    }

    /// Whether both are parts of one tenant, or one part.
    pub(crate) fn is_of_same(&self, other: &Self) -> bool {
        (self.user, &self.name) == (other.user, &other.name)
    }

    /// Its name in plans. Other users can give theirs any name.
    pub(crate) fn name_among_all(&self) -> String {
        if self.user == acting_user() {
            self.name.clone()
        } else {
            format!("{} of {}", self.name, user_name(self.user))
        }
    }

    /// Whether it was made for containers.
    pub fn is_prepared(&self) -> bool {
        self.is_own() && self.meta.as_ref().is_ok_and(Meta::is_prepared)
    }

    /// Whether a process is in a container of this tenant: its file system has this tenant's limits
    /// at the place that the container's CDI device gives them. The program cannot change that.
    pub fn is_in_container(&self, process: ProcessId) -> bool {
        let place = container_dir(self.place_or_first()).join(LIMITS);
        let theirs = format!("/proc/{}/root{}", process.pid, place.display());
        let identity = |path: &Path| path.symlink_metadata().ok().map(|meta| (meta.dev(), meta.ino()));
        self.is_prepared()
            && identity(Path::new(&theirs))
                .is_some_and(|theirs| identity(&self.dir.join(LIMITS)) == Some(theirs))
    }

    fn place_or_first(&self) -> usize {
        match self.place() {
            usize::MAX => 0,
            place => place,
        }
    }

    /// Opens its directory, if it is there and its user's still.
    pub(super) fn open(&self) -> io::Result<Dir> {
        self.home.sub_of_owner(&self.gpu_key)?.sub_of_owner(&self.name)
    }

    /// Opens and, unless another process has it, locks the file that keeps it alive.
    pub(crate) fn hold(&self) -> Result<File, Error> {
        let held = self.open().and_then(|dir| dir.file_to_lock(OWNER));
        let file = held.map_err(|error| self.damaged(OWNER, &error.to_string()))?;
        // The process that has it holds the tenant, too.
        let _ = partita_ledger::lock_alone(file.as_raw_fd());
        Ok(file)
    }

    /// Locks the directory of its user, for what is done for a user one at a time, and waits so
    /// long for it. The lock lasts as long as the returned descriptor.
    pub(crate) fn lock_user(&self, limit: Duration) -> Option<OwnedFd> {
        self.home.lock_within(limit).ok().flatten()
    }

    /// Opens one of its files by the ledger.
    fn open_file<T>(
        &self,
        name: &CStr,
        open: impl FnOnce(At<'_>) -> Result<T, LedgerError>,
    ) -> Result<T, Error> {
        let file = name.to_string_lossy();
        let dir = self.open().map_err(|error| self.damaged(&file, &error.to_string()))?;
        open(dir.at(name)).map_err(|error| self.damaged(&file, &error.to_string()))
    }

    /// The common identity of the parts of one tenant on several GPUs; `None` for a tenant on one.
    pub(super) fn group(&self) -> Option<(String, u32, ProcessId)> {
        let meta = self.meta.as_ref().ok().filter(|meta| !meta.gpus.is_empty())?;
        Some((self.name.clone(), self.user, meta.run))
    }

    /// Its place among the tenant's GPUs, as its programs see them.
    pub(super) fn place(&self) -> usize {
        let Ok(meta) = &self.meta else { return usize::MAX };
        meta.gpus.iter().position(|gpu| *gpu == meta.gpu).unwrap_or(0)
    }

    /// The GPU's short name.
    pub fn gpu_label(&self) -> &str {
        self.meta.as_ref().map_or(&self.gpu_key, |meta| &meta.gpu.label)
    }

    /// The limits.
    ///
    /// # Errors
    /// [`Error::DamagedTenant`].
    pub fn limits(&self) -> Result<&Limits, Error> {
        self.limits.as_ref().map_err(|reason| self.damaged(LIMITS, reason))
    }

    /// Its metadata.
    ///
    /// # Errors
    /// [`Error::DamagedTenant`].
    pub fn meta(&self) -> Result<&Meta, Error> {
        self.meta.as_ref().map_err(|reason| self.damaged(META, reason))
    }

    fn damaged(&self, file: &str, reason: &str) -> Error {
        // The ledger's errors begin with the file's name, which the path has already.
        let reason = reason.strip_prefix(file).unwrap_or(reason).trim_start_matches([':', ' ']);
        let path = self.dir.join(file);
        Error::DamagedTenant { name: self.name.clone(), reason: reason.to_owned(), path }
    }

    /// The limits file is not as it must be.
    pub(crate) fn damaged_limits(&self, reason: &str) -> Error {
        self.damaged(LIMITS, reason)
    }

    /// The error of a process that wants its name.
    pub(crate) fn name_in_use(&self) -> Error {
        let (gpu, what) = match &self.meta {
            Ok(meta) => (meta.gpu.label.clone(), meta.command.join(" ")),
            Err(_) => (self.gpu_key.clone(), "its meta.json is damaged".to_owned()),
        };
        let what = match what.char_indices().nth(60) {
            Some((end, _)) => format!("{}…", &what[..end]),
            None => what,
        };
        let user = acting_user();
        let command = (self.user == user || user == 0).then(|| self.end_command());
        let (name, user) = (self.name.clone(), user_name(self.user));
        Error::NameInUse { name, user, gpu, what, command }
    }

    /// The command of Partita that ends it.
    pub(crate) fn end_command(&self) -> &'static str {
        if self.is_prepared() { "cdi remove" } else { "kill" }
    }

    /// Checks that this process may change it: no user, not even root, changes another user's.
    ///
    /// # Errors
    /// [`Error::NotYours`].
    pub fn check_yours(&self) -> Result<(), Error> {
        if self.is_own() { Ok(()) } else { Err(self.not_yours()) }
    }

    /// Checks that this user may ask for its change or its end.
    ///
    /// # Errors
    /// [`Error::NotYours`].
    pub fn check_of(&self, user: u32) -> Result<(), Error> {
        if user == 0 || user == self.user { Ok(()) } else { Err(self.not_yours()) }
    }

    fn not_yours(&self) -> Error {
        Error::NotYours { name: self.name.clone(), user: user_name(self.user) }
    }

    /// The placement of a tenant without a share, whose TPCs this process divides: it was started
    /// without `--sm`, and has its TPCs alone. One with a target or a goal is the controller's.
    pub(crate) fn rests(&self) -> Option<Placement> {
        let (Ok(meta), Ok(limits)) = (&self.meta, &self.limits) else { return None };
        let is_masked = matches!(limits.mechanism, MECHANISM_MASK | MECHANISM_PERSISTENT);
        let is_without = meta.share.is_none() && meta.mps_partition.is_none() && !meta.is_controlled();
        (is_without && is_masked && !limits.takes_turns() && self.is_kept_here()).then_some(meta.place)
    }

    /// Changes its metadata.
    pub(crate) fn update_meta(&self, change: impl FnOnce(&mut Meta)) -> Result<(), Error> {
        self.check_yours()?;
        let mut meta = self.meta()?.clone();
        change(&mut meta);
        let dir = self.open().map_err(Error::io(self.dir.display().to_string()))?;
        write_meta(&dir, &self.dir, &meta)
    }

    /// Notes the program that its `partita run` has started.
    pub(crate) fn note_child(&self, child: ProcessId) -> Result<(), Error> {
        self.check_yours()?;
        let meta = Meta { child: Some(child), ..self.meta()?.clone() };
        let dir = self.open().map_err(Error::io(self.dir.display().to_string()))?;
        write_meta(&dir, &self.dir, &meta)
    }

    /// Whether this is its part on the first of its GPUs.
    pub(crate) fn is_first(&self) -> bool {
        self.place() == 0
    }

    /// Creates a marker file in its directory, if it belongs to the current user and the marker
    /// does not exist.
    pub(crate) fn leave_mark(&self, name: &str) {
        if self.is_own()
            && let Ok(dir) = self.open()
        {
            let _ = dir.create(name, 0o600);
        }
    }

    /// Removes one.
    pub(crate) fn remove_mark(&self, name: &str) {
        if self.is_own()
            && let Ok(dir) = self.open()
        {
            let _ = dir.unlink(name.as_ref());
        }
    }

    /// The TPCs that it holds.
    ///
    /// # Errors
    /// [`Error::DamagedTenant`].
    pub fn set(&self) -> Result<TpcSet, Error> {
        self.limits().map(|limits| TpcSet::from_words(limits.set))
    }

    /// The usage file, to look at.
    ///
    /// # Errors
    /// [`Error::DamagedTenant`].
    pub fn usage(&self) -> Result<UsageView, Error> {
        self.open_file(USAGE_FILE_NAME, |at| UsageView::open(at))
    }

    /// Its dead processes whose work on the GPU has not ended.
    #[must_use]
    pub fn dead(&self) -> Vec<DeadProcess> {
        let Ok(dir) = self.open() else { return Vec::new() };
        let bytes = dir.bytes(dead::FILE, dead::BYTES_MAX).unwrap_or_default();
        DeadProcess::read(&bytes)
    }

    /// Opens the gate of the tenant's share of time, for the work of the dead.
    ///
    /// # Errors
    /// [`Error::DamagedTenant`].
    pub(crate) fn open_gate(&self) -> Result<(), Error> {
        self.open_file(TIME_FILE_NAME, |at| TimeMap::open(at)).map(|time| time.open_for_the_dead())
    }

    /// The time file, to look at. It is there if the tenant has a share of time.
    ///
    /// # Errors
    /// [`Error::DamagedTenant`].
    pub(crate) fn time(&self) -> Result<TimeView, Error> {
        self.open_file(TIME_FILE_NAME, |at| TimeView::open(at))
    }

    /// Bytes of device memory that its living processes hold, and bytes that the driver has taken
    /// for itself in them; `None` if this user cannot read that.
    pub(super) fn memory_in_use(&self) -> Option<(u64, u64)> {
        self.usage().ok()?.in_use().ok()
    }

    /// Whether this process may write its limits, for its user or in the place of all users.
    #[must_use]
    pub fn is_kept_here(&self) -> bool {
        self.keeper == own_user()
    }

    /// The limits file, to divide what tenants share. In system mode root does that for the tenants
    /// of all users at once.
    ///
    /// # Errors
    /// [`Error::NotYours`], [`Error::DamagedTenant`].
    pub(crate) fn kept_limits_file(&self) -> Result<LimitsFile, Error> {
        if !self.is_kept_here() {
            return Err(self.not_yours());
        }
        self.open_file(LIMITS_FILE_NAME, |at| LimitsFile::open_rw(at))
    }

    /// The limits file, to change it.
    ///
    /// # Errors
    /// [`Error::NotYours`], [`Error::DamagedTenant`].
    pub(crate) fn limits_file(&self) -> Result<LimitsFile, Error> {
        self.check_yours()?;
        self.open_file(LIMITS_FILE_NAME, |at| LimitsFile::open_rw(at))
    }
}

/// The name of this start of the machine.
pub(crate) fn boot() -> Result<String, Error> {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    std::fs::read_to_string(FILE).map(|text| text.trim().to_owned()).map_err(Error::io(FILE))
}

pub(super) fn has_live_slot(dir: &Dir) -> bool {
    UsageView::open(dir.at(USAGE_FILE_NAME)).is_ok_and(|view| view.slots().flatten().any(|slot| slot.live))
}

/// The metadata in a directory of this user's.
pub(super) fn own_meta(dir: &Dir) -> Option<Meta> {
    let bytes = dir.bytes(META, META_BYTES_MAX).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn read_meta(dir: &Dir, user: u32, patience: &mut Patience) -> Result<Meta, String> {
    let most = META_BYTES_MAX.min(patience.meta_bytes);
    let bytes = dir.bytes(META, most).map_err(|error| error.to_string())?;
    patience.meta_bytes -= bytes.len() as u64;
    let mut json: serde_json::Value = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if user != own_user() {
        // It goes to terminals and logs.
        escape_all(&mut json);
    }
    let meta: Meta = serde_json::from_value(json).map_err(|error| error.to_string())?;
    if meta.version != META_VERSION {
        return Err(format!("it has version {}, this Partita reads {META_VERSION}", meta.version));
    }
    Ok(meta)
}

pub(super) fn write_meta(dir: &Dir, path: &Path, meta: &Meta) -> Result<(), Error> {
    let what = || path.join(META).display().to_string();
    let json = serde_json::to_vec_pretty(meta).map_err(|error| Error::io(what())(io::Error::other(error)))?;
    dir.replace(META, &json, 0o644).map_err(Error::io(what()))
}
