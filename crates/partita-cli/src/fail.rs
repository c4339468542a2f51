//! Failing: one line on stderr, exit code 125.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::{ContextKind, ErrorKind};
use partita::escape::escape;
use partita::install::OWN_ERROR;

use crate::args::Arguments;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// To be told in one line.
    Told(String),
    /// A signal ended it before the program that it was to run had started.
    Signal(i32),
    /// Whoever read what is printed without end has gone; there is nothing to tell and nobody to
    /// tell it.
    OutputClosed,
}

impl Failure {
    /// Tells it.
    pub fn report(self) -> ExitCode {
        match self {
            Self::Told(line) => {
                tell(&line);
                ExitCode::from(OWN_ERROR)
            }
            Self::Signal(signal) => {
                let code = u8::try_from(128 + signal).unwrap_or(OWN_ERROR);
                tell(&format!("ended by signal {signal} before the program was started"));
                ExitCode::from(code)
            }
            Self::OutputClosed => ExitCode::SUCCESS,
        }
    }
}

impl From<partita::Error> for Failure {
    fn from(error: partita::Error) -> Self {
        match error {
            partita::Error::Interrupted { signal } => Self::Signal(signal),
            error => Self::Told(error.to_string()),
        }
    }
}

impl From<partita_mps::MpsError> for Failure {
    fn from(error: partita_mps::MpsError) -> Self {
        Self::Told(error.to_string())
    }
}

/// Writes one line to stderr, whatever line breaks the message has.
pub fn tell(message: &str) {
    let line = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    // Without a stderr there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "partita: {}", escape(&line));
}

/// Tells what is wrong with the arguments, or prints the help that was asked for.
pub fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(OWN_ERROR)
        }
        _ => {
            let rendered = error.to_string();
            let first = rendered.lines().next().unwrap_or_default().trim_start_matches("error: ");
            let mut line = first.trim_end_matches(':').to_owned();
            // Which arguments are missing, and what clap thinks was meant, stands on further lines.
            if let Some(missing) = error.get(ContextKind::InvalidArg)
                && error.kind() == ErrorKind::MissingRequiredArgument
            {
                line = format!("{line}: {missing}");
            }
            let valid = error.get(ContextKind::ValidValue).map(ToString::to_string);
            if let Some(valid) = valid.filter(|valid| !valid.is_empty()) {
                line = format!("{line}; possible are {valid}");
            } else if let Some(meant) =
                error.get(ContextKind::SuggestedArg).or_else(|| error.get(ContextKind::SuggestedSubcommand))
            {
                line = format!("{line}; did you mean {meant}?");
            }
            tell(&format!("{line}; see `{}`", help_command(std::env::args().skip(1))));
            ExitCode::from(OWN_ERROR)
        }
    }
}

/// The `--help` of the subcommand that these arguments begin with.
fn help_command(arguments: impl Iterator<Item = String>) -> String {
    let mut command = Arguments::command();
    let mut words = "partita".to_owned();
    for argument in arguments {
        let Some(sub) = command.find_subcommand(&argument) else { break };
        words = format!("{words} {argument}");
        command = sub.clone();
    }
    format!("{words} --help")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_that_of_the_subcommand() {
        for (arguments, expected) in [
            ("", "partita"),
            ("run --sm x", "partita run"),
            ("mps stop x", "partita mps stop"),
            ("x run", "partita"),
        ] {
            let words = arguments.split_whitespace().map(str::to_owned);
            assert_eq!(help_command(words), format!("{expected} --help"));
        }
    }
}
