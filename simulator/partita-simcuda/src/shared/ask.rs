//! Queries of a board: one message each way.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::place::Place;
use super::protocol::{PROTOCOL_VERSION, Reply, Request, Role};
use super::socket::{self, MESSAGE_BYTES_MAX, Received};

/// Sends a request and receives the reply with its descriptors.
pub fn exchange(
    socket: BorrowedFd<'_>,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<(Reply, Vec<OwnedFd>)> {
    let bytes = postcard::to_allocvec(request).map_err(io::Error::other)?;
    socket::send(socket, &bytes, descriptors)?;
    let mut buffer = vec![0u8; MESSAGE_BYTES_MAX];
    match socket::receive(socket, &mut buffer)? {
        Received::Packet(bytes, descriptors) => {
            Ok((postcard::from_bytes(&buffer[..bytes]).map_err(io::Error::other)?, descriptors))
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

/// Queries the board without being its client. `None` when no board runs.
pub fn observe(place: &Place, request: &Request) -> Option<Reply> {
    let socket = place.connect().ok()?;
    let hello = Request::Hello { version: PROTOCOL_VERSION, role: Role::Observer, command: command_name() };
    exchange(socket.as_fd(), &hello, &[]).ok()?;
    exchange(socket.as_fd(), request, &[]).ok().map(|(reply, _)| reply)
}

/// Subscribes to faults of clients of an MPS server: the returned connection receives a message
/// then. `None` when no board runs.
pub fn await_fault(place: &Place, server: u32) -> Option<OwnedFd> {
    let socket = place.connect().ok()?;
    let hello = Request::Hello { version: PROTOCOL_VERSION, role: Role::Observer, command: command_name() };
    exchange(socket.as_fd(), &hello, &[]).ok()?;
    let bytes = postcard::to_allocvec(&Request::AwaitFault { server }).ok()?;
    socket::send(socket.as_fd(), &bytes, &[]).ok()?;
    Some(socket)
}
