//! `partita completions`, `man` and `generate`: what the build made.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use crate::args::{Completions, Generate, Man, ShellArg};
use crate::fail::Failure;
use crate::output::print;

const BASH: &str = include_str!(concat!(env!("OUT_DIR"), "/partita.bash"));
const ZSH: &str = include_str!(concat!(env!("OUT_DIR"), "/_partita"));
const FISH: &str = include_str!(concat!(env!("OUT_DIR"), "/partita.fish"));
/// Names and texts, the main page first.
const MAN_PAGES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/man_pages.rs"));

/// Prints the completions of a shell.
pub fn completions(arguments: &Completions) -> Result<ExitCode, Failure> {
    print(match arguments.shell {
        ShellArg::Bash => BASH,
        ShellArg::Zsh => ZSH,
        ShellArg::Fish => FISH,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a manual page, as `man -l -` reads it.
pub fn man(arguments: &Man) -> Result<ExitCode, Failure> {
    let name = [&["partita".to_owned()], &arguments.command[..]].concat().join("-");
    let page = MAN_PAGES.iter().find(|(page, _)| page.strip_suffix(".1") == Some(&name));
    let Some((_, text)) = page else {
        return Err(Failure::Told(format!(
            "there is no manual page {name}; see `partita --help` for the commands"
        )));
    };
    print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes everything below a directory, laid out as under a prefix.
pub fn generate(arguments: &Generate) -> Result<ExitCode, Failure> {
    let completions = [
        ("share/bash-completion/completions/partita", BASH),
        ("share/zsh/site-functions/_partita", ZSH),
        ("share/fish/vendor_completions.d/partita.fish", FISH),
    ];
    for (name, text) in completions {
        write(&arguments.dir.join(name), text)?;
    }
    for (name, text) in MAN_PAGES {
        write(&arguments.dir.join("share/man/man1").join(name), text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    path.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(path, text))
        .map_err(|error| Failure::Told(format!("{}: {error}", path.display())))
}
