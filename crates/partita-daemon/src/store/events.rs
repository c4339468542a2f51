//! The findings of audits as events: the newest ones, and those that are not over yet; and the
//! decisions for targets.
//!
//! One transaction writes both, so a daemon that restarts knows what was reported, and reports
//! nothing twice.

use std::collections::BTreeMap;

use rusqlite::types::Type;
use rusqlite::{Connection, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

use crate::audit::change::{Change, Edge, Open, What};
use crate::audit::{End, Kind};
use crate::problem::{self, Problem};
use crate::targets::{Decision, Whose};

/// Events of audits that are stored.
pub const EVENTS_MAX: i64 = 10_000;
/// Decisions for targets that are stored. They are more frequent, and must not drive out findings.
pub const DECISIONS_MAX: i64 = 2_000;

const COLUMNS: &str = "id, at_unix_ms, kind, change, coalesce(began_id, id), began_unix_ms, ended, tenant, gpu, gpu_uuid, pid, user, \
                       driver_bytes, detail";

/// Something that began or ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Event {
    /// Its number; later ones are greater.
    pub id: i64,
    /// When it was seen, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// What it is about.
    pub kind: Kind,
    /// Whether it began or ended.
    pub change: Edge,
    /// The number of the event with which it began: for a beginning its own.
    pub began_id: i64,
    /// When that was, in milliseconds since 1970.
    pub began_unix_ms: i64,
    /// The kind of its end; `None` for a beginning.
    pub end: Option<End>,
    /// The tenant whose limits the process has escaped, or whose TPCs moved.
    pub tenant: Option<String>,
    /// The GPU's short name, where it is known.
    pub gpu: Option<String>,
    /// The GPU's UUID, where it is known.
    pub gpu_uuid: Option<String>,
    /// The process.
    pub pid: Option<u32>,
    /// Whose process it is.
    pub user: Option<String>,
    /// Device memory that the process used when it was found, in bytes, if the driver reports it.
    pub driver_bytes: Option<u64>,
    /// The same for people: the thing, the reason, the remedy.
    pub detail: String,
}

/// What is not over, by number.
///
/// # Errors
/// [`Kind::Unavailable`](problem::Kind::Unavailable).
pub fn open(connection: &Connection) -> Result<Vec<Open>, Problem> {
    let query = "SELECT began_id, began_unix_ms, finding FROM finding ORDER BY began_id";
    let mut query = connection.prepare_cached(query)?;
    let rows = query.query_map([], |row| {
        let finding: String = row.get(2)?;
        let finding = serde_json::from_str(&finding).map_err(|error| not_understood(2, error))?;
        Ok(Open { began_id: row.get(0)?, began_unix_ms: row.get(1)?, finding })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Stores beginnings and ends as events, and the findings that are open after them; returns the
/// events. The oldest beyond [`EVENTS_MAX`] are removed.
///
/// # Errors
/// [`Kind::Unavailable`](problem::Kind::Unavailable).
pub fn record(connection: &Connection, changes: &[Change]) -> Result<Vec<Event>, Problem> {
    let mut events = Vec::new();
    for Change { at_unix_ms, finding, what } in changes {
        let (began_id, began_unix_ms, ended, detail) = match *what {
            What::Began => (None, *at_unix_ms, None, finding.begun()),
            What::Ended { began_id, began_unix_ms, end } => {
                (Some(began_id), began_unix_ms, Some(end), finding.ended(end))
            }
        };
        let gpu = finding.gpu();
        connection
            .prepare_cached(
                "INSERT INTO event (at_unix_ms, kind, change, began_id, began_unix_ms, ended, tenant, gpu, gpu_uuid, pid, user, driver_bytes,
                     detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            )?
            .execute(params![
                at_unix_ms,
                finding.kind().word(),
                what.edge().word(),
                began_id,
                began_unix_ms,
                ended.map(End::word),
                finding.tenant(),
                gpu.map(|gpu| &gpu.label),
                gpu.map(|gpu| &gpu.uuid),
                finding.process().map(|process| process.pid),
                finding.user(),
                finding.driver_bytes().map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX)),
                detail,
            ])?;
        let id = connection.last_insert_rowid();
        match began_id {
            None => {
                let json = serde_json::to_string(finding)
                    .map_err(|error| Problem::new(problem::Kind::Internal, error.to_string()))?;
                connection
                    .prepare_cached(
                        "INSERT INTO finding (began_id, began_unix_ms, finding) VALUES (?1, ?2, ?3)",
                    )?
                    .execute(params![id, at_unix_ms, json])?;
            }
            Some(began_id) => {
                connection.prepare_cached("DELETE FROM finding WHERE began_id = ?1")?.execute([began_id])?;
            }
        }
        events.extend(after(connection, id - 1, 1)?);
    }
    if !events.is_empty() {
        connection
            .prepare_cached(
                "DELETE FROM event WHERE kind <> 'target' AND id <=
                     (SELECT id FROM event WHERE kind <> 'target' ORDER BY id DESC LIMIT 1 OFFSET ?1)",
            )?
            .execute([EVENTS_MAX])?;
    }
    Ok(events)
}

/// Stores decisions for targets as events, and returns these. The oldest beyond [`DECISIONS_MAX`]
/// are removed.
///
/// # Errors
/// [`Kind::Unavailable`](problem::Kind::Unavailable).
pub fn decide(connection: &Connection, decisions: &[Decision]) -> Result<Vec<Event>, Problem> {
    let mut events = Vec::new();
    for Decision { whose, gpu, at_unix_ms, detail, .. } in decisions {
        connection
            .prepare_cached(
                "INSERT INTO event (at_unix_ms, kind, change, began_unix_ms, tenant, gpu, gpu_uuid, user, detail)
                     VALUES (?1, ?2, ?3, ?1, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                at_unix_ms,
                Kind::Target.word(),
                Edge::Happened.word(),
                whose.tenant,
                gpu,
                whose.gpu_uuid,
                whose.user,
                detail,
            ])?;
        events.extend(after(connection, connection.last_insert_rowid() - 1, 1)?);
    }
    if !events.is_empty() {
        connection
            .prepare_cached(
                "DELETE FROM event WHERE kind = 'target' AND id <=
                     (SELECT id FROM event WHERE kind = 'target' ORDER BY id DESC LIMIT 1 OFFSET ?1)",
            )?
            .execute([DECISIONS_MAX])?;
    }
    Ok(events)
}

/// The time of the last stored decision on each tenant, in milliseconds since 1970.
///
/// # Errors
/// [`Kind::Unavailable`](problem::Kind::Unavailable).
pub fn decided(connection: &Connection) -> Result<BTreeMap<Whose, i64>, Problem> {
    let mut query = connection.prepare_cached(
        "SELECT tenant, user, gpu_uuid, max(at_unix_ms) FROM event
             WHERE kind = 'target' AND tenant IS NOT NULL AND user IS NOT NULL AND gpu_uuid IS NOT NULL
             GROUP BY tenant, user, gpu_uuid",
    )?;
    let rows = query.query_map([], |row| {
        Ok((Whose { tenant: row.get(0)?, user: row.get(1)?, gpu_uuid: row.get(2)? }, row.get(3)?))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Up to `limit` events after the one numbered `after`, the oldest first.
///
/// # Errors
/// [`Kind::Unavailable`](problem::Kind::Unavailable).
pub fn after(connection: &Connection, after: i64, limit: u32) -> Result<Vec<Event>, Problem> {
    let query = format!("SELECT {COLUMNS} FROM event WHERE id > ?1 ORDER BY id LIMIT ?2");
    let mut query = connection.prepare_cached(&query)?;
    let rows = query.query_map(params![after, limit], event)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The newest `limit` events, the oldest of them first.
///
/// # Errors
/// [`Kind::Unavailable`](problem::Kind::Unavailable).
pub fn newest(connection: &Connection, limit: u32) -> Result<Vec<Event>, Problem> {
    let query = format!("SELECT {COLUMNS} FROM event ORDER BY id DESC LIMIT ?1");
    let mut query = connection.prepare_cached(&query)?;
    let mut events: Vec<Event> = query.query_map([limit], event)?.collect::<Result<_, _>>()?;
    events.reverse();
    Ok(events)
}

fn event(row: &Row<'_>) -> rusqlite::Result<Event> {
    let driver_bytes: Option<i64> = row.get(12)?;
    Ok(Event {
        id: row.get(0)?,
        at_unix_ms: row.get(1)?,
        kind: word(row, 2)?,
        change: word(row, 3)?,
        began_id: row.get(4)?,
        began_unix_ms: row.get(5)?,
        end: word(row, 6)?,
        tenant: row.get(7)?,
        gpu: row.get(8)?,
        gpu_uuid: row.get(9)?,
        pid: row.get(10)?,
        user: row.get(11)?,
        driver_bytes: driver_bytes.and_then(|bytes| u64::try_from(bytes).ok()),
        detail: row.get(13)?,
    })
}

/// A word of a column, if it is set.
fn word<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text: Option<String> = row.get(column)?;
    serde_json::from_value(text.into()).map_err(|error| not_understood(column, error))
}

fn not_understood(column: usize, error: serde_json::Error) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
}
