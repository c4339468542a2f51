//! The keepers of a run directory.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use partita::registry::check_name;
use partita_memory::Place;
use partita_memory::client::{Connection, Error};

use super::{Keeper, Lease, Memory};
use crate::problem::{Kind, Problem};

/// How long one keeper is waited for: it answers within microseconds, unless it is stopped.
const PATIENCE: Duration = Duration::from_secs(2);

/// The socket of a chain's own keeper, in its tenant's directory.
const CHAIN_SOCKET: &str = "memory";

/// The keepers that listen in the run directory and that this user may ask: its own, and root everybody's.
#[derive(Debug)]
pub struct Keepers {
    run_directory: PathBuf,
}

impl Keepers {
    /// Those of a run directory.
    #[must_use]
    pub fn new(run_directory: PathBuf) -> Self {
        Self { run_directory }
    }

    /// Asks each.
    fn ask<T>(
        &self,
        mut what: impl FnMut(&Listening, &mut Connection) -> Result<T, Error>,
    ) -> Result<Vec<T>, Problem> {
        let failed = |error: io::Error| {
            Problem::new(Kind::Internal, format!("{}: {error}", self.run_directory.display()))
        };
        let own = rustix::process::geteuid().as_raw();
        let mut answers = Vec::new();
        for listening in all(&self.run_directory).map_err(failed)? {
            if own != 0 && listening.place.user != own {
                continue;
            }
            let answer = Connection::connect(&listening.place.socket, None, PATIENCE)
                .and_then(|mut connection| what(&listening, &mut connection));
            match answer {
                Ok(answer) => answers.push(answer),
                // What is left of one that was killed, or one that has just ended.
                Err(Error::NoKeeper { .. } | Error::KeeperGone { .. }) => {}
                // One that is stopped, or no keeper at all: the others are shown all the same.
                Err(error) => tracing::warn!(%error, "a keeper does not answer"),
            }
        }
        Ok(answers)
    }
}

/// A keeper's socket.
struct Listening {
    place: Place,
    /// The chain whose frames it keeps; none for a keeper of whoever connects.
    chain: Option<String>,
}

/// The keepers of the run directory, and those of chains, each in its tenant's directory.
fn all(run_directory: &Path) -> io::Result<Vec<Listening>> {
    let mut found: Vec<Listening> =
        Place::all(run_directory)?.into_iter().map(|place| Listening { place, chain: None }).collect();
    for (gpu_key, gpu_dir) in directories(run_directory)? {
        for (tenant, dir) in directories(&gpu_dir)? {
            let socket = dir.join(CHAIN_SOCKET);
            // Links lead elsewhere, and what cannot be looked at is not ours to show.
            let Ok(meta) = socket.symlink_metadata() else { continue };
            if meta.file_type().is_socket() && check_name(&tenant).is_ok() {
                let place = Place { user: meta.uid(), gpu_key: gpu_key.clone(), socket };
                found.push(Listening { place, chain: Some(tenant) });
            }
        }
    }
    Ok(found)
}

/// The directories in one that have names that are text; none if it has gone or may not be looked at.
fn directories(dir: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            return Ok(Vec::new());
        }
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Ok(name) = entry.file_name().into_string()
        {
            found.push((name, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

impl Memory for Keepers {
    fn keepers(&self) -> Result<Vec<Keeper>, Problem> {
        self.ask(|Listening { place, chain }, connection| {
            let totals = connection.status()?.totals;
            Ok(Keeper {
                gpu: place.gpu_key.clone(),
                chain: chain.clone(),
                user: place.user,
                pid: connection.welcome().pid,
                held_bytes: totals.slab_bytes,
                leased_bytes: totals.used_bytes,
                leases: totals.leases,
            })
        })
    }

    fn leases(&self) -> Result<Vec<Lease>, Problem> {
        let each = self.ask(|Listening { place, .. }, connection| {
            let rows = connection.leases()?;
            let mut names: HashMap<_, String> = HashMap::new();
            Ok(rows
                .into_iter()
                .filter(|row| !row.is_resting)
                .map(|row| Lease {
                    gpu: place.gpu_key.clone(),
                    id: row.lease.id.0,
                    holder: names.entry(row.tenant).or_insert_with(|| row.tenant.to_string()).clone(),
                    bytes: row.lease.bytes,
                    left_ms: (row.ttl_ms != 0).then_some(u64::from(row.left_ms)),
                })
                .collect::<Vec<_>>())
        })?;
        Ok(each.into_iter().flatten().collect())
    }
}
