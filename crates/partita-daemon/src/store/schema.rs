//! The tables, their versions, and whether a file is one of ours and whole.

use rusqlite::Connection;

/// The version that this build writes, and the newest that it reads.
pub const VERSION: u32 = MIGRATIONS.len() as u32;

/// `PRAGMA application_id` of our files: "Ptta".
const APPLICATION: i64 = 0x5074_7461;

/// Step n brings a file of version n to version n + 1. A step that was released is never changed.
const MIGRATIONS: [&str; 2] = [FIRST, EVENTS];

const FIRST: &str = "
    CREATE TABLE chain (
        name            TEXT PRIMARY KEY,
        owner           INTEGER NOT NULL,
        revision        INTEGER NOT NULL,
        definition      TEXT NOT NULL,
        created_unix_ms INTEGER NOT NULL,
        changed_unix_ms INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE history (
        id             INTEGER PRIMARY KEY AUTOINCREMENT,
        chain          TEXT NOT NULL,
        run_unix_s     INTEGER NOT NULL,
        at_s           REAL NOT NULL,
        what           TEXT NOT NULL,
        throughput_fps REAL,
        tpcs           TEXT NOT NULL
    ) STRICT;
    CREATE INDEX history_of_chain ON history (chain, id);
    CREATE TABLE answer (
        owner      INTEGER NOT NULL,
        key        TEXT NOT NULL,
        request    TEXT NOT NULL,
        status     INTEGER NOT NULL,
        location   TEXT,
        body       TEXT NOT NULL,
        at_unix_ms INTEGER NOT NULL,
        PRIMARY KEY (owner, key)
    ) STRICT;
    CREATE INDEX answer_by_age ON answer (at_unix_ms);
";

const EVENTS: &str = "
    CREATE TABLE event (
        id            INTEGER PRIMARY KEY AUTOINCREMENT,
        at_unix_ms    INTEGER NOT NULL,
        kind          TEXT NOT NULL,
        change        TEXT NOT NULL,
        began_id      INTEGER,
        began_unix_ms INTEGER NOT NULL,
        ended         TEXT,
        tenant        TEXT,
        gpu           TEXT,
        gpu_uuid      TEXT,
        pid           INTEGER,
        user          TEXT,
        driver_bytes  INTEGER,
        detail        TEXT NOT NULL
    ) STRICT;
    CREATE TABLE finding (
        began_id      INTEGER PRIMARY KEY,
        began_unix_ms INTEGER NOT NULL,
        finding       TEXT NOT NULL
    ) STRICT;
";

/// Why a file is not taken.
#[derive(Debug)]
pub(super) enum Fault {
    /// Another program's.
    Foreign,
    /// A newer daemon's.
    Newer { version: u32 },
    /// Not whole; the first thing that is wrong.
    Damaged(String),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Damaged(error.to_string())
    }
}

/// Checks that a file is ours, whole and of a version that this build reads. Changes nothing.
pub(super) fn check(connection: &Connection) -> Result<(), Fault> {
    let number = |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if number("application_id")? != APPLICATION {
        // A new file is empty.
        return if tables == 0 { Ok(()) } else { Err(Fault::Foreign) };
    }
    let version = u32::try_from(number("user_version")?).unwrap_or(u32::MAX);
    if version > VERSION {
        return Err(Fault::Newer { version });
    }
    for check in ["integrity_check(1)", "foreign_key_check"] {
        let mut statement = connection.prepare(&format!("PRAGMA {check}"))?;
        let mut rows = statement.query([])?;
        if let Some(row) = rows.next()? {
            let finding: String = row.get(0)?;
            if finding != "ok" {
                return Err(Fault::Damaged(format!("{check}: {finding}")));
            }
        }
    }
    Ok(())
}

/// Brings a file up to this build's version, in one transaction.
pub(super) fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    let version: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let version = version as usize;
    if version >= MIGRATIONS.len() {
        return Ok(());
    }
    let step = connection.transaction()?;
    for migration in &MIGRATIONS[version..] {
        step.execute_batch(migration)?;
    }
    step.pragma_update(None, "application_id", APPLICATION)?;
    step.pragma_update(None, "user_version", VERSION)?;
    step.commit()
}
