//! `partita`: arguments in, text out. Everything else is in the library.

mod args;
mod commands;

use std::process::ExitCode;

use clap::CommandFactory;
use partita_console::{Failure, complete};

use args::{Arguments, Cmd, Hidden, Word};
use commands::{generate, other};

fn main() -> ExitCode {
    other::ALL.iter().for_each(|other| other.complete());
    if complete::answer(Arguments::command) {
        return ExitCode::SUCCESS;
    }
    let program = Arguments::command().version(env!("PARTITA_VERSION"));
    let words: Vec<_> = std::env::args_os().collect();
    let note = |mistake: &str| commands::info::note_mistake(&words, mistake);
    let arguments: Arguments = match partita_console::parse_or(&program, &words, note) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let done = match &arguments.command {
        Word::Cmd(command) => {
            let forwarded = commands::system::forward(command);
            forwarded.and_then(|code| code.map_or_else(|| dispatch(command), Ok))
        }
        Word::Hidden(Hidden::Generate(arguments)) => generate::generate(arguments),
        Word::Hidden(Hidden::InternalRun(arguments)) => commands::run::attend(arguments),
        Word::Hidden(Hidden::InternalSystem) => commands::system::answer(),
        Word::Hidden(Hidden::Internal(internal)) => internal.run(Arguments::command(), partita::jobs::run),
    };
    done.unwrap_or_else(Failure::report)
}

fn dispatch(command: &Cmd) -> Result<ExitCode, Failure> {
    match command {
        Cmd::Devices(arguments) => commands::devices::devices(arguments),
        Cmd::Topology(arguments) => commands::topology::topology(arguments),
        Cmd::Run(arguments) => commands::run::run(arguments),
        Cmd::Logs(arguments) => commands::background::logs(arguments),
        Cmd::Attach(arguments) => commands::background::attach(arguments),
        Cmd::Wait(arguments) => commands::background::wait(arguments),
        Cmd::Apply(arguments) => commands::apply::apply(arguments),
        Cmd::Exec(arguments) => commands::exec::exec(arguments),
        Cmd::Set(arguments) => commands::set::set(arguments),
        Cmd::Ps(arguments) => commands::ps::ps(arguments),
        Cmd::Explain(arguments) => commands::explain::explain(arguments),
        Cmd::Top(arguments) => commands::top::top(arguments),
        Cmd::Kill(arguments) => commands::kill::kill(arguments),
        Cmd::Doctor(arguments) => commands::doctor::doctor(arguments),
        Cmd::Demo(arguments) => commands::demo::demo(arguments),
        Cmd::Prove(arguments) => commands::prove::prove(arguments),
        Cmd::Bench(arguments) => other::BENCH.exec(arguments.words.clone()),
        Cmd::Mps(arguments) => commands::mps::mps(arguments),
        Cmd::Mig(arguments) => commands::mig::mig(arguments),
        Cmd::Vf(arguments) => commands::vf::vf(arguments),
        Cmd::Compare(arguments) => commands::compare::compare(arguments),
        Cmd::Cdi(verb) => commands::cdi::cdi(verb),
        Cmd::Policy(verb) => commands::policy::policy(verb),
        Cmd::Preload(verb) => commands::preload::preload(verb),
        Cmd::Chain(arguments) => other::CHAIN.exec(arguments.words.clone()),
        Cmd::Batch(arguments) => commands::batch::batch(arguments),
        Cmd::Sim(arguments) => commands::sim::sim(arguments),
        Cmd::Completions(arguments) => generate::completions(arguments),
        Cmd::Man(arguments) => generate::man(arguments),
        Cmd::Help(arguments) => generate::help(arguments),
        Cmd::Version => {
            partita_console::print(&Arguments::command().version(env!("PARTITA_VERSION")).render_version())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
