//! `partitad`: parses arguments and runs the command.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Error, anyhow};
use clap::{CommandFactory, Parser};
use partita::install::{Install, OWN_ERROR};
use partita_chain_host::ChainRun;
use partita_console::{Failure, pages};
use partita_daemon::args::{Arguments, Cmd};
use partita_daemon::{api, keeper, serve};
use partita_mps::detach;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(OWN_ERROR) } else { ExitCode::SUCCESS };
        }
    };
    let done = match arguments.command {
        None => serve::run(&arguments.serve).map(|()| 0),
        Some(Cmd::Keeper(arguments)) => keeper::run(&arguments).map(|()| 0),
        Some(Cmd::Openapi) => print(&api::openapi_text()).map(|()| 0),
        Some(Cmd::InternalStartChain { order }) => start_chain(&order),
        Some(Cmd::InternalChain { order }) => run_chain(&order),
        Some(Cmd::InternalDetach { cpus, command }) => detach(cpus.as_deref(), &command),
        Some(Cmd::InternalGenerate { dir }) => generate(&dir).map(|()| 0),
        Some(Cmd::InternalJob { name, request }) => job(&name, &request),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            tell(&format!("{error:#}"));
            ExitCode::from(OWN_ERROR)
        }
    }
}

fn tell(message: &str) {
    // Without stderr there is nowhere to report.
    let _ = writeln!(std::io::stderr(), "partitad: {message}");
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes the manual pages below a directory.
fn generate(dir: &Path) -> anyhow::Result<()> {
    match pages::write_man(Arguments::command(), &[], dir) {
        Err(Failure::Told(line)) => Err(Error::msg(line)),
        _ => Ok(()),
    }
}

/// Runs a chain as a tenant, to its end.
fn start_chain(order: &str) -> anyhow::Result<u8> {
    let order: ChainRun = serde_json::from_str(order).context("invalid JSON of a chain")?;
    Ok(partita_chain_host::start(&Install::of_this_program()?, &order, tell)?)
}

/// Runs a chain's components, in its tenant.
fn run_chain(order: &str) -> anyhow::Result<u8> {
    let order: ChainRun = serde_json::from_str(order).context("invalid JSON of a chain")?;
    Ok(partita_chain_host::supervise(&Install::of_this_program()?, &order, tell)?)
}

/// Becomes another program in a new session.
fn detach(cpus: Option<&str>, command: &[OsString]) -> anyhow::Result<u8> {
    if let Some(list) = cpus {
        let cpus = detach::parse_cpus(list).map_err(|error| anyhow!("--cpus: {error}"))?;
        detach::pin(&cpus).with_context(|| format!("--cpus {list}"))?;
    }
    let program = command.first().map(|program| program.to_string_lossy().into_owned());
    match detach::detach_and_exec(command) {
        Ok(never) => match never {},
        Err(error) => Err(Error::new(error).context(program.unwrap_or_default())),
    }
}

/// Runs a job of another crate; the process that started this one gets the result.
fn job(name: &str, request: &str) -> anyhow::Result<u8> {
    let line = partita::jobs::run(name, request).map_err(Error::msg)?;
    print(&format!("{line}\n"))?;
    // Not back through main: a driver that hangs in its destructors would keep us.
    std::process::exit(0)
}
