//! A tenant's program: its environment, and its start.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use partita_core::time::Priority;
use partita_mps::Service;
use rustix::io::FdFlags;

use crate::calibration::without_mps;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpus;
use crate::install::{self, Install};
use crate::registry::{LEDGER_VARIABLE, OwnedTenant};

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
pub(super) fn below_others(
    priority: Priority,
    service: Option<&Service>,
) -> Option<(&'static str, &'static str)> {
    (priority == Priority::Low && service.is_some()).then_some(("CUDA_MPS_CLIENT_PRIORITY", "1"))
}

/// Limits of MPS's own would come on top of ours; a percentage even changes the
/// SM count that libraries see, and with it their results.
pub(super) fn scrub(command: &mut Command) {
    for (key, _) in std::env::vars_os() {
        if key.as_encoded_bytes().starts_with(b"CUDA_MPS_") {
            command.env_remove(key);
        }
    }
    command.env_remove("PARTITA_GPU");
}

pub(super) fn spawn(command: &mut Command, tenant: &OwnedTenant, program: &Path) -> Result<Child, Error> {
    // The program inherits the tenant's locks: the tenant lives as long as any
    // of its processes, also when this one is killed.
    let inherit =
        |flags| tenant.owner_files().try_for_each(|owner| rustix::io::fcntl_setfd(owner.as_fd(), flags));
    inherit(FdFlags::empty()).map_err(|error| Error::io("the tenant's lock")(error.into()))?;
    let spawned = command.spawn();
    let _ = inherit(FdFlags::CLOEXEC);
    spawned.map_err(|error| Error::Program {
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
