//! Definitions of chains.

use partita_chain_host::Definition;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::now_unix_ms;
use crate::problem::{Kind, Problem};

/// Chains that one user may define.
pub const CHAINS_OF_USER_MAX: u32 = 256;

/// A stored definition.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// What was defined.
    pub definition: Definition,
    /// The user who defined it.
    pub owner: u32,
    /// How often it was changed, from 1.
    pub revision: i64,
    /// When it was defined, in milliseconds since 1970.
    pub created_unix_ms: i64,
    /// When it was changed last, in milliseconds since 1970.
    pub changed_unix_ms: i64,
}

const COLUMNS: &str = "name, owner, revision, definition, created_unix_ms, changed_unix_ms";

type Raw = (String, u32, i64, String, i64, i64);

fn raw(row: &Row<'_>) -> rusqlite::Result<Raw> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
}

fn kept((name, owner, revision, definition, created_unix_ms, changed_unix_ms): Raw) -> Result<Kept, Problem> {
    let definition = serde_json::from_str(&definition).map_err(|error| {
        Problem::new(
            Kind::Internal,
            format!(
                "chain {name}: its stored definition is invalid ({error}); delete it and define it \
                 again"
            ),
        )
    })?;
    Ok(Kept { definition, owner, revision, created_unix_ms, changed_unix_ms })
}

/// No chain of this name.
pub fn unknown(name: &str) -> Problem {
    Problem::not_found(format!("there is no chain {name}; GET /v1/chains lists those that are defined"))
}

/// The chain of this name.
///
/// # Errors
/// [`Kind::NotFound`].
pub fn get(connection: &Connection, name: &str) -> Result<Kept, Problem> {
    let query = format!("SELECT {COLUMNS} FROM chain WHERE name = ?1");
    let found = connection.prepare_cached(&query)?.query_row([name], raw).optional()?;
    found.map_or_else(|| Err(unknown(name)), kept)
}

/// Who defined the chain of this name, and its revision; also of one whose definition is invalid.
///
/// # Errors
/// [`Kind::NotFound`].
pub fn owner_and_revision(connection: &Connection, name: &str) -> Result<(u32, i64), Problem> {
    let mut query = connection.prepare_cached("SELECT owner, revision FROM chain WHERE name = ?1")?;
    let found = query.query_row([name], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    found.ok_or_else(|| unknown(name))
}

/// Every chain by name.
///
/// # Errors
/// [`Kind::Internal`] for one that is not understood.
pub fn list(connection: &Connection) -> Result<Vec<Kept>, Problem> {
    let mut statement = connection.prepare_cached(&format!("SELECT {COLUMNS} FROM chain ORDER BY name"))?;
    let rows = statement.query_map([], raw)?;
    rows.map(|row| kept(row?)).collect()
}

/// Keeps a new definition.
///
/// # Errors
/// [`Kind::Conflict`] if the name is taken, or the user has too many.
pub fn insert(connection: &Connection, owner: u32, definition: &Definition) -> Result<Kept, Problem> {
    let name = &definition.name;
    let of_user: u32 =
        connection.query_row("SELECT count(*) FROM chain WHERE owner = ?1", [owner], |row| row.get(0))?;
    if of_user >= CHAINS_OF_USER_MAX {
        return Err(Problem::new(
            Kind::Conflict,
            format!("chain {name}: user {owner} has {of_user} chains, which is the most; delete one first"),
        ));
    }
    let now = now_unix_ms();
    let inserted = connection.execute(
        &format!("INSERT INTO chain ({COLUMNS}) VALUES (?1, ?2, 1, ?3, ?4, ?4) ON CONFLICT DO NOTHING"),
        params![name, owner, text(definition)?, now],
    )?;
    if inserted == 0 {
        return Err(Problem::new(
            Kind::Conflict,
            format!(
                "there is a chain {name} already; change it with PUT /v1/chains/{name}, or choose another name"
            ),
        ));
    }
    Ok(Kept {
        definition: definition.clone(),
        owner,
        revision: 1,
        created_unix_ms: now,
        changed_unix_ms: now,
    })
}

/// Replaces a definition.
///
/// # Errors
/// [`Kind::NotFound`].
pub fn replace(connection: &Connection, before: &Kept, definition: &Definition) -> Result<Kept, Problem> {
    let (name, revision, now) = (&definition.name, before.revision + 1, now_unix_ms());
    let changed = connection.execute(
        "UPDATE chain SET definition = ?2, revision = ?3, changed_unix_ms = ?4 WHERE name = ?1",
        params![name, text(definition)?, revision, now],
    )?;
    if changed == 0 {
        return Err(unknown(name));
    }
    Ok(Kept { definition: definition.clone(), revision, changed_unix_ms: now, ..before.clone() })
}

/// Removes a definition with its history.
///
/// # Errors
/// [`Kind::NotFound`].
pub fn delete(connection: &Connection, name: &str) -> Result<(), Problem> {
    connection.execute("DELETE FROM history WHERE chain = ?1", [name])?;
    match connection.execute("DELETE FROM chain WHERE name = ?1", [name])? {
        0 => Err(unknown(name)),
        _ => Ok(()),
    }
}

fn text(definition: &Definition) -> Result<String, Problem> {
    serde_json::to_string(definition).map_err(|error| Problem::new(Kind::Internal, error.to_string()))
}
