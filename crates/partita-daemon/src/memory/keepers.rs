//! The keepers of a run directory.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use partita_memory::Place;
use partita_memory::client::{Connection, Error};

use super::{Keeper, Lease, Memory};
use crate::problem::{Kind, Problem};

/// How long one keeper is waited for: it answers within microseconds, unless it is stopped.
const PATIENCE: Duration = Duration::from_secs(2);

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
        mut what: impl FnMut(&Place, &mut Connection) -> Result<T, Error>,
    ) -> Result<Vec<T>, Problem> {
        let places = Place::all(&self.run_directory)
            .map_err(|error| problem(format!("{}: {error}", self.run_directory.display())))?;
        let own = rustix::process::geteuid().as_raw();
        let mut answers = Vec::new();
        for place in places.iter().filter(|place| own == 0 || place.user == own) {
            let answer = Connection::connect(&place.socket, None, PATIENCE)
                .and_then(|mut connection| what(place, &mut connection));
            match answer {
                Ok(answer) => answers.push(answer),
                // What is left of one that was killed, or one that has just ended.
                Err(Error::NoKeeper { .. } | Error::KeeperGone { .. }) => {}
                Err(error) => return Err(problem(error.to_string())),
            }
        }
        Ok(answers)
    }
}

fn problem(detail: String) -> Problem {
    Problem::new(Kind::Internal, detail)
}

impl Memory for Keepers {
    fn keepers(&self) -> Result<Vec<Keeper>, Problem> {
        self.ask(|place, connection| {
            let totals = connection.status()?.totals;
            Ok(Keeper {
                gpu: place.gpu_key.clone(),
                user: place.user,
                pid: connection.welcome().pid,
                held_bytes: totals.slab_bytes,
                leased_bytes: totals.used_bytes,
                leases: totals.leases,
            })
        })
    }

    fn leases(&self) -> Result<Vec<Lease>, Problem> {
        let each = self.ask(|place, connection| {
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
