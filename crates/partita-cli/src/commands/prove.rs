//! `partita prove`.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use partita::install::Install;
use partita::prove::{self, ProveRequest, Report};
use partita::run::check_usable;
use partita_console::{Failure, Table, print, print_json, select};

use crate::args::{Prove, RouteArg};

/// Runs the proof and prints the result.
pub fn prove(arguments: &Prove) -> Result<ExitCode, Failure> {
    let install = Install::of_this_program()?;
    let gpu = select(&install, &arguments.gpu)?;
    check_usable(&gpu)?;
    // A new proof each time, unless the user names the seed of an earlier one.
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.subsec_nanos().into());
    let request = ProveRequest {
        blocks: arguments.blocks,
        masks: arguments.masks,
        seed: arguments.seed.unwrap_or_else(now),
        routes: arguments.routes.iter().map(|route| route_name(*route)).collect(),
        masks_in_flight: arguments.in_flight,
        fault_every: arguments.fault_every,
    };
    let watched = std::io::stderr().is_terminal();
    let report = prove::prove(&install, &gpu, &request, |progress| {
        if watched {
            let done = progress.blocks as f64 / progress.blocks_wanted.max(1) as f64;
            let _ = write!(
                std::io::stderr(),
                "\r\x1b[K{:.0} % ({} blocks, {} masks, {} escaped)",
                100.0 * done.min(1.0),
                grouped(progress.blocks),
                grouped(progress.masks.into()),
                grouped(progress.escaped_blocks)
            );
        }
    });
    if watched {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    let report = report?;
    if arguments.json {
        print_json(&report)?;
    } else {
        print(&text(&report, &request.routes))?;
    }
    Ok(if report.found.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The proof's name for a route is the one on the command line.
fn route_name(route: RouteArg) -> String {
    route.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// `asked`: the routes of the command line; all if there are none.
fn text(report: &Report, asked: &[String]) -> String {
    let found = &report.found;
    let mut table = Table::new(&["ROUTE", ">LAUNCHES", ">BLOCKS"]);
    for row in found.routes.iter().filter(|row| asked.is_empty() || asked.contains(&row.route)) {
        let count = |count| if row.launches == 0 { "not offered".to_owned() } else { grouped(count) };
        table.row([row.route.clone(), count(row.launches), count(row.blocks)]);
    }
    table.row(["all".to_owned(), grouped(found.launches), grouped(found.blocks)]);
    let mut text = format!(
        "{} ({}), driver {}, seed {}\n\n{}\n",
        report.gpu,
        report.gpu_uuid,
        report.driver_version,
        report.seed,
        table.render()
    );
    let mut line = |name: &str, value: String| text.push_str(&format!("{name:<20}  {value}\n"));
    line("masks", grouped(found.masks.into()));
    line("changed under load", format!("{} times", grouped(found.changes_under_load.into())));
    line("SMs used", format!("{} of {}", found.sms_used, found.sms));
    line("duration", format!("{:.1} s", report.duration_s));
    line("escaped blocks", grouped(found.escaped_blocks));
    if let (Some(block), Some(mask)) = (found.escape_bound_per_block, found.escape_bound_per_mask) {
        line("upper bound (95 %)", format!("{block:.1e} a block, {mask:.1e} a mask (rule of three)"));
    }
    for escape in &found.escapes {
        text.push_str(&format!(
            "ESCAPED: {} of mask {} (tpc:{}) on SM {}, by {}\n",
            blocks(escape.blocks),
            escape.mask,
            escape.tpcs,
            escape.sm,
            escape.route
        ));
    }
    let told: u64 = found.escapes.iter().map(|escape| u64::from(escape.blocks)).sum();
    if found.escaped_blocks > told {
        text.push_str(&format!("and {} more\n", grouped(found.escaped_blocks - told)));
    }
    text.push_str(match found.holds() {
        true => "The masks hold.\n",
        false => "THE MASKS DO NOT HOLD: do not share this GPU with them; report the driver and the GPU.\n",
    });
    text
}

fn blocks(count: u32) -> String {
    format!("{} block{}", grouped(count.into()), if count == 1 { "" } else { "s" })
}

/// A number with separators between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|part| std::str::from_utf8(part).unwrap_or_default())
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567_890, "1,234,567,890")] {
            assert_eq!(grouped(number), text);
        }
    }
}
