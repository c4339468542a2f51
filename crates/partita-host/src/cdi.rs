//! Tenants for containers: made before their programs, and given to containers as CDI devices.
//!
//! [`prepare`] makes a tenant that lives without a process and writes its device,
//! `partita.dev/tenant=NAME`; [`remove`] undoes both. Both can be repeated, and killed at any step:
//! the next call finishes the work. [`spec`] is pure: from a tenant to the content of its file.
//!
//! The device adds mounts alone, no hooks: the library with `/etc/ld.so.preload`, the tenant's
//! limits read-only, its use writable, the gate of the GPU if it has a priority or takes turns, and
//! the pipe of the MPS service. GPUs come from another device, such as `nvidia.com/gpu=0`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use partita_core::time::Priority;
use partita_ledger::{FLAG_TIMED, GATE_FILE_NAME, Limits, NO_QUOTA, TIME_FILE_NAME};
use serde::Serialize;

use crate::calibration::without_mps;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpus;
use crate::holder;
use crate::install::{self, Install};
use crate::kill;
use crate::mps;
use crate::points;
use crate::process::ProcessId;
pub use crate::registry::CDI_KIND as KIND;
use crate::registry::{CONTAINER_DIR, Isolation, Meta, Registry, Tenant, check_name, container_dir, memory};
use crate::request::RunRequest;
use crate::run;

/// The directory of device files that changes while the machine runs.
pub const DIR_DEFAULT: &str = "/var/run/cdi";
/// The oldest version with all that the files need; podman 4.3 reads no later one.
const VERSION: &str = "0.5.0";

/// The directory of the simulated driver in a container.
const SIMULATED_DIR: &str = "/usr/local/partita/sim";

/// A file of CDI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    cdi_version: String,
    kind: String,
    devices: Vec<Device>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    container_edits: Edits,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Edits {
    env: Vec<String>,
    mounts: Vec<Mount>,
}

/// A bind mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    host_path: PathBuf,
    container_path: PathBuf,
    options: Vec<String>,
}

impl Mount {
    fn new(host: impl Into<PathBuf>, container: impl Into<PathBuf>, access: &str) -> Self {
        let options = ["bind", access, "nosuid", "nodev"].map(str::to_owned).to_vec();
        Self { host_path: host.into(), container_path: container.into(), options }
    }
}

/// What a device is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The tenant's name.
    pub name: String,
    /// The tenant's directory on each GPU, in the order in which programs see them.
    pub dirs: Vec<PathBuf>,
    /// Whether it has a share of time.
    pub is_timed: bool,
    /// Whether it waits for others on its GPUs, or they for it.
    pub has_gate: bool,
    /// `libpartita.so` on the host.
    pub library: PathBuf,
    /// A file that names the library's place in the container, for `/etc/ld.so.preload`.
    pub preload: PathBuf,
    /// The pipe directory of the MPS service, if the tenant runs at the same time as others.
    pub pipe: Option<PathBuf>,
    /// Whether it has a holder.
    pub has_holder: bool,
    /// Whether the host's `/dev/shm` is needed, through which NVIDIA's MPS works.
    pub shared_memory: bool,
    /// Variables of the GPUs, such as `CUDA_VISIBLE_DEVICES`.
    pub variables: Variables,
    /// The driver and the board of a simulated GPU.
    pub simulated: Vec<Mount>,
}

/// The library's place in a container.
fn library_in_container() -> PathBuf {
    Path::new(CONTAINER_DIR).join(install::HOOK)
}

/// The device of a tenant. Pure.
pub fn spec(prepared: &Prepared) -> Spec {
    let mut mounts = vec![
        Mount::new(&prepared.library, library_in_container(), "ro"),
        Mount::new(&prepared.preload, "/etc/ld.so.preload", "ro"),
    ];
    for (dir, gpu) in prepared.dirs.iter().zip(0..) {
        mounts.push(Mount::new(dir.join("limits"), container_dir(gpu).join("limits"), "ro"));
        mounts.push(Mount::new(dir.join("usage"), container_dir(gpu).join("usage"), "rw"));
        if prepared.is_timed {
            let name = name_of(TIME_FILE_NAME);
            mounts.push(Mount::new(dir.join(name), container_dir(gpu).join(name), "rw"));
        }
        if prepared.has_gate {
            let gate = |tenant: &Path| tenant.with_file_name("").join(name_of(GATE_FILE_NAME));
            mounts.push(Mount::new(gate(dir), gate(&container_dir(gpu)), "rw"));
        }
    }
    if let Some(first) = prepared.dirs.first().filter(|_| prepared.has_holder) {
        // Programs connect to the socket in it, and change nothing.
        mounts.push(Mount::new(first.join(holder::DIR), container_dir(0).join(holder::DIR), "ro"));
    }
    let mut env: Vec<String> =
        prepared.variables.iter().map(|(key, value)| format!("{key}={value}")).collect();
    // Of the caller's: a limit of MPS beside the tenant's would change what libraries see.
    match &prepared.pipe {
        Some(host) => {
            let pipe = Path::new(CONTAINER_DIR).join("mps");
            env.push(format!("CUDA_MPS_PIPE_DIRECTORY={}", pipe.display()));
            mounts.push(Mount::new(host, &pipe, "rw"));
        }
        None => env.extend(without_mps().map(|(key, value)| format!("{key}={value}"))),
    }
    if prepared.shared_memory {
        mounts.push(Mount::new("/dev/shm", "/dev/shm", "rw"));
    }
    mounts.extend(prepared.simulated.iter().cloned());
    let device = Device { name: prepared.name.clone(), container_edits: Edits { env, mounts } };
    Spec { cdi_version: VERSION.to_owned(), kind: KIND.to_owned(), devices: vec![device] }
}

/// The name of a file of the ledger.
fn name_of(file: &'static std::ffi::CStr) -> &'static Path {
    Path::new(file.to_str().unwrap_or_default())
}

/// The name of a tenant's file.
fn file_name(name: &str) -> String {
    format!("partita.dev-tenant-{name}.json")
}

/// Makes the tenant of this name for containers, unless it is there with these limits, and writes
/// its device to `dir`. Returns the file.
///
/// # Errors
/// As [`run::run`]; [`Error::NotOffered`] for limits that do not hold in containers;
/// [`Error::NameInUse`] if a tenant of that name runs on the host or has other limits.
pub fn prepare(install: &Install, name: &str, request: &RunRequest, dir: &Path) -> Result<PathBuf, Error> {
    check_name(name)?;
    let registry = Registry::open()?;
    check_offered(&registry, request)?;
    let request = RunRequest {
        name: Some(name.to_owned()),
        prepared: Some(request.limits),
        description: None,
        command: vec!["containers".into()],
        ..request.clone()
    };
    request.gpus.as_ref().map_or(Ok(()), gpus::check_no_choice)?;
    let gpus =
        gpus::select_to_start(install, request.gpus.as_ref(), |gpu| run::check_usable(gpu).is_ok())?.gpus;
    gpus.iter().try_for_each(run::check_usable)?;
    let present = match registry.lock()?.tenant(name) {
        Ok(parts) => Some(parts),
        Err(Error::NoSuchTenant { .. }) => None,
        Err(error) => return Err(error),
    };
    match &present {
        Some(parts) if parts[0].is_prepared() && !is_same(parts, &request, &gpus) => {
            return Err(Error::Refused {
                what: format!("preparing tenant {name}"),
                reason: format!(
                    "it is prepared with other limits; give the same ones, change it with `partita set \
                     {name}`, or remove it first with `partita cdi remove {name}`"
                ),
            });
        }
        Some(parts) if !is_same(parts, &request, &gpus) => return Err(parts[0].name_in_use()),
        Some(_) => {}
        None => {
            let request = request.settled(&registry, &gpus)?;
            let run = ProcessId::own().map_err(Error::io("/proc/self"))?;
            drop(run::make(install, &request, &registry, &gpus, name, run)?);
            points::reached("cdi-tenant-made");
        }
    }
    // The lock is not held: the service's commands take it.
    let parts = registry.lock().and_then(|lock| lock.tenant(name));
    let written = parts.and_then(|parts| {
        serve(install, &registry, &gpus, &parts)?;
        points::reached("cdi-service-ready");
        write(install, &registry, &gpus, &parts, dir)
    });
    if written.is_err() && present.is_none() {
        // As before the call. What cannot be removed, `remove` removes.
        let _ = remove(install, name, dir, false);
    }
    written
}

/// Refuses what does not hold in containers.
fn check_offered(registry: &Registry, request: &RunRequest) -> Result<(), Error> {
    let refuse = |option: &str, reason: &str| {
        Err(Error::NotOffered { option: option.to_owned(), reason: reason.to_owned() })
    };
    if registry.is_client() {
        return refuse(
            "`cdi` in system mode",
            "partitad makes tenants for programs on the host; call it as root",
        );
    }
    if request.limits.up_to.is_some() {
        return refuse(
            "--sm with a ceiling for containers",
            "they do not see which TPCs their neighbours leave idle; give --sm one figure",
        );
    }
    let root = fs::metadata(registry.root()).map_err(Error::io(registry.root().display().to_string()))?;
    if !registry.is_system() && std::os::unix::fs::MetadataExt::mode(&root) & 0o022 != 0 {
        return refuse(
            "a tenant for containers in a run directory that users share",
            "its use must be hidden from users of the host; start `partitad --system`, or set \
             PARTITA_RUN_DIR to a directory of your own",
        );
    }
    Ok(())
}

/// Whether a tenant is what a request would make: one that was made by the same words, which the
/// site's policy or its neighbours may have completed, or one that has these limits.
fn is_same(parts: &[Tenant], request: &RunRequest, gpus: &[Gpu]) -> bool {
    let asked = request.limits.to_string();
    let share = request.limits.share.map(|share| share.to_string());
    let is_asked = |meta: &Meta| meta.prepared_limits.as_deref() == Some(&*asked);
    let is_made = |meta: &Meta| {
        meta.isolation == request.limits.isolation() && (share.is_none() || meta.share == share)
    };
    // What it asks for changes nothing, and nothing is left out.
    let are_same = |limits: &Limits| {
        let mut asked = limits.clone();
        request.limits.put(&mut asked);
        let has_quota = limits.memory_quota_bytes != NO_QUOTA && memory::rest(limits).is_none();
        let is_timed = limits.flags & FLAG_TIMED != 0;
        asked == *limits
            && (request.limits.memory.is_some() || !has_quota)
            && (request.limits.time.is_some() || !is_timed)
    };
    let is_it = |(part, gpu): (&Tenant, &Gpu)| {
        let is_same = |meta: &Meta| is_asked(meta) || is_made(meta) && part.limits().is_ok_and(are_same);
        part.gpu_key == gpu.key() && part.is_prepared() && part.meta().is_ok_and(is_same)
    };
    parts.len() == gpus.len() && parts.iter().zip(gpus).all(is_it)
}

/// Starts the service of the tenant's GPUs and its holder, if it needs them, and checks that there
/// is room.
fn serve(install: &Install, registry: &Registry, gpus: &[Gpu], parts: &[Tenant]) -> Result<(), Error> {
    if !is_shared(parts) {
        return Ok(());
    }
    let (service, _) = mps::start(install, &registry.of_root(), gpus, &mps::StartOptions::default())?;
    mps::ready::admit(&service, gpus, mps::tenants_of(registry, gpus)?)?;
    parts.first().map_or(Ok(()), |first| holder::keep(install, registry, first))
}

fn is_shared(parts: &[Tenant]) -> bool {
    parts.iter().any(|part| part.meta().is_ok_and(|meta| meta.isolation == Isolation::Shared))
}

/// Writes the device of a tenant.
fn write(
    install: &Install,
    registry: &Registry,
    gpus: &[Gpu],
    parts: &[Tenant],
    dir: &Path,
) -> Result<PathBuf, Error> {
    let first = parts.first().ok_or_else(|| Error::io("the tenant")(io::ErrorKind::NotFound.into()))?;
    let is_simulated = gpus.iter().any(|gpu| gpu.sim().is_some());
    let pipe = match is_shared(parts) {
        true => Some(mps::service(install, registry, gpus)?.dirs().pipe()),
        false => None,
    };
    let shared_memory = pipe.is_some() && !is_simulated;
    if shared_memory && first.dir.starts_with("/dev/shm") {
        return Err(Error::NotOffered {
            option: "--isolation shared for containers".to_owned(),
            reason: "MPS needs the host's /dev/shm in the container, and this run directory is in it, where \
                     the container could change limits; start `partitad --system`, or give --isolation own"
                .to_owned(),
        });
    }
    let preload = first.dir.join("ld.so.preload");
    let line = format!("{}\n", library_in_container().display());
    replace(&preload, line.as_bytes(), "cdi-preload-half-written")?;
    points::reached("cdi-preload-written");
    let (simulated, mut variables) = of_gpus(install, gpus)?;
    let limits = first.limits()?;
    let below = run::below_others(Priority::from_number(limits.priority), pipe.is_some());
    variables.extend(below.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let prepared = Prepared {
        name: first.name.clone(),
        dirs: parts.iter().map(|part| part.dir.clone()).collect(),
        is_timed: limits.flags & FLAG_TIMED != 0,
        has_gate: limits.has_gate(),
        library: run::hook(install)?,
        preload,
        has_holder: holder::is_in(&first.dir),
        pipe,
        shared_memory,
        variables,
        simulated,
    };
    put(&spec(&prepared), dir)
}

/// Writes a device's file.
fn put(spec: &Spec, dir: &Path) -> Result<PathBuf, Error> {
    let json = serde_json::to_vec_pretty(spec)
        .map_err(|error| Error::io("the CDI device")(io::Error::other(error)))?;
    fs::create_dir_all(dir).map_err(|error| Error::Refused {
        what: format!("--output {}", dir.display()),
        reason: match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                "it is not a directory; name a directory for CDI files".to_owned()
            }
            _ => format!("cannot make this directory: {error}; name one that you can write"),
        },
    })?;
    let path = dir.join(file_name(&spec.devices[0].name));
    replace(&path, &json, "cdi-device-half-written")?;
    points::reached("cdi-written");
    Ok(path)
}

/// Names and values.
type Variables = Vec<(String, String)>;

/// The mounts of simulated GPUs, and the variables with which containers see GPUs.
fn of_gpus(install: &Install, gpus: &[Gpu]) -> Result<(Vec<Mount>, Variables), Error> {
    let mut simulated = Vec::new();
    if let Some(sim) = gpus.first().and_then(Gpu::sim) {
        gpus.iter().try_for_each(|gpu| sim.start_board(gpu.facts.index))?;
        // A board leaves its directory if there is something in it.
        let keep = sim.dir().join(".containers");
        File::create(&keep).map_err(Error::io(keep.display().to_string()))?;
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(sim.dir(), open).map_err(Error::io(sim.dir().display().to_string()))?;
        let (library, board) = (install.part(install::SIMCUDA)?, install.part(install::SIMGPU)?);
        simulated.push(Mount::new(sim.dir(), sim.dir(), "rw"));
        simulated.push(Mount::new(&board, &board, "ro"));
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            simulated.push(Mount::new(&library, Path::new(SIMULATED_DIR).join(name), "ro"));
        }
    }
    let variables = gpus::variables(gpus)
        .into_iter()
        .filter(|(key, _)| *key != "PATH")
        .map(|(key, value)| match key {
            "LD_LIBRARY_PATH" => (key.to_owned(), SIMULATED_DIR.to_owned()),
            _ => (key.to_owned(), value.to_string_lossy().into_owned()),
        })
        .collect();
    Ok((simulated, variables))
}

/// Writes a device named `name` with MIG instances of a simulated GPU, and returns its file. It is
/// no tenant: the containers have the whole instances. Those of a real GPU have devices of NVIDIA's
/// toolkit, so `None`.
///
/// # Errors
/// Those of the file system; [`Error::Name`].
pub fn write_instances(
    install: &Install,
    gpu: &Gpu,
    uuids: &[String],
    name: &str,
    dir: &Path,
) -> Result<Option<PathBuf>, Error> {
    check_name(name)?;
    if gpu.sim().is_none() {
        return Ok(None);
    }
    let (mounts, mut variables) = of_gpus(install, std::slice::from_ref(gpu))?;
    variables.retain(|(key, _)| key != "CUDA_VISIBLE_DEVICES");
    variables.push(("CUDA_VISIBLE_DEVICES".to_owned(), uuids.join(",")));
    let env = variables.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    let device = Device { name: name.to_owned(), container_edits: Edits { env, mounts } };
    put(&Spec { cdi_version: VERSION.to_owned(), kind: KIND.to_owned(), devices: vec![device] }, dir)
        .map(Some)
}

/// Removes the file of a device, and what a killed call left beside it.
///
/// # Errors
/// Those of the file system.
pub fn remove_file(name: &str, dir: &Path) -> Result<(), Error> {
    let path = dir.join(file_name(name));
    for path in [path.clone()].into_iter().chain(half_written(&path)) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io(path.display().to_string())(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// What a killed [`replace`] left beside this file.
fn half_written(path: &Path) -> Vec<PathBuf> {
    let is_left = |file: &PathBuf| {
        let extension = file.extension().and_then(|extension| extension.to_str());
        file.file_stem() == path.file_stem()
            && extension.is_some_and(|extension| extension.starts_with("new-"))
    };
    let files = path.parent().map(fs::read_dir).and_then(Result::ok).into_iter().flatten().flatten();
    files.map(|file| file.path()).filter(is_left).collect()
}

/// Writes a file by one rename: readers see the old content or the new. `step` is the one before
/// the rename.
fn replace(path: &Path, bytes: &[u8], step: &str) -> Result<(), Error> {
    let fresh = path.with_extension(format!("new-{}", std::process::id()));
    let write = || {
        let mut file = File::create(&fresh)?;
        file.write_all(bytes)?;
        points::reached(step);
        fs::set_permissions(&fresh, std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
        fs::rename(&fresh, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&fresh);
        Error::io(path.display().to_string())(error)
    })
}

/// Writes the device of a tenant that is prepared already, and starts its service again if that has
/// ended. Returns the file.
///
/// # Errors
/// [`Error::NoSuchTenant`]; [`Error::NotOffered`] for a tenant of a program on the host.
pub fn generate(install: &Install, name: &str, dir: &Path) -> Result<PathBuf, Error> {
    let registry = Registry::open()?;
    let parts = registry.lock()?.tenant(name)?;
    check_prepared(name, &parts)?;
    let meta = parts[0].meta()?;
    let gpus = run::gpus_of(install, name, meta)?;
    serve(install, &registry, &gpus, &parts)?;
    write(install, &registry, &gpus, &parts, dir)
}

/// The names of the tenants for containers.
///
/// # Errors
/// Those of reading the registry.
pub fn names() -> Result<Vec<String>, Error> {
    let registry = Registry::open()?;
    let tenants = registry.lock()?.tenants()?;
    let mut names: Vec<String> =
        tenants.iter().filter(|tenant| tenant.is_prepared()).map(|tenant| tenant.name.clone()).collect();
    names.dedup();
    Ok(names)
}

fn check_prepared(name: &str, parts: &[Tenant]) -> Result<(), Error> {
    if parts.iter().all(|part| part.meta().is_ok_and(Meta::is_prepared)) {
        return Ok(());
    }
    Err(Error::NotOffered {
        option: format!("`cdi` for tenant {name}"),
        reason:
            "its program runs on the host; `partita kill` ends it, and `partita cdi prepare` makes a tenant \
                 for containers"
                .to_owned(),
    })
}

/// Removes a tenant for containers and its device, and returns whether there was something of it: a
/// second call finds nothing.
///
/// # Errors
/// [`Error::Refused`] while a container uses it, unless its processes are to be ended;
/// [`Error::Child`] if a process stays in it that is not in a container.
pub fn remove(install: &Install, name: &str, dir: &Path, is_ending: bool) -> Result<bool, Error> {
    check_name(name)?;
    let registry = Registry::open()?;
    let parts = match registry.lock()?.tenant(name) {
        Ok(parts) => parts,
        Err(Error::NoSuchTenant { .. }) => Vec::new(),
        Err(error) => return Err(error),
    };
    let path = dir.join(file_name(name));
    let is_there = !parts.is_empty() || path.exists() || !half_written(&path).is_empty();
    check_prepared(name, &parts)?;
    parts.iter().try_for_each(Tenant::check_yours)?;
    if is_ending && !parts.is_empty() {
        kill::end_processes(install, &registry, name, &parts, kill::GRACE_DEFAULT)?;
    }
    if let Some(process) = kill::processes(&parts).first() {
        return Err(Error::Refused {
            what: format!("removing tenant {name}"),
            reason: format!(
                "process {} is in a container of it; end its containers first, or add --force to end them",
                process.pid
            ),
        });
    }
    points::reached("cdi-processes-ended");
    // The device first: no new container starts with it then.
    remove_file(name, dir)?;
    points::reached("cdi-device-removed");
    let lock = kill::remove_parts(&registry, &parts)?;
    points::reached("cdi-tenant-removed");
    crate::partition::divide_after_end(&lock)?;
    Ok(is_there)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared() -> Prepared {
        Prepared {
            name: "serve".to_owned(),
            dirs: vec!["/run/partita/GPU-a/serve".into(), "/run/partita/GPU-b/serve".into()],
            is_timed: false,
            has_gate: false,
            library: "/usr/lib/partita/libpartita.so".into(),
            preload: "/run/partita/GPU-a/serve/ld.so.preload".into(),
            pipe: Some("/run/partita/GPU-a/.mps-0/pipe".into()),
            has_holder: true,
            shared_memory: true,
            variables: vec![("CUDA_VISIBLE_DEVICES".to_owned(), "GPU-a,GPU-b".to_owned())],
            simulated: Vec::new(),
        }
    }

    /// The host's path, the container's, and whether programs can write there.
    fn mounts(prepared: &Prepared) -> Vec<(String, String, bool)> {
        let json = serde_json::to_value(spec(prepared)).unwrap();
        let edits = &json["devices"][0]["containerEdits"];
        let mounts = edits["mounts"].as_array().unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let mount = |mount: &serde_json::Value| {
            let options: Vec<String> = mount["options"].as_array().unwrap().iter().map(text).collect();
            let is_writable = options.contains(&"rw".to_owned());
            assert_ne!(is_writable, options.contains(&"ro".to_owned()));
            (text(&mount["hostPath"]), text(&mount["containerPath"]), is_writable)
        };
        mounts.iter().map(mount).collect()
    }

    #[test]
    fn only_use_pipe_and_shared_memory_are_writable() {
        let writable: Vec<String> =
            mounts(&prepared()).into_iter().filter(|mount| mount.2).map(|mount| mount.1).collect();
        let expected = [
            "/usr/local/partita/gpu/0/tenant/usage",
            "/usr/local/partita/gpu/1/tenant/usage",
            "/usr/local/partita/mps",
            "/dev/shm",
        ];
        assert_eq!(writable, expected);
        let alone = Prepared { pipe: None, shared_memory: false, ..prepared() };
        assert!(mounts(&alone).iter().all(|(_, to, is_writable)| !is_writable || to.ends_with("/usage")));
    }

    #[test]
    fn who_takes_turns_has_the_account_of_time_and_the_gate_and_nothing_else_of_others() {
        let without = mounts(&prepared());
        for (is_timed, has_gate) in [(true, false), (false, true), (true, true)] {
            let with = mounts(&Prepared { is_timed, has_gate, ..prepared() });
            let more: Vec<_> = with.into_iter().filter(|mount| !without.contains(mount)).collect();
            let mount = |of_host: &'static str, of_container: &'static str| {
                ["a", "b"].into_iter().zip(0..).map(move |(gpu, number)| {
                    let host = format!("/run/partita/GPU-{gpu}/{of_host}");
                    (host, format!("/usr/local/partita/gpu/{number}/{of_container}"), true)
                })
            };
            let time = mount("serve/time", "tenant/time").filter(|_| is_timed);
            let gate = mount(".turns/gate", ".turns/gate").filter(|_| has_gate);
            let expected = time.chain(gate).collect();
            let ordered = |mut mounts: Vec<(String, String, bool)>| {
                mounts.sort();
                mounts
            };
            assert_eq!(ordered(more), ordered(expected));
        }
    }

    #[test]
    fn podman_4_3_reads_the_fields() {
        let json = serde_json::to_value(spec(&prepared())).unwrap();
        assert_eq!((&json["cdiVersion"], &json["kind"]), (&"0.5.0".into(), &KIND.into()));
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&json), ["cdiVersion", "devices", "kind"]);
        assert_eq!(keys(&json["devices"][0]), ["containerEdits", "name"]);
        assert_eq!(keys(&json["devices"][0]["containerEdits"]), ["env", "mounts"]);
    }
}
