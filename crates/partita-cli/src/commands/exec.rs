//! `partita exec`.

use std::process::ExitCode;

use partita::install::Install;
use partita::run;
use partita_console::{Failure, tell};

use crate::args::Exec;

/// Runs the program in the tenant and ends with its exit code.
pub fn exec(arguments: &Exec) -> Result<ExitCode, Failure> {
    let install = Install::of_this_program()?;
    Ok(ExitCode::from(run::exec(&install, &arguments.name, &arguments.command, tell)?))
}
