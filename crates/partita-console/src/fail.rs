//! Failures: one line on stderr, exit code 125.

use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};
use clap::{Command, FromArgMatches};
use partita::escape::escape;
use partita::install::OWN_ERROR;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// An error to report in one line.
    Told(String),
    /// The same, with an exit code of its own.
    Coded(u8, String),
    /// The reader of endless output has closed it.
    OutputClosed,
}

impl Failure {
    /// Reports the failure; returns the exit code.
    pub fn report(self) -> ExitCode {
        let code = match self {
            Self::Told(_) => OWN_ERROR,
            Self::Coded(code, _) => code,
            Self::OutputClosed => return ExitCode::SUCCESS,
        };
        tell(&self.to_string());
        ExitCode::from(code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told(line) | Self::Coded(_, line) => out.write_str(line),
            Self::OutputClosed => out.write_str("the reader of the output has closed it"),
        }
    }
}

impl From<partita::Error> for Failure {
    fn from(error: partita::Error) -> Self {
        match error.exit_code() {
            OWN_ERROR => Self::Told(error.to_string()),
            code => Self::Coded(code, error.to_string()),
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
    tell_as("partita", message);
}

/// The same for another program.
fn tell_as(program: &str, message: &str) {
    let line = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    // Without a stderr there is no reader.
    let _ = writeln!(std::io::stderr(), "{program}: {}", escape(&line));
}

/// Parses the arguments of `program`.
///
/// # Errors
/// The exit code, after one line that describes the mistake, or after the requested help.
pub fn parse<A: FromArgMatches>(
    program: &Command,
    words: impl IntoIterator<Item = OsString>,
) -> Result<A, ExitCode> {
    parse_or(program, &words.into_iter().collect::<Vec<_>>(), |_| {})
}

/// The same; `note` gets the mistake too.
///
/// # Errors
/// As [`parse`].
pub fn parse_or<A: FromArgMatches>(
    program: &Command,
    words: &[OsString],
    note: impl FnOnce(&str),
) -> Result<A, ExitCode> {
    let parsed = program.clone().try_get_matches_from(words);
    let arguments = parsed.and_then(|matches| A::from_arg_matches(&matches));
    arguments.map_err(|error| {
        let words: Vec<_> = words.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
        usage(&error, program, &words, note)
    })
}

/// The program that the user called: that of a subcommand is Partita.
fn name_of(program: &Command) -> &str {
    let called = program.get_bin_name().and_then(|words| words.split(' ').next());
    called.unwrap_or(program.get_name())
}

fn usage(error: &clap::Error, program: &Command, words: &[String], note: impl FnOnce(&str)) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match error.print() {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                tell_as(name_of(program), &format!("stdout: {error}"));
                ExitCode::from(OWN_ERROR)
            }
            _ => ExitCode::SUCCESS,
        },
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(OWN_ERROR)
        }
        _ => {
            let rendered = error.to_string();
            let first = rendered.lines().next().unwrap_or_default().trim_start_matches("error: ");
            let mut line = first.trim_end_matches(':').to_owned();
            // The missing arguments, and clap's suggestion, are on further lines.
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
            let line = format!("{line}; see `{}`", help_command(program, words));
            tell_as(name_of(program), &line);
            note(&line);
            ExitCode::from(OWN_ERROR)
        }
    }
}

/// The `--help` of the subcommand that these arguments begin with.
fn help_command(program: &Command, arguments: &[String]) -> String {
    let mut command = program;
    let mut words = program.get_bin_name().unwrap_or(program.get_name()).to_owned();
    for argument in arguments {
        let Some(sub) = command.find_subcommand(argument) else { break };
        words = format!("{words} {argument}");
        command = sub;
    }
    format!("{words} --help")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_that_of_the_subcommand() {
        let mps = Command::new("mps").subcommand(Command::new("stop"));
        let program = Command::new("partita").subcommand(Command::new("run")).subcommand(mps);
        for (arguments, expected) in [
            ("", "partita"),
            ("run --sm x", "partita run"),
            ("mps stop x", "partita mps stop"),
            ("x run", "partita"),
        ] {
            let words: Vec<_> = arguments.split_whitespace().map(str::to_owned).collect();
            assert_eq!(help_command(&program, &words), format!("{expected} --help"));
        }
    }
}
