//! The registry under its lock: looking, making, removing.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use partita_core::Present;
use partita_ledger::{FLAG_GATED, FLAG_TIMED, MECHANISM_NONE};
use partita_mps::lock::lock_within;

use super::{
    GATE, NewPart, OwnedPart, OwnedTenant, Registry, Tenant, check_name, directories, entries, file_name,
    is_owned, is_scratch, make, make_gate, shared_dir, tenant::has_live_slot,
};
use crate::error::Error;
use crate::files::open_regular;
use crate::process::ProcessId;
use crate::run::LEDGER_VARIABLE;

/// Holders need milliseconds; this covers a machine that swaps.
const LOCK_LIMIT: Duration = Duration::from_secs(15);

/// The registry, locked until this is dropped.
#[derive(Debug)]
pub struct RegistryLock<'a> {
    registry: &'a Registry,
    _file: File,
}

impl<'a> RegistryLock<'a> {
    pub(super) fn take(registry: &'a Registry) -> Result<Self, Error> {
        let path = registry.root.join(".lock");
        let refuse = |reason: String| Error::RunDirectory { path: path.clone(), reason };
        let file = open_lock(&path).map_err(|error| refuse(error.to_string()))?;
        if lock_within(&file, LOCK_LIMIT).map_err(|error| refuse(error.to_string()))? {
            return Ok(Self { registry, _file: file });
        }
        Err(refuse(format!(
            "another process holds the lock for more than {} s; see which with `fuser {}`",
            LOCK_LIMIT.as_secs(),
            path.display()
        )))
    }

    /// Removes what dead tenants and killed commands left, as far as it is
    /// ours, and returns the living tenants by GPU and name.
    ///
    /// # Errors
    /// [`Error::Io`] if the registry cannot be read.
    pub fn tenants(&self) -> Result<Vec<Tenant>, Error> {
        let mut found = Vec::new();
        for ((gpu, name), dir) in entries(&self.registry.root)? {
            if is_scratch(&name) {
                if !is_owned(&dir) {
                    let _ = fs::remove_dir_all(&dir);
                }
                continue;
            }
            if check_name(&name).is_err() {
                continue;
            }
            // Somebody may remove it without the lock; then it is no tenant.
            if let Ok(tenant) = Tenant::read(&gpu, &name, &dir) {
                found.push(tenant);
            }
        }
        // A process may use one GPU of several, and then holds no slot on the others.
        let groups: BTreeSet<_> = found.iter().filter(|part| part.alive).filter_map(Tenant::group).collect();
        let mut living = Vec::new();
        for mut tenant in found {
            tenant.alive |= tenant.group().is_some_and(|group| groups.contains(&group));
            if tenant.alive {
                living.push(tenant);
            } else {
                // Another user's remains stay until that user's next command.
                let _ = self.remove(&tenant.dir);
            }
        }
        for (gpu, dir) in directories(&self.registry.root)? {
            if !living.iter().any(|tenant| tenant.gpu_key == gpu) {
                let _ = fs::remove_file(dir.join(GATE));
            }
            // Only an empty one goes.
            let _ = fs::remove_dir(dir);
        }
        Ok(living)
    }

    /// The living tenant of this name: what it is on each of its GPUs, in the order in which its programs see
    /// them. Never empty.
    ///
    /// # Errors
    /// [`Error::NoSuchTenant`]; [`Error::Io`].
    pub fn tenant(&self, name: &str) -> Result<Vec<Tenant>, Error> {
        let (mut parts, tenants): (Vec<_>, Vec<_>) =
            self.tenants()?.into_iter().partition(|tenant| tenant.name == name);
        if !parts.is_empty() {
            parts.sort_by_key(Tenant::place);
            return Ok(parts);
        }
        let mut names: Vec<&str> = tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        names.dedup();
        let present = if names.is_empty() {
            "no tenant runs; start one with `partita run --name NAME -- PROGRAM`".to_owned()
        } else {
            format!("there are {}; see `partita ps`", names.join(", "))
        };
        Err(Error::NoSuchTenant { name: name.to_owned(), present })
    }

    /// The living tenant that a process is of: the program that `partita run` started, any descendant of it that
    /// kept its environment, or `partita run` itself. As [`RegistryLock::tenant`].
    ///
    /// # Errors
    /// [`Error::NoTenantOfProcess`]; [`Error::Io`].
    pub fn tenant_of(&self, pid: u32) -> Result<Vec<Tenant>, Error> {
        let refuse = |reason: String| Error::NoTenantOfProcess { pid, reason };
        let Some(process) = ProcessId::living(pid) else {
            return Err(refuse("there is no such process".to_owned()));
        };
        // The environment is readable for its owner alone; the slots of those that use CUDA are for all.
        let ledger = process.variable(LEDGER_VARIABLE);
        let is_of = |tenant: &Tenant| {
            let by_slot = tenant.usage().is_ok_and(|usage| {
                usage.slots().flatten().any(|slot| {
                    slot.live && u32::try_from(slot.pid) == Ok(pid) && slot.start_ticks == process.start_ticks
                })
            });
            let by_meta =
                tenant.meta.as_ref().is_ok_and(|meta| meta.run == process || meta.child == Some(process));
            by_slot || by_meta || ledger.as_ref().is_some_and(|ledger| Path::new(ledger) == tenant.dir)
        };
        match self.tenants()?.iter().find(|tenant| is_of(tenant)) {
            Some(tenant) => self.tenant(&tenant.name),
            None => Err(refuse(
                "it was not started by `partita run`, or its tenant has ended; see `partita ps`".to_owned(),
            )),
        }
    }

    /// The tenants of one GPU as the planner takes them.
    ///
    /// # Errors
    /// [`Error::DamagedTenant`] if a living tenant's limits cannot be read: what
    /// it holds is then unknown, and giving it away would break its promise.
    pub fn present(tenants: &[Tenant], gpu_key: &str) -> Result<Vec<Present>, Error> {
        tenants
            .iter()
            .filter(|tenant| tenant.gpu_key == gpu_key)
            .map(|tenant| Ok(Present { name: tenant.name.clone(), set: tenant.set()? }))
            .collect()
    }

    /// Makes a tenant that the calling process owns, on the GPUs of its parts, in the order in which its programs
    /// see them.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::NameInUse`], [`Error::Io`], [`Error::RunDirectory`];
    /// then nothing is left behind on any of the GPUs.
    pub fn create(&self, parts: Vec<NewPart>) -> Result<OwnedTenant, Error> {
        let tenants = self.tenants()?;
        for part in &parts {
            check_name(&part.meta.name)?;
            if let Some(other) = tenants.iter().find(|tenant| tenant.name == part.meta.name) {
                return Err(other.name_in_use());
            }
        }
        // The first comes last: it links to the others, and until it is there they are nobody's.
        let links: Vec<PathBuf> = parts
            .iter()
            .skip(1)
            .map(|part| Path::new("../..").join(&part.gpu_key).join(&part.meta.name))
            .collect();
        let mut made: VecDeque<OwnedPart> = VecDeque::new();
        for (at, part) in parts.into_iter().enumerate().rev() {
            match self.create_part(part, if at == 0 { &links } else { &[] }) {
                Ok(part) => made.push_front(part),
                Err(error) => {
                    for part in made {
                        let _ = self.remove(&part.dir);
                    }
                    return Err(error);
                }
            }
        }
        Ok(OwnedTenant { parts: made.into() })
    }

    fn create_part(&self, part: NewPart, links: &[PathBuf]) -> Result<OwnedPart, Error> {
        let NewPart { gpu_key, meta, limits } = part;
        let gpu_dir = self.registry.gpu_dir(&gpu_key);
        shared_dir(&gpu_dir)?;
        let takes_turns = limits.flags & FLAG_TIMED != 0 && limits.mechanism == MECHANISM_NONE;
        if limits.flags & FLAG_GATED != 0 || takes_turns {
            make_gate(&gpu_dir)?;
        }
        let dir = gpu_dir.join(&meta.name);
        let scratch = gpu_dir.join(format!(".new-{}-{}", meta.name, std::process::id()));
        let made = make(&scratch, &meta, &limits, links).and_then(|owner| {
            fs::rename(&scratch, &dir).map(|()| owner).map_err(|error| match error.kind() {
                // The remains of another user's tenant, which only that user can remove.
                io::ErrorKind::PermissionDenied | io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => {
                    Error::RunDirectory {
                        path: dir.clone(),
                        reason: "the remains of another user's tenant of this name are in the way; choose another --name"
                            .to_owned(),
                    }
                }
                _ => Error::io(dir.display().to_string())(error),
            })
        });
        match made {
            Ok(owner) => Ok(OwnedPart { dir, meta, owner }),
            Err(error) => {
                let _ = fs::remove_dir_all(&scratch);
                let _ = fs::remove_dir(&gpu_dir);
                Err(error)
            }
        }
    }

    /// Removes the tenant in `dir`, and its GPU's directory if that is empty then.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn remove(&self, dir: &Path) -> Result<(), Error> {
        let gone =
            dir.with_file_name(format!(".dead-{}-{}", file_name(dir).to_string_lossy(), std::process::id()));
        match fs::rename(dir, &gone) {
            // A process needs no `partita run` to enter a tenant that an environment names. One that has has it back.
            Ok(()) if has_live_slot(&gone) && fs::rename(&gone, dir).is_ok() => return Ok(()),
            Ok(()) => fs::remove_dir_all(&gone).map_err(Error::io(gone.display().to_string()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io(dir.display().to_string())(error)),
        }
        if let Some(gpu_dir) = dir.parent() {
            let _ = fs::remove_dir(gpu_dir);
        }
        Ok(())
    }
}

/// Opens the lock file, which belongs to whoever came first. Without `O_CREAT`
/// first: the kernel refuses that on another user's file in a sticky directory.
fn open_lock(path: &Path) -> io::Result<File> {
    match open_regular(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    match OpenOptions::new().create_new(true).write(true).mode(0o644).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_regular(path),
        created => created,
    }
}
