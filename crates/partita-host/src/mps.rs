//! The MPS service of a GPU, in the registry's directory.
//!
//! A process is a client of one service, so programs on several GPUs share one
//! for just these GPUs. Two services of a GPU take turns on it: tenants that are
//! to run at the same time name the same GPUs.

pub mod canary;
pub mod end_work;
pub mod evidence;
pub mod exclusive;
pub mod incident;
pub mod machine;
pub mod metrics;
pub mod partitions;
pub mod provisioned;
pub mod ready;
pub mod recover;
pub mod status;
pub mod vacancy;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use partita_core::kept::fnv1a;
use partita_mps::{ControlBinary, Ensured, Service, ServiceDirs, State};

use crate::error::Error;
use crate::gpu::{self, Gpu};
use crate::gpus;
use crate::install::Install;
use crate::registry::{self, Isolation, Registry, Tenant};
use crate::simenv::SimEnvironment;

/// The hidden subcommand of `partita` that gives a daemon its own session.
pub const DETACH_SUBCOMMAND: &str = "internal-detach";

/// The current user's service of these GPUs. Makes no directory.
///
/// # Errors
/// [`Error::Mps`] if there is no control program or the paths are too long.
pub fn service(install: &Install, registry: &Registry, gpus: &[Gpu]) -> Result<Service, Error> {
    let served = Served::of(gpus.iter().map(|gpu| (gpu.key(), gpu.facts.uuid.clone())));
    let sim = gpus.first().and_then(Gpu::sim);
    served.build(install, registry, sim)
}

/// The options of `partita mps start`.
#[derive(Debug, Clone, Default)]
pub struct StartOptions {
    /// One server of root's for every user's programs.
    pub all_users: bool,
    /// The processors of daemon and servers; `None` for all.
    pub cpus: Option<Vec<usize>>,
    /// Sets EXCLUSIVE_PROCESS, which is never done unasked.
    pub exclusive: bool,
    /// Static SM partitions ([`partitions`]), of which each client needs one.
    pub static_partitions: bool,
}

/// Refuses to change services for a user in system mode, where they are root's.
///
/// # Errors
/// [`Error::RunDirectory`].
pub fn check_may_change(registry: &Registry) -> Result<(), Error> {
    if !registry.is_client() {
        return Ok(());
    }
    Err(Error::RunDirectory {
        path: registry.root().to_owned(),
        reason: "it is in system mode, where the MPS services belong to root: the first shared tenant of a \
                 GPU starts its service; to change one, ask root, or set PARTITA_RUN_DIR to a directory of \
                 your own"
            .to_owned(),
    })
}

/// Starts the service of these GPUs without a tenant, if it does not run.
///
/// # Errors
/// [`Error::Mps`]; [`Error::RunDirectory`] for a user in system mode; [`Error::NotOffered`] for
/// options that the running service does not have.
pub fn start(
    install: &Install,
    registry: &Registry,
    gpus: &[Gpu],
    options: &StartOptions,
) -> Result<(Service, Ensured), Error> {
    check_may_change(registry)?;
    let mut service = service(install, registry, gpus)?;
    let running = matches!(service.state()?, State::Running { .. });
    if options.all_users && !service.is_for_all_users() {
        if running {
            return Err(Error::NotOffered {
                option: "--multi-user".to_owned(),
                reason: "the service runs for its own user alone; stop it first with `partita mps stop`"
                    .to_owned(),
            });
        }
        if !rustix::process::geteuid().is_root() {
            return Err(partita_mps::MpsError::NeedsRoot.into());
        }
        service = service.for_all_users();
    }
    if let Some(cpus) = &options.cpus {
        if running {
            return Err(Error::NotOffered {
                option: "--cpus".to_owned(),
                reason: "the service runs already, on the processors that it was started on; stop it first with `partita mps stop`"
                    .to_owned(),
            });
        }
        let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
        service = service.with_launcher(launcher(install, Some(&list.join(","))));
    }
    if options.static_partitions {
        service = partitions::wanted(service, running)?;
    }
    if !service.is_for_all_users() || rustix::process::geteuid().is_root() {
        make_dirs(registry, gpus, &service)?;
    }
    let ensured = service.ensure().map_err(|error| match options.static_partitions {
        true => partitions::unknown(&service, error),
        false => error.into(),
    })?;
    if options.exclusive {
        exclusive::set(&service, gpus).inspect_err(|_| {
            if ensured.started {
                let _ = service.stop_if_unused();
            }
        })?;
    }
    Ok((service, ensured))
}

/// Starts root's service of these GPUs for all users, if it does not run: as root, in system mode.
///
/// # Errors
/// As [`start`].
pub fn start_for_all(
    install: &Install,
    registry: &Registry,
    gpus: &[Gpu],
) -> Result<(Service, Ensured), Error> {
    gpu::start_boards(gpus)?;
    start(install, &registry.of_root(), gpus, &StartOptions::default())
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

    /// The owner's record of the tenant's GPUs.
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

    fn first(&self) -> &str {
        self.0.first().map_or("", |(key, _)| key)
    }

    /// The name of its directory, in its user's directory of its first GPU, where each of its
    /// tenants is too.
    fn name(&self, user: u32) -> String {
        if self.0.len() == 1 {
            return format!(".mps-{user}");
        }
        let keys: Vec<&str> = self.0.iter().map(|(key, _)| key.as_str()).collect();
        format!(".mps-{user}-{:08x}", fnv1a(keys.join(",").as_bytes()) as u32)
    }

    /// Where root's service for all users is, if there is one. Others could have put anything under
    /// its path: it counts only in directories of root's.
    fn of_root(&self, registry: &Registry) -> Result<Option<PathBuf>, Error> {
        let dir = registry.gpu_dir_of(self.first(), 0)?.map(|gpu| gpu.join(self.name(0)));
        Ok(dir.filter(|dir| ServiceDirs::are_open_to_all(dir)))
    }

    /// Where the current user's own service is, or would be.
    fn own(&self, registry: &Registry) -> PathBuf {
        registry.gpu_dir(self.first()).join(self.name(rustix::process::geteuid().as_raw()))
    }

    /// The current user's service, or root's for all users if there is one. In system mode there is
    /// no other.
    fn build(
        &self,
        install: &Install,
        registry: &Registry,
        sim: Option<&SimEnvironment>,
    ) -> Result<Service, Error> {
        let of_system = || registry.root().join(self.first()).join(self.name(0));
        let for_all = match registry.is_system() {
            true => Some(of_system()),
            false => self.of_root(registry)?,
        };
        match for_all {
            Some(dir) => build(install, &dir, &self.uuids(), sim).map(Service::for_all_users),
            None => build(install, &self.own(registry), &self.uuids(), sim),
        }
    }

    fn uuids(&self) -> String {
        self.0.iter().map(|(_, uuid)| uuid.as_str()).collect::<Vec<_>>().join(",")
    }
}

/// Refuses GPUs of which one is served for a tenant with others: they could only take turns.
///
/// # Errors
/// [`Error::Plan`].
pub(crate) fn check_shared(registry: &Registry, gpus: &[Gpu], tenants: &[Tenant]) -> Result<(), Error> {
    let served = Served::of(gpus.iter().map(|gpu| (gpu.key(), gpu.facts.uuid.clone())));
    for gpu in gpus {
        let is_shared = |tenant: &&Tenant| {
            let meta = tenant.meta.as_ref().ok();
            is_served_alike(registry, tenant) && meta.is_some_and(|meta| meta.isolation == Isolation::Shared)
        };
        let here = tenants.iter().filter(|tenant| tenant.gpu_key == gpu.key()).filter(is_shared);
        if let Some(other) = here.into_iter().find(|tenant| Served::of_tenant(tenant) != served) {
            // `partita run` tries this again while the tenant's `partita run` has ended.
            return Err(Error::Plan {
                reason: format!(
                    "--isolation shared on {} is refused: tenant {} shares {} and has other GPUs, and an MPS \
                     service is for tenants with the same ones; name its GPUs, or take turns with \
                     --isolation own",
                    gpus::labels(gpus),
                    other.name,
                    gpu.label()
                ),
            });
        }
    }
    Ok(())
}

/// Whether a tenant's service is that of the acting user's tenants, on the same GPUs: in system
/// mode all users have one.
fn is_served_alike(registry: &Registry, tenant: &Tenant) -> bool {
    registry.is_system() || tenant.is_own()
}

/// How many tenants share the service of these GPUs with this user's, those included that have yet
/// to become clients.
///
/// # Errors
/// As [`Registry::lock`].
pub(crate) fn tenants_of(registry: &Registry, gpus: &[Gpu]) -> Result<usize, Error> {
    let tenants = sharing(registry, gpus)?;
    let names: std::collections::BTreeSet<&str> = tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    Ok(names.len())
}

/// Refuses to test and restart a stuck service for a user who has no tenant there.
///
/// # Errors
/// [`Error::Served`]; as [`Registry::lock`].
pub fn check_may_recover(registry: &Registry, gpus: &[Gpu]) -> Result<(), Error> {
    let user = registry::acting_user();
    if !registry::acts_for_user() || sharing(registry, gpus)?.iter().any(|tenant| tenant.user == user) {
        return Ok(());
    }
    Err(Error::Served {
        reason: format!(
            "MPS of {}: you have no tenant there, so root or a user who has one restarts a stuck server",
            gpus::labels(gpus)
        ),
    })
}

/// The tenants that share the service of these GPUs with this user's.
fn sharing(registry: &Registry, gpus: &[Gpu]) -> Result<Vec<Tenant>, Error> {
    let served = Served::of(gpus.iter().map(|gpu| (gpu.key(), gpu.facts.uuid.clone())));
    let shares = |tenant: &Tenant| {
        let isolation = tenant.meta.as_ref().ok().map(|meta| meta.isolation);
        isolation == Some(Isolation::Shared)
            && is_served_alike(registry, tenant)
            && Served::of_tenant(tenant) == served
    };
    Ok(registry.lock()?.tenants()?.into_iter().filter(shares).collect())
}

/// The service of a tenant's processes, if they are clients and it belongs to the current user, or
/// is root's service for all. Its place follows from the tenant's GPU, so the owner's record may be
/// damaged. Another user's own service is never queried: that user controls its directory and the
/// process that listens there.
///
/// # Errors
/// As [`service`].
pub fn service_of(install: &Install, registry: &Registry, tenant: &Tenant) -> Result<Option<Service>, Error> {
    let meta = tenant.meta.as_ref().ok();
    let served = Served::of_tenant(tenant);
    let is_there = served.of_root(registry)?.is_some() || (tenant.is_own() && served.own(registry).exists());
    if meta.is_some_and(|meta| meta.isolation == Isolation::Own) || !is_there {
        return Ok(None);
    }
    let sim = match meta
        .filter(|_| tenant.is_own() || tenant.is_of_own_user())
        .and_then(|meta| meta.gpu.sim.as_ref())
    {
        Some(sim) => Some(SimEnvironment::create(install, &sim.device)?.with_boards_in(&sim.dir)),
        None => match gpu::simulated_device(&tenant.gpu_key) {
            Some(device) => Some(SimEnvironment::create(install, device)?),
            None => None,
        },
    };
    served.build(install, registry, sim.as_ref()).map(Some)
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
    let launcher = launcher(install, None);
    let mut service = Service::new(binary, ServiceDirs::new(root)?, uuids).with_launcher(launcher);
    for (key, value) in sim.map(SimEnvironment::variables).unwrap_or_default() {
        service = service.with_env(key, value);
    }
    Ok(service)
}

/// The command prefix that gives a daemon its own session, and its processors.
fn launcher(install: &Install, cpus: Option<&str>) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![install.program().into(), DETACH_SUBCOMMAND.into()];
    if let Some(cpus) = cpus {
        words.extend(["--cpus".into(), cpus.into()]);
    }
    words.push("--".into());
    words
}

/// Makes the directories of a service that runs without a tenant, under the lock, so that no other
/// command removes the GPU's empty directory before.
///
/// # Errors
/// [`Error::RunDirectory`]; [`Error::Mps`].
pub fn make_dirs(registry: &Registry, gpus: &[Gpu], service: &Service) -> Result<(), Error> {
    let lock = registry.lock_to_make()?;
    gpus.iter().try_for_each(|gpu| lock.make_gpu_dir(&gpu.key()))?;
    Ok(service.dirs().create()?)
}

/// Removes a stopped service's directories, and the GPUs' that are empty then.
///
/// # Errors
/// [`Error::Io`]; [`Error::RunDirectory`].
pub fn remove(registry: &Registry, gpus: &[Gpu], service: &Service) -> Result<(), Error> {
    let lock = registry.lock()?;
    let root = service.dirs().root();
    // Another process may have restarted it.
    if matches!(service.state(), Ok(State::Running { .. })) {
        return Ok(());
    }
    // It is in the directory of one of these GPUs, and the others' may be empty by now.
    let name = root.file_name().unwrap_or_default();
    gpus.iter().try_for_each(|gpu| lock.remove_from_gpu(&gpu.key(), name))
}
