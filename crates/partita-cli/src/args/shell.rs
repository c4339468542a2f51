//! Help, and the shell integration that an installation provides: completions and manual pages.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use partita_console::pages::ShellArg;

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita completions bash > ~/.local/share/bash-completion/completions/partita
  partita completions zsh > \"${fpath[1]}/_partita\"
  partita completions fish > ~/.config/fish/completions/partita.fish")]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: ShellArg,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita man | man -l -
  partita man run | man -l -")]
pub struct Man {
    /// The command [default: the page of partita itself]
    pub command: Vec<String>,
}

/// Arguments of `help`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita help run
  partita help mps start")]
pub struct Help {
    /// The command [default: the help of partita itself]
    pub command: Vec<String>,
}

/// Arguments of `generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// The directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
}
