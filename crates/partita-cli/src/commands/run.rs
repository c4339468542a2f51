//! `partita run`.

use std::process::ExitCode;
use std::time::Duration;

use partita::install::Install;
use partita::limits::LIMITS;
use partita::offered::Via;
use partita::registry::Registry;
use partita::run::{self, DryRun, RunRequest};
use partita::{detached, mig, offered, slo};
use partita_console::{Failure, print, print_json, select_several, selectors, tell};
use partita_core::time::Priority;
use serde_json::json;

use crate::args::Run;
use crate::commands::info::Info;
use crate::commands::mps::partition;
use crate::commands::{background, cluster_text, move_text};

/// Runs the program and ends with its exit code.
pub fn run(arguments: &Run) -> Result<ExitCode, Failure> {
    let mut info = arguments.info.as_deref().map(Info::open).transpose()?;
    let done = run_with(arguments, &mut info);
    if let (Err(failure), Some(info)) = (&done, info) {
        info.write(&json!({ "error": failure.to_string() }));
    }
    done
}

/// Runs the program, and writes to `info` when it starts.
fn run_with(arguments: &Run, info: &mut Option<Info>) -> Result<ExitCode, Failure> {
    if let Some(profile) = &arguments.mig {
        return run_in_instance(arguments, profile);
    }
    if arguments.detach {
        return background::run(arguments);
    }
    let request = request_of(arguments)?;
    if arguments.dry_run {
        let plans = run::dry_run(&Install::of_this_program()?, &request, tell)?;
        match plans.as_slice() {
            plans if !arguments.json => print(&plans.iter().map(dry_run_text).collect::<String>())?,
            [plan] => print_json(plan)?,
            plans => print_json(&plans)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let on_start = |name: &str, pid| {
        if let Some(info) = info.take() {
            info.write(&json!({ "name": name, "pid": pid }));
        }
    };
    let code = run::run(&Install::of_this_program()?, &request, on_start, tell)?;
    Ok(ExitCode::from(code))
}

/// Is the process that `run --detach` starts.
pub fn attend(arguments: &Run) -> Result<ExitCode, Failure> {
    let code = detached::attend(&Install::of_this_program()?, &request_of(arguments)?, tell)?;
    Ok(ExitCode::from(code))
}

/// The request of a command line.
fn request_of(arguments: &Run) -> Result<RunRequest, Failure> {
    let limits = arguments.limits.read()?;
    let is_ranked = limits.time.is_some() || limits.priority() != Priority::Normal;
    let takes_turns = is_ranked || (limits.via() == Via::Time && slo::is_asked(&limits));
    offered::check(limits.via(), takes_turns, limits.share.is_some())?;
    Ok(RunRequest {
        gpus: selectors(arguments.gpu.gpu.as_deref())?,
        limits,
        name: arguments.name.clone(),
        mps_deadline: arguments.mps_deadline.map(Duration::from_secs),
        compact: arguments.compact,
        wait: arguments.wait.map(|limit| limit.unwrap_or(Duration::MAX)),
        mps_partition: arguments.mps_partition.as_deref().map(partition).transpose()?,
        command: arguments.command.clone(),
        ..RunRequest::default()
    })
}

/// Becomes the program, in a MIG instance.
fn run_in_instance(arguments: &Run, profile: &str) -> Result<ExitCode, Failure> {
    if !arguments.limits.is_empty() {
        return Err(Failure::Told(
            "--mig with limits: an instance is a partition itself, with its own compute units and memory; \
             leave out the limits"
                .to_owned(),
        ));
    }
    let install = Install::of_this_program()?;
    let gpus = select_several(&install, &arguments.gpu)?;
    let [gpu] = gpus.as_slice() else {
        return Err(Failure::Told("--mig: a program has one instance; name one GPU with --gpu".to_owned()));
    };
    let never = mig::run_in_instance(&install, &Registry::open()?, gpu, profile, &arguments.command)?;
    match never {}
}

fn dry_run_text(plan: &DryRun) -> String {
    let partition = &plan.partition;
    let mut text =
        format!("{}: {} of {} SMs (tpc:{})\n", plan.gpu, partition.sms, plan.sms_of_device, partition.tpcs);
    if let Some(gpcs) = &partition.gpcs {
        let parts: Vec<String> =
            gpcs.iter().map(|part| format!("{} ({} of {})", part.gpc, part.tpcs, part.tpcs_of_gpc)).collect();
        text.push_str(&format!("GPCs (TPCs): {}\n", parts.join(", ")));
    }
    if let Some(clusters) = &partition.clusters {
        text.push_str(&format!("{}\n", cluster_text(clusters)));
    }
    let limits = LIMITS.iter().filter(|limit| limit.text(&plan.asked).is_some());
    let limits = limits.filter_map(|limit| Some(format!("{} {}", limit.name, limit.text(&plan.limits)?)));
    let limits: Vec<String> = limits.collect();
    if !limits.is_empty() {
        text.push_str(&format!("limits: {}\n", limits.join(", ")));
    }
    plan.moves.iter().for_each(|made| text.push_str(&move_text(made)));
    text
}
