//! Errors in PTX text.

use alloc::string::String;
use core::fmt;

/// A place in the text, both numbers from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column, in characters.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Text that is not PTX, or PTX that this crate does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxError {
    /// Where.
    pub at: Position,
    /// The instruction, directive or word at that place; empty at the end of the text.
    pub subject: String,
    /// What is wrong with it.
    pub reason: String,
}

impl PtxError {
    /// An error about a word at a place.
    pub fn new(at: Position, subject: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { at, subject: subject.into(), reason: reason.into() }
    }
}

impl fmt::Display for PtxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.subject.is_empty() {
            write!(f, "{}: {}", self.at, self.reason)
        } else {
            write!(f, "{}: '{}': {}", self.at, self.subject, self.reason)
        }
    }
}

impl core::error::Error for PtxError {}
