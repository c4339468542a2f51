//! Ends a client's GPU work, before its process is ended.

use std::path::Path;
use std::time::Duration;

use partita_mps::{Control, MpsError, Pid, Service};
use rustix::process::Signal;

use crate::dead;
use crate::error::Error;
use crate::process::{ProcessId, user_name};
use crate::registry;

/// How long each command to the service may take before a signal is sent on.
const BEFORE_SIGNAL_LIMIT: Duration = Duration::from_secs(3);

/// Refuses to end the work of another user's process, except for root: every user can reach a
/// service for all users. Whose a process was that has ended is not known, so root ends no work of
/// such a one for a user.
///
/// # Errors
/// [`Error::NotOffered`].
pub fn check_may_end(client: Pid) -> Result<(), Error> {
    let own = registry::acting_user();
    match ProcessId::living(client).and_then(ProcessId::user) {
        Some(user) if own != 0 && user != own => Err(Error::NotOffered {
            option: format!("ending the work of process {client}"),
            reason: format!("it belongs to {0}, and only {0} and root end it; ask {0}", user_name(user)),
        }),
        None if registry::acts_for_user() => Err(Error::NotOffered {
            option: format!("ending the work of process {client}"),
            reason: "the process has ended, and only root ends what it left on the GPU; ask root".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Makes the server end a client's work. Returns whether there was any: false for a client that has
/// left.
///
/// A stopped process is continued first: the server waits for it, and answers no command meanwhile
/// (seen on an H200, CUDA 13.0).
///
/// # Errors
/// Those of the command.
pub fn end_work(control: &Control, server: Pid, client: Pid) -> Result<bool, MpsError> {
    if let Some(process) = ProcessId::living(client).filter(|process| process.is_stopped()) {
        // One that is another user's is left to the server.
        let _ = process.signal(Signal::CONT);
    }
    match control.terminate_client(server, client) {
        Ok(()) => Ok(true),
        // It left by itself.
        Err(MpsError::NoSuchServer { .. } | MpsError::NoSuchClient { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// To be called before a client of the service gets a signal: if the process would die of it at
/// once, its work on the GPU is ended first. No fence of it is passed then, so a note in the
/// tenant's directory, `dir`, tells the holder. Returns whether work was ended.
pub fn end_work_before(service: &Service, signal: Signal, process: ProcessId, dir: &Path) -> bool {
    if !dies_of(process.pid, signal) {
        return false;
    }
    // A service that does not answer must not keep the signal from it for long.
    let service = service.clone().with_command_limit(BEFORE_SIGNAL_LIMIT);
    // Whatever goes wrong, the signal is not kept from it.
    let clients = service.clients().unwrap_or_default();
    let mut has_ended = false;
    for (server, client) in clients.into_iter().filter(|(_, client)| *client == process.pid) {
        if end_work(&service.control(), server, client).is_ok_and(|is_ended| is_ended) {
            dead::note_work_ended(dir, process);
            has_ended = true;
        }
    }
    has_ended
}

/// Whether a process neither catches nor ignores a signal.
fn dies_of(pid: u32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let bit = 1u64 << (signal.as_raw() - 1);
    ["SigCgt:", "SigIgn:"].iter().all(|set| {
        let set = status.lines().find_map(|line| line.strip_prefix(set));
        set.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).is_some_and(|set| set & bit == 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_dies_of_a_signal_is_read_from_the_kernel() {
        let mut sleeper = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        // Between fork and exec it has this process's handlers.
        let is = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        while is(sleeper.id()).trim() != "sleep" {
            std::thread::yield_now();
        }
        assert!(dies_of(sleeper.id(), Signal::TERM));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        let mut deaf = std::process::Command::new("sh")
            .args(["-c", "trap '' TERM; echo; read x"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0];
        std::io::Read::read_exact(deaf.stdout.as_mut().unwrap(), &mut line).unwrap();
        assert!(!dies_of(deaf.id(), Signal::TERM));
        // Not HUP: all programs started by `nohup` ignore it.
        assert!(dies_of(deaf.id(), Signal::USR1));
        drop(deaf.stdin.take());
        deaf.wait().unwrap();
    }
}
