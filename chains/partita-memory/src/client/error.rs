//! What can go wrong between a client and its keeper.

use std::io;
use std::path::PathBuf;

use thiserror::Error as ThisError;

use crate::wire::{BadFrame, Code};

/// Why a request was not done.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// Nobody serves the socket.
    #[error("no keeper of leased memory serves {}: {reason}; start one with `partitad keeper --gpu GPU --socket {}`", socket.display(), socket.display())]
    NoKeeper {
        /// The socket.
        socket: PathBuf,
        /// The reason.
        reason: io::Error,
    },
    /// Another user serves the socket.
    #[error("{} is served by user {uid}, who is neither this user nor root: use a keeper of your own, started with `partitad keeper`", socket.display())]
    Stranger {
        /// The socket.
        socket: PathBuf,
        /// Who serves it.
        uid: u32,
    },
    /// The keeper has ended, and with it its memory, whatever was leased.
    #[error(
        "the keeper that served {} is gone, and the memory that it owned with it: start it again with `partitad keeper --gpu GPU --socket {}`, \
         connect anew and lease anew",
        socket.display(), socket.display()
    )]
    KeeperGone {
        /// The socket.
        socket: PathBuf,
    },
    /// The keeper does not answer.
    #[error("the keeper that serves {} has not answered a `{asked}` for {patience_ms} ms: see whether process {pid} is stopped", socket.display())]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// What it was asked.
        asked: &'static str,
        /// How long it was waited for, in milliseconds.
        patience_ms: u64,
        /// Its process.
        pid: u32,
    },
    /// The keeper takes up no connection.
    #[error("the keeper at {} has taken up no connection for {patience_ms} ms: see whether its process is stopped", socket.display())]
    Unattended {
        /// The socket.
        socket: PathBuf,
        /// How long it was waited for, in milliseconds.
        patience_ms: u64,
    },
    /// The keeper refuses.
    #[error("the keeper refuses a `{asked}`: {text}")]
    Refused {
        /// What it was asked.
        asked: &'static str,
        /// What kind of error.
        code: Code,
        /// Its words.
        text: String,
    },
    /// The keeper has another GPU's memory.
    #[error("the keeper that serves {} has memory of {keepers}, and this process uses {ours}: connect to the keeper of that GPU", socket.display())]
    OtherGpu {
        /// The socket.
        socket: PathBuf,
        /// The keeper's GPU.
        keepers: String,
        /// This process's.
        ours: String,
    },
    /// Its answer is none of these frames.
    #[error("the keeper's answer is not understood: {0}; use a client and a keeper of one Partita")]
    BadFrame(BadFrame),
    /// Its answer is none to the question.
    #[error("the keeper's answer is none to a `{asked}`: use a client and a keeper of one Partita")]
    Answer {
        /// What it was asked.
        asked: &'static str,
    },
    /// An earlier request was not answered in time; what its answer would be is not known, so
    /// nothing more is asked on this connection.
    #[error(
        "this connection to the keeper is out of step since a request was not answered in time: connect anew"
    )]
    OutOfStep,
    /// The system refuses something.
    #[error("the connection to the keeper failed: {0}")]
    Io(io::Error),
    /// The driver cannot open the memory.
    #[error("leased memory cannot be opened: {0}")]
    Driver(partita_driver::Error),
}

// By hand, as causes that are part of the text are not told a second time.
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
