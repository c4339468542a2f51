//! The keeper of a chain's memory: a process of the tenant that owns the frames, so that they
//! survive the death of a component.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use partita_host::error::Error;
use partita_host::install::{DAEMON, Install};
use rustix::process::Signal;

use super::process::{Process, VISIBLE_VARIABLE};
use crate::Handles;

/// Its socket in the chain's directory. The name is short, because the path of a socket has at
/// most 107 bytes.
const SOCKET: &str = "memory";
/// How long it may take to begin to serve: it loads the driver first.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// How long it may take to end.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The keeper of a chain's memory.
#[derive(Debug)]
pub(super) struct Keeper {
    process: Process,
    socket: PathBuf,
    started: Instant,
}

impl Keeper {
    /// A keeper on the GPU with that number and UUID, due at once. `gpu` is `None` if the tenant
    /// has no other. Its socket is in the chain's directory, `dir`.
    pub(super) fn new(
        install: &Install,
        (tenant, dir): (&Path, &Path),
        handles: Handles,
        number: usize,
        gpu: Option<&str>,
    ) -> Result<Self, Error> {
        let name = if number == 0 { SOCKET.to_owned() } else { format!("{SOCKET}-{number}") };
        let socket = dir.join(name);
        let mut command = Command::new(install.part(DAEMON)?);
        command.args(["keeper", "--attached", "--handles", handles.name(), "--socket"]).arg(&socket);
        let title = match gpu {
            Some(uuid) => {
                command.env(VISIBLE_VARIABLE, uuid);
                format!("the keeper of the chain's memory on its GPU {number}")
            }
            None => "the keeper of the chain's memory".to_owned(),
        };
        let process = Process::new(title, command, tenant);
        Ok(Self { process, socket, started: Instant::now() })
    }

    pub(super) fn socket(&self) -> &OsStr {
        self.socket.as_os_str()
    }

    /// Whether it serves.
    pub(super) fn is_ready(&self) -> bool {
        self.process.lives() && self.socket.exists()
    }

    /// Starts it if it is due and `may_start` is set. Returns how it ended, if it has since the
    /// last call.
    pub(super) fn look(&mut self, may_start: bool) -> Result<Option<ExitStatus>, Error> {
        let ended = self.process.poll()?;
        if ended.is_some() {
            // A socket that is left there belongs to a dead keeper.
            let _ = std::fs::remove_file(&self.socket);
        } else if may_start && self.process.is_due() {
            self.process.spawn()?;
            self.started = Instant::now();
        } else if !self.is_ready() && self.process.lives() && self.started.elapsed() > READY_LIMIT {
            self.process.signal(Signal::KILL, None);
        }
        Ok(ended)
    }

    /// A handle that is readable once the keeper has ended.
    pub(super) fn handle(&self) -> Option<BorrowedFd<'_>> {
        self.process.handle()
    }

    pub(super) fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Ends it.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        for (signal, limit) in [(Signal::TERM, END_LIMIT), (Signal::KILL, partita_host::kill::KILL_LIMIT)] {
            self.process.signal(signal, None);
            let limit = Instant::now() + limit;
            while self.process.lives() && Instant::now() < limit {
                self.process.poll()?;
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    }
}
