//! `partita ps`.

use std::process::ExitCode;

use partita::audit;
use partita::install::Install;
use partita::mode;
use partita::ps::{self, GpcRow, TenantRow};
use partita::registry::{Isolation, Registry};
use partita::time::TimeRow;
use partita_console::{Failure, Table, print, print_json, shorten, tell};

use crate::args::Ps;
use crate::commands::bytes;

/// Lists the tenants.
pub fn ps(arguments: &Ps) -> Result<ExitCode, Failure> {
    if let Some(pid) = arguments.pid {
        return of_process(pid, arguments.json);
    }
    if arguments.audit {
        return audited(arguments.json);
    }
    let registry = Registry::open()?;
    let rows = ps::ps(&registry)?;
    if arguments.json {
        print_json(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&[
        "NAME",
        "USER",
        "GPU",
        ">SMS",
        "TPCS",
        ">MEMORY",
        ">QUOTA",
        ">DRIVER",
        ">TIME",
        "PRIORITY",
        ">PROCS",
        ">LAUNCHES",
        ">AGE",
        "COMMAND",
    ]);
    for row in &rows {
        table.row(cells(row));
    }
    print(&format!("{}{}\n", table.render(), mode::line(&registry)))?;
    for row in &rows {
        if let Some(widened) = row.widened_launches.filter(|&widened| widened > 0) {
            tell(&format!(
                "{}: {widened} launches did not fit its SMs and ran on the whole GPU (--on-misfit widen)",
                row.name
            ));
        }
        if let Some(spilled) = row.memory_spilled_bytes.filter(|&spilled| spilled > 0) {
            tell(&format!("{}: {} of host memory beyond its quota (--spill host)", row.name, bytes(spilled)));
        }
        if let Some(problem) = &row.problem {
            tell(&format!("{}: {problem}", row.name));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Compares the driver's figures with the ledgers'. The exit code says whether a process has
/// escaped or has more memory than they record.
fn audited(json: bool) -> Result<ExitCode, Failure> {
    let registry = Registry::open()?;
    let audit::Audit { rows, outsiders, unseen, passed_over } =
        audit::run(&Install::of_this_program()?, &registry, &[])?;
    if json {
        print_json(&rows)?;
    } else {
        let mut table = Table::new(&["TENANT", "GPU", ">PID", ">DRIVER", ">LEDGER", "LIMITS"]);
        for row in &rows {
            table.row([
                row.tenant.clone(),
                row.gpu.clone(),
                row.pid.to_string(),
                row.driver_bytes.map_or_else(|| "?".to_owned(), bytes),
                row.ledger_bytes.map_or_else(|| "-".to_owned(), bytes),
                match row.beyond_bytes {
                    _ if row.escaped => "ESCAPED".to_owned(),
                    Some(beyond) => format!("{} BEYOND", bytes(beyond)),
                    None => "hold".to_owned(),
                },
            ]);
        }
        print(&table.render())?;
    }
    let escaped: Vec<_> = rows.iter().filter(|row| row.escaped).collect();
    for row in &escaped {
        tell(&format!(
            "{}: process {} uses {} without its limits: {}",
            row.tenant,
            row.pid,
            row.gpu,
            audit::escape_remedy(row.pid, &row.tenant)
        ));
    }
    let mut is_beyond = false;
    for (row, beyond) in rows.iter().filter_map(|row| Some((row, row.beyond_bytes?))) {
        is_beyond = true;
        tell(&format!(
            "{}: process {} has {} of {} that neither the ledger nor the driver's allowance covers: {}",
            row.tenant,
            row.pid,
            bytes(beyond),
            row.gpu,
            audit::BEYOND_REMEDY
        ));
    }
    let strangers = audit::strangers(&registry)?;
    for stranger in &strangers {
        tell(&format!(
            "process {} of {} has {} open and {}",
            stranger.pid,
            stranger.user,
            stranger.gate.display(),
            audit::STRANGER_REMEDY
        ));
    }
    for outsider in &outsiders {
        tell(&format!(
            "process {} of {} ({}) uses {} of {} and belongs to no tenant: nothing limits it, and it \
             may take memory that was promised; start it with `partita run`, or end it with `kill {0}`",
            outsider.pid,
            outsider.user,
            outsider.command,
            outsider.memory_bytes.map_or_else(|| "memory".to_owned(), bytes),
            outsider.gpu
        ));
    }
    passed_over.iter().for_each(|line| tell(line));
    // Shows the processes that could be examined even if others could not.
    let mut unseen = unseen.into_iter().map(|unseen| unseen.error);
    if let Some(first) = unseen.next() {
        unseen.for_each(|error| tell(&error.to_string()));
        return Err(first.into());
    }
    let is_clean = escaped.is_empty() && strangers.is_empty() && !is_beyond;
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The tenant of one process, with its TPCs and GPCs in full.
fn of_process(pid: u32, json: bool) -> Result<ExitCode, Failure> {
    let rows = ps::ps_of(&Registry::open()?, pid)?;
    match rows.as_slice() {
        [row] if json => print_json(row)?,
        rows if json => print_json(&rows)?,
        rows => print(&rows.iter().map(|row| part_text(pid, row)).collect::<String>())?,
    }
    for row in rows.iter().filter(|_| !json) {
        if let Some(problem) = &row.problem {
            tell(&format!("{}: {problem}", row.name));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A tenant on one GPU, in full.
fn part_text(pid: u32, row: &TenantRow) -> String {
    let unknown = || "?".to_owned();
    let sms = row.sms.zip(row.sms_of_device).map_or_else(unknown, |(sms, all)| format!("{sms}/{all}"));
    let gpcs = match &row.gpcs {
        None => "not proved on this GPU".to_owned(),
        Some(gpcs) => {
            let part = |gpc: &GpcRow| match gpc.tpcs == gpc.tpcs_of_gpc {
                true => gpc.gpc.to_string(),
                false => format!("{} ({} of {} TPCs)", gpc.gpc, gpc.tpcs, gpc.tpcs_of_gpc),
            };
            gpcs.iter().map(part).collect::<Vec<_>>().join(", ")
        }
    };
    let tpcs = tpcs(row).unwrap_or_else(unknown);
    let slots = match row.task_slot_share {
        Some(share) => format!("\n  task slots  {share}"),
        None => String::new(),
    };
    format!(
        "process {pid}: tenant {} on {}\n  SMs   {sms}\n  TPCs  {tpcs}\n  GPCs  {gpcs}{slots}\n",
        row.name, row.gpu
    )
}

/// Its TPCs, or the MPS partition that it has instead.
fn tpcs(row: &TenantRow) -> Option<String> {
    let partition = || Some(format!("MPS {}", row.mps_partition.as_ref()?.split_once('/')?.1));
    row.tpcs.clone().or_else(partition)
}

fn cells(row: &TenantRow) -> [String; 14] {
    let unknown = || "?".to_owned();
    let gpu = match row.limits.isolation {
        Some(Isolation::Own) => format!("{} (own)", row.gpu),
        _ => row.gpu.clone(),
    };
    let tpcs = tpcs(row);
    let quota = match (row.limits.memory, row.memory_rest_bytes, &tpcs) {
        (Some(quota), _, _) => bytes(quota.bytes()),
        (None, Some(rest), _) => format!("({})", bytes(rest)),
        (None, None, Some(_)) => "-".to_owned(),
        (None, None, None) => unknown(),
    };
    [
        row.name.clone(),
        row.user.clone(),
        gpu,
        row.sms.zip(row.sms_of_device).map_or_else(unknown, |(sms, all)| format!("{sms}/{all}")),
        tpcs.as_deref().map_or_else(unknown, |tpcs| shorten(tpcs, 16)),
        row.memory_used_bytes.map_or_else(unknown, bytes),
        quota,
        row.memory_driver_bytes.map_or_else(unknown, bytes),
        row.time.map_or_else(|| "-".to_owned(), time),
        row.limits.priority.map_or_else(unknown, |priority| priority.to_string()),
        row.processes.len().to_string(),
        row.launches.map_or_else(unknown, |launches| launches.to_string()),
        row.age_s.map_or_else(unknown, age),
        row.command.as_ref().map_or_else(unknown, |command| shorten(&command.join(" "), 40)),
    ]
}

/// Recent use and the promised limit.
fn time(time: TimeRow) -> String {
    let used = time.used_percent.map_or_else(|| "?".to_owned(), |used| format!("{used:.0}"));
    let soft = if time.policy == "soft" { " soft" } else { "" };
    format!("{used}/{}%{soft}", time.share_percent)
}

fn age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, _, _) => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (61, "1m1s"), (7265, "2h1m"), (90_000, "1d1h")] {
            assert_eq!(age(seconds), text);
        }
    }
}
