//! Options of a keeper.

use std::path::PathBuf;
use std::time::Duration;

use crate::pool::Limits;

use crate::wire::HandleKind;

/// Options of a keeper.
#[derive(Clone, Debug)]
pub struct Options {
    /// The socket, with permissions for its user only.
    pub socket: PathBuf,
    /// End after this long without leases and without a tenant's client; `None` for never.
    pub idle: Option<Duration>,
    /// How clients open slabs.
    pub handles: HandleKind,
    /// Limits of the pool.
    pub limits: Limits,
    /// The default quota of a tenant's slabs, in bytes.
    pub quota_bytes: u64,
    /// Simultaneous connections.
    pub clients_max: usize,
    /// How long a dead process's memory continues to rest, for work of it that the GPU may still
    /// run; `None` to choose: zero if the driver ends a process's work before the process is gone,
    /// a second under MPS, whose server ends it some time later.
    pub settle: Option<Duration>,
}

impl Options {
    /// The defaults, for a socket.
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
