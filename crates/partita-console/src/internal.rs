//! The hidden commands with which a program runs itself.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, Subcommand};
use partita_mps::detach;

use crate::{Failure, pages, print};

/// The hidden commands.
#[derive(Debug, Subcommand)]
pub enum Internal {
    /// Run a risky job for another process of this program
    #[command(name = "internal-job", hide = true)]
    Job {
        /// The job
        name: String,
        /// Its parameters as JSON
        request: String,
    },
    /// Become a daemon in its own session
    #[command(name = "internal-detach", hide = true)]
    Detach {
        /// The processors on which it may run
        #[arg(long, value_name = "LIST")]
        cpus: Option<String>,
        /// The daemon and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Hold what the GPU needs of a tenant's dead processes
    #[command(name = partita::holder::SUBCOMMAND, hide = true)]
    Holder {
        /// The tenant
        #[arg(last = true)]
        name: String,
    },
    /// Do nothing until a signal ends it
    #[command(name = "internal-hold", hide = true)]
    Hold,
    /// Print a manual page, for `partita man`
    #[command(name = "internal-man", hide = true)]
    Man {
        /// The subcommand
        words: Vec<String>,
    },
    /// Write the manual pages, for `partita generate`
    #[command(name = "internal-generate", hide = true)]
    Generate {
        /// The prefix
        dir: PathBuf,
    },
}

impl Internal {
    /// Runs the command. `program` describes the program; `job` runs a job by its name and returns
    /// the line to print as its result.
    ///
    /// # Errors
    /// The command's failure.
    pub fn run(
        &self,
        program: Command,
        job: impl Fn(&str, &str) -> Result<String, String>,
    ) -> Result<ExitCode, Failure> {
        match self {
            Self::Job { name, request } => {
                let line = job(name, request).map_err(Failure::Told)?;
                print(&format!("{line}\n"))?;
                // Do not return through main: a driver that hangs in its destructors would keep
                // this process.
                std::process::exit(0)
            }
            Self::Detach { cpus, command } => Err(become_daemon(cpus.as_deref(), command)),
            Self::Holder { name } => {
                let install = partita::install::Install::of_this_program()?;
                partita::holder::run(&install, name)?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Hold => loop {
                std::thread::park();
            },
            Self::Man { words } => pages::print_man(program, words).map(|()| ExitCode::SUCCESS),
            Self::Generate { dir } => pages::write_man(program, &[], dir).map(|()| ExitCode::SUCCESS),
        }
    }
}

/// Becomes the daemon, or returns the reason for the failure.
fn become_daemon(cpus: Option<&str>, command: &[OsString]) -> Failure {
    // A lower limit suffices for few clients; `partita mps start` and `doctor` report it.
    let _ = detach::raise_open_files();
    if let Some(list) = cpus {
        let pinned = match detach::parse_cpus(list) {
            Ok(cpus) => detach::pin(&cpus).map_err(|error| format!("--cpus {list}: {error}")),
            Err(error) => Err(format!("--cpus: {error}")),
        };
        if let Err(reason) = pinned {
            return Failure::Told(reason);
        }
    }
    match detach::detach_and_exec(command) {
        Ok(never) => match never {},
        Err(error) => {
            let program = command.first().map(|program| program.to_string_lossy().into_owned());
            Failure::Told(format!("{}: {error}", program.unwrap_or_default()))
        }
    }
}
