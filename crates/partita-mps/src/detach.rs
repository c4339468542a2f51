//! Giving a daemon a session of its own and none of our descriptors.
//!
//! A daemon that inherits a descriptor of its starter keeps that descriptor's
//! other end waiting: a shell pipeline around `partita run` would not end
//! while the MPS daemon lives. The standard library opens everything
//! close-on-exec, but what the starter's own parent left open it passes on.
//! So the daemon is started through a small launcher process that calls
//! [`detach_and_exec`].

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Closes every descriptor but the three standard ones, starts a session and
/// becomes `argv`. For a launcher process that does nothing else: it must have
/// one thread and hold no descriptor that it still wants.
///
/// # Errors
/// What the system said, if `argv` is empty or cannot be executed. On success
/// the call does not return.
pub fn detach_and_exec(argv: &[OsString]) -> Result<Infallible, io::Error> {
    let Some((program, arguments)) = argv.split_first() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no program to start"));
    };
    let mut open: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&descriptor| descriptor > 2)
        .collect();
    open.sort_unstable();
    for descriptor in open {
        // The directory's own descriptor is in the list and already closed.
        let _ = nix::unistd::close(descriptor);
    }
    // Fails only for a process that leads a group already; then the caller
    // put it into a group of its own, which serves as well.
    let _ = rustix::process::setsid();
    Err(Command::new(program).args(arguments).exec())
}
