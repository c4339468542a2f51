//! The MPS service of a GPU, in the registry's directory.

use std::ffi::OsString;

use partita_mps::{ControlBinary, Service, ServiceDirs};

use crate::error::Error;
use crate::gpu::Gpu;
use crate::install::Install;
use crate::registry::Registry;

/// The hidden subcommand of `partita` that gives a daemon its own session.
pub const DETACH_SUBCOMMAND: &str = "internal-detach";

/// The current user's service of this GPU. Touches nothing but the GPU's directory.
///
/// # Errors
/// [`Error::Mps`] if there is no control program or the paths are too long.
pub fn service(install: &Install, registry: &Registry, gpu: &Gpu) -> Result<Service, Error> {
    let binary = match gpu.sim() {
        Some(sim) => ControlBinary::at(&sim.mps_control())?,
        None => ControlBinary::find(std::env::var_os("PATH").as_deref())?,
    };
    let dirs = ServiceDirs::new(&registry.mps_dir(&gpu.key())?)?;
    let launcher: Vec<OsString> = vec![install.program().into(), DETACH_SUBCOMMAND.into(), "--".into()];
    let mut service = Service::new(binary, dirs, &gpu.facts.uuid).with_launcher(launcher);
    for (key, value) in gpu.sim().map(|sim| sim.variables()).unwrap_or_default() {
        service = service.with_env(key, value);
    }
    Ok(service)
}
