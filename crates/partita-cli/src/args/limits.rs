//! The options for limits, in `run` and in `set`: one for each row of the table of limits.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use partita::limits::{Form, Given, LIMITS, Limit, LimitSet, Needs};
use partita_console::Failure;

/// Every limit, for a new tenant.
pub type RunLimits = LimitOptions<false>;
/// The limits that can change while a tenant runs.
pub type SetLimits = LimitOptions<true>;

/// The option that stands for a ceiling of all compute units.
const BORROW: &str = "borrow";

/// The limits that a command line gives.
#[derive(Debug, Clone, Default)]
pub struct LimitOptions<const OF_SET: bool>(Given);

impl<const OF_SET: bool> LimitOptions<OF_SET> {
    /// Whether no limit is given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads their values.
    pub fn read(&self) -> Result<LimitSet, Failure> {
        self.0.read().map_err(|refused| Failure::Told(format!("--{refused}")))
    }

    /// The limits that the command offers.
    pub fn offered() -> impl Iterator<Item = &'static Limit> {
        LIMITS.iter().filter(|limit| !OF_SET || limit.change.is_some())
    }
}

impl<const OF_SET: bool> FromArgMatches for LimitOptions<OF_SET> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Given::default();
        for limit in Self::offered() {
            if limit.name == "sm" && matches.get_flag(BORROW) {
                let share = matches.get_one::<String>("sm").map_or("", String::as_str);
                if share.contains("..") {
                    let reason = format!(
                        "--borrow is --sm with ..100%, and --sm {share} has a ceiling: leave out one"
                    );
                    return Err(clap::Error::raw(
                        clap::error::ErrorKind::ArgumentConflict,
                        format!("{reason}\n"),
                    ));
                }
                given.add(limit, format!("{share}..100%"));
                continue;
            }
            if matches.value_source(limit.name) == Some(ValueSource::CommandLine)
                && let Some(value) = matches.get_one::<String>(limit.name)
            {
                given.add(limit, value.clone());
            }
        }
        Ok(Self(given))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<const OF_SET: bool> Args for LimitOptions<OF_SET> {
    fn augment_args(command: Command) -> Command {
        let borrow = Arg::new(BORROW)
            .long(BORROW)
            .action(ArgAction::SetTrue)
            .help("Borrow what is idle, up to all compute units: --sm 30% --borrow is --sm 30%..100%");
        let command = command.arg(borrow);
        command.args(Self::offered().map(|limit| match limit.change {
            Some(change) if OF_SET => option(limit).help(change.help),
            _ => of_run(limit),
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The part of the help text: the limits that most tenants have come first.
fn heading(limit: &Limit) -> &'static str {
    match limit.name {
        "sm" | "mem" | "time" | "priority" | "slo" => "Limits",
        _ => "More limits",
    }
}

fn option(limit: &Limit) -> Arg {
    // So that `-5%` gets the error of a share, and not that of an option.
    let is_amount = !matches!(limit.form, Form::Words { .. });
    let option = Arg::new(limit.name).long(limit.name).allow_hyphen_values(is_amount);
    let option = option.help_heading(heading(limit));
    match limit.form {
        Form::Share => option.value_name("SHARE"),
        Form::Size { .. } => option.value_name("SIZE"),
        Form::Percent => option.value_name("PERCENT"),
        Form::Target => option.value_name("TARGET"),
        Form::Words { value_name, words, meanings, .. } => {
            let meaning = |(word, meaning): (&&'static str, &&'static str)| {
                PossibleValue::new(*word).help(meaning.trim_end_matches('.'))
            };
            let values = words.iter().zip(meanings).map(meaning);
            option.value_name(value_name).value_parser(PossibleValuesParser::new(values))
        }
    }
}

fn of_run(limit: &Limit) -> Arg {
    let option = option(limit).help(limit.help);
    let option = match limit.default {
        Some(default) => option.default_value(default),
        None => option,
    };
    match limit.needs {
        Some(Needs { value: Some(value), option: other }) => option.requires_if(value, other),
        Some(Needs { value: None, option: other }) => option.requires(other),
        None => option,
    }
}
