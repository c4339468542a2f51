//! `partita compare`.

use std::process::ExitCode;

use partita::compare::{Way, compare as ways};
use partita::install::Install;
use partita::registry::Registry;
use partita_console::{Failure, Table, print, print_json, select};

use crate::args::Compare;

/// Compares all ways to divide a GPU.
pub fn compare(arguments: &Compare) -> Result<ExitCode, Failure> {
    let install = Install::of_this_program()?;
    let gpu = select(&install, &arguments.gpu)?;
    let ways = ways(&install, &Registry::open()?, &gpu)?;
    if arguments.json {
        print_json(&ways)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!("{}:\n", gpu.label());
    let mut table = Table::new(&["WAY", "HERE", "BECAUSE"]);
    for way in &ways {
        let here = if way.is_available { "yes" } else { "no" };
        table.row([way.name.to_owned(), here.to_owned(), way.because.clone()]);
    }
    text.push_str(&table.render());
    let mut table = Table::new(&["WAY", "COMPUTE", "MEMORY", "A FAULT REACHES", "FLEXIBILITY"]);
    for way in &ways {
        table.row([way.name, way.compute, way.memory, way.faults, way.flexibility].map(str::to_owned));
    }
    text.push_str(&format!("\n{}", table.render()));
    let mut table = Table::new(&["WAY", "MEASURED", "ON", "SOURCE"]);
    for way in &ways {
        measured(&mut table, way);
    }
    text.push_str(&format!("\n{}", table.render()));
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn measured(table: &mut Table, way: &Way) {
    if let Some(here) = &way.here {
        table.row([way.name.to_owned(), here.clone(), "this machine".to_owned(), "doctor".to_owned()]);
    }
    match &way.measured {
        Some(quote) => {
            let source = format!("research/bench/results/{}", quote.file);
            table.row([way.name.to_owned(), quote.what.to_owned(), quote.on.to_owned(), source]);
        }
        None => table.row([way.name.to_owned(), "not measured".to_owned(), "-".to_owned(), "-".to_owned()]),
    }
}
