//! The state that outlives the daemon, in one SQLite file: definitions of chains, their history,
//! findings of audits, answers to repeated requests.
//!
//! One thread makes all changes ([`Store::write`]) and commits waiting ones together: one flush to
//! the disk serves many requests. An answer is sent after its commit (WAL, `synchronous=FULL`), so
//! an acknowledged change survives a kill of the daemon or the machine. Readers ([`Store::read`])
//! see the last commit and never wait.

pub mod answers;
pub mod chain;
pub mod events;
pub mod history;
mod open;
mod schema;
mod writer;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;

pub use open::StoreError;
pub use schema::VERSION;

use crate::problem::{Kind, Problem};
use writer::Writer;

/// The file in the state directory.
pub const FILE: &str = "partitad.sqlite";
/// Read connections that stay open: to open one costs more than most queries.
const READERS_KEPT: usize = 32;

/// The daemon's state on disk. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    writer: Writer,
    readers: Mutex<Vec<Connection>>,
    /// Locked for as long as this is open: a second daemon is refused.
    _lock: File,
}

impl Store {
    /// Opens the state in `dir`, and creates both if they are missing. Checks that the file is
    /// intact, and migrates an older one.
    ///
    /// # Errors
    /// [`StoreError`]: another daemon has it open, the file is damaged, of a newer version, or not
    /// the daemon's.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let (lock, path, connection) = open::open(dir)?;
        let writer = Writer::start(connection)
            .map_err(|error| StoreError::new(&path, format!("its thread does not start: {error}")))?;
        let inner = Inner { path, writer, readers: Mutex::default(), _lock: lock };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Makes a change, all of it or none, and returns when it is on the disk. A change that ends
    /// with a problem has no effect.
    ///
    /// # Errors
    /// The change's own problem; [`Kind::Unavailable`] if the disk does not take it.
    pub async fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Connection) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        self.inner.writer.write(change).await
    }

    /// Reads the last commit.
    ///
    /// # Errors
    /// The query's own problem; [`Kind::Unavailable`] if the file cannot be read.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Connection) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let inner = Arc::clone(&self.inner);
        let looked = tokio::task::spawn_blocking(move || {
            let kept = inner.readers().pop();
            let connection = match kept {
                Some(connection) => connection,
                None => open::reader(&inner.path)?,
            };
            let seen = look(&connection);
            let mut readers = inner.readers();
            if readers.len() < READERS_KEPT {
                readers.push(connection);
            }
            seen
        });
        looked.await.map_err(|_| Problem::new(Kind::Internal, "the state: the query was given up"))?
    }
}

impl Inner {
    fn readers(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<rusqlite::Error> for Problem {
    fn from(error: rusqlite::Error) -> Self {
        Self::new(
            Kind::Unavailable,
            format!(
                "the state database: {error}; nothing was changed; see the room on its disk and the daemon's log"
            ),
        )
    }
}

/// Milliseconds since 1970.
pub fn now_unix_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
