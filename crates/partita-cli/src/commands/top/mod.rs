//! `partita top`: the GPUs and their tenants, live.
//!
//! Looks become rows (`rows`), rows and the user's choices (`view`) a frame (`frame`), all without
//! I/O; `sampler` takes the looks, `screen` has the terminal.

mod frame;
mod reading;
mod rows;
mod sampler;
mod screen;
mod view;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use partita::install::Install;
use partita::process::is_orphaned;
use partita::registry::Registry;
use partita::{ps, queue};
use partita_console::{Failure, pause, print, print_on};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};

use self::frame::{Size, frame, plain};
use self::reading::{Look, Reading};
use self::rows::{Row, rows};
use self::sampler::{Event, Sampler};
use self::screen::Screen;
use self::view::{Action, View, keys};
use crate::args::Top;
use crate::commands::ps::{columns, loads};
use crate::commands::terminal;

/// How long a key or a signal may wait for its effect.
const TICK: Duration = Duration::from_millis(100);
/// The columns of a frame that is not for a terminal.
const PAPER_COLUMNS: usize = 100;

/// Shows frames until the user quits.
pub fn top(arguments: &Top) -> Result<ExitCode, Failure> {
    if arguments.once && arguments.json {
        print(&look()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let every = Duration::from_secs(arguments.every.into());
    let install = Install::of_this_program()?;
    if arguments.json {
        return lines(&install, every);
    }
    let is_screen = std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !terminal::is_dumb();
    if arguments.once || !is_screen {
        return paper(&install, every, arguments.once);
    }
    live(install, every)
}

/// One look, as a line of JSON.
fn look() -> Result<String, Failure> {
    let registry = Registry::open()?;
    let tenants = ps::ps(&registry)?;
    let waiting = queue::waiting(&registry)?;
    let loads = loads(&registry)?;
    let look = Look { gpus: loads.gpus, tenants, waiting, outsiders: loads.outsiders, unseen: loads.unseen };
    let json = serde_json::to_string(&look).map_err(|error| Failure::Told(error.to_string()))?;
    Ok(format!("{json}\n"))
}

/// A line of JSON for each look, until the reader goes.
fn lines(install: &Install, every: Duration) -> Result<ExitCode, Failure> {
    loop {
        let begin = Instant::now();
        print_on(&sampler::look_text(install).map_err(Failure::Told)?)?;
        pause(every.saturating_sub(begin.elapsed()))?;
    }
}

/// Frames one after the other, until the reader goes.
fn paper(install: &Install, every: Duration, once: bool) -> Result<ExitCode, Failure> {
    let size = Size { columns: columns().unwrap_or(PAPER_COLUMNS), rows: None };
    let mut state = State::default();
    loop {
        let begin = Instant::now();
        if let Some(problem) = state.take(sampler::look(install)) {
            return Err(Failure::Told(problem));
        }
        let text = plain(&frame(&state.reading, &state.rows(), &state.view, size));
        if once {
            print(&text)?;
            return Ok(ExitCode::SUCCESS);
        }
        print_on(&format!("{text}\n"))?;
        pause(every.saturating_sub(begin.elapsed()))?;
    }
}

/// The looks and the choices so far.
#[derive(Debug, Default)]
struct State {
    reading: Reading,
    at: Option<Instant>,
    /// The look before and the time since.
    before: Option<(Reading, Duration)>,
    view: View,
}

impl State {
    /// Takes an event in; returns why there is no look, if there is none.
    fn take(&mut self, event: Event) -> Option<String> {
        match event {
            Event::Look(reading, at) => {
                let before = std::mem::replace(&mut self.reading, reading);
                self.before = self.at.map(|then| (before, at.duration_since(then)));
                self.at = Some(at);
                None
            }
            Event::Blind(reason) => Some(reason),
            Event::Done(said) => {
                self.view.message = Some(said);
                None
            }
        }
    }

    fn rows(&self) -> Vec<Row> {
        let before = self.before.as_ref().map(|(reading, since)| (reading, *since));
        rows(before, &self.reading, self.view.sort)
    }
}

/// Frames in place, with keys.
fn live(install: Install, every: Duration) -> Result<ExitCode, Failure> {
    let io =
        |error: std::io::Error| Failure::Told(format!("the terminal: {error}; use `partita top --once`"));
    let (ends, stops) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    for signal in [SIGINT, SIGQUIT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_usize(signal, Arc::clone(&ends), signal as usize).map_err(io)?;
    }
    signal_hook::flag::register(SIGTSTP, Arc::clone(&stops)).map_err(io)?;
    let sampler = Sampler::start(install, every);
    let mut state = State::default();
    // Before the terminal changes: a first look that fails is an error of the command.
    if let Some(problem) = sampler.wait().and_then(|event| state.take(event)) {
        return Err(Failure::Told(problem));
    }
    let mut screen = Screen::take(terminal::has_colours()).map_err(io)?;
    let mut shown = Vec::new();
    loop {
        let signal = ends.load(Ordering::Relaxed);
        if signal != 0 {
            return Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX)));
        }
        // The kernel stops no job that no shell would continue.
        if stops.swap(false, Ordering::Relaxed) && !is_orphaned() {
            screen.stop().map_err(io)?;
            shown.clear();
        }
        for event in sampler.news() {
            if let Some(problem) = state.take(event) {
                state.view.message = Some(problem);
            }
        }
        let rows = state.rows();
        // A window that has changed its size is another frame.
        let size = screen.size();
        let next = frame(&state.reading, &rows, &state.view, size);
        if shown != next {
            screen.show(&next).map_err(io)?;
            shown = next;
        }
        for key in keys(&screen.read(TICK).map_err(io)?) {
            match state.view.key(key, &rows) {
                Some(Action::Quit) => return Ok(ExitCode::SUCCESS),
                Some(Action::Run(words)) => {
                    state.view.message = Some(format!("partita {} …", words.join(" ")));
                    sampler.act(words);
                }
                None => {}
            }
        }
    }
}
