//! `partita mps logs`.

use std::time::Duration;

use partita::error::Error;
use partita::mps::incident::{self, Because, Incident, What};
use partita_mps::Service;
use partita_mps::fault::{Evidence, Work};
use partita_mps::log::{Entry, Event, Tail};

use super::Of;
use partita_console::{Failure, pause, print_on, tell};

use crate::args::MpsLogs;

/// How often to read the files.
const PERIOD: Duration = Duration::from_millis(100);

/// The files to follow.
struct Logs<'a> {
    service: &'a Service,
    tails: [Tail; 2],
    /// Incidents that have been printed.
    incidents: usize,
}

pub fn logs(arguments: &MpsLogs) -> Result<(), Failure> {
    let of = Of::find(&arguments.gpu)?;
    let dirs = of.service.dirs();
    let tails = [dirs.control_log(), dirs.server_log()].map(|path| Tail::from_start(&path));
    if ![dirs.control_log(), dirs.server_log()].iter().any(|log| log.exists()) && !of.is_running()? {
        tell(&format!(
            "MPS of {}: no log in {}: the service does not run, and stopping it removes its logs; start it \
             with `partita mps start`",
            of.label,
            dirs.log().display()
        ));
    }
    let mut logs = Logs { service: &of.service, tails, incidents: 0 };
    loop {
        let text = logs.news(arguments)?;
        if !text.is_empty() {
            print_on(&text)?;
        }
        if !arguments.follow {
            return Ok(());
        }
        pause(PERIOD)?;
    }
}

impl Logs<'_> {
    /// New entries, as lines.
    fn news(&mut self, arguments: &MpsLogs) -> Result<String, Failure> {
        let mut entries: Vec<Entry> = Vec::new();
        for tail in &mut self.tails {
            entries
                .extend(tail.poll().map_err(|source| Error::Io { what: "a log of MPS".to_owned(), source })?);
        }
        // Stable: within one millisecond the daemon's lines come first.
        entries.sort_by_key(|entry| entry.time);
        entries
            .retain(|entry| !arguments.events || entry.event.as_ref().is_some_and(|event| !is_query(event)));
        let mut lines: Vec<String> = entries
            .iter()
            .map(|entry| if arguments.json { json(entry) } else { entry_text(entry) })
            .collect();
        let incidents = incident::all(self.service);
        // Fewer than before: the service was stopped and restarted.
        let fresh = incidents.get(self.incidents..).unwrap_or(&incidents);
        lines.extend(fresh.iter().map(|one| if arguments.json { json(one) } else { incident_text(one) }));
        self.incidents = incidents.len();
        Ok(lines.iter().map(|line| format!("{line}\n")).collect())
    }
}

/// Whether this is a command that changes nothing, such as those with which Partita itself looks.
fn is_query(event: &Event) -> bool {
    let Event::Command { line } = event else { return false };
    ["get_", "lspart", "ps"].iter().any(|query| line.starts_with(query))
}

fn json(value: &impl serde::Serialize) -> String {
    // Entries and incidents hold only types that JSON has.
    serde_json::to_string(value).unwrap_or_default()
}

fn entry_text(entry: &Entry) -> String {
    format!("{} {:?} {}: {}", entry.time, entry.source, entry.pid, entry.text)
}

fn incident_text(incident: &Incident) -> String {
    let Incident { time_unix_ms, tenant, what } = incident;
    let words = match what {
        What::Killed { pid, neighbours } => {
            let neighbours: Vec<String> = neighbours.iter().map(u32::to_string).collect();
            format!("process {pid} was killed from outside beside clients {}", neighbours.join(", "))
        }
        What::Work { clients, .. } => {
            let one = |one: &Evidence| {
                let work = match one.work {
                    Work::Finished => "finished",
                    Work::Unfinished => "unfinished",
                    Work::Unknown => "not known",
                };
                let ended = one.ended.as_ref().map_or(String::new(), |how| format!(", {how}"));
                format!("process {} (work: {work}{ended})", one.pid)
            };
            let clients: Vec<String> = clients.iter().map(one).collect();
            format!("clients: {}", clients.join(", "))
        }
        What::Hit { cause, .. } => format!("hit by a fault {cause}"),
        What::Canary { server, works: true } => format!("server {server} runs kernels again"),
        What::Canary { server, works: false } => {
            format!("server {server} is stuck: a test kernel did not run")
        }
        What::Recovered { server, because } => format!("server {server} {}", because.describe()),
        What::Released { pid, held_ms, because } => {
            let why = match because {
                Because::Passed => "its work had ended, as its fences tell",
                Because::Free => "its work had ended, as its compute units tell",
                Because::Waited => "its last launches had time to end, and nothing tells more",
                Because::WorkEnded => "the server had ended its work",
                Because::Asked => "`partita kill` ended the tenant",
                Because::Alone => "no other client was left whom that could hurt",
            };
            format!("dead process {pid} was held for {:.1} s: {why}", *held_ms as f64 / 1000.0)
        }
        What::Caused { server } => format!("caused a fault of server {server}"),
        What::Restarted { restarts, waited_ms } => {
            format!("restarted ({restarts}), {waited_ms} ms after its program had ended")
        }
    };
    format!("{} tenant {tenant}: {words}", utc(*time_unix_ms))
}

/// A moment in the format of the logs, but in UTC and marked so: the logs use local time.
fn utc(unix_ms: u64) -> String {
    let (days, ms) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    let (year, month, day) = partita_core::date_of(days);
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn moments_are_dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00.000Z");
        assert_eq!(utc(951_782_399_999), "2000-02-28 23:59:59.999Z");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00.000Z");
        assert_eq!(utc(1_795_274_956_895), "2026-11-21 15:29:16.895Z");
    }
}
