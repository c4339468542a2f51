//! What the control daemon and its servers write into their logs, as typed events.
//!
//! The logs are the only place where the service names the clients that a fault hit. Their words
//! are free text that changed from driver to driver, so lines are recognised by the fragments that
//! stayed, whatever stands around them; a line that is not recognised is an [`Entry`] without an
//! event, and no error.
//!
//! | module | holds |
//! |---|---|
//! | [`line`](mod@line) | `[2026-11-21 01:43:39.056 Server  1201] text`, taken apart |
//! | [`event`] | what a text says |
//! | [`reader`] | bytes as they come to entries, lists over several lines included |
//! | [`tail`] | a file that grows, is rotated and is truncated |

pub mod event;
pub mod line;
pub mod reader;
pub mod tail;

pub use event::{ClientName, Event};
pub use line::{Line, Source, Stamp};
pub use reader::{Entry, LogReader};
pub use tail::Tail;
