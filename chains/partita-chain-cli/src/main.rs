//! `partita-chain`, the program of `partita chain`.

mod args;
mod plot;
mod tune;
mod watch;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;
use partita::install::Install;
use partita::program;
use partita::registry::Registry;
use partita_chain_host::{
    self as chain, Algorithm, ChainRun, ChainView, Definition, Definitions, Steering, Stored,
};
use partita_console::{Failure, Table, print, print_json, tell};
use partita_core::{ByteSize, Count};
use serde::Serialize;

use crate::args::{AlgorithmArg, Arguments, Chain, ChainDefine, ChainStart, ChainSteer, InternalChain};

fn main() -> ExitCode {
    if partita_console::complete::answer(Arguments::command) {
        return ExitCode::SUCCESS;
    }
    let program = Arguments::command().version(env!("PARTITA_VERSION"));
    match partita_console::parse::<Arguments>(&program, std::env::args_os()) {
        Ok(arguments) => dispatch(&arguments.command).unwrap_or_else(Failure::report),
        Err(code) => code,
    }
}

fn dispatch(command: &Chain) -> Result<ExitCode, Failure> {
    match command {
        Chain::Define(arguments) => define(arguments)?,
        Chain::Forget(arguments) => {
            definitions()?.remove(&arguments.name)?;
            print(&format!("{}: forgotten\n", arguments.name))?;
        }
        Chain::Start(arguments) => return start(arguments),
        Chain::Stop(arguments) => {
            let registry = Registry::open()?;
            // What is wrong with a name, `stop` says. It ends other users' chains for root.
            let view = chain::view(&registry, &arguments.name);
            let grace = Duration::from_secs(arguments.grace.into());
            let user = rustix::process::geteuid().as_raw();
            let outcome = chain::stop(&Install::of_this_program()?, &registry, &arguments.name, grace, user)?;
            outcome.notices.iter().for_each(|notice| tell(notice));
            if arguments.json {
                let name = &arguments.name;
                print_json(&serde_json::json!({ "name": name, "processes": outcome.processes }))?;
                return Ok(ExitCode::SUCCESS);
            }
            let had_died = view.is_ok_and(|view| !view.supervised);
            let alone = if had_died { "; the process that ran it had died before" } else { "" };
            print(&format!("{}: ended ({}{alone})\n", arguments.name, Count(outcome.processes, "process")))?;
        }
        Chain::Ps(arguments) => ps(arguments.json)?,
        Chain::Watch(arguments) => watch::watch(arguments)?,
        Chain::Steer(arguments) => steer(arguments)?,
        Chain::Tune(arguments) => tune::tune(arguments)?,
        Chain::Plot(arguments) => plot::plot(arguments)?,
        Chain::Supervise(arguments) => return supervise(arguments),
        Chain::Internal(internal) => return internal.run(Arguments::command(), partita::jobs::run),
    }
    Ok(ExitCode::SUCCESS)
}

/// The user's definitions: the daemon's, if one runs.
fn definitions() -> Result<Definitions, Failure> {
    Ok(Definitions::of_user(&Registry::open()?)?)
}

/// Runs a chain in its tenant.
fn supervise(arguments: &InternalChain) -> Result<ExitCode, Failure> {
    let run: ChainRun = serde_json::from_str(&arguments.order)
        .map_err(|error| Failure::Told(format!("invalid order: {error}")))?;
    Ok(ExitCode::from(chain::supervise(&Install::of_this_program()?, &run, tell)?))
}

fn define(arguments: &ChainDefine) -> Result<(), Failure> {
    if arguments.example {
        return print(Definition::example());
    }
    if let Some(name) = &arguments.print {
        return print_json(&definitions()?.show(name)?);
    }
    let Some(file) = &arguments.file else {
        return Err(Failure::Told("name a definition's file".to_owned()));
    };
    let (definition, text) = chain::read_file(file)?;
    definitions()?.save(&text)?;
    let mut text = String::new();
    for component in &definition.components {
        // They may be built later, or be in another directory.
        let missing = component.command.first().map(|word| program::find(word.as_ref()));
        if let Some(Err(error)) = missing {
            text.push_str(&format!("component {}: {error}, or it cannot start\n", component.name));
        }
    }
    let names: Vec<&str> = definition.components.iter().map(|component| component.name.as_str()).collect();
    text.push_str(&format!(
        "{}: {}, {} of {}; `partita chain start {}` starts it\n",
        definition.name,
        names.join(" > "),
        Count(definition.frame_count(), "frame"),
        ByteSize(definition.frame_bytes()?),
        definition.name
    ));
    print(&text)
}

fn start(arguments: &ChainStart) -> Result<ExitCode, Failure> {
    // No chain's name has a slash; one with a dot may be a chain's.
    let path = Path::new(&arguments.chain);
    let is_file = arguments.chain.contains('/') || arguments.chain.contains('.') && path.is_file();
    let mut definition = match is_file {
        true => chain::read_file(path)?.0,
        false => definitions()?.get(&arguments.chain)?,
    };
    let of_environment = || std::env::var("PARTITA_GPU").ok().filter(|gpu| !gpu.is_empty());
    definition.gpu = arguments.gpu.clone().or(definition.gpu).or_else(of_environment);
    // The process that runs the chain is a different one, perhaps with another working directory.
    let absolute = |path| std::path::absolute(path).map_err(|error| Failure::Told(format!("--log: {error}")));
    let log = arguments.log.as_ref().map(absolute).transpose()?;
    let run = ChainRun { definition, log, gpus: Vec::new() };
    Ok(ExitCode::from(chain::start(&Install::of_this_program()?, &run, tell)?))
}

fn steer(arguments: &ChainSteer) -> Result<(), Failure> {
    let algorithm = |algorithm| match algorithm {
        AlgorithmArg::Steady => Algorithm::Steady,
        AlgorithmArg::Published => Algorithm::Published,
        AlgorithmArg::None => Algorithm::None,
    };
    let steering = match (&arguments.tpcs, arguments.algorithm) {
        (Some(tpcs), _) => Steering::Tpcs(tpcs.clone()),
        (None, Some(chosen)) => Steering::Algorithm(algorithm(chosen)),
        (None, None) => return Err(Failure::Told("name --tpcs or --algorithm".to_owned())),
    };
    chain::steer(&Registry::open()?, &arguments.name, &steering)?;
    print(&match &steering {
        Steering::Tpcs(tpcs) => {
            let tpcs: Vec<String> = tpcs.iter().map(u32::to_string).collect();
            format!(
                "{}: divided by hand, {} TPCs; none gets more than the chain has\n",
                arguments.name,
                tpcs.join(", ")
            )
        }
        Steering::Algorithm(_) => format!("{}: divided by {}\n", arguments.name, watch::steering(&steering)),
    })
}

/// A chain that is defined, that runs, or both.
#[derive(Debug, Serialize)]
struct ChainRow {
    name: String,
    running: Option<ChainView>,
    defined: Option<Definition>,
}

fn ps(json: bool) -> Result<(), Failure> {
    let mut running = chain::running(&Registry::open()?)?;
    let mut rows = Vec::new();
    // What runs is shown without them, too.
    let stored = definitions().and_then(|definitions| Ok(definitions.all()?)).unwrap_or_else(|failure| {
        failure.report();
        Vec::new()
    });
    for Stored { name, definition } in stored {
        let at = running.iter().position(|chain| chain.name == name);
        let running = at.map(|at| running.remove(at));
        match definition {
            Ok(defined) => rows.push(ChainRow { name, running, defined: Some(defined) }),
            Err(error) => {
                tell(&error.to_string());
                rows.extend(running.map(|running| ChainRow { name, running: Some(running), defined: None }));
            }
        }
    }
    rows.extend(running.into_iter().map(|running| ChainRow {
        name: running.name.clone(),
        running: Some(running),
        defined: None,
    }));
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    if json {
        return print_json(&rows);
    }
    let mut table =
        Table::new(&["NAME", "GPU", ">TPCS", "STEERED BY", "PHASE", ">FRAMES/S", ">FRAMES", "COMPONENTS"]);
    for row in &rows {
        table.row(cells(row));
    }
    print(&table.render())
}

fn cells(row: &ChainRow) -> [String; 8] {
    let dash = || "-".to_owned();
    let definition = row.running.as_ref().map(|running| &running.state.definition).or(row.defined.as_ref());
    let components = definition.map_or_else(dash, |definition| {
        definition.components.iter().map(|component| component.name.as_str()).collect::<Vec<_>>().join(" > ")
    });
    let Some(running) = &row.running else {
        return [
            row.name.clone(),
            dash(),
            dash(),
            dash(),
            "not running".to_owned(),
            dash(),
            dash(),
            components,
        ];
    };
    let state = &running.state;
    [
        row.name.clone(),
        running.gpu.clone(),
        state.tpcs_of_chain.to_string(),
        watch::steering(&state.steering),
        watch::phase(running).to_owned(),
        state.throughput_fps.map_or_else(dash, |fps| format!("{fps:.1}")),
        running.frames_finished.to_string(),
        components,
    ]
}
