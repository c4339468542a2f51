//! A running job: its output, further requests, and its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::outcome::{JobError, MARK, Outcome, describe};
use crate::signals;

/// How long an ended job's last lines are waited for.
const LAST_LINES_LIMIT: Duration = Duration::from_secs(2);

/// A job in its child process. Dropping it ends the process, unless it is spared.
#[derive(Debug)]
pub struct RunningJob {
    child: Option<Child>,
    is_spared: bool,
    lines: mpsc::Receiver<(bool, String)>,
    /// The last line of its stderr.
    complaint: String,
    /// When it was first seen to have ended.
    ended: Option<Instant>,
    deadline: Instant,
    limit: Duration,
}

impl RunningJob {
    /// A job whose process has just been started, with pipes for its output.
    pub(super) fn of(mut child: Child, limit: Duration, output_bytes_max: u64) -> Self {
        let (lines, received) = mpsc::channel();
        if let Some(stream) = child.stdout.take() {
            read_lines(stream, true, output_bytes_max, lines.clone());
        }
        if let Some(stream) = child.stderr.take() {
            read_lines(stream, false, output_bytes_max, lines);
        }
        Self {
            child: Some(child),
            is_spared: false,
            lines: received,
            complaint: String::new(),
            ended: None,
            deadline: Instant::now() + limit,
            limit,
        }
    }

    /// The job's process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Sends the job a request: one line of JSON on its stdin.
    ///
    /// # Errors
    /// [`JobError::Died`] if it does not read any more.
    pub fn order(&mut self, order: &impl Serialize) -> Result<(), JobError> {
        let died = |how: String| JobError::Died { how };
        let line = serde_json::to_string(order).map_err(|error| died(error.to_string()))?;
        let stdin = self.child.as_mut().and_then(|child| child.stdin.as_mut());
        let stdin = stdin.ok_or_else(|| died("it takes no orders".to_owned()))?;
        writeln!(stdin, "{line}").map_err(|error| died(error.to_string()))
    }

    /// Ends the requests of the job.
    pub fn no_more_orders(&mut self) {
        if let Some(child) = &mut self.child {
            child.stdin = None;
        }
    }

    /// Waits for the next line of the job's stdout that begins with `prefix` and returns its rest.
    ///
    /// # Errors
    /// [`JobError`] if the job ends or its time is up first.
    pub fn wait_for(&mut self, prefix: &str) -> Result<String, JobError> {
        loop {
            let line = self.next_line()?;
            if let Some(rest) = line.strip_prefix(prefix) {
                return Ok(rest.to_owned());
            }
            if let Some(json) = line.strip_prefix(MARK) {
                // The result came before the expected line: it is a failure.
                let reason = match serde_json::from_str::<Outcome<serde_json::Value>>(json) {
                    Ok(Outcome::Failed(reason)) => reason,
                    _ => format!("it ended before it said {:?}", prefix.trim_end()),
                };
                return Err(self.failed(reason));
            }
        }
    }

    /// Waits for the job's result.
    ///
    /// # Errors
    /// [`JobError`].
    pub fn finish<T: DeserializeOwned>(self) -> Result<T, JobError> {
        self.finish_hearing(MARK, |_| {})
    }

    /// As [`RunningJob::finish`]; `hear` gets the rest of each line before it that begins with
    /// `prefix`.
    ///
    /// # Errors
    /// [`JobError`].
    pub fn finish_hearing<T: DeserializeOwned>(
        mut self,
        prefix: &str,
        mut hear: impl FnMut(&str),
    ) -> Result<T, JobError> {
        loop {
            let line = self.next_line()?;
            let Some(json) = line.strip_prefix(MARK) else {
                if let Some(rest) = line.strip_prefix(prefix) {
                    hear(rest);
                }
                continue;
            };
            self.reap();
            return match serde_json::from_str(json) {
                Ok(Outcome::Done(result)) => Ok(result),
                Ok(Outcome::Failed(reason)) => Err(self.failed(reason)),
                Err(error) => Err(JobError::Died { how: format!("its result is not understood: {error}") }),
            };
        }
    }

    /// The next line of the job's stdout. Stores its output on stderr.
    fn next_line(&mut self) -> Result<String, JobError> {
        loop {
            if let Some(line) = self.line_within(Duration::from_millis(50))? {
                return Ok(line);
            }
        }
    }

    /// The next line of the job's stdout, if it comes in that time: for callers with several jobs.
    ///
    /// # Errors
    /// [`JobError`] if the job ends or its timeout passes first.
    pub fn line_within(&mut self, patience: Duration) -> Result<Option<String>, JobError> {
        let until = Instant::now() + patience;
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let wait = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(wait)) {
                Ok((true, line)) => return Ok(Some(line)),
                Ok((false, line)) if line.is_empty() => {}
                Ok((false, line)) => self.complaint = line,
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(self.died()),
                Err(mpsc::RecvTimeoutError::Timeout) if left.is_zero() => {
                    self.end();
                    return Err(JobError::TimedOut { limit_s: self.limit.as_secs() });
                }
                Err(mpsc::RecvTimeoutError::Timeout) if let Some(signal) = signals::ending() => {
                    self.end();
                    return Err(JobError::Interrupted { signal });
                }
                Err(mpsc::RecvTimeoutError::Timeout) if self.has_ended() => {
                    // Its last lines may still be on their way to us. But a descendant
                    // may hold its streams open for as long as it likes.
                    let ended = *self.ended.get_or_insert_with(Instant::now);
                    if ended.elapsed() >= LAST_LINES_LIMIT {
                        return Err(self.died());
                    }
                    return Ok(None);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => return Ok(None),
            }
        }
    }

    /// Lets a job that has said its last leave by itself.
    pub fn leave(mut self) {
        self.reap();
    }

    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Lets a job that has given its result exit by itself: it may still have to release its GPU
    /// resources.
    fn reap(&mut self) {
        let patience = (Instant::now() + Duration::from_secs(5)).min(self.deadline + Duration::from_secs(1));
        while let Some(child) = &mut self.child {
            if !matches!(child.try_wait(), Ok(None)) {
                self.child = None;
            } else if Instant::now() >= patience {
                self.end();
            } else {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn failed(&mut self, reason: String) -> JobError {
        // Another thread reads stderr, and may be behind.
        while let Ok((is_result, line)) = self.lines.recv_timeout(LAST_LINES_LIMIT) {
            if !is_result && !line.is_empty() {
                self.complaint = line;
            }
        }
        JobError::Failed { reason, complaint: std::mem::take(&mut self.complaint) }
    }

    fn died(&mut self) -> JobError {
        let status = self.child.take().and_then(|mut child| {
            // Before it is waited for, so that its number is still its own.
            kill_group(&child);
            child.wait().ok()
        });
        let mut how = status.map_or("its exit status is unknown".to_owned(), describe);
        if !self.complaint.is_empty() {
            how = format!("{how}: {}", self.complaint);
        }
        JobError::Died { how }
    }

    /// Leaves the process to end by itself from now on, whatever happens here. A client of MPS that
    /// is killed with work in flight breaks its neighbours.
    pub fn spare(&mut self) {
        self.is_spared = true;
    }

    /// Ends the job and everything in its process group, unless it is spared.
    pub fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            if self.is_spared {
                thread::spawn(move || child.wait());
                return;
            }
            kill_group(&child);
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ends the rest of the process group of a job and all that it started.
fn kill_group(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

/// Sends each line of `stream`, marked with whether it is stdout's.
fn read_lines(
    stream: impl Read + Send + 'static,
    is_out: bool,
    bytes_max: u64,
    lines: mpsc::Sender<(bool, String)>,
) {
    thread::spawn(move || {
        let mut reader = BufReader::new(stream.take(bytes_max));
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if lines.send((is_out, text)).is_err() {
                break;
            }
            line.clear();
        }
    });
}
