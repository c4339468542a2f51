//! Those who are connected, and the server that some of them are clients of.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use super::limits::Limits;
use super::server::ServerProcess;
use crate::shared::place::Place;

/// Names a connection for as long as the daemon lives.
pub(super) type PeerId = u64;

/// Somebody who is connected.
#[derive(Debug)]
pub(super) struct Peer {
    /// The connection.
    pub socket: OwnedFd,
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// What it turned out to be.
    pub role: Role,
}

/// What a connection turned out to be.
#[derive(Debug)]
pub(super) enum Role {
    /// It has not said anything yet.
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
    /// The percentage that it asks for itself.
    pub percentage: Option<f32>,
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
    /// It has not said that it is ready.
    Starting,
    /// It takes clients.
    Ready,
    /// It ends when its clients are gone.
    Ending,
}

/// The server.
#[derive(Debug)]
pub(super) struct Server {
    /// The process.
    pub process: ServerProcess,
    /// Whose clients it takes.
    pub uid: u32,
    /// Where it is in its life.
    pub phase: Phase,
    /// What its next clients get.
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
