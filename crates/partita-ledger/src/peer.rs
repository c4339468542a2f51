//! The process at the other end of a Unix socket.

use core::ffi::c_int;

use crate::error::Errno;

/// The process that connected a socket, or made the pair, as the kernel recorded it then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketPeer {
    /// Its number in this process's PID namespace; 0 if it has none there.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
}

impl SocketPeer {
    /// Queries the kernel (`SO_PEERCRED`).
    ///
    /// # Errors
    /// The system's: `EBADF`, or `ENOTSOCK` for a descriptor of another kind.
    pub fn of(socket: c_int) -> Result<Self, Errno> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the option's value is this structure, of the length passed to the call.
        let result = unsafe {
            libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &mut length)
        };
        if result != 0 {
            return Err(Errno::last());
        }
        Ok(Self { pid: peer.pid, uid: peer.uid })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not model this kernel call")]
    fn the_kernel_tells() {
        let (one, _other) = UnixStream::pair().unwrap();
        // SAFETY: a plain system call.
        let uid = unsafe { libc::geteuid() };
        let own = SocketPeer { pid: std::process::id() as i32, uid };
        assert_eq!(SocketPeer::of(one.as_raw_fd()), Ok(own));
        assert_eq!(SocketPeer::of(-1), Err(Errno(libc::EBADF)));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(SocketPeer::of(file.as_raw_fd()), Err(Errno(libc::ENOTSOCK)));
    }
}
