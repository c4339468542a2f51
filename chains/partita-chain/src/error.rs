//! Errors of chains.

use partita_frames::ChainError;

/// An error of a chain or a component: its subject, the reason, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{0}")]
    File(#[from] ChainError),
    /// A call of the driver.
    #[error("{what}: {source}")]
    Driver {
        /// The attempt.
        what: &'static str,
        source: Box<partita_driver::Error>,
    },
    /// A variable of the environment is missing or wrong.
    #[error("{variable} {reason}; start the component by `partita chain`, or set it")]
    Environment {
        variable: &'static str,
        /// The problem.
        reason: String,
    },
    /// A path that cannot be a C string.
    #[error("{path:?} holds a zero byte; choose another path")]
    Path { path: std::path::PathBuf },
    /// A role that the chain does not have.
    #[error("chain {chain} has no component {role}; it has {known}")]
    NoRole {
        /// The chain's name.
        chain: String,
        /// The requested role.
        role: String,
        /// Its roles.
        known: String,
    },
    /// A frame whose memory is not where its slab is.
    #[error(
        "the chain's file was damaged from outside: frame at offset {offset} of {bytes} bytes; define the \
         chain again"
    )]
    Damaged {
        /// Offset of the frame in its allocation.
        offset: u64,
        /// The allocation's size.
        bytes: u64,
    },
    /// An action that this role cannot take.
    #[error("component {role} of {roles} cannot {what}")]
    Misplaced {
        /// The action.
        what: &'static str,
        role: u8,
        /// How many there are.
        roles: u8,
    },
    /// The memory manager refuses, or is missing.
    #[error("{0}")]
    Memory(#[from] partita_memory::client::Error),
    /// A chain cannot use this memory manager.
    #[error("the keeper at {} {reason}", socket.display())]
    Keeper {
        socket: std::path::PathBuf,
        /// The problem, and the remedy.
        reason: String,
    },
    /// A failed system call.
    #[error("{what}: {source}")]
    System {
        /// The attempt.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// The suggested compute units cannot be applied.
    #[error("the suggested compute units cannot be applied: {reason}")]
    Steer {
        /// The reason, and the remedy.
        reason: String,
    },
}

impl Error {
    pub(crate) fn driver(what: &'static str) -> impl FnOnce(partita_driver::Error) -> Self {
        move |source| Self::Driver { what, source: Box::new(source) }
    }
}
