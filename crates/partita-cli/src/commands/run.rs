//! `partita run`.

use std::process::ExitCode;
use std::time::Duration;

use partita::install::Install;
use partita::limits::SmCount;
use partita::offered::{self, Via};
use partita::registry::Isolation;
use partita::run::{self, DryRun, Restart, RunRequest};
use partita_console::{Failure, print, print_json, selectors, tell};
use partita_core::time::Priority;

use crate::args::{IsolationArg, RestartArg, Run, SmCountArg, ViaArg};
use crate::commands::mps::partition;
use crate::commands::{
    cluster_text, driver_allowance, memory, move_text, on_misfit, place, priority, share, spill, time,
    time_policy,
};

/// Runs the program and ends with its exit code.
pub fn run(arguments: &Run) -> Result<ExitCode, Failure> {
    let via = match arguments.via {
        ViaArg::Auto => Via::Auto,
        ViaArg::Mask => Via::Mask,
        ViaArg::Green => Via::Green,
        ViaArg::Mps => Via::Mps,
        ViaArg::Time => Via::Time,
        ViaArg::Persistent => Via::Persistent,
    };
    let time = time(arguments.time.as_deref())?;
    let priority = priority(arguments.priority);
    offered::check(via, time.is_some() || priority != Priority::Normal, arguments.sm.is_some())?;
    let request = RunRequest {
        gpus: selectors(arguments.gpu.gpu.as_deref())?,
        share: share(arguments.sm.as_deref())?,
        memory: memory(arguments.mem.as_deref())?,
        driver_allowance: driver_allowance(arguments.mem_driver.as_deref())?,
        name: arguments.name.clone(),
        isolation: match arguments.isolation {
            Some(IsolationArg::Shared) => Isolation::Shared,
            Some(IsolationArg::Own) => Isolation::Own,
            // A tenant that has the whole GPU by priority alone.
            None if via == Via::Time && time.is_none() => Isolation::Own,
            None => Isolation::Shared,
        },
        on_misfit: on_misfit(arguments.on_misfit),
        sm_count: match arguments.sm_count {
            SmCountArg::Device => SmCount::Device,
            SmCountArg::Partition => SmCount::Partition,
        },
        priority,
        time,
        time_policy: time_policy(arguments.time_policy),
        via,
        restart: match arguments.restart {
            RestartArg::Never => Restart::Never,
            RestartArg::OnNeighbourFault => Restart::OnNeighbourFault,
        },
        mps_deadline: arguments.mps_deadline.map(Duration::from_secs),
        spill: spill(arguments.spill),
        place: arguments.place.map(place),
        compact: arguments.compact,
        mps_partition: arguments.mps_partition.as_deref().map(partition).transpose()?,
        description: None,
        command: arguments.command.clone(),
    };
    if arguments.dry_run {
        let plans = run::dry_run(&Install::of_this_program()?, &request, tell)?;
        match plans.as_slice() {
            plans if !arguments.json => print(&plans.iter().map(dry_run_text).collect::<String>())?,
            [plan] => print_json(plan)?,
            plans => print_json(&plans)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let code = run::run(&Install::of_this_program()?, &request, tell)?;
    Ok(ExitCode::from(code))
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
    plan.moves.iter().for_each(|made| text.push_str(&move_text(made)));
    text
}
