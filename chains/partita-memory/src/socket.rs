//! One packet of a Unix socket, with at most a few descriptors, sent and received whole.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::wire::FRAME_BYTES_MAX;

/// Descriptors accepted with one packet; the kernel closes the others.
const DESCRIPTORS_MAX: usize = 4;

/// A received packet.
pub(crate) struct Packet<'b> {
    /// The bytes: if it was too long, one more than a frame can have.
    pub(crate) bytes: &'b [u8],
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Whether more descriptors came than were accepted.
    pub(crate) lost_descriptors: bool,
}

/// A buffer for packets.
pub(crate) struct Buffer(Box<[u8; FRAME_BYTES_MAX + 1]>);

impl Buffer {
    pub(crate) fn new() -> Self {
        Self(Box::new([0; FRAME_BYTES_MAX + 1]))
    }
}

/// An unconnected socket.
pub(crate) fn packet_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

pub(crate) fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|_| {
        let why = "the path of a socket has 107 bytes at most: choose a shorter one";
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}

/// Sends a packet.
pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        // There is room for one.
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let flags = flags | SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags))?;
    Ok(())
}

/// Receives a packet; `None` if the other end is closed.
pub(crate) fn receive<'b>(
    socket: impl AsFd,
    buffer: &'b mut Buffer,
    flags: RecvFlags,
) -> io::Result<Option<Packet<'b>>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut buffer.0[..])], &mut control, flags)
    })?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    // An empty packet looks like the end; neither is a frame.
    if received.bytes == 0 && descriptors.is_empty() {
        return Ok(None);
    }
    let bytes = if received.flags.contains(ReturnFlags::TRUNC) { buffer.0.len() } else { received.bytes };
    let lost_descriptors = received.flags.contains(ReturnFlags::CTRUNC);
    Ok(Some(Packet { bytes: &buffer.0[..bytes], descriptors, lost_descriptors }))
}
