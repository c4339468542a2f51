//! `partita mps`.

use std::process::ExitCode;

use partita::gpus;
use partita::install::Install;
use partita::mps;
use partita::registry::Registry;
use partita_mps::{MpsError, State};

use crate::args::Mps;
use crate::commands::select_several;
use crate::fail::Failure;
use crate::output::print;

/// Starts, stops, or describes a GPU's service.
pub fn mps(arguments: &Mps) -> Result<ExitCode, Failure> {
    let install = Install::of_this_program()?;
    let registry = Registry::open()?;
    let option = match arguments {
        Mps::Start(arguments) | Mps::Status(arguments) => &arguments.gpu,
        Mps::Stop(arguments) => &arguments.gpu,
    };
    let gpus = select_several(&install, option)?;
    let service = mps::service(&install, &registry, &gpus)?;
    let label = gpus::labels(&gpus);
    let text = match arguments {
        Mps::Start(_) => {
            mps::make_dirs(&registry, &gpus, &service)?;
            let ensured = service.ensure()?;
            let verb = if ensured.started { "started" } else { "runs already" };
            format!("MPS of {label}: {verb} (daemon {})\n", ensured.pid)
        }
        Mps::Stop(arguments) => {
            if !arguments.force {
                refuse_if_used(&service, &label)?;
            }
            let stopped = service.stop(arguments.force)?;
            mps::remove(&registry, &gpus, &service)?;
            format!("MPS of {label}: {}\n", if stopped { "stopped" } else { "did not run" })
        }
        Mps::Status(_) => status(&service, &label)?,
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn refuse_if_used(service: &partita_mps::Service, label: &str) -> Result<(), Failure> {
    if !matches!(service.state()?, State::Running { .. }) {
        return Ok(());
    }
    let clients = match service.clients() {
        Err(MpsError::NotRunning { .. }) => return Ok(()),
        clients => clients?,
    };
    if clients.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = clients.iter().map(|(_, client)| client.to_string()).collect();
    Err(Failure::Told(format!(
        "MPS of {label} has clients (processes {}): end them with `partita kill`, or stop it with --force",
        list.join(", ")
    )))
}

fn status(service: &partita_mps::Service, label: &str) -> Result<String, Failure> {
    let directory = service.dirs().root().display();
    Ok(match service.state()? {
        State::Stopped | State::Stale { .. } => format!("MPS of {label}: does not run\n"),
        State::Running { pid } => {
            let clients = service.clients()?;
            let mut text = format!("MPS of {label}: runs (daemon {pid}, in {directory})\n");
            for (server, client) in clients {
                text.push_str(&format!("  client {client} of server {server}\n"));
            }
            text
        }
    })
}
