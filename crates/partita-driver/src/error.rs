//! Errors between Partita and the driver.

use alloc::string::String;
use core::fmt;

use partita_abi::CuResult;
use partita_abi::qmd::QmdError;
use partita_core::{Misfit, TpcSet};

use crate::callback::SubscribeError;

/// An error of the driver, of its library, or in what was proved about them.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The library could not be opened; with the linker's message.
    Load(String),
    /// The library does not export a name that this call needs. Other calls still work.
    MissingSymbol(&'static str),
    /// The driver refused a call.
    Call {
        /// The driver's function.
        name: &'static str,
        /// Its answer.
        code: CuResult,
    },
    /// No launch callback.
    Subscribe(SubscribeError),
    /// The layout of launch descriptors is unknown.
    Qmd(QmdError),
    /// A kernel did not end within its deadline. The process cannot use the GPU any more and must
    /// end.
    Hang {
        /// What was launched.
        what: &'static str,
        /// The deadline in milliseconds.
        deadline_ms: u64,
    },
    /// A measurement contradicts what a mask must do.
    Disproved(String),
    /// A default stream (its handle, 0 to 2) where a created stream is needed.
    DefaultStream(usize),
    /// The request cannot be served here; the text has the reason and the remedy.
    Refused(String),
    /// A launch that can never run on its set: it would wait forever, and was not launched.
    Misfit(Misfit),
    /// A mechanism cannot restrict launches to exactly this set.
    NotOffered {
        /// The mechanism.
        mechanism: &'static str,
        /// The requested set.
        wanted: TpcSet,
        /// The largest set inside it that the mechanism offers, possibly empty.
        inside: TpcSet,
        /// The smallest set around it that the mechanism offers.
        around: TpcSet,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(reason) => write!(f, "the library cannot be opened: {reason}"),
            Self::MissingSymbol(name) => {
                write!(f, "the driver library does not export {name}: the driver is too old")
            }
            Self::Call { name, code } => write!(f, "{name} failed with {code}"),
            Self::Subscribe(error) => error.fmt(f),
            Self::Qmd(error) => error.fmt(f),
            Self::Hang { what, deadline_ms } => write!(f, "{what} did not end within {deadline_ms} ms"),
            Self::Disproved(what) => write!(f, "masks do not work as expected on this driver: {what}"),
            Self::DefaultStream(handle) => write!(
                f,
                "stream handle {handle} names a default stream, whose mask cannot be reached: create a \
                 stream with cuStreamCreate, or restrict the launch or the process"
            ),
            Self::Refused(reason) => f.write_str(reason),
            Self::Misfit(misfit) => misfit.fmt(f),
            Self::NotOffered { mechanism, wanted, inside, around } => {
                write!(
                    f,
                    "{mechanism} cannot restrict launches to TPCs {wanted}: the nearest sets are \
                     {around} around it"
                )?;
                if inside.is_empty() {
                    f.write_str(" and none inside")
                } else {
                    write!(f, " and {inside} inside")
                }
            }
        }
    }
}

impl core::error::Error for Error {}

impl From<SubscribeError> for Error {
    fn from(error: SubscribeError) -> Self {
        Self::Subscribe(error)
    }
}

impl From<Misfit> for Error {
    fn from(misfit: Misfit) -> Self {
        Self::Misfit(misfit)
    }
}

impl From<QmdError> for Error {
    fn from(error: QmdError) -> Self {
        Self::Qmd(error)
    }
}
