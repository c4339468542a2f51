//! Dead processes of a tenant whose work on the GPU has not ended: what its holder writes down.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::files::{self, Durable};
use crate::process::ProcessId;

/// The file in the tenant's directory.
pub(crate) const FILE: &str = "dead.json";
/// The most that is read of it, in bytes.
pub(crate) const BYTES_MAX: u64 = 1 << 20;

/// Notes in a tenant's directory that the server has ended the work of a process.
pub(crate) fn note_work_ended(dir: &Path, process: ProcessId) {
    let _ = fs::File::create(dir.join(work_mark(process)));
}

/// Whether it has.
pub(crate) fn was_work_ended(dir: &Path, process: ProcessId) -> bool {
    dir.join(work_mark(process)).exists()
}

/// With the start, because a later process of the tenant may have the same number.
fn work_mark(ProcessId { pid, start_ticks }: ProcessId) -> String {
    format!("ended-{pid}-{start_ticks}")
}

/// A dead process that the tenant's holder holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadProcess {
    /// Its number.
    pub pid: u32,
    /// When it died, in seconds since 1970.
    pub died_unix_s: u64,
    /// Whether the GPU has told that some of its work has not ended. If not, its last launches may
    /// still run.
    pub runs: bool,
}

impl DeadProcess {
    /// The time so long ago, in seconds since 1970.
    pub(crate) fn now_s(ago: Duration) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.saturating_sub(ago).as_secs()
    }

    /// Writes the list. A holder that cannot write holds all the same.
    pub(crate) fn write(dir: &Path, dead: &[Self]) {
        if dead.is_empty() {
            let _ = fs::remove_file(dir.join(FILE));
            return;
        }
        let json = serde_json::to_vec(dead).unwrap_or_default();
        let _ = files::replace(&dir.join(FILE), &json, 0o644, Durable::No);
    }

    /// What it means for the tenant, in words.
    #[must_use]
    pub fn describe(&self, tenant: &str) -> String {
        let ago_s = Self::now_s(Duration::ZERO).saturating_sub(self.died_unix_s);
        let what =
            if self.runs { "its work on the GPU has not ended" } else { "its last kernels may still run" };
        format!(
            "process {} died or ran another program {ago_s} s ago, and {what}: its compute units and \
             memory stay taken, and neighbours run on; `partita kill {tenant}` lets go of it, and may \
             break the other clients of MPS",
            self.pid
        )
    }
}
