//! Commands that are separate programs, as in git and cargo: `partita bench` runs `partita-bench`
//! of the same installation.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use partita::Error;
use partita::install::{self, Install};
use partita_console::complete::{self, Question};
use partita_console::{Failure, tell};

/// Such a command.
#[derive(Clone, Copy)]
pub struct Other {
    /// The name that users type.
    pub name: &'static str,
    program: &'static str,
}

/// `partita bench`.
pub const BENCH: Other = Other { name: "bench", program: "partita-bench" };
/// `partita chain`.
pub const CHAIN: Other = Other { name: "chain", program: "partita-chain" };
/// `partitad`, which is no command of `partita` and writes its manual pages as they do.
const DAEMON: Other = Other { name: install::DAEMON, program: install::DAEMON };
/// All of them.
pub const ALL: [Other; 2] = [BENCH, CHAIN];

/// Lets the other programs of this installation write their manual pages below the directory.
pub fn generate(dir: &Path) -> Result<(), Failure> {
    ALL.into_iter().chain([DAEMON]).try_for_each(|other| other.generate(dir))
}

/// The command of this name, if it is one of them.
pub fn find(name: &str) -> Option<Other> {
    ALL.into_iter().find(|other| other.name == name)
}

impl Other {
    fn command(self) -> Result<Command, Error> {
        Ok(Command::new(Install::of_this_program()?.part(self.program)?))
    }

    /// Becomes the program if the shell asks for completions of its words.
    pub fn complete(self) {
        if let Some(Question { words, index }) = complete::question(self.name)
            && let Ok(mut command) = self.command()
        {
            // Without an answer there are no completions.
            let _ = command.args(words).envs(index).exec();
        }
    }

    /// Becomes the program. Returns only if that fails.
    pub fn exec(self, words: impl IntoIterator<Item = OsString>) -> Result<ExitCode, Failure> {
        let error = self.command()?.args(words).exec();
        Err(Failure::Told(format!("{}: {error}", self.program)))
    }

    fn generate(self, dir: &Path) -> Result<(), Failure> {
        let mut command = match self.command() {
            Ok(command) => command,
            Err(error @ Error::PartMissing { .. }) => {
                tell(&format!("no manual pages of {}: {error}", self.program));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        match command.arg("internal-generate").arg(dir).status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure::Told(format!("{} internal-generate: {status}", self.program))),
            Err(error) => Err(Failure::Told(format!("{}: {error}", self.program))),
        }
    }
}
