//! Unfinished work for a job or a service: processes that neither a record nor a pid file names.
//!
//! A prolog that is killed leaves processes that it has just started: a daemon that does not listen
//! yet, a tenant that does not exist yet. A look at the files would miss them, so each is marked by
//! its environment from its first instruction on.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use partita_host::error::Error;
use partita_host::mps;
use partita_host::process::{self, ProcessId};
use partita_mps::{MpsError, Service};
use rustix::process::{Pid, Signal};

use super::deadline::Deadline;

/// Names the job in the environment of everything that is started for it, except the service.
pub const JOB_VARIABLE: &str = "PARTITA_BATCH_JOB";
/// How long processes may take to exit, before the next stronger signal.
pub const LIMIT: Duration = Duration::from_secs(2);

/// The prefix of the names of MPS's programs.
const MPS_PROGRAMS: &str = "nvidia-cuda-mps-";
const POLL: Duration = Duration::from_millis(10);

/// Ends the processes that `find` returns until it returns none. Returns whether there were any.
///
/// # Errors
/// [`Error::Mps`] if a process does not end; [`Error::Io`] if this user must not end it.
pub fn end(find: impl Fn() -> BTreeSet<ProcessId>, deadline: Deadline) -> Result<bool, Error> {
    let mut any = false;
    for signal in [Signal::TERM, Signal::KILL] {
        let until = deadline.at_most(LIMIT);
        loop {
            let found = find();
            if found.is_empty() {
                return Ok(any);
            }
            any = true;
            for process in &found {
                signal_group(*process, signal);
                process.signal(signal).map_err(Error::io(format!("process {}", process.pid)))?;
            }
            if until.is_over() {
                break;
            }
            thread::sleep(POLL);
        }
    }
    match find().first() {
        None => Ok(any),
        Some(process) => {
            Err(Error::Mps(MpsError::StillRunning { pid: process.pid, waited_s: LIMIT.as_secs() }))
        }
    }
}

/// Ends programs of MPS that were started for this service's directory and that its pid file does
/// not name: a daemon that did not finish its start, a server whose daemon was killed, a command
/// without an answer.
///
/// # Errors
/// As [`end`].
pub fn end_service(service: &Service, deadline: Deadline) -> Result<bool, Error> {
    let pipe = service.dirs().pipe();
    let find = || {
        let found = process::with_variable("CUDA_MPS_PIPE_DIRECTORY", pipe.as_os_str());
        let line = |process: &ProcessId| std::fs::read(format!("/proc/{}/cmdline", process.pid));
        found.into_iter().filter(|process| is_mps(&line(process).unwrap_or_default())).collect()
    };
    end(find, deadline)
}

/// Every process that was started for the job of this process, except this one.
pub fn unfinished() -> BTreeSet<ProcessId> {
    let own = std::process::id();
    let job = std::env::var_os(JOB_VARIABLE);
    let found = job.map(|job| process::with_variable(JOB_VARIABLE, &job)).unwrap_or_default();
    found.into_iter().filter(|process| process.pid != own).collect()
}

/// Whether a command line is that of a program of MPS, of the interpreter of a script of it, or of
/// a process that will become one.
fn is_mps(line: &[u8]) -> bool {
    let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
    let is_launcher = words.get(1).is_some_and(|word| *word == mps::DETACH_SUBCOMMAND.as_bytes());
    words.iter().take(if is_launcher { words.len() } else { 2 }).any(|word| {
        let name = word.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        name.starts_with(MPS_PROGRAMS.as_bytes())
    })
}

/// Sends a signal to the whole group of a process, if it leads one, as daemons do.
fn signal_group(process: ProcessId, signal: Signal) {
    if let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw)
        && process.lives()
        && rustix::process::getpgid(Some(pid)) == Ok(pid)
    {
        let _ = rustix::process::kill_process_group(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_mps_by_their_command_lines() {
        for (line, is) in [
            ("/usr/bin/nvidia-cuda-mps-control -d", true),
            ("nvidia-cuda-mps-server", true),
            ("/bin/sh /opt/nvidia-cuda-mps-control -d", true),
            ("/usr/bin/partita internal-detach -- /usr/bin/nvidia-cuda-mps-control -d", true),
            ("/usr/bin/partita internal-detach -- /usr/bin/partita run", false),
            ("python3 train.py /usr/bin/nvidia-cuda-mps-control", false),
            ("/usr/bin/my-nvidia-cuda-mps-control", false),
            ("", false),
        ] {
            assert_eq!(is_mps(line.replace(' ', "\0").as_bytes()), is, "{line}");
        }
    }
}
