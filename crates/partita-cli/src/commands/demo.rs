//! `partita demo`.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use partita::demo;
use partita::install::Install;
use partita_console::{Failure, print, print_json, select, tell};

use crate::args::Demo;

/// The picture's file, unless another one is named.
const PICTURE: &str = "partita-demo.svg";

/// Runs the demo, prints the result, and writes its picture.
pub fn demo(arguments: &Demo) -> Result<ExitCode, Failure> {
    let install = Install::of_this_program()?;
    let gpu = select(&install, &arguments.gpu)?;
    let outcome = demo::play(&install, &gpu)?;
    if arguments.json {
        print_json(&outcome)?;
    } else {
        print(&outcome.to_text())?;
    }
    // After the result, which is there without the picture too.
    let file = arguments.svg.as_deref().unwrap_or(Path::new(PICTURE));
    let svg = file.display();
    match fs::write(file, outcome.to_svg()) {
        Ok(()) if arguments.json => {}
        Ok(()) => print(&format!("Picture: {svg}\n"))?,
        Err(error) => {
            let line = format!("the picture {svg}: {error}; name another file with --svg");
            if arguments.svg.is_some() {
                return Err(Failure::Told(line));
            }
            tell(&line);
        }
    }
    Ok(ExitCode::SUCCESS)
}
