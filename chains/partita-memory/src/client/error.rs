//! Errors between a client and its keeper.

use std::io;
use std::path::PathBuf;

use thiserror::Error as ThisError;

use crate::wire::{BadFrame, Code};

/// Why a request failed.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// No process serves the socket.
    #[error("no keeper of leased memory serves {}: {reason}; start one with `partitad keeper --gpu GPU --socket {}`", socket.display(), socket.display())]
    NoKeeper { socket: PathBuf, reason: io::Error },
    /// Another user serves the socket.
    #[error("{} is served by user {uid}, who is neither this user nor root: use your own keeper, started \
        with `partitad keeper`", socket.display())]
    Stranger {
        socket: PathBuf,
        /// The user that serves it.
        uid: u32,
    },
    /// The keeper has ended, and all of its memory is gone.
    #[error(
        "the keeper that served {} is gone, and the memory that it owned with it: start it again with `partitad keeper --gpu GPU --socket {}`, \
         connect again and lease again",
        socket.display(), socket.display()
    )]
    KeeperGone { socket: PathBuf },
    /// The keeper does not answer.
    #[error("the keeper that serves {} has not answered a `{asked}` for {patience_ms} ms: see whether process {pid} is stopped", socket.display())]
    Silent {
        socket: PathBuf,
        /// The request.
        asked: &'static str,
        /// How long the client waited, in milliseconds.
        patience_ms: u64,
        /// Its process.
        pid: u32,
    },
    /// The keeper accepts no connection.
    #[error("the keeper at {} has accepted no connection for {patience_ms} ms: see whether its process is \
        stopped", socket.display())]
    Unattended {
        socket: PathBuf,
        /// How long the client waited, in milliseconds.
        patience_ms: u64,
    },
    /// The keeper refuses.
    #[error("the keeper refuses a `{asked}`: {text}")]
    Refused {
        /// The request.
        asked: &'static str,
        /// The kind of error.
        code: Code,
        /// Its message.
        text: String,
    },
    /// The keeper has another GPU's memory.
    #[error("the keeper that serves {} has memory of {keepers}, and this process uses {ours}: connect to the keeper of that GPU", socket.display())]
    OtherGpu {
        socket: PathBuf,
        /// The keeper's GPU.
        keepers: String,
        /// This process's.
        ours: String,
    },
    /// Its answer is not a valid frame.
    #[error(
        "the keeper's answer is not understood: {0}; use a client and a keeper of the same Partita version"
    )]
    BadFrame(BadFrame),
    /// Its answer does not fit the request.
    #[error(
        "the keeper's answer does not fit a `{asked}`: use a client and a keeper of the same Partita version"
    )]
    Answer {
        /// The request.
        asked: &'static str,
    },
    /// An earlier request had no answer in time; its answer may still arrive, so this connection
    /// sends no more requests.
    #[error(
        "this connection to the keeper is out of step since a request had no answer in time: connect again"
    )]
    OutOfStep,
    /// A failed system call.
    #[error("the connection to the keeper failed: {0}")]
    Io(io::Error),
    /// The driver cannot open the memory.
    #[error("leased memory cannot be opened: {0}")]
    Driver(partita_driver::Error),
}

// By hand, to avoid repeating causes that are part of the text.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<BadFrame> for Error {
    fn from(error: BadFrame) -> Self {
        Self::BadFrame(error)
    }
}

impl From<partita_driver::Error> for Error {
    fn from(error: partita_driver::Error) -> Self {
        Self::Driver(error)
    }
}
