//! `partita run`.

use std::process::ExitCode;

use partita::install::Install;
use partita::offered::{self, Via};
use partita::registry::Isolation;
use partita::run::{self, RunRequest};

use crate::args::{IsolationArg, Run, ViaArg};
use crate::commands::{memory, on_misfit, priority, selector, share, time};
use crate::fail::{Failure, tell};

/// Runs the program and ends with its exit code.
pub fn run(arguments: &Run) -> Result<ExitCode, Failure> {
    let via = match arguments.via {
        ViaArg::Auto => Via::Auto,
        ViaArg::Mask => Via::Mask,
        ViaArg::Green => Via::Green,
        ViaArg::Mps => Via::Mps,
        ViaArg::Time => Via::Time,
    };
    offered::check(via, priority(arguments.priority), time(Some(&arguments.time))?)?;
    let request = RunRequest {
        gpu: selector(&arguments.gpu)?,
        share: share(arguments.sm.as_deref())?,
        memory: memory(arguments.mem.as_deref())?,
        name: arguments.name.clone(),
        isolation: match arguments.isolation {
            IsolationArg::Shared => Isolation::Shared,
            IsolationArg::Own => Isolation::Own,
        },
        on_misfit: on_misfit(arguments.on_misfit),
        command: arguments.command.clone(),
    };
    let code = run::run(&Install::of_this_program()?, &request, tell)?;
    Ok(ExitCode::from(code))
}
