//! `partita completions`, `man` and `generate`.

use std::process::ExitCode;

use clap::CommandFactory;
use partita_console::{Failure, pages};

use crate::args::{Arguments, Completions, Generate, Man};
use crate::commands::other;

/// Prints the completions of a shell.
pub fn completions(arguments: &Completions) -> Result<ExitCode, Failure> {
    pages::print_completions(Arguments::command(), arguments.shell)?;
    Ok(ExitCode::SUCCESS)
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
    pages::write_completions(Arguments::command(), dir)?;
    pages::write_man(Arguments::command(), &other::ALL.map(|other| other.name), dir)?;
    other::ALL.iter().try_for_each(|other| other.generate(dir))?;
    Ok(ExitCode::SUCCESS)
}
