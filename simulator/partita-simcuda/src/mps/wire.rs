//! Messages between the daemon and its peers, in postcard form, one packet each.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::own::Own;
use crate::shared::protocol::MpsIdentity;
use crate::shared::socket::{self, Received};

/// A message to the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// A program starts to use CUDA. Answered with [`Answer::Attached`] or [`Answer::Refused`],
    /// when there is a server for it.
    Attach(Attach),
    /// One command line. Answered with [`Answer::Text`].
    Command(String),
    /// A client made a context (`alive`) or ended one. Not answered.
    Context {
        /// The client's number for it, from 1.
        context: u32,
        /// Whether it exists now.
        alive: bool,
    },
}

/// A program's data about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attach {
    /// Catalogue name of its device.
    pub device: String,
    /// Which of the machine's GPUs that is.
    pub index: u32,
    /// Directory of its board, as bytes of a path.
    pub dir: Vec<u8>,
    /// Its own limits.
    pub own: Own,
    /// Its own `CUDA_MPS_SM_PARTITION`.
    pub partition: Option<String>,
    /// The program.
    pub command: String,
}

/// A message of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// The program is a client.
    Attached(MpsIdentity),
    /// It is not, with this `CUresult`.
    Refused(i32),
    /// A command's reply; an empty one prints nothing.
    Text(String),
    /// The first half of a reply whose rest is missing.
    Half(String),
}

/// Sends a message.
///
/// # Errors
/// Those of the socket.
pub fn send<T: Serialize>(socket: BorrowedFd<'_>, message: &T) -> io::Result<()> {
    let bytes = postcard::to_allocvec(message).map_err(io::Error::other)?;
    socket::send(socket, &bytes, &[])
}

/// Receives a message; `None` if no message waits on a nonblocking socket.
///
/// # Errors
/// Those of the socket; `ConnectionReset` when the peer is gone; `InvalidData` for an invalid
/// message.
pub fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<T>> {
    match socket::receive(socket)? {
        Received::Packet(packet, _) => postcard::from_bytes(&packet)
            .map(Some)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        Received::Nothing => Ok(None),
        Received::Closed => Err(io::ErrorKind::ConnectionReset.into()),
    }
}

/// Sends a message and waits for its answer.
///
/// # Errors
/// As [`send`] and [`receive`].
pub fn ask(socket: impl AsFd, message: &Message) -> io::Result<Answer> {
    send(socket.as_fd(), message)?;
    receive(socket.as_fd())?.ok_or_else(|| io::ErrorKind::ConnectionReset.into())
}
