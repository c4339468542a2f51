//! Manual pages and completions, made from the description of the arguments.

use std::fs;
use std::path::Path;

use clap::{Command, ValueEnum};
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use clap_mangen::Man;

use crate::complete::VARIABLE;
use crate::{Failure, print};

/// A shell with completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShellArg {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// Where an installation has the completions of a shell.
const COMPLETIONS: [(ShellArg, &str); 3] = [
    (ShellArg::Bash, "share/bash-completion/completions/partita"),
    (ShellArg::Zsh, "share/zsh/site-functions/_partita"),
    (ShellArg::Fish, "share/fish/vendor_completions.d/partita.fish"),
];

/// Prints the completions of a shell.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_completions(shell: ShellArg) -> Result<(), Failure> {
    print(&completions(shell)?)
}

/// Prints the manual page of the command that `words` name below the program.
///
/// # Errors
/// There is no such command.
pub fn print_man(mut program: Command, words: &[String]) -> Result<(), Failure> {
    // Building makes the global options known to the subcommands.
    program.build();
    let mut command = &program;
    let mut name = page_name(&program);
    for word in words {
        name = format!("{name}-{word}");
        let found = command.find_subcommand(word).filter(|sub| !sub.is_hide_set());
        command = found.ok_or_else(|| {
            Failure::Told(format!("there is no manual page {name}; see `partita --help` for the commands"))
        })?;
    }
    print(&page(command, &name)?)
}

/// Writes the completions of every shell below the directory, laid out as under a prefix.
///
/// # Errors
/// A file cannot be written.
pub fn write_completions(dir: &Path) -> Result<(), Failure> {
    let mut files = COMPLETIONS.iter();
    files.try_for_each(|(shell, file)| write(&dir.join(file), &completions(*shell)?))
}

/// Writes a page for the program and for each of its commands below the directory, but not for the
/// commands that are separate programs.
///
/// # Errors
/// A file cannot be written.
pub fn write_man(mut program: Command, others: &[&str], dir: &Path) -> Result<(), Failure> {
    program.build();
    write_pages(&program, &page_name(&program), others, &dir.join("share/man/man1"))
}

/// One page for each command, named as git names them: `partita-run.1`.
fn write_pages(command: &Command, name: &str, others: &[&str], dir: &Path) -> Result<(), Failure> {
    write(&dir.join(format!("{name}.1")), &page(command, name)?)?;
    let shown = |sub: &&Command| !sub.is_hide_set() && !others.contains(&sub.get_name());
    command
        .get_subcommands()
        .filter(shown)
        .try_for_each(|sub| write_pages(sub, &format!("{name}-{}", sub.get_name()), &[], dir))
}

fn page_name(program: &Command) -> String {
    program.get_bin_name().unwrap_or(program.get_name()).replace(' ', "-")
}

fn page(command: &Command, name: &str) -> Result<String, Failure> {
    let mut text = Vec::new();
    let source = concat!("partita ", env!("CARGO_PKG_VERSION"));
    let rendered = Man::new(command.clone()).title(name).source(source).render(&mut text);
    rendered.map_err(|error| Failure::Told(format!("the manual page {name}: {error}")))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// A script that lets the shell ask `partita` at each key.
fn completions(shell: ShellArg) -> Result<String, Failure> {
    let shell: &dyn EnvCompleter = match shell {
        ShellArg::Bash => &Bash,
        ShellArg::Zsh => &Zsh,
        ShellArg::Fish => &Fish,
    };
    let mut text = Vec::new();
    let written = shell.write_registration(VARIABLE, "partita", "partita", "partita", &mut text);
    written.map_err(|error| Failure::Told(format!("completions: {error}")))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    path.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(path, text))
        .map_err(|error| Failure::Told(format!("{}: {error}", path.display())))
}
