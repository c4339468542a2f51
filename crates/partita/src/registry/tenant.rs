//! One tenant as others see it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use partita_core::TpcSet;
use partita_ledger::{Limits, LimitsMap, UsageView};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::files;
use crate::gpu::{Gpu, Selector};
use crate::partition::Place;
use crate::process::{ProcessId, user_name};
use crate::registry::{LIMITS, META, TIME, USAGE, c_path, is_owned, write_meta};
use crate::simenv::SimEnvironment;

/// The version of `meta.json` that this build writes and reads.
pub const META_VERSION: u32 = 1;
/// The most that is read of a `meta.json`, in bytes: a long command line fits.
const META_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Whether a tenant runs beside the others or takes turns with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// A client of the GPU's MPS service: runs at the same time as the others.
    #[default]
    Shared,
    /// Outside MPS: takes turns in time, and no fault of others reaches it.
    Own,
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
    /// What is kept of a GPU.
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

    /// Whether `--gpu` with this value means it. An index is also that of a simulated machine: the tenant's other
    /// GPUs are of the same one.
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

/// `meta.json`: what is known of a tenant beside its limits. Its owner writes
/// it, so it is believed only as far as its owner could act anyway.
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
    /// The program that it runs; none before it is started.
    pub child: Option<ProcessId>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// When it was made, in seconds since 1970.
    pub started_unix_s: u64,
    /// `--sm` as it was given; none for whatever was free.
    pub share: Option<String>,
    /// `--place`.
    #[serde(default)]
    pub place: Place,
    /// Whether it is a client of MPS.
    pub isolation: Isolation,
    /// `--mps-partition`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps_partition: Option<String>,
}

impl Meta {
    /// Every GPU of the tenant, in the order in which its programs see them.
    pub fn all_gpus(&self) -> &[GpuMeta] {
        if self.gpus.is_empty() { std::slice::from_ref(&self.gpu) } else { &self.gpus }
    }
}

/// A tenant of this machine on one GPU; one on several GPUs is one of these for each, of the same name.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// The name of its GPU's directory.
    pub gpu_key: String,
    /// Its directory.
    pub dir: PathBuf,
    /// The user whom it belongs to.
    pub user: u32,
    /// Whether a process of it lives.
    pub alive: bool,
    /// What is known of it, or what is wrong with the file.
    pub meta: Result<Meta, String>,
    /// Its limits, or what is wrong with the file.
    pub limits: Result<Limits, String>,
}

impl Tenant {
    /// Reads the tenant in `dir`.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no directory.
    pub(super) fn read(gpu_key: &str, name: &str, dir: &Path) -> Result<Self, Error> {
        let user = dir.symlink_metadata().map_err(Error::io(dir.display().to_string()))?.uid();
        let alive = is_owned(dir) || has_live_slot(dir);
        let limits = c_path(&dir.join(LIMITS))
            .map_err(|error| error.to_string())
            .and_then(|path| {
                LimitsMap::open_ro(&path).and_then(|map| map.load()).map_err(|error| error.to_string())
            })
            .map(|(_, limits)| limits);
        let meta = read_meta(dir).and_then(|meta| {
            if meta.name == name { Ok(meta) } else { Err(format!("it is that of tenant {:?}", meta.name)) }
        });
        Ok(Self {
            name: name.to_owned(),
            gpu_key: gpu_key.to_owned(),
            dir: dir.to_owned(),
            user,
            alive,
            meta,
            limits,
        })
    }

    /// What the parts of one tenant on several GPUs have in common; none for a tenant on one.
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

    /// What is known of it.
    ///
    /// # Errors
    /// [`Error::DamagedTenant`].
    pub fn meta(&self) -> Result<&Meta, Error> {
        self.meta.as_ref().map_err(|reason| self.damaged(META, reason))
    }

    fn damaged(&self, file: &str, reason: &str) -> Error {
        // The ledger's errors begin with the path that this one names already.
        let path = self.dir.join(file);
        let reason =
            reason.trim_start_matches(path.to_string_lossy().as_ref()).trim_start_matches([':', ' ']);
        Error::DamagedTenant { name: self.name.clone(), reason: reason.to_owned(), path }
    }

    /// The limits file is not as it must be.
    pub(crate) fn damaged_limits(&self, reason: &str) -> Error {
        self.damaged(LIMITS, reason)
    }

    /// For whoever wants its name.
    pub(crate) fn name_in_use(&self) -> Error {
        let (gpu, what) = match &self.meta {
            Ok(meta) => (meta.gpu.label.clone(), meta.command.join(" ")),
            Err(_) => (self.gpu_key.clone(), "its meta.json is damaged".to_owned()),
        };
        let what = match what.char_indices().nth(60) {
            Some((end, _)) => format!("{}…", &what[..end]),
            None => what,
        };
        Error::NameInUse { name: self.name.clone(), user: user_name(self.user), gpu, what }
    }

    /// Checks that the current user may change and end it.
    ///
    /// # Errors
    /// [`Error::NotYours`].
    pub fn check_yours(&self) -> Result<(), Error> {
        self.check_of(rustix::process::geteuid().as_raw())
    }

    /// Checks that this user may change and end it: for those who act for others.
    ///
    /// # Errors
    /// [`Error::NotYours`].
    pub fn check_of(&self, user: u32) -> Result<(), Error> {
        if user == 0 || user == self.user {
            return Ok(());
        }
        Err(Error::NotYours { name: self.name.clone(), user: user_name(self.user) })
    }

    /// Notes the share and the placement that it was given last; none for as they are.
    pub(crate) fn update_share(&self, share: Option<String>, place: Option<Place>) -> Result<(), Error> {
        let mut meta = self.meta()?.clone();
        meta.share = share.or(meta.share);
        meta.place = place.unwrap_or(meta.place);
        write_meta(&self.dir, &meta)
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
        UsageView::open(&c_path(&self.dir.join(USAGE))?)
            .map_err(|error| self.damaged(USAGE, &error.to_string()))
    }

    /// The path of the limits file.
    pub fn limits_path(&self) -> PathBuf {
        self.dir.join(LIMITS)
    }

    /// The path of the time file, which is there if the tenant has a share of time.
    pub fn time_path(&self) -> PathBuf {
        self.dir.join(TIME)
    }
}

pub(super) fn has_live_slot(dir: &Path) -> bool {
    let Ok(path) = c_path(&dir.join(USAGE)) else { return false };
    UsageView::open(&path).is_ok_and(|view| view.slots().flatten().any(|slot| slot.live))
}

fn read_meta(dir: &Path) -> Result<Meta, String> {
    let meta: Meta = files::read_json(&dir.join(META), META_BYTES_MAX).map_err(|error| error.to_string())?;
    if meta.version != META_VERSION {
        return Err(format!("it has version {}, this Partita reads {META_VERSION}", meta.version));
    }
    Ok(meta)
}
