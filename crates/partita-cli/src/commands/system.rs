//! Commands in system mode: `partitad` runs them for users, through the same commands.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use clap::CommandFactory;
use partita::install::{self, Install};
use partita::registry::Registry;
use partita::system::{self, Printed};
use partita::{Error, answer};
use partita_console::{Failure, print, tell};

use crate::args::{Arguments, Cmd, Mps, Ps, Word};
use crate::commands::ps;

/// Asks `partitad` to run the command, if the run directory is in system mode and the command reads
/// or changes files that only `partitad` may. `None` if this process must run it.
pub fn forward(command: &Cmd) -> Result<Option<ExitCode>, Failure> {
    if !is_forwarded(command) {
        return Ok(None);
    }
    let registry = Registry::open()?;
    if !registry.is_client() {
        return Ok(None);
    }
    let arguments: Result<Vec<String>, _> =
        std::env::args_os().skip(1).map(|word| word.into_string()).collect();
    let mut arguments = arguments.map_err(|word| Failure::Told(format!("{word:?} is not UTF-8 text")))?;
    // How many words the program has: it may have a `--gpu` of its own.
    let (at, gpu, program) = match command {
        Cmd::Run(run) => (1, &run.gpu.gpu, run.command.len()),
        Cmd::Mps(Mps::Recover(recover)) => (2, &recover.gpu.gpu, 0),
        Cmd::Mps(Mps::Terminate(terminate)) => (2, &terminate.gpu.gpu, 0),
        _ => (0, &None, 0),
    };
    if let Some(gpu) = gpu
        && !arguments[..arguments.len() - program].iter().any(|word| word.starts_with("--gpu"))
    {
        // It came from the environment, which `partitad` does not share.
        arguments.insert(at, format!("--gpu={gpu}"));
    }
    if let Cmd::Ps(Ps { columns: None, .. }) = command
        && let Some(columns) = ps::columns()
    {
        // The command that `partitad` runs prints to a file.
        arguments.push(format!("--columns={columns}"));
    }
    match system::command(&registry, arguments) {
        Ok(Printed { code, stdout, stderr }) => {
            // Without a stderr there is no reader.
            let _ = std::io::stderr().write_all(&stderr);
            print(&String::from_utf8_lossy(&stdout))?;
            Ok(Some(ExitCode::from(code)))
        }
        Err(error @ Error::Daemon { .. }) if matches!(command, Cmd::Ps(_) | Cmd::Top(_)) => {
            tell(&format!("{error}; only your own tenants are shown"));
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether users may have `partitad` run it.
fn is_forwarded(command: &Cmd) -> bool {
    match command {
        Cmd::Ps(_) | Cmd::Set(_) | Cmd::Kill(_) => true,
        // `partitad` is root's, and must write no file that a user names.
        Cmd::Explain(explain) => explain.svg.is_none(),
        Cmd::Run(run) => run.dry_run,
        // What works is restarted by root alone.
        Cmd::Mps(Mps::Recover(recover)) => !recover.force,
        // The driver refuses that of root's service to other users.
        Cmd::Mps(Mps::Terminate(_)) => true,
        // Frames are made of such looks.
        Cmd::Top(top) => top.once && top.json,
        _ => false,
    }
}

/// Answers the request on the connection that `partitad` passes as this process's stdin.
pub fn answer() -> Result<ExitCode, Failure> {
    let io = |error: std::io::Error| Failure::Told(format!("the connection: {error}"));
    let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(io)?);
    // Programs that the command starts must not inherit the connection.
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null").map_err(io)?)
        .map_err(|error| io(error.into()))?;
    answer::answer(&Install::of_this_program()?, stream, run)?;
    Ok(ExitCode::SUCCESS)
}

fn run(arguments: &[String]) -> u8 {
    let words = ["partita"].into_iter().chain(arguments.iter().map(String::as_str)).map(Into::into);
    let code = match partita_console::parse::<Arguments>(&Arguments::command(), words) {
        Ok(Arguments { command: Word::Cmd(command) }) if is_forwarded(&command) => {
            crate::dispatch(&command).unwrap_or_else(Failure::report)
        }
        Ok(_) => Failure::Told(
            "partitad runs only ps, set, kill, explain, top --once --json, run --dry-run, mps recover \
             and mps terminate for users"
                .to_owned(),
        )
        .report(),
        Err(code) => code,
    };
    (0..=u8::MAX).find(|&number| ExitCode::from(number) == code).unwrap_or(install::OWN_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitad_writes_no_file_for_users() {
        let is_forwarded = |line: &str| {
            let words = line.split(' ').map(Into::into);
            match partita_console::parse::<Arguments>(&Arguments::command(), words) {
                Ok(Arguments { command: Word::Cmd(command) }) => is_forwarded(&command),
                _ => panic!("{line} is a command"),
            }
        };
        assert!(is_forwarded("partita explain serve --json"));
        assert!(!is_forwarded("partita explain serve --svg /etc/passwd"));
        assert!(!is_forwarded("partita demo --svg /etc/passwd"));
    }
}
