//! Messages over a Unix socket: whole packets, with descriptors where they are needed.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::sys::{check, owned};

/// The longest message, in bytes. Linux passes packets of this size under its default socket
/// buffers.
pub const MESSAGE_BYTES_MAX: usize = 96 * 1024;
/// The most descriptors in one message.
pub const DESCRIPTORS_MAX: usize = 8;

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all zeroes is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("socket path {} is longer than {} bytes", path.display(), address.sun_path.len() - 1),
        ));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let length = mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
    Ok((address, length as libc::socklen_t))
}

fn packet_socket(nonblocking: bool) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
    // SAFETY: takes no pointers.
    owned(unsafe { libc::socket(libc::AF_UNIX, flags, 0) })
}

/// Listens at `path`, which must not exist.
///
/// # Errors
/// Those of `socket`, `bind` and `listen`, and a path that is too long.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = packet_socket(true)?;
    let (address, length) = address(path)?;
    // SAFETY: the address is a local of the given length.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    // SAFETY: takes no pointers.
    check(unsafe { libc::listen(socket.as_raw_fd(), 64) })?;
    Ok(socket)
}

/// Connects to the listener at `path`.
///
/// # Errors
/// Those of `socket` and `connect`, and a path that is too long.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = packet_socket(false)?;
    let (address, length) = address(path)?;
    // SAFETY: the address is a local of the given length.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(socket)
}

/// The next waiting connection, or `None` if no client waits. The new socket does not block.
///
/// # Errors
/// Those of `accept4`.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    // SAFETY: null for the peer's address is allowed.
    let fd = unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
        )
    };
    match owned(fd) {
        Ok(fd) => Ok(Some(fd)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// The process and user at the other end of a connected socket.
///
/// # Errors
/// Those of `getsockopt`.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option writes a ucred of the given length into the local.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &mut length,
        )
    })?;
    Ok((credentials.pid as u32, credentials.uid))
}

// Room for the largest control message, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; 64 + DESCRIPTORS_MAX * 4]);

/// Sends one packet.
///
/// # Errors
/// Those of `sendmsg`; a message above [`MESSAGE_BYTES_MAX`] or with more than [`DESCRIPTORS_MAX`]
/// descriptors is `InvalidInput`.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.len() > MESSAGE_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "message above the protocol's limit"));
    }
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 64 + DESCRIPTORS_MAX * 4]);
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    if !descriptors.is_empty() {
        let payload = descriptors.len() as u32 * 4;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE computes a size.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(payload) } as _;
        // SAFETY: the control buffer is larger than the space just claimed for it, so the first
        // header and its data lie inside it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as _;
            let data = libc::CMSG_DATA(header).cast::<i32>();
            for (index, descriptor) in descriptors.iter().enumerate() {
                data.add(index).write_unaligned(descriptor.as_raw_fd());
            }
        }
    }
    loop {
        // SAFETY: the message points to locals that live until the call returns.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            // The peer reads one reply per request, so its buffer drains at once.
            io::ErrorKind::WouldBlock => std::thread::yield_now(),
            _ => return Err(error),
        }
    }
}

/// What [`receive`] found.
#[derive(Debug)]
pub enum Received {
    /// A packet, with its descriptors.
    Packet(Vec<u8>, Vec<OwnedFd>),
    /// Nothing now (non-blocking sockets only).
    Nothing,
    /// The peer is gone.
    Closed,
}

/// Receives one packet.
///
/// # Errors
/// Those of `recvmsg`; a packet above [`MESSAGE_BYTES_MAX`] is `InvalidData`.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Received> {
    // Most packets are a few words: filling the room with zeros would cost more than the rest.
    let mut packet = Vec::<u8>::with_capacity(MESSAGE_BYTES_MAX);
    let mut part = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: MESSAGE_BYTES_MAX };
    let mut control = Control([0; 64 + DESCRIPTORS_MAX * 4]);
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    let got = loop {
        // SAFETY: the message points to locals that live until the call returns.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
        if got >= 0 {
            break got as usize;
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(Received::Nothing),
            io::ErrorKind::ConnectionReset => return Ok(Received::Closed),
            _ => return Err(error),
        }
    };
    let mut descriptors = Vec::new();
    // SAFETY: the kernel filled the control buffer and set its length; the CMSG functions walk
    // exactly that, and every descriptor in an SCM_RIGHTS message is new and owned by the receiver.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / 4;
                let data = libc::CMSG_DATA(header).cast::<i32>();
                for index in 0..count {
                    descriptors.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    if got == 0 {
        return Ok(Received::Closed);
    }
    if message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet longer than the protocol allows"));
    }
    // SAFETY: the kernel wrote so many bytes into the room, at most as many as there are.
    unsafe { packet.set_len(got) };
    Ok(Received::Packet(packet, descriptors))
}
