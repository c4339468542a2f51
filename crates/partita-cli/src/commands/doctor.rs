//! `partita doctor`.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use partita::doctor::{self, Report, State};
use partita::install::Install;
use partita_console::{Failure, print, print_json, select};

use crate::args::Doctor;

/// Runs the checks and prints the results.
pub fn doctor(arguments: &Doctor) -> Result<ExitCode, Failure> {
    let install = Install::of_this_program()?;
    let gpu = select(&install, &arguments.gpu)?;
    let watched = std::io::stderr().is_terminal();
    let report = doctor::examine(&install, &gpu, |name| {
        if watched {
            // Progress line: the next name replaces it, and the end clears it.
            let _ = write!(std::io::stderr(), "\r\x1b[Kchecking {name} …");
        }
    });
    if watched {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    let report = report?;
    if arguments.json {
        print_json(&report)?;
    } else {
        let mut text = format!("{} ({}), driver {}\n\n", report.gpu, report.gpu_uuid, report.driver_version);
        for check in &report.checks {
            let state = match check.state {
                State::Ok => "ok",
                State::Failed => "FAILED",
                State::Weak => "restricted",
                State::NotChecked => "not checked",
            };
            text.push_str(&format!("{:<17}  {state:<11}  {}\n", check.name, check.detail));
            if let Some(remedy) = &check.remedy {
                text.push_str(&format!("{:<17}  {:<11}  -> {remedy}\n", "", ""));
            }
        }
        text.push_str(&verdict(&report));
        print(&text)?;
    }
    Ok(if report.is_healthy() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How many checks had which result.
fn verdict(report: &Report) -> String {
    let states = [
        (State::Ok, "ok"),
        (State::Failed, "FAILED"),
        (State::Weak, "restricted"),
        (State::NotChecked, "not checked"),
    ];
    let count = |state| report.checks.iter().filter(|check| check.state == state).count();
    let counts = states.map(|(state, name)| (count(state), name));
    let counts = counts.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}"));
    let end = if report.is_healthy() { "Partita works here" } else { "mend what failed first" };
    format!("\n{}: {end}\n", counts.collect::<Vec<_>>().join(", "))
}
