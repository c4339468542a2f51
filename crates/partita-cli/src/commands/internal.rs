//! The hidden subcommands: what `partita` starts of itself.

use std::process::ExitCode;

use partita::jobs;
use partita_experiments::gpu;

use crate::args::{InternalDetach, InternalJob};
use crate::fail::Failure;
use crate::output::print;

/// Runs one job. It prints its result itself.
pub fn job(arguments: &InternalJob) -> Result<ExitCode, Failure> {
    let InternalJob { name, request } = arguments;
    let line = match name.as_str() {
        gpu::JOB => gpu::work(request),
        name => jobs::run(name, request),
    };
    let line = line.map_err(Failure::Told)?;
    print(&format!("{line}\n"))?;
    // Not back through main: a driver that hangs in its destructors would keep us.
    std::process::exit(0)
}

/// Becomes the daemon.
pub fn detach(arguments: &InternalDetach) -> Result<ExitCode, Failure> {
    // With fewer it works until many clients have come; `partita mps start` and `doctor` say so.
    let _ = partita_mps::detach::raise_open_files();
    if let Some(list) = &arguments.cpus {
        let cpus = partita_mps::detach::parse_cpus(list)
            .map_err(|error| Failure::Told(format!("--cpus: {error}")))?;
        partita_mps::detach::pin(&cpus).map_err(|error| Failure::Told(format!("--cpus {list}: {error}")))?;
    }
    match partita_mps::detach::detach_and_exec(&arguments.command) {
        Ok(never) => match never {},
        Err(error) => {
            let program = arguments.command.first().map(|program| program.to_string_lossy().into_owned());
            Err(Failure::Told(format!("{}: {error}", program.unwrap_or_default())))
        }
    }
}

/// Waits for the signal that ends it.
pub fn hold() -> ! {
    loop {
        std::thread::park();
    }
}
