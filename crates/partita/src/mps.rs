//! The MPS service of a GPU, in the registry's directory.

use std::ffi::OsString;
use std::path::Path;

use partita_mps::{ControlBinary, Service, ServiceDirs, State};

use crate::error::Error;
use crate::gpu::{self, Gpu};
use crate::install::Install;
use crate::registry::{Isolation, Registry, Tenant};
use crate::simenv::SimEnvironment;

/// The hidden subcommand of `partita` that gives a daemon its own session.
pub const DETACH_SUBCOMMAND: &str = "internal-detach";

/// The current user's service of this GPU. Makes no directory.
///
/// # Errors
/// [`Error::Mps`] if there is no control program or the paths are too long.
pub fn service(install: &Install, registry: &Registry, gpu: &Gpu) -> Result<Service, Error> {
    let root = registry.mps_dir(&gpu.key(), rustix::process::geteuid().as_raw());
    build(install, &root, &gpu.facts.uuid, gpu.sim())
}

/// The service whose clients a tenant's processes are, if they are. Where it
/// is follows from the tenant's owner and GPU, so that what the owner wrote
/// can be damaged.
///
/// # Errors
/// As [`service`].
pub fn service_of(install: &Install, registry: &Registry, tenant: &Tenant) -> Result<Option<Service>, Error> {
    let meta = tenant.meta.as_ref().ok();
    let root = registry.mps_dir(&tenant.gpu_key, tenant.user);
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
    let uuid = meta.map_or("", |meta| &meta.gpu.uuid);
    build(install, &root, uuid, sim.as_ref()).map(Some)
}

fn build(install: &Install, root: &Path, uuid: &str, sim: Option<&SimEnvironment>) -> Result<Service, Error> {
    let binary = match sim {
        Some(sim) => ControlBinary::at(&sim.mps_control())?,
        None => ControlBinary::find(std::env::var_os("PATH").as_deref())?,
    };
    let launcher: Vec<OsString> = vec![install.program().into(), DETACH_SUBCOMMAND.into(), "--".into()];
    let mut service = Service::new(binary, ServiceDirs::new(root)?, uuid).with_launcher(launcher);
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
pub fn make_dirs(registry: &Registry, gpu: &Gpu, service: &Service) -> Result<(), Error> {
    let _lock = registry.lock()?;
    registry.make_gpu_dir(&gpu.key())?;
    Ok(service.dirs().create()?)
}

/// Removes a stopped service's directories, and the GPU's if it is empty then.
///
/// # Errors
/// [`Error::Io`]; [`Error::RunDirectory`].
pub fn remove(registry: &Registry, gpu: &Gpu, service: &Service) -> Result<(), Error> {
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
    let _ = std::fs::remove_dir(registry.gpu_dir(&gpu.key()));
    Ok(())
}
