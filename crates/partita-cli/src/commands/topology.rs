//! `partita topology`.

use std::fs;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Instant;

use partita::install::Install;
use partita::topology::{self, Ink};
use partita_console::{Failure, print, print_json, select};

use crate::args::Topology;

/// Charts the GPU, prints the chart, and writes a picture if requested.
pub fn topology(arguments: &Topology) -> Result<ExitCode, Failure> {
    let begin = Instant::now();
    let install = Install::of_this_program()?;
    let gpu = select(&install, &arguments.gpu)?;
    let chart = topology::examine(&install, &gpu, arguments.fresh, begin)?;
    if let Some(path) = &arguments.svg {
        fs::write(path, chart.to_svg()).map_err(|error| {
            Failure::Told(format!("{}: {error}; name another file with --svg", path.display()))
        })?;
    }
    if arguments.json {
        print_json(&chart)?;
    } else {
        print(&chart.to_text(ink()))?;
    }
    Ok(if chart.agree { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Colours for a terminal that has them, unless the user declines (no-color.org).
fn ink() -> Ink {
    let declined = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if std::io::stdout().is_terminal() && !declined && !dumb { Ink::Colour } else { Ink::Plain }
}
