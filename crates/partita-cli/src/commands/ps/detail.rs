//! `partita ps NAME`: all that is known of one tenant.

use std::process::ExitCode;

use partita::escape::escape;
use partita::pace::TimesRow;
use partita::ps::{GpcRow, ProcessRow, TenantRow};
use partita::registry::Origin;
use partita_console::{Failure, print, print_json, tell};

use super::{age, target, tpcs, via};
use crate::commands::{bytes, cluster_text, quantiles};

/// A tenant: one row for each of its GPUs.
pub(super) fn print_all(rows: &[TenantRow], json: bool) -> Result<ExitCode, Failure> {
    match rows {
        [row] if json => print_json(row)?,
        rows if json => print_json(&rows)?,
        rows => print(&rows.iter().map(text).collect::<String>())?,
    }
    for row in rows.iter().filter(|_| !json) {
        if let Some(problem) = &row.problem {
            tell(&format!("{}: {problem}", row.name));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A tenant on one GPU.
fn text(row: &TenantRow) -> String {
    let mut text = format!("tenant {} of {} on {}\n", row.name, row.user, row.gpu);
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text.push_str(&format!("  {name:<11}{}\n", escape(&value)));
        }
    };
    let unknown = || "?".to_owned();
    let limits = &row.limits;
    let of_tenant = |value: Option<String>| Some(value.unwrap_or_else(unknown));
    let ceiling = row.limits.up_to.map(|most| format!(", borrows up to {most}")).unwrap_or_default();
    line("SMs", of_tenant(row.sms.zip(row.sms_of_device).map(|(sms, all)| format!("{sms}/{all}{ceiling}"))));
    line("TPCs", of_tenant(tpcs(row)));
    line("GPCs", Some(row.gpcs.as_deref().map_or_else(|| "not proved on this GPU".to_owned(), gpcs)));
    line(
        "clusters",
        row.clusters.as_ref().map(|clusters| cluster_text(clusters).replacen("clusters of ", "", 1)),
    );
    line("place", limits.place.map(|place| place.to_string()));
    let partition = |id: &String| format!("{}, partition {id}", via(row));
    line("via", Some(row.mps_partition.as_ref().map_or_else(|| via(row), partition)));
    line("isolation", limits.isolation.map(|isolation| isolation.to_string()));
    line("memory", row.memory_used_bytes.map(|used| memory(row, used)));
    line("driver", row.memory_driver_bytes.map(|driver| of_driver(row, driver)));
    line(
        "spill",
        limits.spill.map(|spill| match row.memory_spilled_bytes {
            Some(spilled) if spilled > 0 => format!("{spill}: {} of host memory in use", bytes(spilled)),
            _ => spill.to_string(),
        }),
    );
    line(
        "time",
        row.time.map(|time| {
            let used = time.used_percent.map_or_else(unknown, |used| format!("{used:.0}"));
            let so_far = time.used_s.map_or_else(unknown, |used_s| format!("{used_s:.1}"));
            format!(
                "{used} % of the GPU's time in about the last second, {} % promised ({}), {so_far} s so far",
                time.share_percent, time.policy
            )
        }),
    );
    line("priority", limits.priority.map(|priority| priority.to_string()));
    line("task slots", row.task_slot_share.map(|share| share.to_string()));
    line("launches", Some(row.launches.map_or_else(|| "-".to_owned(), |launches| launches.to_string())));
    line("bursts", row.bursts.map(|bursts| times_text(&bursts)));
    line("duty", row.duty_percent.map(|duty| format!("{duty:.0}% of the time inside bursts")));
    line("target", target(row));
    line("goal", limits.goal.map(|goal| goal.to_string()));
    line("steps", row.steps.filter(|steps| steps.count > 0).map(|steps| times_text(&steps)));
    line(
        "misfits",
        limits.on_misfit.map(|on_misfit| match row.widened_launches {
            Some(widened) if widened > 0 => format!("{on_misfit}: {widened} ran on the whole GPU"),
            _ => on_misfit.to_string(),
        }),
    );
    line("SM count", limits.sm_count.map(|sm_count| sm_count.to_string()));
    line("origin", row.origin.map(origin));
    line("state", state(row));
    line("command", row.command.as_ref().map(|command| command.join(" ")));
    for process in &row.processes {
        line("process", Some(process_text(process)));
    }
    text
}

/// How many, and how long half of them and 99 of 100 take at most.
fn times_text(times: &TimesRow) -> String {
    match times.count {
        0 => "-".to_owned(),
        count => format!("{count}, p50/p99 {}", quantiles(times.p50_us, times.p99_us)),
    }
}

fn gpcs(gpcs: &[GpcRow]) -> String {
    let part = |gpc: &GpcRow| match gpc.tpcs == gpc.tpcs_of_gpc {
        true => gpc.gpc.to_string(),
        false => format!("{} ({} of {} TPCs)", gpc.gpc, gpc.tpcs, gpc.tpcs_of_gpc),
    };
    gpcs.iter().map(part).collect::<Vec<_>>().join(", ")
}

fn memory(row: &TenantRow, used: u64) -> String {
    let quota = match (row.memory_quota_bytes(), row.memory_rest_bytes) {
        (Some(quota), _) => format!("of {}", bytes(quota)),
        (None, Some(rest)) => format!("of the {} that are not promised to others", bytes(rest)),
        (None, None) => "without a quota".to_owned(),
    };
    let peak =
        row.memory_peak_bytes.map_or_else(String::new, |peak| format!(", {} at most so far", bytes(peak)));
    format!("{} {quota}{peak}", bytes(used))
}

fn of_driver(row: &TenantRow, driver: u64) -> String {
    let free = row.limits.driver_allowance.map_or_else(String::new, |allowance| {
        format!("; {} a process do not count as memory", bytes(allowance.bytes()))
    });
    format!("{} in its processes{free}", bytes(driver))
}

fn origin(origin: Origin) -> String {
    match origin {
        Origin::Request => origin.to_string(),
        Origin::Policy => format!("{origin}: its program was started without `partita run`"),
    }
}

fn state(row: &TenantRow) -> Option<String> {
    let age = age(row.age_s?);
    Some(match (row.stopped, row.started) {
        (Some(true), _) => format!("stopped by a signal or a debugger, started {age} ago"),
        (_, Some(false)) => format!("made {age} ago, its program is not started"),
        _ => format!("started {age} ago"),
    })
}

fn process_text(process: &ProcessRow) -> String {
    let mut text = format!(
        "{}: {}, {} of the driver, {} launches",
        process.pid,
        bytes(process.memory_bytes),
        bytes(process.driver_bytes),
        process.launches
    );
    if process.spilled_bytes > 0 {
        text.push_str(&format!(", {} of host memory", bytes(process.spilled_bytes)));
    }
    if process.refused_allocations > 0 {
        text.push_str(&format!(", {} refused allocations", process.refused_allocations));
    }
    text
}
