//! The history of chains, step by step; the newest entries.
//!
//! A running chain stores its last steps itself. The daemon copies each of them once, so that they
//! remain after the chain has ended.

use std::collections::BTreeMap;

use rusqlite::{Connection, Row, params};
use serde::Serialize;
use utoipa::ToSchema;

use crate::chains::Running;
use crate::problem::{Kind, Problem};

/// Entries that are stored of each chain.
pub const ENTRIES_MAX: i64 = 10_000;
/// Chains without a definition here whose history is stored; those that ran longest ago are removed
/// first.
pub const UNDEFINED_CHAINS_MAX: i64 = 256;
/// The longest `what`, in characters. A chain's steps come from its user's file.
const WHAT_CHARS_MAX: usize = 500;

const COLUMNS: &str = "id, chain, run_unix_s, at_s, what, throughput_fps, tpcs";

/// A step of a chain.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Entry {
    /// Its number; later ones are greater.
    pub id: i64,
    /// The chain.
    pub chain: String,
    /// When the chain started, in seconds since 1970; it identifies the run.
    pub run_unix_s: i64,
    /// When, in seconds since the chain began.
    pub at_s: f64,
    /// What.
    #[schema(example = "decided: 4, 4, 25")]
    pub what: String,
    /// What came out of the last component in the period before, in frames per second.
    pub throughput_fps: Option<f64>,
    /// TPCs of each component from then on, by its name; empty if they did not change.
    pub tpcs: BTreeMap<String, u32>,
}

/// Stores the new steps of a running chain, and returns these. The oldest beyond [`ENTRIES_MAX`]
/// are removed.
///
/// # Errors
/// [`Kind::Unavailable`].
pub fn record(connection: &Connection, chain: &Running) -> Result<Vec<Entry>, Problem> {
    let name = &chain.name;
    let run = i64::try_from(chain.started_unix_s).unwrap_or(i64::MAX);
    let known: Option<f64> = connection
        .prepare_cached("SELECT max(at_s) FROM history WHERE chain = ?1 AND run_unix_s = ?2")?
        .query_row(params![name, run], |row| row.get(0))?;
    let mut entries = Vec::new();
    for step in chain.steps.iter().filter(|step| known.is_none_or(|known| step.at_s > known)) {
        let what: String = step.what.chars().take(WHAT_CHARS_MAX).collect();
        let numbers = step.tpcs.iter().flatten().copied();
        let tpcs: BTreeMap<String, u32> =
            chain.components.iter().map(|component| component.name.clone()).zip(numbers).collect();
        let json =
            serde_json::to_string(&tpcs).map_err(|error| Problem::new(Kind::Internal, error.to_string()))?;
        connection
            .prepare_cached(
                "INSERT INTO history (chain, run_unix_s, at_s, what, throughput_fps, tpcs) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![name, run, step.at_s, what, step.throughput_fps, json])?;
        entries.push(Entry {
            id: connection.last_insert_rowid(),
            chain: name.clone(),
            run_unix_s: run,
            at_s: step.at_s,
            what,
            throughput_fps: step.throughput_fps,
            tpcs,
        });
    }
    if !entries.is_empty() {
        connection
            .prepare_cached(
                "DELETE FROM history WHERE chain = ?1 AND id <= (
                     SELECT id FROM history WHERE chain = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
            )?
            .execute(params![name, ENTRIES_MAX])?;
    }
    if !entries.is_empty() && known.is_none() {
        connection
            .prepare_cached(
                "DELETE FROM history WHERE chain NOT IN (SELECT name FROM chain) AND chain NOT IN (
                     SELECT chain FROM history WHERE chain NOT IN (SELECT name FROM chain)
                     GROUP BY chain ORDER BY max(id) DESC LIMIT ?1)",
            )?
            .execute([UNDEFINED_CHAINS_MAX])?;
    }
    Ok(entries)
}

/// Up to `limit` entries of a chain after the one numbered `after`, the oldest first.
///
/// # Errors
/// [`Kind::Unavailable`].
pub fn after(connection: &Connection, chain: &str, after: i64, limit: u32) -> Result<Vec<Entry>, Problem> {
    let query = format!("SELECT {COLUMNS} FROM history WHERE chain = ?1 AND id > ?2 ORDER BY id LIMIT ?3");
    let mut query = connection.prepare_cached(&query)?;
    let rows = query.query_map(params![chain, after, limit], entry)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The newest `limit` entries of a chain, the oldest of them first.
///
/// # Errors
/// [`Kind::Unavailable`].
pub fn newest(connection: &Connection, chain: &str, limit: u32) -> Result<Vec<Entry>, Problem> {
    let query = format!("SELECT {COLUMNS} FROM history WHERE chain = ?1 ORDER BY id DESC LIMIT ?2");
    let mut query = connection.prepare_cached(&query)?;
    let mut entries: Vec<Entry> = query.query_map(params![chain, limit], entry)?.collect::<Result<_, _>>()?;
    entries.reverse();
    Ok(entries)
}

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let tpcs: String = row.get(6)?;
    let tpcs = serde_json::from_str(&tpcs).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(6, rusqlite::types::Type::Text, Box::new(error))
    })?;
    Ok(Entry {
        id: row.get(0)?,
        chain: row.get(1)?,
        run_unix_s: row.get(2)?,
        at_s: row.get(3)?,
        what: row.get(4)?,
        throughput_fps: row.get(5)?,
        tpcs,
    })
}
