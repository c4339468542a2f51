//! From a prepared claim to its tenant and back.
//!
//! It calls Partita's library and not `partitad`'s API: the daemon is not needed on a node then,
//! its API has no containers, and one process can hold the journal and the tenant together. What
//! touches a GPU's driver happens in child processes of the program `partita`.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};

use partita::Share;
use partita::cdi;
use partita::gpus::{self, Selectors};
use partita::install::Install;
use partita::limits::{LIMITS, LimitSet};
use partita::mig;
use partita::points::reached;
use partita::registry::{Isolation, Registry};
use partita::run::RunRequest;
use partita_core::ByteSize;

use crate::device::Board;
use crate::journal::{Entry, Journal};
use crate::metadata::{self, Files};
use crate::node::{self, Found};
use crate::plan::{Definition, Size};

/// The tenants of this node's claims. Its calls block, and one runs at a time: the caller holds a
/// lock.
#[derive(Debug)]
pub struct Tenants {
    /// Where the parts of Partita are.
    pub install: Install,
    /// The directory of CDI files.
    pub cdi: PathBuf,
    /// The journal.
    pub journal: Journal,
    /// The files in which containers read what their claim was given; `None` without claims.
    pub metadata: Option<Files>,
    /// The GPUs that are offered.
    pub boards: RwLock<Vec<Board>>,
    /// Why others are not.
    pub left_out: RwLock<Vec<String>>,
    /// The MIG instances of claims, by UUID, with the claim's name for a tenant. An open file keeps
    /// `partita run --mig` and changes of instances away.
    pub instances: Mutex<BTreeMap<String, (String, File)>>,
}

impl Tenants {
    /// The GPUs that are offered now.
    pub fn boards(&self) -> Vec<Board> {
        self.boards.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why the node offers no GPU, if it offers none for a reason.
    pub fn why_none(&self) -> Option<String> {
        let left_out = self.left_out.read().unwrap_or_else(PoisonError::into_inner);
        let is_none = self.boards.read().unwrap_or_else(PoisonError::into_inner).is_empty();
        (is_none && !left_out.is_empty()).then(|| left_out.join("; "))
    }

    /// Offers what a look found. True if the GPUs changed.
    pub fn set_found(&self, found: &Found) -> bool {
        let reasons = found.left_out.iter().map(|one| one.reason.clone()).collect();
        *self.left_out.write().unwrap_or_else(PoisonError::into_inner) = reasons;
        let mut held = self.boards.write().unwrap_or_else(PoisonError::into_inner);
        let boards = node::merge(&held, found);
        let is_changed = *held != boards;
        *held = boards;
        is_changed
    }

    /// Makes the tenant of a new claim. If that fails, nothing is left of it.
    ///
    /// # Errors
    /// Why there is no such tenant.
    pub fn make_new(&self, entry: &Entry) -> Result<(), String> {
        self.journal.put(entry).map_err(|error| format!("the journal: {error}"))?;
        self.make(entry).map_err(|reason| match self.end(entry) {
            Ok(()) => reason,
            Err(also) => format!("{reason}; and what was begun is not removed yet: {also}"),
        })
    }

    /// Makes the tenant of a claim, unless it is there, and writes its devices.
    ///
    /// # Errors
    /// Why there is no such tenant.
    pub fn make(&self, entry: &Entry) -> Result<(), String> {
        match entry.definition.is_mig {
            true => self.take_instances(&entry.definition)?,
            false => self.make_tenant(entry)?,
        }
        match &self.metadata {
            Some(files) => files.write(entry, &self.boards(), &self.cdi),
            None => Ok(()),
        }
    }

    /// Takes the instances of all claims, as another driver had them.
    pub fn take_all_instances(&self) {
        for uid in self.journal.uids().unwrap_or_default() {
            let Ok(Some(entry)) = self.journal.get(&uid) else { continue };
            if entry.definition.is_mig
                && let Err(reason) = self.take_instances(&entry.definition)
            {
                tracing::error!(claim.uid = uid, reason, "the MIG instances of a claim");
            }
        }
    }

    /// Takes the MIG instances of a claim, and writes their devices if they are simulated.
    fn take_instances(&self, definition: &Definition) -> Result<(), String> {
        let registry = Registry::open().map_err(|error| error.to_string())?;
        let mut held = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        let uuids: Vec<String> = definition.allocated.iter().map(|one| one.uuid.clone()).collect();
        for uuid in &uuids {
            match held.get(uuid) {
                Some((tenant, _)) if *tenant == definition.tenant => continue,
                // As after a pod that was deleted with a grace period of 0.
                Some((tenant, _)) => {
                    return Err(format!(
                        "{uuid} is still that of the claim {}; wait until the kubelet has ended it",
                        tenant.rsplit_once('-').map_or(tenant.as_str(), |(uid, _)| uid)
                    ));
                }
                None => {}
            }
            let taken = mig::take_instance(&registry, uuid).map_err(|error| error.to_string())?;
            let taken = taken.ok_or_else(|| {
                format!("{uuid} is taken by a `partita run --mig`, or its GPU's instances are being changed")
            })?;
            held.insert(uuid.clone(), (definition.tenant.clone(), taken));
        }
        reached("instances-taken");
        let selectors: Selectors =
            definition.selectors.join(",").parse().map_err(|error| format!("{error}"))?;
        let gpus = gpus::select(&self.install, Some(&selectors)).map_err(|error| error.to_string())?.gpus;
        let [gpu] = &gpus[..] else {
            return Err(format!("{} is not on this node any more", definition.selectors.join(",")));
        };
        cdi::write_instances(&self.install, gpu, &uuids, &definition.tenant, &self.cdi)
            .map(drop)
            .map_err(|error| error.to_string())
    }

    /// Gives the MIG instances of a claim back. Their processes are those of containers, which the
    /// kubelet has ended.
    fn give_instances(&self, definition: &Definition) -> Result<(), String> {
        cdi::remove_file(&definition.tenant, &self.cdi).map_err(|error| error.to_string())?;
        let mut held = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, (tenant, _)| *tenant != definition.tenant);
        Ok(())
    }

    fn make_tenant(&self, entry: &Entry) -> Result<(), String> {
        let definition = &entry.definition;
        let name = &definition.tenant;
        let present = match Registry::open().and_then(|registry| registry.lock()?.tenant(name)) {
            Ok(parts) => parts.len(),
            Err(partita::Error::NoSuchTenant { .. }) => 0,
            Err(error) => return Err(error.to_string()),
        };
        if present == definition.selectors.len() {
            // Its size may have changed since, so it is not compared.
            return cdi::generate(&self.install, name, &self.cdi)
                .map(drop)
                .map_err(|error| error.to_string());
        }
        if present > 0 {
            // On some of its GPUs alone.
            self.remove(name)?;
        }
        if entry.resized.is_some() {
            // As after a restart of the node. The new tenant has the claim's size at first.
            self.journal
                .put(&entry.clone().resized_by(None))
                .map_err(|error| format!("the journal: {error}"))?;
        }
        let request = request(definition)?;
        cdi::prepare(&self.install, name, &request, &self.cdi).map(drop).map_err(|error| error.to_string())
    }

    /// Ends the tenant of a claim with what runs in it, and forgets the claim.
    ///
    /// # Errors
    /// What could not be removed; the journal keeps it then.
    pub fn end(&self, entry: &Entry) -> Result<(), String> {
        match entry.definition.is_mig {
            true => self.give_instances(&entry.definition)?,
            false => self.remove(&entry.definition.tenant)?,
        }
        reached("tenant-ended");
        if let Some(files) = &self.metadata {
            files.remove(entry, &self.cdi)?;
            reached("metadata-removed");
        }
        self.journal.remove(&entry.uid).map_err(|error| format!("the journal: {error}"))
    }

    fn remove(&self, name: &str) -> Result<(), String> {
        cdi::remove(&self.install, name, &self.cdi, true).map(drop).map_err(|error| error.to_string())
    }

    /// The CDI devices of a claim.
    pub fn cdi_ids(&self, definition: &Definition, gpu_kind: &str) -> Vec<String> {
        let boards = self.boards();
        let is_real = |uuid: &str| !boards.iter().any(|board| board.uuid == uuid && board.is_simulated);
        let gpus = definition.allocated.iter().filter(|one| is_real(&one.uuid));
        let gpus = gpus.map(|one| format!("{gpu_kind}={}", one.uuid));
        // Instances of real GPUs are no tenant, and have devices of NVIDIA's toolkit alone.
        let has_own = !definition.is_mig || definition.allocated.iter().any(|one| !is_real(&one.uuid));
        let own = [has_own.then_some(cdi::KIND), self.metadata.as_ref().map(|_| metadata::KIND)];
        let own = own.into_iter().flatten().map(|kind| format!("{kind}={}", definition.tenant));
        gpus.chain(own).collect()
    }
}

/// The limits that make a size. Everything that the tenant holds counts against its memory, what
/// the driver takes for itself included, so that the sum that the scheduler made holds.
#[must_use]
pub fn limits_of(size: Size) -> LimitSet {
    LimitSet {
        share: Some(Share::Sms(size.sms)),
        memory: Some(ByteSize(size.memory_bytes).into()),
        driver_allowance: Some(ByteSize(0)),
        ..LimitSet::default()
    }
}

fn request(definition: &Definition) -> Result<RunRequest, String> {
    let mut limits = match definition.size {
        Some(size) => limits_of(size),
        None => LimitSet {
            share: Some(Share::Percent(100_000)),
            isolation: Some(Isolation::Own),
            ..LimitSet::default()
        },
    };
    for (name, text) in &definition.limits {
        let limit = LIMITS.iter().find(|limit| limit.name == name);
        let limit = limit.ok_or_else(|| format!("the limit {name} is not known"))?;
        limit.put(&mut limits, text).map_err(|error| format!("{name}: {error}"))?;
    }
    let gpus: Selectors = definition.selectors.join(",").parse().map_err(|error| format!("{error}"))?;
    Ok(RunRequest { gpus: Some(gpus), limits, ..RunRequest::default() })
}

/// The program `partita`: the one that is named, else the one beside this program, else the one
/// that packages install.
///
/// # Errors
/// If it is nowhere.
pub fn install(named: Option<&Path>) -> Result<Install, String> {
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name("partita"));
    let places = match named {
        Some(path) => vec![path.to_owned()],
        None => beside.into_iter().chain(["/usr/bin/partita".into()]).collect(),
    };
    let found = places.iter().find(|path| path.is_file());
    let listed = || places.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let found = found
        .ok_or_else(|| format!("the program partita is missing ({}); name it with --partita", listed()))?;
    Ok(Install::of(found.clone(), std::env::var_os("PARTITA_LIB_DIR")))
}
