//! Connected peers, and the server of those that are clients.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use super::limits::Limits;
use super::own::Own;
use super::server::ServerProcess;
use crate::shared::place::Place;

/// Identifies a connection for the life of the daemon.
pub(super) type PeerId = u64;

/// A connected peer.
#[derive(Debug)]
pub(super) struct Peer {
    /// The connection.
    pub socket: OwnedFd,
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its role.
    pub role: Role,
}

/// The role of a connection.
#[derive(Debug)]
pub(super) enum Role {
    /// It has not sent a message yet.
    Unknown,
    /// It sends commands.
    Ui,
    /// A program that waits for a server.
    Waiting(Box<Candidate>),
    /// A client of the server.
    Client(Box<Member>),
}

/// A program that is to become a client.
#[derive(Debug)]
pub(super) struct Candidate {
    /// Where its board is.
    pub place: Place,
    /// The limits that it sets for itself.
    pub own: Own,
    /// The static partition that it names.
    pub partition: Option<String>,
    /// The program.
    pub command: String,
}

/// A client.
#[derive(Debug)]
pub(super) struct Member {
    /// Where its board is.
    pub place: Place,
    /// Its device.
    pub uuid: String,
    /// The program.
    pub command: String,
    /// The id of its static partition.
    pub partition: Option<String>,
    /// Its number with this server.
    pub number: u32,
    /// Its contexts, by its own numbers.
    pub contexts: BTreeSet<u32>,
    /// Whether `terminate_client` has ended its work.
    pub terminated: bool,
    /// Readable when its process has ended.
    pub exit: Option<OwnedFd>,
}

/// Where a server is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has not reported that it is ready.
    Starting,
    /// It accepts clients.
    Ready,
    /// It ends when its clients are gone.
    Ending,
}

/// The server.
#[derive(Debug)]
pub(super) struct Server {
    /// The process.
    pub process: ServerProcess,
    /// The user whose clients it accepts.
    pub uid: u32,
    /// Where it is in its life.
    pub phase: Phase,
    /// The limits of its next clients.
    pub limits: Limits,
    /// How many clients it has had.
    pub clients_so_far: u32,
}

impl Server {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}
