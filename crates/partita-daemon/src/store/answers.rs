//! Answers to requests with an `Idempotency-Key`: a client that does not know whether its request
//! arrived repeats it, and gets the same answer.

use rusqlite::{Connection, OptionalExtension, params};

use super::now_unix_ms;
use crate::problem::{Kind, Problem};

/// How long an answer is stored.
const KEPT_MS: i64 = 24 * 60 * 60 * 1000;
/// Stored answers of each user; the oldest are removed first.
const ANSWERS_OF_USER_MAX: i64 = 10_000;

/// An answer as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// `Location`.
    pub location: Option<String>,
    /// Its JSON.
    pub body: String,
}

/// The answer to this user's request with this key.
///
/// # Errors
/// [`Kind::Invalid`] if the key was used for another request.
pub fn find(
    connection: &Connection,
    owner: u32,
    key: &str,
    request: &str,
) -> Result<Option<Answer>, Problem> {
    let mut query = connection.prepare_cached(
        "SELECT request, status, location, body FROM answer WHERE owner = ?1 AND key = ?2 AND at_unix_ms > ?3",
    )?;
    let found: Option<(String, Answer)> = query
        .query_row(params![owner, key, now_unix_ms() - KEPT_MS], |row| {
            Ok((row.get(0)?, Answer { status: row.get(1)?, location: row.get(2)?, body: row.get(3)? }))
        })
        .optional()?;
    match found {
        None => Ok(None),
        Some((before, answer)) if before == request => Ok(Some(answer)),
        Some(_) => Err(Problem::new(
            Kind::Invalid,
            "Idempotency-Key: this key belongs to another request within the last day; use a new key for a new request",
        )),
    }
}

/// Keeps an answer, and forgets old ones. To be called in the change that it speaks of.
///
/// # Errors
/// [`Kind::Unavailable`].
pub fn keep(
    connection: &Connection,
    owner: u32,
    key: &str,
    request: &str,
    answer: &Answer,
) -> Result<(), Problem> {
    let now = now_unix_ms();
    connection.execute("DELETE FROM answer WHERE at_unix_ms <= ?1", [now - KEPT_MS])?;
    connection.execute(
        "INSERT INTO answer (owner, key, request, status, location, body, at_unix_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![owner, key, request, answer.status, answer.location, answer.body, now],
    )?;
    connection.execute(
        "DELETE FROM answer WHERE owner = ?1 AND rowid IN (
             SELECT rowid FROM answer WHERE owner = ?1 ORDER BY at_unix_ms DESC, rowid DESC LIMIT -1 OFFSET ?2)",
        params![owner, ANSWERS_OF_USER_MAX],
    )?;
    Ok(())
}
