//! Opening the state: alone, whole and of a version that is understood.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::{FILE, schema};
use crate::problem::Problem;

/// In WAL mode readers never wait, except while the log is reset.
const BUSY_LIMIT: Duration = Duration::from_secs(5);

/// Why the state cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the state in {}: {reason}", .path.display())]
pub struct StoreError {
    path: PathBuf,
    reason: String,
}

impl StoreError {
    pub(super) fn new(path: &Path, reason: impl Into<String>) -> Self {
        Self { path: path.to_owned(), reason: reason.into() }
    }
}

/// The lock, the file and a connection that may write.
pub(super) fn open(dir: &Path) -> Result<(File, PathBuf, Connection), StoreError> {
    make_dir(dir)?;
    let lock = lock(dir)?;
    let path = dir.join(FILE);
    let refuse = |reason: String| StoreError::new(&path, reason);
    let damaged = |what: &str| {
        refuse(format!(
            "it is damaged ({what}); restore it from a copy, or move it and the files beside it away \
             and start without"
        ))
    };
    // Only its owner can read it, from the start: command lines can contain secrets.
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|error| refuse(error.to_string()))?;
    let mut connection = Connection::open_with_flags(
        &path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )
    .map_err(|error| refuse(error.to_string()))?;
    // First, because a damaged or foreign file is left as it is.
    schema::check(&connection).map_err(|fault| match fault {
        schema::Fault::Foreign => {
            refuse("it is a database of another program; name another directory with --state".to_owned())
        }
        schema::Fault::Newer { version } => refuse(format!(
            "it has version {version}, this partitad reads up to {}; start the newer partitad, or name another directory with --state",
            schema::VERSION
        )),
        schema::Fault::Damaged(what) => damaged(&what),
    })?;
    connection
        .busy_timeout(BUSY_LIMIT)
        .and_then(|()| {
            // A disk that takes no log file fails here.
            connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0))
        })
        .and_then(|_| connection.pragma_update(None, "synchronous", "full"))
        .and_then(|()| connection.pragma_update(None, "foreign_keys", true))
        .and_then(|()| schema::migrate(&mut connection))
        .map_err(|error| refuse(error.to_string()))?;
    Ok((lock, path, connection))
}

/// A connection that cannot write.
pub(super) fn reader(path: &Path) -> Result<Connection, Problem> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_LIMIT)?;
    Ok(connection)
}

fn make_dir(dir: &Path) -> Result<(), StoreError> {
    let refuse = |reason: String| StoreError::new(dir, reason);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| {
        refuse(format!("{error}; name a directory that can be written with --state or PARTITA_STATE_DIR"))
    })?;
    let meta = fs::metadata(dir).map_err(|error| refuse(error.to_string()))?;
    let user = rustix::process::geteuid().as_raw();
    if meta.uid() != user || meta.mode() & 0o022 != 0 {
        return Err(refuse(format!(
            "it belongs to user {} with mode {:o}; it must belong to user {user} and be writable only \
             by that user: `chmod go-w {}`, or --state",
            meta.uid(),
            meta.mode() & 0o7777,
            dir.display()
        )));
    }
    Ok(())
}

fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join("lock");
    let refuse = |reason: String| StoreError::new(dir, reason);
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|error| refuse(error.to_string()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::Error(error)) => return Err(refuse(error.to_string())),
        Err(fs::TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            return Err(refuse(format!(
                "another partitad has it open (process {}); end that one, or give this one another directory with --state",
                holder.trim()
            )));
        }
    }
    // For the next daemon that is refused.
    let note =
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    note.map_err(|error| refuse(error.to_string()))?;
    Ok(file)
}
