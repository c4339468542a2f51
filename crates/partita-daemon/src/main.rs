//! `partitad`: parses arguments and runs the command.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Error};
use clap::CommandFactory;
use partita::install::{Install, OWN_ERROR};
use partita_chain_host::ChainRun;
use partita_console::Failure;
use partita_daemon::args::{Arguments, Cmd};
use partita_daemon::{api, keeper, serve};

fn main() -> ExitCode {
    let arguments: Arguments = match partita_console::parse(&Arguments::command(), std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let done = match arguments.command {
        None => serve::run(&arguments.serve).map(|()| 0),
        Some(Cmd::Keeper(arguments)) => keeper::run(&arguments).map(|()| 0),
        Some(Cmd::Openapi) => print(&api::openapi_text()).map(|()| 0),
        Some(Cmd::InternalStartChain { order }) => start_chain(&order),
        Some(Cmd::InternalChain { order }) => run_chain(&order),
        Some(Cmd::Internal(internal)) => match internal.run(Arguments::command(), partita::jobs::run) {
            Ok(code) => return code,
            Err(Failure::Told(line) | Failure::Coded(_, line)) => Err(Error::msg(line)),
            Err(Failure::OutputClosed) => Ok(0),
        },
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
