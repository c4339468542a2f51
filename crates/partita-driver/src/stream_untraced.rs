//! Replaces [`stream_trace`](self) on machines where a launch cannot be traced: single steps are
//! implemented for x86_64 only.

use crate::error::Error;

/// Whether launches can be traced on this kind of machine.
pub(crate) const IS_POSSIBLE: bool = false;
/// Words of a copy's report: whether the descriptor had a mask, and its eight words.
pub(crate) const REPORT_WORDS: usize = 9;

/// How the words of a read would be replaced.
#[expect(dead_code, reason = "no launch is traced")]
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    /// In a copy of the process.
    InCopy { offset_bytes: usize, words: Option<([u32; 5], usize)> },
    /// In this process.
    InPlace { offset_bytes: usize, words: ([u32; 5], usize) },
}

/// What one launch did.
#[derive(Debug)]
pub(crate) struct Trace {
    pub report: Option<[u32; REPORT_WORDS]>,
}

impl Trace {
    pub fn was_read(&self, _offset_bytes: usize) -> bool {
        false
    }

    pub fn was_written(&self, _offset_bytes: usize) -> bool {
        false
    }
}

/// Refuses.
pub(crate) fn trace(
    _structure: usize,
    _answer: Option<Answer>,
    _launch: impl FnOnce() -> Result<(), Error>,
) -> Result<Trace, Error> {
    Err(Error::Refused("launches can be traced on x86_64 only".into()))
}

/// There are no copies.
pub(crate) fn report_if_copy(_mask: Option<[u32; 8]>) {}
