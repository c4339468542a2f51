//! Checks that this Partita knows everything that the driver library exports.

use std::time::Duration;

use object::{Object, ObjectSymbol};
use partita_driver::Cuda;
use partita_host::child::Job;
use partita_host::error::Error;
use partita_host::gpu::Gpu;
use partita_host::install::Install;
use serde::{Deserialize, Serialize};

use super::check::Check;

/// The job's name.
pub const JOB: &str = "exports";
const LIMIT: Duration = Duration::from_secs(60);
/// The largest number of unknown names that the check prints.
const SHOWN_MAX: usize = 12;

/// The exports of the driver library.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExportsResult {
    /// The number of names of the driver interface.
    pub count: usize,
    /// Those that this Partita does not know, and that the hook therefore passes through.
    pub unknown: Vec<String>,
}

/// Compares the exports of the driver library with the known names.
pub fn exports() -> Result<ExportsResult, String> {
    // The library is only loaded; no function of it is called.
    let _loaded = Cuda::load(None).map_err(|error| format!("libcuda.so.1: {error}"))?;
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|error| error.to_string())?;
    let is_driver = |path: &&str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.starts_with("libcuda.so") || name == "libpartita_simcuda.so"
    };
    let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(is_driver);
    let path = path.ok_or("the driver library is not among the files of this process")?;
    let bytes = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let file = object::File::parse(&*bytes).map_err(|error| format!("{path}: {error}"))?;
    let mut names: Vec<&str> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| name.starts_with("cu"))
        .collect();
    names.sort_unstable();
    names.dedup();
    let unknown = names.iter().filter(|name| partita_abi::exports::policy_of(name).is_none());
    Ok(ExportsResult { count: names.len(), unknown: unknown.map(|&name| name.to_owned()).collect() })
}

/// Reports exports of the driver that the hook passes through because it does not know them: one of
/// them could be a new way to allocate or to launch.
pub fn check(install: &Install, gpu: &Gpu) -> Result<Check, Error> {
    const NAME: &str = "driver exports";
    let found: ExportsResult = match Job::new(install, JOB, &())?.envs(gpu.variables()).limit(LIMIT).run()? {
        Ok(found) => found,
        Err(error) => return Ok(Check::not_checked(NAME, error.to_string(), "")),
    };
    if found.unknown.is_empty() {
        return Ok(Check::ok(NAME, format!("{}, all known", found.count)));
    }
    let shown = found.unknown.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
    let more = if found.unknown.len() > SHOWN_MAX { ", …" } else { "" };
    Ok(Check::not_checked(
        NAME,
        format!("{} of {} are unknown and pass through: {shown}{more}", found.unknown.len(), found.count),
        "this driver is newer than this Partita: check whether any of them allocates or launches, and \
         update",
    ))
}
