//! Connected peers, and callers.

use std::net::SocketAddr;

use crate::problem::{Kind, Problem};
pub use crate::token::Rights;

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A process of this machine, as the kernel reports it.
    Process {
        /// Its user.
        user: u32,
        /// Its number.
        pid: Option<i32>,
    },
    /// A client on the network, which needs a token.
    Network(SocketAddr),
}

impl Peer {
    /// Whether it is a process of root's or of this user's.
    pub(crate) fn is_root_or(self, user: u32) -> bool {
        matches!(self, Self::Process { user: of_peer, .. } if of_peer == 0 || of_peer == user)
    }
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The user; over TCP, where the token counts, the daemon's own.
    pub user: u32,
    /// What the caller's token allows; over the Unix socket, where the user counts, everything.
    pub rights: Rights,
}

impl Caller {
    /// Refuses access to another user's object, except for root.
    ///
    /// # Errors
    /// [`Kind::Forbidden`](crate::Kind::Forbidden).
    pub fn check(self, what: &str, owner: u32) -> Result<(), Problem> {
        if self.user == owner || self.user == 0 {
            return Ok(());
        }
        let name = partita::process::user_name(owner);
        let who = if owner == 0 { "root".to_owned() } else { format!("{name} and root") };
        Err(Problem::new(
            Kind::Forbidden,
            format!("{what} belongs to {name}: only {who} may change or end it"),
        ))
    }
}
