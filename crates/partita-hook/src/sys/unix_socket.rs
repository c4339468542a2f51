//! Sockets between processes of this machine, by system calls: programs come with libraries that
//! replace the C library's functions.

use core::ffi::{CStr, c_int};

use partita_driver::files::{Descriptor, errno};

/// A new socket of this kind (`SOCK_…`), closed by `execve`.
///
/// # Errors
/// The number of the failure.
pub fn new(kind: c_int) -> Result<Descriptor, c_int> {
    // SAFETY: a plain call; the descriptor is closed when dropped.
    let socket = unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0) };
    c_int::try_from(socket).ok().filter(|socket| *socket >= 0).map(Descriptor).ok_or_else(errno)
}

/// Connects it to the socket at this path.
///
/// # Errors
/// The number of the failure; `ENAMETOOLONG` if an address has no room for the path.
pub fn connect(socket: &Descriptor, path: &CStr) -> Result<(), c_int> {
    // SAFETY: zeros are a valid address.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if path.count_bytes() >= address.sun_path.len() {
        return Err(libc::ENAMETOOLONG);
    }
    for (to, byte) in address.sun_path.iter_mut().zip(path.to_bytes()) {
        *to = *byte as core::ffi::c_char;
    }
    let bytes = size_of::<libc::sockaddr_un>();
    // SAFETY: an address of this frame.
    let connected = unsafe { libc::syscall(libc::SYS_connect, socket.0, &raw const address, bytes) };
    if connected == 0 { Ok(()) } else { Err(errno()) }
}
