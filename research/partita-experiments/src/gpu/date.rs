//! The date of a measurement.

use std::time::{SystemTime, UNIX_EPOCH};

/// Today in UTC, `YYYY-MM-DD`.
pub(super) fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = partita_core::date_of(since.as_secs() / 86_400);
    format!("{year}-{month:02}-{day:02}")
}
