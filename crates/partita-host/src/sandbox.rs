//! Tenants of `doctor` and `demo`: made as real ones are, in a registry of
//! their own, with a service of their own, and gone afterwards.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use partita_core::{ByteSize, Share, Topology, TpcSet};
use partita_ledger::{Limits, LimitsFile};
use partita_mps::Service;
use serde::Serialize;

use crate::calibration::Measured;
use crate::child::Job;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::install::Install;
use crate::limits::{self, SmCount};
use crate::mps;
use crate::process::ProcessId;
use crate::registry::{
    GpuMeta, Isolation, META_VERSION, Meta, NewPart, Origin, OwnedTenant, Registry, c_path,
};
use crate::run;

/// A separate registry on one GPU.
#[derive(Debug)]
pub struct Sandbox<'a> {
    install: &'a Install,
    gpu: &'a Gpu,
    measured: Measured,
    topology: Topology,
    root: PathBuf,
    registry: Registry,
    hook: PathBuf,
    service: Option<Service>,
}

impl<'a> Sandbox<'a> {
    /// Makes one in the temporary directory.
    ///
    /// # Errors
    /// [`Error::PartMissing`], [`Error::Unproved`], [`Error::Io`].
    pub fn new(install: &'a Install, gpu: &'a Gpu, measured: &Measured) -> Result<Self, Error> {
        let hook = run::hook(install)?;
        let topology = measured.topology().map_err(|reason| Error::Unproved {
            driver: gpu.driver_version.clone(),
            gpu: gpu.label(),
            reason,
        })?;
        // A short name: socket paths have 107 bytes.
        let root = std::env::temp_dir().join(format!("partita-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&root).map_err(Error::io(root.display().to_string()))?;
        let registry = match Registry::at(&root.join("r")) {
            Ok(registry) => registry,
            Err(error) => {
                let _ = std::fs::remove_dir_all(&root);
                return Err(error);
            }
        };
        Ok(Self { install, gpu, measured: measured.clone(), topology, root, registry, hook, service: None })
    }

    /// The device's topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Starts the sandbox's MPS service, if it does not run. Tenants made
    /// clients of it run at the same time.
    ///
    /// # Errors
    /// [`Error::Mps`].
    pub fn service(&mut self) -> Result<&Service, Error> {
        if self.service.is_none() {
            let service = mps::service(self.install, &self.registry, std::slice::from_ref(self.gpu))?;
            mps::make_dirs(&self.registry, std::slice::from_ref(self.gpu), &service)?;
            service.ensure()?;
            self.service = Some(service);
        }
        // Set just above if it was not.
        self.service
            .as_ref()
            .ok_or_else(|| Error::Child { job: "MPS".to_owned(), reason: "no service".to_owned() })
    }

    /// Makes a tenant.
    ///
    /// # Errors
    /// As for `partita run`.
    pub fn tenant(&self, name: &str, set: &TpcSet, quota: Option<ByteSize>) -> Result<SandboxTenant, Error> {
        let limits =
            limits::new_limits(name, &self.gpu.facts.uuid, &self.measured, &self.topology, set, quota)
                .map_err(|error| Error::Child { job: name.to_owned(), reason: error.to_string() })?;
        let meta = Meta {
            version: META_VERSION,
            name: name.to_owned(),
            gpu: GpuMeta::of(self.gpu),
            gpus: Vec::new(),
            run: ProcessId::own().map_err(Error::io("/proc/self"))?,
            child: None,
            command: vec!["partita".to_owned()],
            started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            share: Some(Share::Exact(*set).to_string()),
            place: Default::default(),
            isolation: Isolation::Own,
            task_slots: self.measured.task_slots,
            mps_partition: None,
            slo: None,
            goal: Default::default(),
            placed: None,
            is_put_in_turns: false,
            has_ceiling: false,
            prepared_boot: None,
            prepared_limits: None,
            origin: Origin::Request,
        };
        let part = NewPart { gpu_key: self.gpu.key(), meta, limits };
        let owned = self.registry.lock_to_make()?.create(vec![part])?;
        Ok(SandboxTenant { owned })
    }

    /// Gives a tenant another partition, as `partita set` does.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn set_partition(&self, tenant: &SandboxTenant, set: &TpcSet) -> Result<(), Error> {
        update(tenant, |limits| limits.set_partition(&self.topology, set))
    }

    /// Makes a tenant's programs see another number of SMs, as `--sm-count` does.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn set_sm_count(&self, tenant: &SandboxTenant, sm_count: SmCount) -> Result<(), Error> {
        update(tenant, |limits| sm_count.put(limits))
    }

    /// A job that runs as a process of the tenant; with `shared` as a client of the sandbox's
    /// service.
    ///
    /// # Errors
    /// As [`Job::new`]; [`Error::Mps`].
    pub fn job(
        &mut self,
        tenant: &SandboxTenant,
        name: &'static str,
        request: &impl Serialize,
        shared: bool,
    ) -> Result<Job, Error> {
        let service = if shared { Some(self.service()?.clone()) } else { None };
        let variables =
            run::variables(std::slice::from_ref(self.gpu), &self.hook, tenant.dir(), service.as_ref());
        Ok(Job::new(self.install, name, request)?.envs(variables))
    }

    /// A job on the bare device, as a client of the sandbox's service.
    ///
    /// # Errors
    /// As [`Job::new`]; [`Error::Mps`].
    pub fn client_job(&mut self, name: &'static str, request: &impl Serialize) -> Result<Job, Error> {
        let client = self.service()?.client_env();
        Ok(Job::new(self.install, name, request)?.envs(self.gpu.variables()).envs(client))
    }
}

/// Changes a tenant's limits, as `partita set` does.
fn update(tenant: &SandboxTenant, change: impl FnOnce(&mut Limits)) -> Result<(), Error> {
    let failed = |error: partita_ledger::LedgerError| Error::Io {
        what: "the ledger".to_owned(),
        source: std::io::Error::other(error.to_string()),
    };
    let path = c_path(&tenant.dir().join("limits"))?;
    LimitsFile::open_rw(&path).map_err(failed)?.update(change).map_err(failed).map(drop)
}

impl Drop for Sandbox<'_> {
    fn drop(&mut self) {
        if let Some(service) = &self.service {
            let _ = service.stop(true);
        }
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// A tenant of a sandbox.
#[derive(Debug)]
pub struct SandboxTenant {
    owned: OwnedTenant,
}

impl SandboxTenant {
    fn dir(&self) -> &Path {
        self.owned.dir()
    }
}
