//! `partita`: arguments in, text out. Everything else is in the library.

mod args;
mod commands;
mod fail;
mod output;
mod table;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use args::{Arguments, Cmd};
use fail::Failure;

fn main() -> ExitCode {
    let command = Arguments::command().version(env!("PARTITA_VERSION"));
    let parsed = command.try_get_matches().and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => return fail::usage(&error),
    };
    let forwarded = commands::system::forward(&arguments.command);
    let done = forwarded.and_then(|code| code.map_or_else(|| dispatch(&arguments.command), Ok));
    done.unwrap_or_else(Failure::report)
}

fn dispatch(command: &Cmd) -> Result<ExitCode, Failure> {
    match command {
        Cmd::Devices(arguments) => commands::devices::devices(arguments),
        Cmd::Topology(arguments) => commands::topology::topology(arguments),
        Cmd::Run(arguments) => commands::run::run(arguments),
        Cmd::Set(arguments) => commands::set::set(arguments),
        Cmd::Ps(arguments) => commands::ps::ps(arguments),
        Cmd::Kill(arguments) => commands::kill::kill(arguments),
        Cmd::Doctor(arguments) => commands::doctor::doctor(arguments),
        Cmd::Demo(arguments) => commands::demo::demo(arguments),
        Cmd::Prove(arguments) => commands::prove::prove(arguments),
        Cmd::Bench(arguments) => commands::bench::bench(arguments),
        Cmd::Mps(arguments) => commands::mps::mps(arguments),
        Cmd::Chain(arguments) => commands::chain::chain(arguments),
        Cmd::Batch(arguments) => commands::batch::batch(arguments),
        Cmd::Sim(arguments) => commands::sim::sim(arguments),
        Cmd::Completions(arguments) => commands::generate::completions(arguments),
        Cmd::Man(arguments) => commands::generate::man(arguments),
        Cmd::Generate(arguments) => commands::generate::generate(arguments),
        Cmd::InternalJob(arguments) => commands::internal::job(arguments),
        Cmd::InternalChain(arguments) => commands::chain::supervise(arguments),
        Cmd::InternalDetach(arguments) => commands::internal::detach(arguments),
        Cmd::InternalSystem => commands::system::answer(),
        Cmd::InternalHold => commands::internal::hold(),
    }
}
