//! `partita ps`.

mod detail;

use std::process::ExitCode;

use partita::audit::{self, Loads, Outsider};
use partita::batch::as_user::HOLD_SUBCOMMAND;
use partita::install::Install;
use partita::limits::Spill;
use partita::mode;
use partita::offered::Via;
use partita::ps::{self, TenantRow};
use partita::queue::{self, WaitingRow};
use partita::registry::{Isolation, Origin, Registry};
use partita::time::TimeRow;
use partita_console::{Failure, Table, print, print_json, selectors, shorten, tell};
use partita_core::time::Priority;

use crate::args::Ps;
use crate::commands::{bytes, quantiles};

/// Lists the tenants, and the programs that are not in one.
pub fn ps(arguments: &Ps) -> Result<ExitCode, Failure> {
    if arguments.audit {
        return audited(arguments.json);
    }
    let registry = Registry::open()?;
    match (&arguments.name, arguments.pid) {
        (Some(name), _) => return detail::print_all(&ps::ps_named(&registry, name)?, arguments.json),
        (None, Some(pid)) => return detail::print_all(&ps::ps_of(&registry, pid)?, arguments.json),
        (None, None) => {}
    }
    if arguments.waiting {
        let rows = queue::waiting(&registry)?;
        if arguments.json {
            print_json(&rows)?;
        } else if rows.is_empty() {
            print("no program waits for room\n")?;
        } else {
            print(&waiting(&rows, arguments.columns.or_else(columns)))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.outside && arguments.json {
        let Loads { outsiders, unseen, .. } = loads(&registry)?;
        unseen.iter().for_each(|line| tell(line));
        print_json(&outsiders)?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.json {
        print_json(&ps::ps(&registry)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = arguments.columns.or_else(columns);
    let rows = if arguments.outside { Vec::new() } else { ps::ps(&registry)? };
    let Loads { outsiders, unseen, .. } = loads(&registry)?;
    let mut text = String::new();
    if !arguments.outside {
        text.push_str(&tenants(&rows, width));
        let queue = queue::waiting(&registry)?;
        if !queue.is_empty() {
            text.push_str(&waiting(&queue, width));
        }
    }
    if !outsiders.is_empty() || arguments.outside {
        text.push_str(&outside(&outsiders, width));
    }
    if !arguments.outside {
        text.push_str(&wrapped(&mode::line(&registry), width));
    }
    print(&text)?;
    unseen.iter().for_each(|line| tell(line));
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

/// The loads of the GPUs that this process's commands would use, and of the tenants'.
pub fn loads(registry: &Registry) -> Result<Loads, Failure> {
    // A wrong variable must not hide the tenants.
    let wanted = selectors(std::env::var("PARTITA_GPU").ok().as_deref()).ok().flatten();
    let mut loads = audit::loads(&Install::of_this_program()?, registry, wanted.as_ref())?;
    if registry.is_client() {
        // `partitad` does not answer, and other users' processes may belong to tenants.
        let own = partita::process::user_name(rustix::process::geteuid().as_raw());
        loads.outsiders.retain(|outsider| outsider.user == own);
    }
    Ok(loads)
}

/// The columns of the terminal that this is printed to; `watch` and shells tell theirs in a
/// variable. `None` if lines may have any length.
pub fn columns() -> Option<usize> {
    let of_variable = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let of_terminal = || rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| size.ws_col.into());
    of_variable.or_else(of_terminal).filter(|&columns: &usize| columns > 0)
}

/// The tenants as a table.
fn tenants(rows: &[TenantRow], width: Option<usize>) -> String {
    let mut table = Table::new(&[
        "NAME",
        "USER",
        "GPU",
        ">SMS",
        ">MEMORY",
        ">QUOTA",
        "SPILL",
        ">BUSY",
        "PRIORITY",
        "VIA",
        "ISOLATION",
        ">BURSTS",
        "TARGET",
        ">PROCS",
        ">AGE",
        "COMMAND",
    ]);
    rows.iter().for_each(|row| table.row(cells(row)));
    let Some(width) = width else { return table.render() };
    // First the columns that tell nothing of these tenants.
    let differs = |is_default: fn(&TenantRow) -> bool| !rows.iter().all(is_default);
    let mut least: Vec<(bool, &str)> = vec![
        (differs(|row| row.limits.spill != Some(Spill::Host)), "SPILL"),
        (differs(|row| row.limits.isolation != Some(Isolation::Own)), "ISOLATION"),
        (differs(|row| row.bursts.is_none_or(|bursts| bursts.count == 0)), "BURSTS"),
        (differs(|row| row.target.is_none()), "TARGET"),
        (true, "PROCS"),
        (true, "AGE"),
        (differs(|row| row.limits.priority.unwrap_or_default() == Priority::Normal), "PRIORITY"),
        (differs(|row| row.limits.via == Some(Via::Mask)), "VIA"),
        (true, "USER"),
        (differs(|row| row.time.is_none() && row.stopped != Some(true)), "BUSY"),
    ];
    least.sort_by_key(|(tells, _)| *tells);
    table.fit(width, &least.iter().map(|(_, head)| *head).collect::<Vec<_>>())
}

/// The programs that wait for room.
fn waiting(rows: &[WaitingRow], width: Option<usize>) -> String {
    let mut table = Table::new(&["WAITING", "USER", "GPU", ">AHEAD", ">FOR", ">PID"]);
    for row in rows {
        let gpus: Vec<String> = row.gpus.iter().map(|gpu| short_gpu(gpu)).collect();
        table.row([
            row.name.clone(),
            row.user.clone(),
            gpus.join(","),
            row.ahead.to_string(),
            age(row.waited_s),
            row.pid.to_string(),
        ]);
    }
    width.map_or_else(|| table.render(), |width| table.fit(width, &["PID", "USER"]))
}

/// The programs that are not in a tenant.
fn outside(outsiders: &[Outsider], width: Option<usize>) -> String {
    if outsiders.is_empty() {
        return "no program uses a GPU outside of tenants\n".to_owned();
    }
    let mut table = Table::new(&[">PID", "USER", "GPU", ">MEMORY", "COMMAND"]);
    for outsider in outsiders {
        table.row([
            outsider.pid.to_string(),
            outsider.user.clone(),
            short_gpu(&outsider.gpu),
            outsider.memory_bytes.map_or_else(|| "?".to_owned(), bytes),
            shorten(&outsider.command.join(" "), COMMAND_MAX),
        ]);
    }
    let table = width.map_or_else(|| table.render(), |width| table.fit(width, &["USER"]));
    let head = "not in a tenant: started without Partita, and nothing limits them";
    format!("{}{table}", wrapped(head, width))
}

/// The most of a command that tables show, in characters.
const COMMAND_MAX: usize = 40;

/// A GPU in a table: the index of a real one is enough.
pub fn short_gpu(label: &str) -> String {
    let index = label.strip_prefix("GPU ").and_then(|rest| rest.split_once(" (")).map(|(index, _)| index);
    index.unwrap_or(label).to_owned()
}

/// A sentence in lines of so many characters, if its words are shorter.
pub fn wrapped(text: &str, width: Option<usize>) -> String {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > 0 && width.is_some_and(|width| used + 1 + length > width) {
            lines.push(String::new());
            used = 0;
        }
        let Some(line) = lines.last_mut() else { continue };
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += length;
    }
    lines.join("\n") + "\n"
}

/// The most of a command that a line shows, in characters.
const COMMAND_IN_LINE_MAX: usize = 60;

/// Compares the driver's figures with the ledgers'. The exit code says whether a process has
/// escaped or has more memory than they record.
fn audited(json: bool) -> Result<ExitCode, Failure> {
    let registry = Registry::open()?;
    let audit::Audit { rows, outsiders, unseen, passed_over } =
        audit::run(&Install::of_this_program()?, &registry, &[])?;
    if json {
        print_json(&rows)?;
    } else {
        let mut table = Table::new(&["TENANT", "GPU", ">PID", ">BY DRIVER", ">BY LEDGER", "LIMITS"]);
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
            shorten(&outsider.command.join(" "), COMMAND_IN_LINE_MAX),
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

/// Its TPCs, or the MPS partition that it has instead.
fn tpcs(row: &TenantRow) -> Option<String> {
    let partition = || Some(format!("MPS {}", row.mps_partition.as_ref()?.split_once('/')?.1));
    row.tpcs.clone().or_else(partition)
}

/// In front of the command of a program that was started without Partita.
pub const BY_POLICY: &str = "(by policy) ";

fn cells(row: &TenantRow) -> [String; 16] {
    let unknown = || "?".to_owned();
    let tpcs = tpcs(row);
    let quota = match (row.memory_quota_bytes(), row.memory_rest_bytes, &tpcs) {
        (Some(quota), _, _) => bytes(quota),
        (None, Some(rest), _) => format!("({})", bytes(rest)),
        (None, None, Some(_)) => "-".to_owned(),
        (None, None, None) => unknown(),
    };
    let memory = |used| match row.memory_spilled_bytes {
        Some(spilled) if spilled > 0 => format!("{}+{}", bytes(used), bytes(spilled)),
        _ => bytes(used),
    };
    let busy = match row.stopped {
        Some(true) => "stopped".to_owned(),
        _ => row.time.map_or_else(|| "-".to_owned(), time),
    };
    [
        row.name.clone(),
        row.user.clone(),
        short_gpu(&row.gpu),
        row.sms.zip(row.sms_of_device).map_or_else(unknown, |(sms, all)| format!("{sms}/{all}")),
        row.memory_used_bytes.map_or_else(unknown, memory),
        quota,
        row.limits.spill.map_or_else(unknown, |spill| spill.to_string()),
        busy,
        row.limits.priority.map_or_else(unknown, |priority| priority.to_string()),
        via(row),
        row.limits.isolation.map_or_else(unknown, |isolation| isolation.to_string()),
        row.bursts.map_or_else(unknown, |bursts| quantiles(bursts.p50_us, bursts.p99_us)),
        target(row).unwrap_or_else(|| "-".to_owned()),
        row.memory_used_bytes.map_or_else(unknown, |_| row.processes.len().to_string()),
        row.age_s.map_or_else(unknown, age),
        row.command
            .as_ref()
            .map_or_else(unknown, |command| shorten(&words(command, row.origin), COMMAND_MAX)),
    ]
}

/// What it runs. One that was prepared for a job is held by a process of Partita's.
fn words(command: &[String], origin: Option<Origin>) -> String {
    match command {
        [_, held] if held == HOLD_SUBCOMMAND => "(prepared for a job)".to_owned(),
        command if origin == Some(Origin::Policy) => format!("{BY_POLICY}{}", command.join(" ")),
        command => command.join(" "),
    }
}

/// How its partition is enforced.
fn via(row: &TenantRow) -> String {
    match (&row.mps_partition, row.limits.via) {
        (Some(_), _) => "mps".to_owned(),
        (None, Some(via)) => via.to_string(),
        (None, None) => "-".to_owned(),
    }
}

/// Its target, and whether it holds.
fn target(row: &TenantRow) -> Option<String> {
    let stands = row.target.as_ref()?;
    let holds = match (stands.holds, stands.unmet) {
        (_, true) => "cannot be met",
        (Some(true), _) => "holds",
        (Some(false), _) => "violated",
        (None, _) => "not known",
    };
    Some(format!("{} {holds}", row.limits.slo?))
}

/// Recent use and the promised limit.
fn time(time: TimeRow) -> String {
    let used = time.used_percent.map_or_else(|| "?".to_owned(), |used| format!("{used:.0}"));
    let soft = if time.policy == "soft" { " soft" } else { "" };
    format!("{used}/{}%{soft}", time.share_percent)
}

pub fn age(seconds: u64) -> String {
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
