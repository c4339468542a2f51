//! `partita set`.

use std::process::ExitCode;

use partita::limits::{LIMITS, LimitSet};
use partita::registry::Registry;
use partita::set::{self, SetOutcome, SetRequest, Whose};
use partita_console::{Failure, print, print_json, selectors, tell};

use crate::args::{Set, SetLimits};
use crate::commands::{bytes, move_text};

/// Changes a tenant's limits and prints the new ones.
pub fn set(arguments: &Set) -> Result<ExitCode, Failure> {
    if let (None, None) = (&arguments.name, arguments.pid) {
        return repack(arguments);
    }
    // One of the two is present.
    let whose = match (&arguments.name, arguments.pid) {
        (Some(name), _) => Whose::Name(name.clone()),
        (None, pid) => Whose::Pid(pid.unwrap_or(0)),
    };
    let request = SetRequest {
        limits: arguments.limits.read()?,
        compact: arguments.compact,
        gpus: selectors(arguments.gpu.as_deref())?,
        whose,
    };
    if arguments.limits.is_empty() && !request.compact {
        let whose = match &request.whose {
            Whose::Name(name) => name.clone(),
            Whose::Pid(pid) => format!("--pid {pid}"),
        };
        let options: Vec<String> = SetLimits::offered().map(|limit| format!("--{}", limit.name)).collect();
        return Err(Failure::Told(format!(
            "set {whose}: nothing to change; give {} or --compact, see `partita set --help`",
            options.join(", ")
        )));
    }
    let outcomes = set::set(&Registry::open()?, &request)?;
    // The GPU needs a mention unless the tenant has only one.
    let names_gpu = outcomes.len() > 1 || request.gpus.is_some();
    outcomes.iter().for_each(|now| warn_of_use(now, names_gpu));
    if arguments.json {
        print_json(&outcomes)?;
    } else {
        let text = |now: &SetOutcome| outcome_text(now, names_gpu, &request.limits);
        print(&outcomes.iter().map(text).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn whose(now: &SetOutcome, names_gpu: bool) -> String {
    if names_gpu { format!("{} on {}", now.name, now.gpu) } else { now.name.clone() }
}

/// Says that a tenant holds more than its new quota.
fn warn_of_use(now: &SetOutcome, names_gpu: bool) {
    if now.memory_quota_bytes.is_some_and(|quota| now.memory_used_bytes > quota) {
        tell(&format!(
            "{} holds {} now, more than its quota: it keeps that and gets no more until it frees the \
             difference",
            whose(now, names_gpu),
            bytes(now.memory_used_bytes)
        ));
    }
}

/// The new limits on one GPU, with all that were asked for.
fn outcome_text(now: &SetOutcome, names_gpu: bool, asked: &LimitSet) -> String {
    let quota = now
        .memory_quota_bytes
        .map_or("no memory quota".to_owned(), |quota| format!("{} of memory", bytes(quota)));
    let ceiling = now.limits.up_to.map_or_else(String::new, |most| format!(", borrows up to {most}"));
    let time = now
        .time
        .map_or_else(String::new, |time| format!(", {}% of its time ({})", time.share_percent, time.policy));
    let is_said = |name| ["sm", "mem", "time", "time-policy"].contains(&name);
    let others = LIMITS.iter().filter(|limit| !is_said(limit.name) && limit.text(asked).is_some());
    let others = others.filter_map(|limit| Some(format!(", {} {}", limit.name, limit.text(&now.limits)?)));
    let moves: String = now.moves.iter().map(move_text).collect();
    format!(
        "{}: {} SMs (tpc:{}){ceiling}, {quota}{time}{}\n{moves}",
        whose(now, names_gpu),
        now.sms,
        now.tpcs,
        others.collect::<String>()
    )
}

/// Moves all tenants into fewer GPCs.
fn repack(arguments: &Set) -> Result<ExitCode, Failure> {
    if arguments.gpu.is_some() || !arguments.limits.is_empty() {
        return Err(Failure::Told(
            "set --compact: without a tenant, no other option is allowed; name the tenant, see `partita set \
             --help`"
                .to_owned(),
        ));
    }
    let moves = set::repack(&Registry::open()?)?;
    if arguments.json {
        print_json(&moves)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text: String = moves.iter().map(move_text).collect();
    print(if text.is_empty() { "nothing to move: no tenant would lie in fewer GPCs\n" } else { &text })?;
    Ok(ExitCode::SUCCESS)
}
