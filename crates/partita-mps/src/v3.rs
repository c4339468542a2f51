//! The third version of the control program's language: named servers and namespaces (R615 and
//! newer).
//!
//! `nvidia-cuda-mps-control MODULE VERB … --format=csv`, with tables whose columns are found by
//! their heads. Whether a daemon speaks it is found by trying ([`Control::speaks_v3`]). A client is
//! routed by its pipe directory, `ROOT/SERVER/NAMESPACE`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::Pid;
use crate::command::Control;
use crate::error::MpsError;
use crate::values::{ClientPriority, MemoryLimit};

/// A row of a table, by the columns' heads in lower case.
pub type Row = BTreeMap<String, String>;

/// The name of a server, a namespace or a partition: lower-case letters, digits and underscores, at
/// most 64.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Name(String);

impl Name {
    /// Checks a name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!("{text:?} is no name for MPS: use 1 to 64 lower-case letters, digits and underscores"))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a server or a namespace gives to its clients. A namespace without limits of its own has
/// none: its server's do not reach it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// Active thread percentage.
    pub active_thread_percentage: Option<f64>,
    /// The most device memory of a client process.
    pub memory: Option<MemoryLimit>,
    /// Priority of clients.
    pub priority: Option<ClientPriority>,
}

impl Limits {
    fn options(&self) -> Vec<String> {
        let mut options = Vec::new();
        options.extend(
            self.active_thread_percentage.map(|percent| format!("--active-thread-percentage={percent}")),
        );
        options.extend(self.memory.map(|limit| format!("--pinned-memory-limit={limit}")));
        options.extend(self.priority.map(|priority| format!("--client-priority={}", priority.level())));
        options
    }
}

/// The pipe directory that makes a program a client of this namespace.
#[must_use]
pub fn pipe_directory(root: &Path, server: &Name, namespace: &Name) -> PathBuf {
    root.join(&server.0).join(&namespace.0)
}

impl Control {
    /// Whether this daemon speaks the third version.
    ///
    /// # Errors
    /// See [`Control::command`], but for [`MpsError::UnknownCommand`] and [`MpsError::Refused`],
    /// which mean no.
    pub fn speaks_v3(&self) -> Result<bool, MpsError> {
        match self.table("server", &[]) {
            Ok(_) => Ok(true),
            Err(MpsError::UnknownCommand { .. } | MpsError::Refused { .. } | MpsError::Reply { .. }) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The rows of `MODULE list`: `server`, `namespace`, `client`, `device` or `sm-partition`.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::Reply`] for what is no table.
    pub fn table(&self, module: &str, options: &[String]) -> Result<Vec<Row>, MpsError> {
        let mut words = vec![module.to_owned(), "list".to_owned()];
        words.extend_from_slice(options);
        words.push("--format=csv".to_owned());
        let reply = self.words(&words)?;
        parse_table(&reply)
            .ok_or_else(|| MpsError::Reply { command: words.join(" "), reply: reply.trim().to_owned() })
    }

    /// Makes a server for a user, on these devices alone. A UUID that is none is believed, and the
    /// server dies later: whoever makes one should see it in the list afterwards.
    ///
    /// # Errors
    /// See [`Control::command`].
    pub fn create_server(
        &self,
        name: &Name,
        user: u32,
        gpu_uuids: &[&str],
        limits: &Limits,
    ) -> Result<(), MpsError> {
        let mut words =
            vec!["server".to_owned(), "create".to_owned(), name.to_string(), format!("--uid={user}")];
        if !gpu_uuids.is_empty() {
            words.push(format!("--allowed-devices={}", gpu_uuids.join(",")));
        }
        words.extend(limits.options());
        self.words(&words).map(drop)
    }

    /// Ends a server; with `force` also one with clients.
    ///
    /// # Errors
    /// See [`Control::command`].
    pub fn delete_server(&self, name: &Name, force: bool) -> Result<(), MpsError> {
        let mut words = vec!["server".to_owned(), "delete".to_owned(), name.to_string()];
        words.extend(force.then(|| "--force".to_owned()));
        self.words(&words).map(drop)
    }

    /// Makes a namespace of a server, or sets what one gives to clients that come from now on.
    ///
    /// # Errors
    /// See [`Control::command`].
    pub fn set_namespace(
        &self,
        server: &Name,
        namespace: &Name,
        limits: &Limits,
        create: bool,
    ) -> Result<(), MpsError> {
        let verb = if create { "create" } else { "set" };
        let mut words = vec!["namespace".to_owned(), verb.to_owned(), format!("{server}/{namespace}")];
        words.extend(limits.options());
        self.words(&words).map(drop)
    }

    /// Ends a client's work on the GPU, as [`Control::terminate_client`].
    ///
    /// # Errors
    /// See [`Control::command`].
    pub fn terminate_v3(&self, client: Pid) -> Result<(), MpsError> {
        self.words(&["client".to_owned(), "terminate".to_owned(), client.to_string()]).map(drop)
    }

    fn words(&self, words: &[String]) -> Result<String, MpsError> {
        let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
        self.with_arguments(&arguments, &words.join(" "))
    }
}

/// Reads lines of comma-separated values below a line of heads; none for what is no table.
fn parse_table(reply: &str) -> Option<Vec<Row>> {
    let mut lines = reply.lines().map(str::trim).filter(|line| !line.is_empty());
    let Some(heads) = lines.next() else { return Some(Vec::new()) };
    let heads: Vec<String> = cells(heads).iter().map(|head| head.to_ascii_lowercase()).collect();
    if heads.iter().any(String::is_empty) {
        return None;
    }
    lines
        .map(|line| {
            let cells = cells(line);
            (cells.len() == heads.len()).then(|| heads.iter().cloned().zip(cells).collect())
        })
        .collect()
}

/// The cells of a line. A quoted cell may hold commas; two quotes in it are one.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, quoted) {
            ('"', true) if rest.peek() == Some(&'"') => {
                rest.next();
                cells.last_mut().into_iter().for_each(|cell| cell.push('"'));
            }
            ('"', _) => quoted = !quoted,
            (',', false) => cells.push(String::new()),
            (c, _) => cells.last_mut().into_iter().for_each(|cell| cell.push(c)),
        }
    }
    cells.into_iter().map(|cell| cell.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_by_their_heads() {
        let rows =
            parse_table("Name, UID,State\nserve,1000, \"ACTIVE, busy\"\ntrain,0,\"a \"\"b\"\"\"\n").unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0]["name"].as_str(), rows[0]["state"].as_str()), ("serve", "ACTIVE, busy"));
        assert_eq!(rows[1]["state"], "a \"b\"");
        assert_eq!(parse_table("").unwrap().len(), 0);
        assert_eq!(parse_table("name,uid\nserve\n"), None, "a cell is missing");
    }

    #[test]
    fn names_and_options_have_their_form() {
        assert_eq!(Name::new("serve_1").unwrap().to_string(), "serve_1");
        for text in ["", "A", "a-b", "a/b", &"a".repeat(65)] {
            assert!(Name::new(text).is_err(), "{text}");
        }
        let limits = Limits {
            active_thread_percentage: Some(12.5),
            memory: Some(MemoryLimit::from_bytes(1 << 30).unwrap()),
            priority: Some(ClientPriority::BelowNormal),
        };
        assert_eq!(
            limits.options(),
            ["--active-thread-percentage=12.5", "--pinned-memory-limit=1G", "--client-priority=1"]
        );
        let (server, namespace) = (Name::new("a").unwrap(), Name::new("b").unwrap());
        assert_eq!(
            pipe_directory(Path::new("/run/nvidia-mps"), &server, &namespace),
            Path::new("/run/nvidia-mps/a/b")
        );
    }
}
