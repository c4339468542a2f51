//! Queries of a board: one message each way.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::place::Place;
use super::protocol::{PROTOCOL_VERSION, Reply, Request, Role};
use super::socket::{self, Received};

/// Sends a request and receives the reply with its descriptors.
pub fn exchange(socket: BorrowedFd<'_>, request: &Request) -> io::Result<(Reply, Vec<OwnedFd>)> {
    send_request(socket, request, &[])?;
    receive_reply(socket)
}

/// Sends a request.
pub fn send_request(
    socket: BorrowedFd<'_>,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = postcard::to_allocvec(request).map_err(io::Error::other)?;
    socket::send(socket, &bytes, descriptors)
}

/// Receives a reply with its descriptors.
pub fn receive_reply(socket: BorrowedFd<'_>) -> io::Result<(Reply, Vec<OwnedFd>)> {
    match socket::receive(socket)? {
        Received::Packet(packet, descriptors) => {
            Ok((postcard::from_bytes(&packet).map_err(io::Error::other)?, descriptors))
        }
        _ => Err(io::ErrorKind::ConnectionReset.into()),
    }
}

/// The name that lists show for this process.
pub fn command_name() -> String {
    std::fs::read_link("/proc/self/exe")
        .map(|path| path.display().to_string())
        .unwrap_or_else(|_| "unknown".to_owned())
}

/// Connects to a board that runs, without starting one.
fn connect_observer(place: &Place) -> Option<OwnedFd> {
    let socket = place.connect().ok()?;
    let hello = Request::Hello { version: PROTOCOL_VERSION, role: Role::Observer, command: command_name() };
    exchange(socket.as_fd(), &hello).ok()?;
    Some(socket)
}

/// Queries the board without being its client. `None` when no board runs.
pub fn observe(place: &Place, request: &Request) -> Option<Reply> {
    let socket = connect_observer(place)?;
    exchange(socket.as_fd(), request).ok().map(|(reply, _)| reply)
}

/// Subscribes to faults of clients of an MPS server: the returned connection receives a message
/// then. `None` when no board runs.
pub fn await_fault(place: &Place, server: u32) -> Option<OwnedFd> {
    let socket = connect_observer(place)?;
    send_request(socket.as_fd(), &Request::AwaitFault { server }, &[]).ok()?;
    Some(socket)
}
