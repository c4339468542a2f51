//! Failures of sockets and files.

use crate::error::Error;

/// Whether no message arrived, or could be sent, in time.
pub(crate) fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

/// A failure of the system, for `map_err`.
pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::System { what, source }
}
