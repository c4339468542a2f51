//! Compares audits: from what was open and what an audit saw to events, and to what is open now.
//!
//! Pure: it reads no clock and no file, and queries no process.

use partita::audit::Escape;
use partita::process::ProcessId;
use partita::registry::GpuMeta;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{End, Finding, Key, Look};

/// A finding that is not over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// The number of the event with which it began.
    pub began_id: i64,
    /// When that was, in milliseconds since 1970.
    pub began_unix_ms: i64,
    /// What it is.
    pub finding: Finding,
}

/// The beginning or the end of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = EventChange)]
pub enum Edge {
    /// It is so since this event.
    Began,
    /// It is not so any more.
    Ended,
    /// It has no duration: a decision.
    Happened,
}

impl Edge {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Began => "began",
            Self::Ended => "ended",
            Self::Happened => "happened",
        }
    }
}

/// A change since the last audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// When it was seen, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// What it is about.
    pub finding: Finding,
    /// What has become of it.
    pub what: What,
}

/// What has become of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// It is new.
    Began,
    /// It is over.
    Ended {
        /// The number of the event with which it began.
        began_id: i64,
        /// When that was, in milliseconds since 1970.
        began_unix_ms: i64,
        /// How it came to its end.
        end: End,
    },
}

impl What {
    /// Whether it has begun or ended.
    pub fn edge(&self) -> Edge {
        match self {
            Self::Began => Edge::Began,
            Self::Ended { .. } => Edge::Ended,
        }
    }
}

/// The consequences of an audit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Beginnings and ends, each to store as an event.
    pub changes: Vec<Change>,
    /// First sightings, which count if the next audit confirms them.
    pub suspected: Vec<Finding>,
}

/// Compares an audit with what was open before it and with the suspects of the one before.
///
/// An audit can catch a process during an `execve`: its slot is free, and the driver still lists
/// it. So a process counts when two audits in a row have seen it. A driver that does not answer,
/// and a mistake in the policy, count at once.
///
/// What an audit could not see is neither new nor over, unless its process has ended.
pub fn changes(open: &[Open], suspected: &[Finding], look: &Look, now_unix_ms: i64) -> Outcome {
    let mut outcome = Outcome::default();
    for known in open {
        if let Some(end) = end(&known.finding, look) {
            outcome.changes.push(Change {
                at_unix_ms: now_unix_ms,
                finding: known.finding.clone(),
                what: What::Ended { began_id: known.began_id, began_unix_ms: known.began_unix_ms, end },
            });
        }
    }
    let mut counted: Vec<Key<'_>> = open.iter().map(|known| known.finding.key()).collect();
    for finding in &look.findings {
        let is_gone = finding.process().is_some_and(|process| look.gone.contains(&process));
        if is_gone || counted.contains(&finding.key()) {
            continue;
        }
        counted.push(finding.key());
        let is_sure =
            matches!(finding, Finding::Blind { .. } | Finding::Policy { .. }) || has(suspected, finding);
        if is_sure {
            let change = Change { at_unix_ms: now_unix_ms, finding: finding.clone(), what: What::Began };
            outcome.changes.push(change);
        } else {
            outcome.suspected.push(finding.clone());
        }
    }
    // Those that could not be checked again remain suspects.
    let unseen =
        suspected.iter().filter(|finding| end(finding, look).is_none() && !counted.contains(&finding.key()));
    outcome.suspected.extend(unseen.cloned());
    outcome
}

/// How an audit shows that a finding is over; `None` if it is not, or if the audit cannot tell.
fn end(finding: &Finding, look: &Look) -> Option<End> {
    if finding.process().is_some_and(|process| look.gone.contains(&process)) {
        return Some(End::Gone);
    }
    if has(&look.findings, finding) || !look.tells_of(finding) {
        return None;
    }
    let is_held = |gpu: &GpuMeta, process: ProcessId| look.held.contains(&(gpu.key.clone(), process));
    Some(match finding {
        Finding::Escape { escape, .. } if is_held(&escape.gpu, escape.process) => End::Held,
        Finding::Outsider { gpu, process, .. } if is_held(gpu, *process) => End::Held,
        Finding::Escape { .. } | Finding::Stranger { .. } | Finding::Outsider { .. } => End::Left,
        Finding::Policy { .. } | Finding::Blind { .. } => End::Told,
    })
}

fn has(findings: &[Finding], finding: &Finding) -> bool {
    findings.iter().any(|other| other.key() == finding.key())
}

impl Look {
    /// Whether it would have seen this finding, if it were so.
    fn tells_of(&self, finding: &Finding) -> bool {
        let is_blind = |key| self.findings.iter().any(|other| other.key() == Key::Blind(key));
        match finding {
            // The registry has no part in it.
            Finding::Policy { .. } => true,
            _ if is_blind(None) => false,
            Finding::Escape { escape: Escape { gpu, .. }, .. } | Finding::Outsider { gpu, .. } => {
                !is_blind(Some(&gpu.key))
            }
            // The driver has no part in it.
            Finding::Stranger { .. } | Finding::Blind { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests;
