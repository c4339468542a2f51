//! The hidden commands by which a program runs itself.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, Subcommand};
use partita_mps::detach;

use crate::{Failure, pages, print};

/// The hidden commands.
#[derive(Debug, Subcommand)]
pub enum Internal {
    /// Runs a risky job for another process of this program
    #[command(name = "internal-job", hide = true)]
    Job {
        /// The job
        name: String,
        /// Its parameters as JSON
        request: String,
    },
    /// Becomes a daemon in a session of its own
    #[command(name = "internal-detach", hide = true)]
    Detach {
        /// The processors that it is kept to
        #[arg(long, value_name = "LIST")]
        cpus: Option<String>,
        /// The daemon and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Does nothing until it is ended
    #[command(name = "internal-hold", hide = true)]
    Hold,
    /// Prints a manual page, for `partita man`
    #[command(name = "internal-man", hide = true)]
    Man {
        /// The command below this program's own
        words: Vec<String>,
    },
    /// Writes the manual pages, for `partita generate`
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
    /// What the command could not do.
    pub fn run(
        &self,
        program: Command,
        job: impl Fn(&str, &str) -> Result<String, String>,
    ) -> Result<ExitCode, Failure> {
        match self {
            Self::Job { name, request } => {
                let line = job(name, request).map_err(Failure::Told)?;
                print(&format!("{line}\n"))?;
                // Not back through main: a driver that hangs in its destructors would keep us.
                std::process::exit(0)
            }
            Self::Detach { cpus, command } => Err(become_daemon(cpus.as_deref(), command)),
            Self::Hold => loop {
                std::thread::park();
            },
            Self::Man { words } => pages::print_man(program, words).map(|()| ExitCode::SUCCESS),
            Self::Generate { dir } => pages::write_man(program, &[], dir).map(|()| ExitCode::SUCCESS),
        }
    }
}

/// Becomes the daemon, or says why not.
fn become_daemon(cpus: Option<&str>, command: &[OsString]) -> Failure {
    // With fewer it works until many clients have come; `partita mps start` and `doctor` say so.
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
