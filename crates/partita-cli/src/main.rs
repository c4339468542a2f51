//! `partita`: arguments in, text out. Everything else is in the library.

mod args;
mod commands;

use std::process::ExitCode;

use clap::CommandFactory;
use partita_console::Failure;

use args::{Arguments, Cmd};
use commands::other;

fn main() -> ExitCode {
    let program = Arguments::command().version(env!("PARTITA_VERSION"));
    let arguments: Arguments = match partita_console::parse(&program, std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
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
        Cmd::Bench(arguments) => other::BENCH.exec(arguments.words.clone()),
        Cmd::Mps(arguments) => commands::mps::mps(arguments),
        Cmd::Mig(arguments) => commands::mig::mig(arguments),
        Cmd::Chain(arguments) => other::CHAIN.exec(arguments.words.clone()),
        Cmd::Batch(arguments) => commands::batch::batch(arguments),
        Cmd::Sim(arguments) => commands::sim::sim(arguments),
        Cmd::Completions(arguments) => commands::generate::completions(arguments),
        Cmd::Man(arguments) => commands::generate::man(arguments),
        Cmd::Generate(arguments) => commands::generate::generate(arguments),
        Cmd::InternalSystem => commands::system::answer(),
        Cmd::Internal(internal) => internal.run(Arguments::command(), partita::jobs::run),
    }
}
