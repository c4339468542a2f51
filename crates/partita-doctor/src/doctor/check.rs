//! One line of the doctor's table.

use partita_host::child::JobError;
use partita_host::error::Error;
use serde::Serialize;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Proved.
    Ok,
    /// Disproved, or broken.
    Failed,
    /// Proved, with a restriction that the remedy is about.
    Weak,
    /// Not made: something that it stands on is missing.
    NotChecked,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// How it came out.
    pub state: State,
    /// What was found.
    pub detail: String,
    /// What to do about it, if something should be done.
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
