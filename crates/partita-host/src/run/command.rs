//! A tenant's program: its environment, and its start.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use partita_core::time::Priority;
use partita_mps::Service;
use partita_mps::partition::{PARTITION_VARIABLE, PartitionName};
use rustix::io::FdFlags;

use crate::calibration::without_mps;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpus;
use crate::install::{self, Install};
use crate::registry::{LEDGER_VARIABLE, OwnedTenant};

/// The tenant that a program is for.
pub(super) struct Place<'a> {
    pub gpus: &'a [Gpu],
    pub hook: &'a Path,
    /// The tenant's directory on the first GPU.
    pub ledger: &'a Path,
    /// The service whose client it is.
    pub service: Option<&'a Service>,
    pub priority: Priority,
    pub mps_partition: Option<&'a PartitionName>,
}

/// The command that runs a program, found as `program` and typed as the first of `words`, in a
/// tenant.
pub(super) fn command_in(place: &Place<'_>, program: &Path, words: &[OsString]) -> Command {
    let mut command = Command::new(program);
    if let Some((typed, arguments)) = words.split_first() {
        command.arg0(typed).args(arguments);
    }
    scrub(&mut command);
    command.envs(variables(place.gpus, place.hook, place.ledger, place.service));
    command.envs(below_others(place.priority, place.service.is_some()));
    command.envs(place.mps_partition.map(|name| (PARTITION_VARIABLE, name.to_string())));
    command
}

/// The variables that hold a process to the limits of the tenant in `ledger`.
pub fn variables(
    gpus: &[Gpu],
    hook: &Path,
    ledger: &Path,
    service: Option<&Service>,
) -> Vec<(&'static str, OsString)> {
    let mut variables = gpus::variables(gpus);
    match service {
        Some(service) => variables.extend(service.client_env()),
        None => variables.extend(without_mps().map(|(key, value)| (key, value.into()))),
    }
    let mut preload = hook.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    variables.push(("LD_PRELOAD", preload));
    variables.push((SANITIZER_VARIABLE, behind_another_library(std::env::var_os(SANITIZER_VARIABLE))));
    variables.push((LEDGER_VARIABLE, ledger.into()));
    variables
}

/// The variables that lead a program that runs to GPUs of its tenant, their service, and a static
/// partition of that.
pub(crate) fn places(
    gpus: &[Gpu],
    service: Option<&Service>,
    mps_partition: Option<&str>,
) -> Vec<(String, OsString)> {
    let uuids: Vec<&str> = gpus.iter().map(|gpu| gpu.facts.uuid.as_str()).collect();
    let mut variables = vec![("CUDA_VISIBLE_DEVICES", uuids.join(",").into())];
    match service {
        Some(service) => variables.extend(service.client_env()),
        None => variables.extend(without_mps().map(|(key, value)| (key, value.into()))),
    }
    variables.extend(mps_partition.map(|name| (PARTITION_VARIABLE, name.into())));
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The options of programs that are built with AddressSanitizer.
const SANITIZER_VARIABLE: &str = "ASAN_OPTIONS";

/// The sanitizer refuses to start unless its runtime is the first library, which a preloaded one
/// is. It works behind the hook as well, and has an option for that. Whatever else the user has set
/// stays.
fn behind_another_library(set: Option<OsString>) -> OsString {
    const OPTION: &str = "verify_asan_link_order";
    let mut options = set.unwrap_or_default();
    if !options.to_string_lossy().contains(OPTION) {
        if !options.is_empty() {
            options.push(":");
        }
        options.push(OPTION);
        options.push("=0");
    }
    options
}

/// The gate stops no kernel that runs. As a client below normal, its blocks that still wait give
/// way to those of others.
pub(crate) fn below_others(priority: Priority, is_client: bool) -> Option<(&'static str, &'static str)> {
    (priority == Priority::Low && is_client).then_some(("CUDA_MPS_CLIENT_PRIORITY", "1"))
}

/// Limits of MPS's own would come on top of ours; a percentage even changes the
/// SM count that libraries see, and with it their results.
fn scrub(command: &mut Command) {
    for (key, _) in std::env::vars_os() {
        if key.as_encoded_bytes().starts_with(b"CUDA_MPS_") {
            command.env_remove(key);
        }
    }
    command.env_remove("PARTITA_GPU");
}

/// Starts a tenant's first program, which inherits the tenant's locks: the tenant lives as long as
/// any of its processes, also when this one is killed.
pub(super) fn spawn_owner(
    command: &mut Command,
    tenant: &OwnedTenant,
    program: &Path,
) -> Result<Child, Error> {
    let inherit =
        |flags| tenant.owner_files().try_for_each(|owner| rustix::io::fcntl_setfd(owner.as_fd(), flags));
    inherit(FdFlags::empty()).map_err(|error| Error::io("the tenant's lock")(error.into()))?;
    let spawned = spawn(command, program);
    let _ = inherit(FdFlags::CLOEXEC);
    spawned
}

/// Starts a program.
pub(super) fn spawn(command: &mut Command, program: &Path) -> Result<Child, Error> {
    command.spawn().map_err(|error| Error::Program {
        program: program.display().to_string(),
        reason: format!("it cannot be started: {error}; check it with `{} --help`", program.display()),
    })
}

/// The library to preload.
pub fn hook(install: &Install) -> Result<PathBuf, Error> {
    let hook = install.part(install::HOOK)?;
    let text = hook.as_os_str().as_encoded_bytes();
    if text.iter().any(|byte| matches!(byte, b':' | b' ' | b'\t' | b'\n')) {
        return Err(Error::NotOffered {
            option: format!("preloading {}", hook.display()),
            reason: "the loader splits LD_PRELOAD at spaces and colons; move Partita to a path without them"
                .to_owned(),
        });
    }
    Ok(hook)
}
