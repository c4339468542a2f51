//! `partita kill`.

use std::process::ExitCode;
use std::time::Duration;

use partita::install::Install;
use partita::kill::{self, Ended};
use partita::registry::Registry;
use partita_console::{Failure, print, print_json, tell};
use partita_core::Count;

use crate::args::Kill;

/// Ends the tenants, one after the other.
pub fn kill(arguments: &Kill) -> Result<ExitCode, Failure> {
    let install = Install::of_this_program()?;
    let registry = Registry::open()?;
    let grace = Duration::from_secs(arguments.grace.into());
    let (mut first_code, mut ended) = (None, Vec::new());
    // Each failure is reported in its turn; the exit code is that of the first.
    let mut report = |failure: Failure| {
        let code = failure.report();
        first_code.get_or_insert(code);
    };
    for name in &arguments.names {
        match kill::kill(&install, &registry, name, grace) {
            Ok(outcome) => {
                for notice in &outcome.notices {
                    tell(notice);
                }
                if arguments.json {
                    ended.push(Ended { name: name.clone(), processes: outcome.processes });
                    continue;
                }
                // Go on with the other tenants, though this result could not be printed.
                if let Err(failure) =
                    print(&format!("{name}: ended ({})\n", Count(outcome.processes, "process")))
                {
                    report(failure);
                }
            }
            Err(error) => report(error.into()),
        }
    }
    if arguments.json {
        print_json(&ended)?;
    }
    Ok(first_code.unwrap_or(ExitCode::SUCCESS))
}
