//! `partita preload`.

use std::path::PathBuf;
use std::process::ExitCode;

use partita::install::Install;
use partita::preload::{self, Status};
use partita_console::{Failure, print, print_json, tell};

use crate::args::{PreloadFile, PreloadVerb};

/// Makes programs load the library, or says whether they do.
pub fn preload(verb: &PreloadVerb) -> Result<ExitCode, Failure> {
    let install = Install::of_this_program()?;
    match verb {
        PreloadVerb::Enable(arguments) => {
            let file = file(arguments);
            let changed = preload::enable(&install, &file)?;
            say(&preload::status(&install, &file)?, if changed { "from now on" } else { "already" })?;
        }
        PreloadVerb::Disable(arguments) => {
            let file = file(arguments);
            let changed = preload::disable(&install, &file)?;
            print(&match changed {
                true => {
                    format!("{}: programs that start from now on do not load the library\n", file.display())
                }
                false => format!("{}: it does not name the library\n", file.display()),
            })?;
        }
        PreloadVerb::Status(arguments) => {
            let status = preload::status(&install, &file(&arguments.file))?;
            match arguments.json {
                true => print_json(&status)?,
                false => say(&status, "now")?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn file(arguments: &PreloadFile) -> PathBuf {
    arguments.file.clone().unwrap_or_else(|| preload::PATH.into())
}

fn say(status: &Status, since: &str) -> Result<(), Failure> {
    let Status { file, library, enabled, .. } = status;
    let (file, library) = (file.display(), library.display());
    print(&match enabled {
        true => format!("{file}: every program that starts loads {library} ({since})\n"),
        false => format!("{file}: programs do not load {library}\n"),
    })?;
    preload::notices(status).iter().for_each(|notice| tell(notice));
    Ok(())
}
