//! The keepers of a run directory.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use partita::process::ProcessId;
use partita::registry::Registry;
use partita_memory::Place;
use partita_memory::client::{Connection, Error};
use partita_memory::pool::{LeaseId, OwnerId};

use super::rented::Rented;
use super::{Held, Keeper, Lease, Memory, Wanted, told};
use crate::caller::Caller;
use crate::problem::{Kind, Problem};

/// How long one keeper is waited for: it answers within microseconds, unless it is stopped.
const PATIENCE: Duration = Duration::from_secs(2);
/// Timeout for all keepers of one user in one query.
const PATIENCE_OF_USER: Duration = Duration::from_secs(5);
/// Timeout for the keepers of all other users together. They are queried in parallel: a user with
/// sockets that do not answer delays others by no more.
const PATIENCE_OF_OTHERS: Duration = Duration::from_millis(500);
/// How long another user's keepers are left alone after they were too slow.
const REST: Duration = Duration::from_secs(30);

/// The socket of a chain's own keeper, in its tenant's directory.
const CHAIN_SOCKET: &str = "memory";

/// The keepers that listen in the run directory and that this user may query: its own, and for root
/// all.
#[derive(Debug)]
pub struct Keepers {
    registry: Registry,
    /// Users whose keepers were too slow, and when.
    slow: Mutex<HashMap<u32, Instant>>,
    rented: Rented,
}

impl Keepers {
    /// Those of a registry's run directory.
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        Self { registry, slow: Mutex::default(), rented: Rented::default() }
    }

    /// Asks each.
    fn ask<T: Send + 'static>(
        &self,
        what: impl Fn(&Listening, &mut Connection) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<Vec<T>, Problem> {
        let failed = |error: io::Error| {
            Problem::new(Kind::Internal, format!("{}: {error}", self.registry.root().display()))
        };
        let mut of_users: BTreeMap<u32, Vec<Listening>> = BTreeMap::new();
        for listening in all(&self.registry).map_err(failed)? {
            of_users.entry(listening.place.user).or_default().push(listening);
        }
        let own = rustix::process::geteuid().as_raw();
        let of_own = of_users.remove(&own).unwrap_or_default();
        if own != 0 {
            return Ok(ask_each(own, &of_own, &what));
        }
        let what = Arc::new(what);
        let (sender, answers) = mpsc::channel();
        let mut waiting = Vec::new();
        {
            let mut slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
            slow.retain(|_, since| since.elapsed() < REST);
            of_users.retain(|user, _| !slow.contains_key(user));
        }
        for (user, places) in of_users {
            let (sender, what) = (sender.clone(), Arc::clone(&what));
            // The receiver may have given up.
            let asks = move || drop(sender.send((user, ask_each(user, &places, &*what))));
            match std::thread::Builder::new().name("keepers".to_owned()).spawn(asks) {
                Ok(_) => waiting.push(user),
                Err(error) => tracing::warn!(user, %error, "the keepers of this user cannot be queried"),
            }
        }
        let deadline = Instant::now() + PATIENCE_OF_OTHERS;
        let mut found = BTreeMap::from([(own, ask_each(own, &of_own, &*what))]);
        while !waiting.is_empty()
            && let Ok((user, answers)) =
                answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            waiting.retain(|waiting| *waiting != user);
            found.insert(user, answers);
        }
        for user in waiting {
            tracing::warn!(user, rest_s = REST.as_secs(), "the keepers of this user are too slow");
            self.slow.lock().unwrap_or_else(PoisonError::into_inner).insert(user, Instant::now());
        }
        Ok(found.into_values().flatten().collect())
    }

    /// A connection to the keeper with that process, for a caller who may administer it.
    fn administer(&self, caller: Caller, pid: u32) -> Result<Connection, Problem> {
        let mut found = self.ask(move |Listening { place, .. }, connection| {
            Ok((connection.welcome().pid == pid).then(|| place.clone()))
        })?;
        let place = found.iter_mut().find_map(Option::take).ok_or_else(|| {
            Problem::not_found(format!("there is no keeper with process {pid}; GET /v1/keepers lists them"))
        })?;
        caller.check(&format!("the keeper with process {pid}"), place.user)?;
        let connection = connect(&place, PATIENCE).map_err(told)?;
        if connection.welcome().pid != pid {
            return Err(Problem::not_found(format!("the keeper with process {pid} has just ended")));
        }
        Ok(connection)
    }
}

/// Asks each keeper of a user, one after the other, until they have taken too long together.
fn ask_each<T>(
    user: u32,
    places: &[Listening],
    what: &impl Fn(&Listening, &mut Connection) -> Result<T, Error>,
) -> Vec<T> {
    let end = Instant::now() + PATIENCE_OF_USER;
    let mut answers = Vec::new();
    for listening in places {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            tracing::warn!(user, "the other keepers of this user are not queried now");
            break;
        }
        let answer = connect(&listening.place, PATIENCE.min(left))
            .and_then(|mut connection| what(listening, &mut connection));
        match answer {
            Ok(answer) => answers.push(answer),
            // What is left of one that was killed, or one that has just ended.
            Err(Error::NoKeeper { .. } | Error::KeeperGone { .. }) => {}
            // One that is stopped, or no keeper at all: the others are shown all the same. Names
            // and words of strangers are shown escaped.
            Err(error) => {
                tracing::warn!(user, error = error.to_string(), "a keeper does not answer");
            }
        }
    }
    answers
}

/// A connection to the keeper of a place. Any user can take a name in the run directory, even one
/// that names another user.
fn connect(place: &Place, patience: Duration) -> Result<Connection, Error> {
    let is_theirs = place.socket.symlink_metadata().is_ok_and(|meta| meta.uid() == place.user);
    let no_keeper = || Error::NoKeeper {
        socket: place.socket.clone(),
        reason: io::Error::other(format!("it is not user {}'s", place.user)),
    };
    if !is_theirs {
        return Err(no_keeper());
    }
    let connection = Connection::connect(&place.socket, None, patience)?;
    if connection.user() == place.user { Ok(connection) } else { Err(no_keeper()) }
}

/// A keeper's socket.
struct Listening {
    place: Place,
    /// The chain whose frames it owns; `None` for a keeper that serves any client.
    chain: Option<String>,
}

/// The keepers of the run directory, and those of chains, each in its tenant's directory.
fn all(registry: &Registry) -> io::Result<Vec<Listening>> {
    let mut found: Vec<Listening> =
        Place::all(registry.root())?.into_iter().map(|place| Listening { place, chain: None }).collect();
    for (gpu_key, tenant, dir, user) in registry.places().map_err(io::Error::other)? {
        let socket = dir.join(CHAIN_SOCKET);
        // Links lead elsewhere, and files that cannot be read are not shown.
        let Ok(meta) = socket.symlink_metadata() else { continue };
        if meta.file_type().is_socket() && meta.uid() == user {
            let place = Place { user, gpu_key, socket };
            found.push(Listening { place, chain: Some(tenant) });
        }
    }
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
            let keeper = connection.welcome().pid;
            Ok(rows
                .into_iter()
                .map(|row| Lease {
                    gpu: place.gpu_key.clone(),
                    keeper,
                    id: row.lease.id.0,
                    owner: row.owner.0,
                    pid: (row.pid != 0).then_some(row.pid),
                    holder: names.entry(row.tenant).or_insert_with(|| row.tenant.to_string()).clone(),
                    bytes: row.lease.bytes,
                    left_ms: (row.ttl_ms != 0 && !row.is_resting).then_some(u64::from(row.left_ms)),
                    resting: row.is_resting,
                })
                .collect::<Vec<_>>())
        })?;
        Ok(each.into_iter().flatten().collect())
    }

    fn take_back(&self, caller: Caller, keeper: u32, lease: u64) -> Result<(), Problem> {
        match self.rented.release(caller, keeper, lease) {
            Some(released) => released,
            None => self.administer(caller, keeper)?.take_back(LeaseId(lease)).map_err(told),
        }
    }

    fn lease(&self, caller: Caller, keeper: u32, wanted: &Wanted) -> Result<Held, Problem> {
        self.rented.lease(keeper, wanted, || self.administer(caller, keeper))
    }

    fn held(&self, caller: Caller, keeper: u32, lease: u64) -> Result<Held, Problem> {
        self.rented.held(caller, keeper, lease).unwrap_or_else(|| {
            Err(Problem::not_found(format!(
                "the daemon holds no lease {lease} of the keeper with process {keeper}; POST /v1/keepers/{keeper}/leases makes one"
            )))
        })
    }

    fn disown(&self, caller: Caller, keeper: u32, owner: u64, force: bool) -> Result<u64, Problem> {
        let mut connection = self.administer(caller, keeper)?;
        let rows = connection.leases().map_err(told)?;
        let left: Vec<_> = rows.iter().filter(|row| row.owner.0 == owner).collect();
        let may_write = |pid: u32| pid == 0 || ProcessId::living(pid).is_some();
        if let Some(row) = left.iter().find(|row| row.is_resting && may_write(row.pid))
            && !force
        {
            let who = match row.pid {
                0 => "a process that had a place in the chain".to_owned(),
                pid => format!("process {pid}"),
            };
            let detail = format!(
                "owner {owner} has left, but {who} has the memory open and could write to it; end \
                 it, and the keeper releases the leases, or pass force=true if you know that it does not \
                 write"
            );
            return Err(Problem::new(Kind::Conflict, detail));
        }
        connection.disown(OwnerId(owner)).map_err(told)?;
        Ok(left.len() as u64)
    }
}
