//! A thread that looks, and one that acts, so that neither a driver that is slow nor a tenant that
//! does not end keeps the keys waiting.
//!
//! Both run `partita` itself: `top --once --json`, `set` and `kill`. So they do what these commands
//! do, in system mode through `partitad`, and a driver that hangs holds a child process only.

use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use partita::install::Install;

use super::reading::Reading;

/// What a thread reports.
#[derive(Debug)]
pub enum Event {
    /// A new look, and when it was taken.
    Look(Reading, Instant),
    /// Why there is none.
    Blind(String),
    /// What an action printed.
    Done(String),
}

/// The threads.
#[derive(Debug)]
pub struct Sampler {
    install: Install,
    events: Receiver<Event>,
    sender: Sender<Event>,
}

impl Sampler {
    /// Begins to look, `every` so often or as fast as looks take.
    pub fn start(install: Install, every: Duration) -> Self {
        let (sender, events) = channel();
        let (program, looks) = (install.clone(), sender.clone());
        thread::spawn(move || {
            loop {
                let begin = Instant::now();
                if looks.send(look(&program)).is_err() {
                    return;
                }
                thread::sleep(every.saturating_sub(begin.elapsed()));
            }
        });
        Self { install, events, sender }
    }

    /// What has come since the last call.
    pub fn news(&self) -> Vec<Event> {
        self.events.try_iter().collect()
    }

    /// The next event.
    pub fn wait(&self) -> Option<Event> {
        self.events.recv().ok()
    }

    /// Runs `partita` with these arguments. What it prints comes as an event.
    pub fn act(&self, arguments: Vec<String>) {
        let (install, sender) = (self.install.clone(), self.sender.clone());
        thread::spawn(move || {
            let said = match run(&install, &arguments) {
                Ok(output) => {
                    let said = if output.status.success() { &output.stdout } else { &output.stderr };
                    first_line(said)
                }
                Err(error) => error,
            };
            // Nobody waits for it after the end.
            let _ = sender.send(Event::Done(said));
        });
    }
}

/// One look.
pub fn look(install: &Install) -> Event {
    let parse = |text: String| {
        serde_json::from_str(&text).map_err(|error| format!("partita top --once --json: {error}"))
    };
    match look_text(install).and_then(parse) {
        Ok(reading) => Event::Look(reading, Instant::now()),
        Err(reason) => Event::Blind(reason),
    }
}

/// One look, as JSON.
///
/// # Errors
/// Why there is none.
pub fn look_text(install: &Install) -> Result<String, String> {
    let output = run(install, &["top", "--once", "--json"].map(str::to_owned))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(first_line(&output.stderr)),
    }
}

fn run(install: &Install, arguments: &[String]) -> Result<std::process::Output, String> {
    let mut command = Command::new(install.program());
    // Keys are not for it.
    command.args(arguments).stdin(Stdio::null());
    command.output().map_err(|error| format!("{}: {error}", install.program().display()))
}

fn first_line(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let line = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("done");
    line.trim_start_matches("partita: ").to_owned()
}
