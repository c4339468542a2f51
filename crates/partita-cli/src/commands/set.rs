//! `partita set`.

use std::process::ExitCode;

use partita::registry::Registry;
use partita::set::{self, SetOutcome, SetRequest, Whose};
use partita_console::{Failure, print, selectors, tell};

use crate::args::Set;
use crate::commands::{
    bytes, driver_allowance, memory, move_text, on_misfit, place, priority, share, spill, time, time_policy,
};

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
        share: share(arguments.sm.as_deref())?,
        memory: memory(arguments.mem.as_deref())?,
        driver_allowance: driver_allowance(arguments.mem_driver.as_deref())?,
        on_misfit: arguments.on_misfit.map(on_misfit),
        priority: arguments.priority.map(priority),
        time: time(arguments.time.as_deref())?,
        time_policy: arguments.time_policy.map(time_policy),
        spill: arguments.spill.map(spill),
        place: arguments.place.map(place),
        compact: arguments.compact,
        gpus: selectors(arguments.gpu.as_deref())?,
        whose,
    };
    let is_placed = request.place.is_some() || request.compact;
    let is_timed = request.time.is_some() || request.time_policy.is_some();
    let is_memory = request.memory.is_some() || request.driver_allowance.is_some();
    let is_switched = request.on_misfit.is_some() || request.spill.is_some() || request.priority.is_some();
    if request.share.is_none() && !is_memory && !is_switched && !is_timed && !is_placed {
        let whose = match &request.whose {
            Whose::Name(name) => name.clone(),
            Whose::Pid(pid) => format!("--pid {pid}"),
        };
        return Err(Failure::Told(format!(
            "set {whose}: nothing to change; give --sm, --mem, --mem-driver, --time, --time-policy, --place, --compact, --on-misfit, --spill or --priority, see `partita set --help`"
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
    let Set {
        name: _,
        pid: _,
        compact: _,
        gpu,
        place,
        on_misfit,
        spill,
        sm,
        time,
        time_policy,
        mem,
        mem_driver,
        priority,
    } = arguments;
    let others = [
        gpu.is_some(),
        place.is_some(),
        on_misfit.is_some(),
        spill.is_some(),
        sm.is_some(),
        time.is_some(),
        time_policy.is_some(),
        mem.is_some(),
        mem_driver.is_some(),
        priority.is_some(),
    ];
    if others.contains(&true) {
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
