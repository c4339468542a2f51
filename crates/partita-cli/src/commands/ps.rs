//! `partita ps`.

use std::process::ExitCode;

use partita::ps::{self, TenantRow};
use partita::registry::{Isolation, Registry};

use crate::args::Ps;
use crate::commands::bytes;
use crate::fail::{Failure, tell};
use crate::output::{print, print_json};
use crate::table::Table;

/// Lists the tenants.
pub fn ps(arguments: &Ps) -> Result<ExitCode, Failure> {
    let rows = ps::ps(&Registry::open()?)?;
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
        ">PROCS",
        ">LAUNCHES",
        ">AGE",
        "COMMAND",
    ]);
    for row in &rows {
        table.row(cells(row));
    }
    print(&table.render())?;
    for row in &rows {
        if let Some(problem) = &row.problem {
            tell(&format!("{}: {problem}", row.name));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn cells(row: &TenantRow) -> [String; 11] {
    let unknown = || "?".to_owned();
    let gpu = match row.isolation {
        Some(Isolation::Own) => format!("{} (own)", row.gpu),
        _ => row.gpu.clone(),
    };
    let quota = match (row.memory_quota_bytes, &row.tpcs) {
        (Some(quota), _) => bytes(quota),
        (None, Some(_)) => "-".to_owned(),
        (None, None) => unknown(),
    };
    [
        row.name.clone(),
        row.user.clone(),
        gpu,
        row.sms.zip(row.sms_of_device).map_or_else(unknown, |(sms, all)| format!("{sms}/{all}")),
        row.tpcs.as_deref().map_or_else(unknown, |tpcs| shorten(tpcs, 16)),
        row.memory_used_bytes.map_or_else(unknown, bytes),
        quota,
        row.processes.len().to_string(),
        row.launches.map_or_else(unknown, |launches| launches.to_string()),
        row.age_s.map_or_else(unknown, age),
        row.command.as_ref().map_or_else(unknown, |command| shorten(&command.join(" "), 40)),
    ]
}

fn shorten(text: &str, chars_max: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match clean.char_indices().nth(chars_max) {
        Some(_) => clean.chars().take(chars_max - 1).chain(['…']).collect(),
        None => clean,
    }
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

    #[test]
    fn long_and_hostile_texts_are_cut() {
        assert_eq!(shorten("abcd", 4), "abcd");
        assert_eq!(shorten("abcde", 4), "abc…");
        assert_eq!(shorten("a\x1b[2Jb\n", 10), "a [2Jb ");
    }
}
