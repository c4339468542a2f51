//! `partita topology`.

use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use partita::install::Install;
use partita::run::check_usable;
use partita::topology::{self, Ink};
use partita_console::{Failure, print, print_json, select};

use crate::args::Topology;
use crate::commands::{check_svg, terminal};

/// Charts the GPU, prints the chart, and writes a picture if requested.
pub fn topology(arguments: &Topology) -> Result<ExitCode, Failure> {
    let begin = Instant::now();
    arguments.svg.as_deref().map_or(Ok(()), check_svg)?;
    let install = Install::of_this_program()?;
    let gpu = select(&install, &arguments.gpu)?;
    check_usable(&gpu)?;
    let chart = topology::examine(&install, &gpu, arguments.fresh, begin)?;
    if let Some(path) = &arguments.svg {
        fs::write(path, chart.to_svg()).map_err(|error| {
            Failure::Told(format!("{}: {error}; name another file with --svg", path.display()))
        })?;
    }
    if arguments.json {
        print_json(&chart)?;
    } else {
        let ink = if terminal::has_colours() { Ink::Colour } else { Ink::Plain };
        print(&chart.to_text(ink))?;
    }
    Ok(if chart.agree { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
