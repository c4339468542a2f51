//! `partita completions`, `man`, `help` and `generate`.

use std::process::ExitCode;

use clap::CommandFactory;
use partita_console::{Failure, pages};

use crate::args::{Arguments, Completions, Generate, Help, Man};
use crate::commands::other;

/// Prints the completions of a shell.
pub fn completions(arguments: &Completions) -> Result<ExitCode, Failure> {
    pages::print_completions(arguments.shell)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints what `--help` of the command prints.
pub fn help(arguments: &Help) -> Result<ExitCode, Failure> {
    if let [name, words @ ..] = &arguments.command[..]
        && let Some(other) = other::find(name)
    {
        let words = words.iter().map(Into::into);
        return other.exec(words.chain(["--help".into()]));
    }
    let words = ["partita"].into_iter().chain(arguments.command.iter().map(String::as_str));
    let words = words.chain(["--help"]).map(Into::into);
    let program = Arguments::command().version(env!("PARTITA_VERSION"));
    Ok(partita_console::parse::<Arguments>(&program, words).map_or_else(|code| code, |_| ExitCode::SUCCESS))
}

/// Prints a manual page, as `man -l -` reads it.
pub fn man(arguments: &Man) -> Result<ExitCode, Failure> {
    if let [name, words @ ..] = &arguments.command[..]
        && let Some(other) = other::find(name)
    {
        let words = words.iter().map(Into::into);
        return other.exec(["internal-man".into()].into_iter().chain(words));
    }
    pages::print_man(Arguments::command(), &arguments.command)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes everything below a directory, laid out as under a prefix.
pub fn generate(arguments: &Generate) -> Result<ExitCode, Failure> {
    let dir = &arguments.dir;
    pages::write_completions(dir)?;
    pages::write_man(Arguments::command(), &other::ALL.map(|other| other.name), dir)?;
    other::generate(dir)?;
    Ok(ExitCode::SUCCESS)
}
