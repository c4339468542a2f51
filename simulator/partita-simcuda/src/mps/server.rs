//! The server process: a child of the daemon, tied to it by a socket on its standard input.
//!
//! It reports that it is ready and then lives until the daemon closes its end. So it ends whenever
//! the daemon ends, and the daemon notices its death at once.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The argument that makes the control program a server.
pub const ARGUMENT: &str = "--server";
/// The server's name: that of its program, and what process lists show.
pub const NAME: &str = "nvidia-cuda-mps-server";
/// The server's message when it is ready.
const READY: u8 = b'R';
/// How long a server may take to exit by itself.
const PATIENCE: Duration = Duration::from_millis(500);

/// The daemon's hold on a server process.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    link: Option<UnixStream>,
}

/// A message of a server's link.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerMessage {
    /// It accepts clients.
    Ready,
    /// It is gone.
    Gone,
    /// Nothing new.
    Nothing,
}

impl ServerProcess {
    /// Starts a server that runs as `uid`.
    ///
    /// # Errors
    /// Those of starting a process; `PermissionDenied` for another user's server without the right
    /// to it.
    pub fn start(uid: u32) -> io::Result<Self> {
        let (link, other) = UnixStream::pair()?;
        link.set_nonblocking(true)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).arg(ARGUMENT).env_remove("LD_PRELOAD").current_dir("/");
        command.stdin(OwnedFd::from(other)).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: takes no arguments and cannot fail.
        if uid != unsafe { libc::geteuid() } {
            command.uid(uid);
        }
        Ok(Self { child: command.spawn()?, link: Some(link) })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The descriptor that is readable when there is a message.
    pub fn link(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().map(AsFd::as_fd)
    }

    /// Reads the server's message.
    pub fn hear(&mut self) -> ServerMessage {
        let Some(link) = &mut self.link else { return ServerMessage::Gone };
        let mut said = [0];
        match link.read(&mut said) {
            Ok(1) if said[0] == READY => ServerMessage::Ready,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                ServerMessage::Nothing
            }
            _ => ServerMessage::Gone,
        }
    }

    /// Closes the link, waits for the server's end and returns its exit status.
    ///
    /// # Errors
    /// Those of `wait`.
    pub fn end(&mut self) -> io::Result<ExitStatus> {
        drop(self.link.take());
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                // It was stopped by a signal, or a debugger holds it.
                self.child.kill()?;
                return self.child.wait();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// The server's own life.
pub fn run() {
    let Ok(link) = io::stdin().as_fd().try_clone_to_owned() else { return };
    let mut link = UnixStream::from(link);
    // SAFETY: the name is a C string; only the name of this thread changes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"nvidia-cuda-mps-server".as_ptr()) };
    if link.write_all(&[READY]).is_err() {
        return;
    }
    let mut nothing = [0];
    loop {
        match link.read(&mut nothing) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(1) => {}
            _ => return,
        }
    }
}
