//! Attaching to a service, from inside a program.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use partita_abi::CuResult;

use super::dirs;
use super::own::Own;
use super::wire::{self, Answer, Attach, Message};
use crate::shared::place::Place;
use crate::shared::protocol::MpsIdentity;
use crate::shared::socket;

const ENV_PARTITION: &str = "CUDA_MPS_SM_PARTITION";

/// Makes this process a client of the service in its pipe directory. `None` if no daemon listens:
/// as on hardware, the program then silently runs without it.
///
/// Waits while another user has the server. The connection makes the process a client; keep it
/// until the process ends.
///
/// # Errors
/// The daemon's refusal: `MPS_SERVER_NOT_READY` while a server recovers from a fault,
/// `MPS_MAX_CLIENTS_REACHED`, `INVALID_RESOURCE_CONFIGURATION` without a static partition where one
/// is needed; `NO_DEVICE` when the service is not for this device; `MPS_CONNECTION_FAILED` when it
/// goes away meanwhile.
pub fn attach(place: &Place, own: Own) -> Result<Option<(MpsIdentity, OwnedFd)>, CuResult> {
    let Ok(connection) = socket::connect(&dirs::control(&dirs::pipe())) else { return Ok(None) };
    let dir = std::path::absolute(&place.dir).unwrap_or_else(|_| place.dir.clone());
    let attach = Attach {
        device: place.spec.id.to_owned(),
        index: place.index,
        dir: dir.as_os_str().as_bytes().to_vec(),
        own,
        partition: std::env::var(ENV_PARTITION).ok(),
        command: command_line(),
    };
    match wire::ask(&connection, &Message::Attach(attach)) {
        Ok(Answer::Attached(identity)) => Ok(Some((identity, connection))),
        Ok(Answer::Refused(code)) => Err(CuResult(code)),
        Ok(Answer::Text(_) | Answer::Half(_)) | Err(_) => Err(CuResult::MPS_CONNECTION_FAILED),
    }
}

/// Notifies the server of a context that this process created or destroyed, over the connection of
/// [`attach`].
///
/// # Errors
/// Those of the socket: the service is gone.
pub fn notify_context(connection: BorrowedFd<'_>, context: u32, alive: bool) -> io::Result<()> {
    wire::send(connection.as_fd(), &Message::Context { context, alive })
}

/// The program and its arguments, for lists.
fn command_line() -> String {
    let line: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut line = line.join(" ");
    let end = (0..=line.len().min(256)).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
    line.truncate(end);
    line
}
