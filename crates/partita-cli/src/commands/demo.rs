//! `partita demo`.

use std::fs;
use std::process::ExitCode;

use partita::demo;
use partita::install::Install;
use partita_console::{Failure, print, print_json, select};

use crate::args::Demo;

/// Runs the demo, prints the result, and writes its picture.
pub fn demo(arguments: &Demo) -> Result<ExitCode, Failure> {
    let install = Install::of_this_program()?;
    let gpu = select(&install, &arguments.gpu)?;
    let outcome = demo::play(&install, &gpu)?;
    let svg = arguments.svg.display();
    fs::write(&arguments.svg, outcome.to_svg())
        .map_err(|error| Failure::Told(format!("{svg}: {error}; name another file with --svg")))?;
    if arguments.json {
        print_json(&outcome)?;
    } else {
        print(&format!("{}Picture: {svg}\n", outcome.to_text()))?;
    }
    Ok(ExitCode::SUCCESS)
}
