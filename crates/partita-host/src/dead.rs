//! Dead processes of a tenant whose work on the GPU has not ended: what its holder writes down.
//!
//! The files are made with the tenant: in system mode its user can make none in its directory, and
//! can write these.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::process::ProcessId;

/// The file in the tenant's directory: the first line is the list.
pub(crate) const FILE: &str = "dead.json";
/// The file with a line for each process whose work the server has ended.
pub(crate) const WORK_ENDED: &str = "work-ended";
/// The most that is read of either, in bytes.
pub(crate) const BYTES_MAX: u64 = 1 << 20;
/// The most processes that are shown.
const SHOWN_MAX: usize = 64;

/// Notes in a tenant's directory that the server has ended the work of a process.
pub(crate) fn note_work_ended(dir: &Path, process: ProcessId) {
    let _ = open(dir, WORK_ENDED, OpenOptions::new().append(true))
        .and_then(|mut file| file.write_all(format!("{}\n", work_mark(process)).as_bytes()));
}

/// Whether it has.
pub(crate) fn was_work_ended(dir: &Path, process: ProcessId) -> bool {
    let mut text = String::new();
    let read = open(dir, WORK_ENDED, OpenOptions::new().read(true))
        .and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
    read.is_ok() && text.lines().any(|line| line == work_mark(process))
}

/// With the start, because a later process of the tenant may have the same number.
fn work_mark(ProcessId { pid, start_ticks }: ProcessId) -> String {
    format!("{pid} {start_ticks}")
}

/// One of the files of a tenant of this user.
fn open(dir: &Path, name: &str, how: &mut OpenOptions) -> io::Result<File> {
    how.custom_flags(open_flags()).open(dir.join(name))
}

/// Neither a link nor a pipe.
fn open_flags() -> i32 {
    (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32
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
        let mut line = serde_json::to_vec(dead).unwrap_or_default();
        line.push(b'\n');
        let _ = open(dir, FILE, OpenOptions::new().write(true)).and_then(|file| {
            // One write: a reader finds the old line or the new one, and nothing behind it counts.
            file.write_all_at(&line, 0)?;
            file.set_len(line.len() as u64)
        });
    }

    /// The list in such a file, which its user may have written.
    pub(crate) fn read(bytes: &[u8]) -> Vec<Self> {
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let mut dead: Vec<Self> = serde_json::from_slice(line).unwrap_or_default();
        dead.truncate(SHOWN_MAX);
        dead
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
