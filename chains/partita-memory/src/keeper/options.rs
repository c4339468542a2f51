//! How a keeper is to be.

use std::path::PathBuf;
use std::time::Duration;

use crate::pool::Limits;

use crate::wire::HandleKind;

/// How a keeper is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// The socket, made with permissions for its user alone.
    pub socket: PathBuf,
    /// End after so long without leases and without a client of a tenant; `None` for never.
    pub idle: Option<Duration>,
    /// By what clients open slabs.
    pub handles: HandleKind,
    /// Bounds of the pool.
    pub limits: Limits,
    /// What a tenant may have in slabs if nobody has set its quota, in bytes.
    pub quota_bytes: u64,
    /// Connections at one time.
    pub clients_max: usize,
    /// How long the memory of a process that is gone rests still, for work of its that the GPU has
    /// not been rid of yet; `None` to choose: none where the driver ends a process's work before
    /// the process is gone, a second under MPS, whose server does it some time later.
    pub settle: Option<Duration>,
}

impl Options {
    /// The usual ones, for a socket.
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            idle: None,
            handles: HandleKind::Ipc,
            limits: Limits::default(),
            quota_bytes: u64::MAX,
            clients_max: 1024,
            settle: None,
        }
    }
}
