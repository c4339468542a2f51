//! One row of the doctor's table.

use partita_host::child::JobError;
use partita_host::error::Error;
use serde::Serialize;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Proved.
    Ok,
    /// Disproved, or broken.
    Failed,
    /// Proved, with a restriction that the remedy names.
    Weak,
    /// Skipped: something that it needs is missing.
    NotChecked,
}

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The name of the check.
    pub name: &'static str,
    /// Its result.
    pub state: State,
    /// Details of the result.
    pub detail: String,
    /// The remedy, if there is something to do.
    pub remedy: Option<String>,
}

impl Check {
    pub(super) fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, state: State::Ok, detail: detail.into(), remedy: None }
    }

    pub(super) fn failed(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, state: State::Failed, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn weak(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, state: State::Weak, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn not_checked(
        name: &'static str,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = Some(remedy.into()).filter(|remedy: &String| !remedy.is_empty());
        Self { name, state: State::NotChecked, detail: detail.into(), remedy }
    }
}

/// A check whose job gave no result.
pub(super) fn failed_job(name: &'static str, error: JobError, which: &str) -> Result<Check, Error> {
    match error {
        JobError::Interrupted { signal } => Err(Error::Interrupted { signal }),
        other => Ok(Check::failed(
            name,
            format!("{which} {other}").trim().to_owned(),
            "do not rely on it here; report the driver's version",
        )),
    }
}
