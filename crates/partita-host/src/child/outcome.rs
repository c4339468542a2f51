//! How a job ends.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The prefix of the line with a job's result.
pub const MARK: &str = "partita-job-result ";

/// The output of a job: its result, or one line on why it has none.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<T> {
    /// It did its work.
    Done(T),
    /// It could not.
    Failed(String),
}

/// How a job failed to give a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobError {
    /// It ran for longer than its limit and was ended.
    TimedOut {
        /// The limit in seconds.
        limit_s: u64,
    },
    /// It ended without a result.
    Died {
        /// Its exit status and the last line of its stderr.
        how: String,
    },
    /// It said why it could not do its work.
    Failed {
        /// Its words.
        reason: String,
        /// The last line of its stderr.
        complaint: String,
    },
    /// A signal asked this process to end while the job ran.
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
}

impl JobError {
    /// The error of a call that needs the job's result.
    pub fn or(self, error: impl FnOnce(String) -> Error) -> Error {
        match self {
            Self::Interrupted { signal } => Error::Interrupted { signal },
            other => error(other.to_string()),
        }
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut { limit_s } => write!(f, "no result within {limit_s} s (it was ended)"),
            Self::Died { how } => write!(f, "it ended without a result: {how}"),
            Self::Failed { reason, .. } => f.write_str(reason),
            Self::Interrupted { signal } => write!(f, "ended by signal {signal}"),
        }
    }
}

/// How a process has ended: by its exit code, or by a signal.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "its exit status is unknown".to_owned(),
    }
}

/// The line that a job prints as its result.
///
/// # Errors
/// Never for the results of this crate, which all serialise.
pub fn result_line<T: Serialize>(outcome: &Outcome<T>) -> Result<String, serde_json::Error> {
    serde_json::to_string(outcome).map(|json| format!("{MARK}{json}"))
}
