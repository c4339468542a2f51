//! `partita chain tune`: one search for chains that are one application.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use partita::registry::Registry;
use partita_chain_host::Event;
use partita_chain_host::joint::{Part, tune as search};
use partita_console::{Failure, print_json_on, print_on};

use crate::args::ChainTune;

/// Searches until it is ended.
pub fn tune(arguments: &ChainTune) -> Result<(), Failure> {
    let registry = Registry::open()?;
    let tokens = arguments.token_file.iter().map(|path| {
        let text = fs::read_to_string(path);
        let text = text.map_err(|error| Failure::Told(format!("{}: {error}", path.display())));
        text.map(|text| text.trim().to_owned())
    });
    let tokens = tokens.collect::<Result<Vec<String>, Failure>>()?;
    let remote = arguments.parts.iter().filter(|part| part.contains('/')).count();
    if tokens.len() > 1 && tokens.len() != remote {
        return Err(Failure::Told(format!(
            "--token-file is given {} times for {remote} chains of other machines; give one for all, or \
             one for each",
            tokens.len()
        )));
    }
    // One for all, or one for each in their order.
    let mut tokens = tokens.iter().cycle();
    let mut parts = Vec::new();
    for text in &arguments.parts {
        let token = if text.contains('/') {
            Some(tokens.next().ok_or_else(|| {
                Failure::Told(format!("{text}: its daemon wants a token; give --token-file"))
            })?)
        } else {
            None
        };
        parts.push(Part::new(text, &registry, token.map(String::as_str))?);
    }
    let period = Duration::from_millis(arguments.period_ms.into());
    // A reader that is gone ends the search at its next event.
    let mut gone = None;
    let ending = AtomicBool::new(false);
    let show = |event: &Event| {
        let shown = match arguments.json {
            true => print_json_on(event),
            false => print_on(&line(event)),
        };
        if let Err(error) = shown {
            gone = Some(error);
            ending.store(true, Ordering::Relaxed);
        }
    };
    search(&parts, period, arguments.once, &ending, show)?;
    gone.map_or(Ok(()), Err)
}

fn line(event: &Event) -> String {
    let throughput = event.throughput_fps.map_or(String::new(), |fps| format!(" ({fps:.1} frames/s)"));
    format!("{:8.1} s: {}{throughput}\n", event.at_s, event.what)
}
