//! Ends what a client has on the GPU, before its process is ended.

use partita_mps::{Control, MpsError, Pid};
use rustix::process::Signal;

use crate::error::Error;
use crate::process::{ProcessId, user_name};

/// Refuses to end the work of another user's process, for all but root: everybody can reach a
/// service for all users.
///
/// # Errors
/// [`Error::NotOffered`].
pub fn check_may_end(client: Pid) -> Result<(), Error> {
    let own = rustix::process::geteuid().as_raw();
    match ProcessId::living(client).and_then(ProcessId::user) {
        Some(user) if own != 0 && user != own => Err(Error::NotOffered {
            option: format!("ending the work of process {client}"),
            reason: format!("it belongs to {0}, and only {0} and root end it; ask {0}", user_name(user)),
        }),
        _ => Ok(()),
    }
}

/// Has the server end a client's work. Returns whether there was any: false for a client that has
/// left.
///
/// A stopped process is woken first: the server waits for it, and answers nobody meanwhile (seen on
/// an H200, CUDA 13.0).
///
/// # Errors
/// What the command ends with.
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
