//! Tenants with a target or a goal, and the turn of the process that moves their TPCs.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use partita_core::Share;
use partita_ledger::Limits;
use rustix::fs::FlockOperation;

use super::layout::{CONTROL, make_own};
use super::lock::RegistryLock;
use super::root::Registry;
use super::tenant::Tenant;
use crate::error::Error;

/// How a target stands, in a tenant's directory.
pub(crate) const SLO_RECORD: &str = "slo.json";
/// The most that is read of it, in bytes.
pub(crate) const SLO_RECORD_BYTES_MAX: u64 = 256 * 1024;

impl Tenant {
    /// Whether a controller looks at it: it has a target or a goal.
    pub(crate) fn is_controlled(&self) -> bool {
        self.meta.as_ref().is_ok_and(super::Meta::is_controlled)
    }

    /// Whether the controller moves its TPCs, too. Those of tenants that take turns stay.
    pub(crate) fn is_steered(&self) -> bool {
        self.is_controlled() && !self.limits().is_ok_and(Limits::takes_turns)
    }

    /// The TPCs that it has at least: those of its share, and one without a share. Of a tenant that
    /// is not steered, all that it has.
    pub(crate) fn promised_tpcs(&self) -> u32 {
        let (Ok(meta), Ok(limits), Ok(set)) = (&self.meta, &self.limits, self.set()) else { return 0 };
        if !self.is_steered() {
            return set.len();
        }
        let share = meta.share.as_deref().and_then(|share| share.parse::<Share>().ok());
        let topology = limits.topology().ok();
        share.zip(topology).and_then(|(share, topology)| share.tpcs_wanted(&topology).ok()).unwrap_or(1)
    }

    /// How its target stands, as its controller has written it; empty if nothing is written.
    pub(crate) fn slo_record(&self) -> Vec<u8> {
        self.open().and_then(|dir| dir.bytes(SLO_RECORD, SLO_RECORD_BYTES_MAX)).unwrap_or_default()
    }

    /// Writes how its target stands.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn write_slo_record(&self, bytes: &[u8]) -> Result<(), Error> {
        let written = self.open().and_then(|dir| dir.replace(SLO_RECORD, bytes, 0o644));
        written.map_err(Error::io(self.dir.join(SLO_RECORD).display().to_string()))
    }
}

impl RegistryLock<'_> {
    /// Makes the file that the controller of a GPU locks, if it is missing. In system mode only
    /// `partitad` is a controller, and needs none.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::RunDirectory`].
    pub(crate) fn make_control(&self, gpu_key: &str) -> Result<(), Error> {
        if self.registry.is_system() {
            return Ok(());
        }
        let Some(home) = &self.home else { return Ok(()) };
        let gpu = make_own(home, gpu_key)?;
        match gpu.create(CONTROL, 0o600) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(Error::io(gpu.path().join(CONTROL).display().to_string())(error))
            }
            _ => Ok(()),
        }
    }
}

/// The turn of a controller on one GPU, for as long as this lives: the kernel ends it with the
/// process.
#[derive(Debug)]
pub(crate) struct Turn {
    file: File,
}

impl Turn {
    /// Takes the turn, if there is something to control and no other process has it.
    pub fn take(registry: &Registry, gpu_key: &str) -> Option<Self> {
        let file = File::open(registry.gpu_dir(gpu_key).join(CONTROL)).ok()?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let turn = Self { file };
        turn.lasts(registry, gpu_key).then_some(turn)
    }

    /// Whether the file is the GPU's still: one that was removed and made again is another turn.
    pub fn lasts(&self, registry: &Registry, gpu_key: &str) -> bool {
        let path = registry.gpu_dir(gpu_key).join(CONTROL);
        let identity = |meta: io::Result<std::fs::Metadata>| meta.ok().map(|meta| (meta.dev(), meta.ino()));
        let there = identity(Path::symlink_metadata(&path));
        there.is_some() && there == identity(self.file.metadata())
    }
}
