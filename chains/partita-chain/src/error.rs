//! What can go wrong with a chain.

use partita_frames::ChainError;

/// An error of a chain or a component: what it was about, why, and what helps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The chain's file.
    #[error("{0}")]
    File(#[from] ChainError),
    /// A call of the driver.
    #[error("{what}: {source}")]
    Driver {
        /// What was tried.
        what: &'static str,
        /// The driver's error.
        source: Box<partita_driver::Error>,
    },
    /// A variable of the environment is missing or wrong.
    #[error("{variable} {reason}; start the component by `partita chain`, or set it")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A path that no C string is.
    #[error("{path:?} holds a zero byte; choose another path")]
    Path {
        /// The path.
        path: std::path::PathBuf,
    },
    /// A role that the chain has not.
    #[error("chain {chain} has no component {role}; it has {known}")]
    NoRole {
        /// The chain's name.
        chain: String,
        /// What was asked for.
        role: String,
        /// Its roles.
        known: String,
    },
    /// A frame whose memory is not where its slab is.
    #[error(
        "the chain's file was damaged from outside: frame at offset {offset} of {bytes} bytes; define the chain anew"
    )]
    Damaged {
        /// Where the frame begins in its allocation.
        offset: u64,
        /// The allocation's size.
        bytes: u64,
    },
    /// Something that this role does not do.
    #[error("component {role} of {roles} cannot {what}")]
    Misplaced {
        /// What was tried.
        what: &'static str,
        /// The role.
        role: u8,
        /// How many there are.
        roles: u8,
    },
    /// The memory manager refuses, or is not there.
    #[error("{0}")]
    Memory(#[from] partita_memory::client::Error),
    /// The memory manager is none that a chain can use.
    #[error("the keeper at {} {reason}", socket.display())]
    Keeper {
        /// Its socket.
        socket: std::path::PathBuf,
        /// What is wrong with it, and what helps.
        reason: String,
    },
    /// Something of the system's.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// The suggested compute units cannot be kept to.
    #[error("the suggested compute units cannot be kept to: {reason}")]
    Steer {
        /// Why, and what helps.
        reason: String,
    },
}

impl Error {
    pub(crate) fn driver(what: &'static str) -> impl FnOnce(partita_driver::Error) -> Self {
        move |source| Self::Driver { what, source: Box::new(source) }
    }
}
