//! Incidents of a service's tenants beside the service's own logs: one line of JSON each, next to
//! them.
//!
//! The `partita run` that saw it writes it, or in system mode `partitad`. Other tenants' `partita
//! run` read it to explain why their program failed; so do `partita mps logs` and the metrics.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use partita_mps::fault::Evidence;
use partita_mps::{Pid, Service};
use serde::{Deserialize, Serialize};

use crate::escape::escape;
use crate::files::open_regular;

/// The most that is read of the file: the newest incidents are at its end. A longer file is set
/// aside.
const READ_BYTES_MAX: u64 = 1 << 20;
/// The most that another user's process may say of one incident.
const CAUSE_CHARACTERS_MAX: usize = 200;
/// The most neighbours of one: no service has more clients.
const NEIGHBOURS_MAX: usize = 64;

/// One incident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// When, in milliseconds since 1970.
    pub time_unix_ms: u64,
    /// The tenant that it is about.
    pub tenant: String,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// The kind of an incident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "incident", rename_all = "snake_case")]
pub enum What {
    /// A process of it that was a client was killed from outside, and not through Partita: work in
    /// flight may have hurt the others.
    Killed {
        /// The process.
        pid: Pid,
        /// The clients that were there beside it.
        neighbours: Vec<Pid>,
    },
    /// What is known of its clients' work: when its server reports a fault, or when its program
    /// ends with work that may be unfinished.
    Work {
        /// The server.
        server: Pid,
        /// How many faults the server had reported by then.
        faults: u32,
        /// Its clients.
        clients: Vec<Evidence>,
    },
    /// A fault that a neighbour caused, or may have caused, ended its work.
    Hit {
        /// The server.
        server: Pid,
        /// The cause, in words.
        cause: String,
    },
    /// A canary of it did not run in time: the server is stuck. `works`: a later one ran.
    Canary {
        /// The server.
        server: Pid,
        /// Whether it ran.
        works: bool,
    },
    /// It, or `partita mps recover`, killed a server.
    Recovered {
        /// The server.
        server: Pid,
        /// Why.
        #[serde(default)]
        because: RestartCause,
    },
    /// Its holder released a process that had died as a client beside others.
    Released {
        /// The process.
        pid: Pid,
        /// How long after its death, in milliseconds.
        held_ms: u64,
        /// Why.
        because: Because,
    },
    /// A fault that its own work caused.
    Caused {
        /// The server.
        server: Pid,
    },
    /// Its program was restarted after a neighbour's fault.
    Restarted {
        /// How often, this time counted.
        restarts: u32,
        /// From the program's end until the server took clients again, in milliseconds.
        waited_ms: u64,
    },
}

/// Why a holder released a dead process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// The GPU had passed the fences behind all of its launches, or it had waited for them.
    Passed,
    /// Its compute units were free.
    Free,
    /// Nothing tells whether its last launches have ended, and they had time to end.
    Waited,
    /// The server had ended its work.
    WorkEnded,
    /// Someone ended the tenant.
    Asked,
    /// No other client was left, or all had lost their work.
    Alone,
}

impl What {
    /// An incident that another user's process reports, in the form that may be written for all
    /// users.
    pub(crate) fn of_another_user(mut self) -> Self {
        match &mut self {
            Self::Hit { cause, .. } => *cause = escape(cause).chars().take(CAUSE_CHARACTERS_MAX).collect(),
            Self::Killed { neighbours, .. } => neighbours.truncate(NEIGHBOURS_MAX),
            Self::Work { clients, .. } => {
                clients.truncate(NEIGHBOURS_MAX);
                for how in clients.iter_mut().filter_map(|client| client.ended.as_mut()) {
                    *how = escape(how).chars().take(CAUSE_CHARACTERS_MAX).collect();
                }
            }
            Self::Canary { .. }
            | Self::Recovered { .. }
            | Self::Released { .. }
            | Self::Caused { .. }
            | Self::Restarted { .. } => {}
        }
        self
    }
}

/// Why a server was killed, so that another one starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartCause {
    /// It was stuck.
    #[default]
    Stuck,
    /// `partita mps recover --force` asked for it.
    Forced,
    /// It had none but dead clients.
    Dead,
}

impl RestartCause {
    /// The reason, in words that follow the server.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Stuck => "was stuck and was restarted",
            Self::Forced => "was restarted by `partita mps recover --force`",
            Self::Dead => "was ended, because all its clients had died",
        }
    }
}

impl Incident {
    /// One of now.
    #[must_use]
    pub fn now(tenant: &str, what: What) -> Self {
        Self { time_unix_ms: now_unix_ms(), tenant: tenant.to_owned(), what }
    }
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

fn file(service: &Service) -> PathBuf {
    service.dirs().log().join("incidents.jsonl")
}

/// Records an incident. If writing fails it is lost: only messages depend on it.
pub fn note(service: &Service, incident: &Incident) {
    let Ok(mut line) = serde_json::to_vec(incident) else { return };
    line.push(b'\n');
    let path = file(service);
    if path.metadata().is_ok_and(|meta| meta.len() > READ_BYTES_MAX) {
        let _ = fs::rename(&path, path.with_extension("old"));
    }
    let mode = if service.is_for_all_users() { 0o644 } else { 0o600 };
    let opened = OpenOptions::new().create(true).append(true).mode(mode).open(&path);
    // One write: appends of several processes do not mix.
    let _ = opened.and_then(|mut file| file.write_all(&line));
}

/// The incidents of a service, oldest first. Invalid lines are skipped.
#[must_use]
pub fn all(service: &Service) -> Vec<Incident> {
    let newest = newest_bytes(&file(service)).unwrap_or_default();
    newest.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// Whether a server was stuck when a client of it was last looked at.
#[must_use]
pub fn is_stuck(incidents: &[Incident], server: Pid) -> bool {
    let about = incidents.iter().rev().find_map(|one| match one.what {
        What::Canary { server: of, works } if of == server => Some(!works),
        What::Recovered { server: of, .. } if of == server => Some(false),
        _ => None,
    });
    about.unwrap_or(false)
}

/// The end of the file, which may be another user's.
fn newest_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open_regular(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(READ_BYTES_MAX)))?;
    let mut newest = Vec::new();
    file.take(READ_BYTES_MAX).read_to_end(&mut newest)?;
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_has_no_incidents() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("incidents.jsonl");
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        newest_bytes(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        let whole = vec![b'x'; READ_BYTES_MAX as usize];
        std::fs::write(&path, [b"older\n", whole.as_slice()].concat()).unwrap();
        assert!(newest_bytes(&path).unwrap() == whole, "its end alone");
    }

    #[test]
    fn what_another_user_says_is_short_and_steers_no_terminal() {
        let said = What::Hit { server: 7, cause: format!("\u{1b}[31m{}", "x".repeat(1000)) };
        let What::Hit { cause, .. } = said.of_another_user() else { panic!("another incident") };
        assert!(cause.starts_with("\\u{1b}[31mxx") && cause.len() == CAUSE_CHARACTERS_MAX, "{cause}");
        let said = What::Killed { pid: 1, neighbours: (0..1000).collect() };
        assert_eq!(said.of_another_user(), What::Killed { pid: 1, neighbours: (0..64).collect() });
    }

    #[test]
    fn incidents_are_lines_of_json() {
        let incident = Incident {
            time_unix_ms: 5,
            tenant: "serve".to_owned(),
            what: What::Killed { pid: 7, neighbours: vec![8, 9] },
        };
        let json = serde_json::to_string(&incident).unwrap();
        assert_eq!(
            json,
            r#"{"time_unix_ms":5,"tenant":"serve","incident":"killed","pid":7,"neighbours":[8,9]}"#
        );
        assert_eq!(serde_json::from_str::<Incident>(&json).unwrap(), incident);
    }
}
