//! `partita cdi`.

use std::path::Path;
use std::process::ExitCode;

use partita::install::Install;
use partita::run::RunRequest;
use partita::{cdi as containers, gpus::Selectors};
use partita_console::{Failure, print};

use crate::args::{Cdi, CdiPrepare};

/// Makes, writes or removes tenants for containers.
pub fn cdi(verb: &Cdi) -> Result<ExitCode, Failure> {
    let install = Install::of_this_program()?;
    let dir = |output: &Option<std::path::PathBuf>| {
        std::path::absolute(output.as_deref().unwrap_or(Path::new(containers::DIR_DEFAULT)))
            .map_err(|error| Failure::Told(format!("--output: {error}")))
    };
    match verb {
        Cdi::Prepare(arguments) => {
            let path = containers::prepare(
                &install,
                &arguments.name,
                &request(arguments)?,
                &dir(&arguments.output.output)?,
            )?;
            print(&written(&arguments.name, &path))?;
        }
        Cdi::Generate(arguments) => {
            let names = match arguments.names.is_empty() {
                true => containers::names()?,
                false => arguments.names.clone(),
            };
            for name in &names {
                let path = containers::generate(&install, name, &dir(&arguments.output.output)?)?;
                print(&written(name, &path))?;
            }
        }
        Cdi::Remove(arguments) => {
            for name in &arguments.names {
                let was_there =
                    containers::remove(&install, name, &dir(&arguments.output.output)?, arguments.force)?;
                let what = if was_there { "removed" } else { "there was nothing to remove" };
                print(&format!("{name}: {what}\n"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn written(name: &str, path: &Path) -> String {
    format!("{name}: {}; use it with --device {}={name}\n", path.display(), containers::KIND)
}

fn request(arguments: &CdiPrepare) -> Result<RunRequest, Failure> {
    let gpus = arguments.gpu.gpu.as_deref().map(str::parse::<Selectors>).transpose()?;
    Ok(RunRequest { gpus, limits: arguments.limits.read()?, ..RunRequest::default() })
}
