//! `partita set`.

use std::process::ExitCode;

use partita::registry::Registry;
use partita::set::{self, SetOutcome, SetRequest, Whose};
use partita_console::{Failure, print, selectors, tell};

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
    let text: String = outcomes.iter().map(|now| outcome_text(now, names_gpu)).collect();
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The new limits on one GPU.
fn outcome_text(now: &SetOutcome, names_gpu: bool) -> String {
    let whose = if names_gpu { format!("{} on {}", now.name, now.gpu) } else { now.name.clone() };
    let quota = now
        .memory_quota_bytes
        .map_or("no memory quota".to_owned(), |quota| format!("{} of memory", bytes(quota)));
    if let Some(quota) = now.memory_quota_bytes
        && now.memory_used_bytes > quota
    {
        tell(&format!(
            "{whose} holds {} now, more than its quota: it keeps that and gets no more until it frees the \
             difference",
            bytes(now.memory_used_bytes)
        ));
    }
    let moves: String = now.moves.iter().map(move_text).collect();
    let time = now
        .time
        .map_or_else(String::new, |time| format!(", {}% of its time ({})", time.share_percent, time.policy));
    format!("{whose}: {} SMs (tpc:{}), {quota}{time}\n{moves}", now.sms, now.tpcs)
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
    let text: String = moves.iter().map(move_text).collect();
    print(if text.is_empty() { "nothing to move: no tenant would lie in fewer GPCs\n" } else { &text })?;
    Ok(ExitCode::SUCCESS)
}
