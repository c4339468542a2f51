//! The MPS service of a GPU, in the registry's directory.
//!
//! A process is a client of one service, so programs on several GPUs share one
//! for just these GPUs. Two services of a GPU take turns on it: tenants that are
//! to run at the same time name the same GPUs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use partita_core::kept::fnv1a;
use partita_mps::{ControlBinary, Service, ServiceDirs, State};

use crate::error::Error;
use crate::gpu::{self, Gpu};
use crate::gpus;
use crate::install::Install;
use crate::registry::{Isolation, Registry, Tenant};
use crate::simenv::SimEnvironment;

/// The hidden subcommand of `partita` that gives a daemon its own session.
pub const DETACH_SUBCOMMAND: &str = "internal-detach";

/// The current user's service of these GPUs. Makes no directory.
///
/// # Errors
/// [`Error::Mps`] if there is no control program or the paths are too long.
pub fn service(install: &Install, registry: &Registry, gpus: &[Gpu]) -> Result<Service, Error> {
    let served = Served::of(gpus.iter().map(|gpu| (gpu.key(), gpu.facts.uuid.clone())));
    let root = served.dir(registry, rustix::process::geteuid().as_raw());
    build(install, &root, &served.uuids(), gpus.first().and_then(Gpu::sim))
}

/// The GPUs of a service: keys and UUIDs, in the order of the keys.
#[derive(PartialEq, Eq)]
struct Served(Vec<(String, String)>);

impl Served {
    fn of(gpus: impl Iterator<Item = (String, String)>) -> Self {
        let mut gpus: Vec<_> = gpus.collect();
        gpus.sort();
        Self(gpus)
    }

    /// What a tenant's owner wrote of its GPUs.
    fn of_tenant(tenant: &Tenant) -> Self {
        match &tenant.meta {
            Ok(meta) if !meta.gpus.is_empty() => {
                Self::of(meta.gpus.iter().map(|gpu| (gpu.key.clone(), gpu.uuid.clone())))
            }
            meta => {
                let uuid = meta.as_ref().map_or("", |meta| &meta.gpu.uuid);
                Self(vec![(tenant.gpu_key.clone(), uuid.to_owned())])
            }
        }
    }

    /// Where the service is: in the directory of its first GPU, where each of its tenants is too.
    fn dir(&self, registry: &Registry, user: u32) -> PathBuf {
        let first = self.0.first().map_or("", |(key, _)| key);
        let root = registry.mps_dir(first, user);
        if self.0.len() == 1 {
            return root;
        }
        let keys: Vec<&str> = self.0.iter().map(|(key, _)| key.as_str()).collect();
        let mut root = root.into_os_string();
        root.push(format!("-{:08x}", fnv1a(keys.join(",").as_bytes()) as u32));
        root.into()
    }

    fn uuids(&self) -> String {
        self.0.iter().map(|(_, uuid)| uuid.as_str()).collect::<Vec<_>>().join(",")
    }
}

/// Refuses GPUs of which one is served for a tenant with others: they could only take turns.
///
/// # Errors
/// [`Error::NotOffered`].
pub(crate) fn check_shared(gpus: &[Gpu], tenants: &[Tenant]) -> Result<(), Error> {
    let user = rustix::process::geteuid().as_raw();
    let served = Served::of(gpus.iter().map(|gpu| (gpu.key(), gpu.facts.uuid.clone())));
    for gpu in gpus {
        let is_shared = |tenant: &&Tenant| {
            let meta = tenant.meta.as_ref().ok();
            tenant.user == user && meta.is_some_and(|meta| meta.isolation == Isolation::Shared)
        };
        let here = tenants.iter().filter(|tenant| tenant.gpu_key == gpu.key()).filter(is_shared);
        if let Some(other) = here.into_iter().find(|tenant| Served::of_tenant(tenant) != served) {
            return Err(Error::NotOffered {
                option: format!("--isolation shared on {}", gpus::labels(gpus)),
                reason: format!(
                    "tenant {} shares {} and has other GPUs, and an MPS service is for tenants with the same ones; name \
                     its GPUs, or take turns with --isolation own",
                    other.name,
                    gpu.label()
                ),
            });
        }
    }
    Ok(())
}

/// The service whose clients a tenant's processes are, if they are. Where it
/// is follows from the tenant's owner and GPU, so that what the owner wrote
/// can be damaged.
///
/// # Errors
/// As [`service`].
pub fn service_of(install: &Install, registry: &Registry, tenant: &Tenant) -> Result<Option<Service>, Error> {
    let meta = tenant.meta.as_ref().ok();
    let served = Served::of_tenant(tenant);
    let root = served.dir(registry, tenant.user);
    if meta.is_some_and(|meta| meta.isolation == Isolation::Own) || !root.exists() {
        return Ok(None);
    }
    let sim = match meta.and_then(|meta| meta.gpu.sim.as_ref()) {
        Some(sim) => Some(SimEnvironment::create(install, &sim.device)?.with_boards_in(&sim.dir)),
        None => match gpu::simulated_device(&tenant.gpu_key) {
            Some(device) => Some(SimEnvironment::create(install, device)?),
            None => None,
        },
    };
    build(install, &root, &served.uuids(), sim.as_ref()).map(Some)
}

fn build(
    install: &Install,
    root: &Path,
    uuids: &str,
    sim: Option<&SimEnvironment>,
) -> Result<Service, Error> {
    let binary = match sim {
        Some(sim) => ControlBinary::at(&sim.mps_control())?,
        None => ControlBinary::find(std::env::var_os("PATH").as_deref())?,
    };
    let launcher: Vec<OsString> = vec![install.program().into(), DETACH_SUBCOMMAND.into(), "--".into()];
    let mut service = Service::new(binary, ServiceDirs::new(root)?, uuids).with_launcher(launcher);
    for (key, value) in sim.map(SimEnvironment::variables).unwrap_or_default() {
        service = service.with_env(key, value);
    }
    Ok(service)
}

/// Makes the directories of a service that is to run without a tenant, under
/// the lock, so that nobody takes the GPU's empty directory away before.
///
/// # Errors
/// [`Error::RunDirectory`]; [`Error::Mps`].
pub fn make_dirs(registry: &Registry, gpus: &[Gpu], service: &Service) -> Result<(), Error> {
    let _lock = registry.lock()?;
    gpus.iter().try_for_each(|gpu| registry.make_gpu_dir(&gpu.key()))?;
    Ok(service.dirs().create()?)
}

/// Removes a stopped service's directories, and the GPUs' that are empty then.
///
/// # Errors
/// [`Error::Io`]; [`Error::RunDirectory`].
pub fn remove(registry: &Registry, gpus: &[Gpu], service: &Service) -> Result<(), Error> {
    let _lock = registry.lock()?;
    let root = service.dirs().root();
    // Somebody may have started it again.
    if matches!(service.state(), Ok(State::Running { .. })) {
        return Ok(());
    }
    match std::fs::remove_dir_all(root) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::io(root.display().to_string())(error));
        }
        _ => {}
    }
    for gpu in gpus {
        let _ = std::fs::remove_dir(registry.gpu_dir(&gpu.key()));
    }
    Ok(())
}
