//! The logs of the control daemon and its servers, as typed events.
//!
//! Only the logs name the clients that a fault hit. Their words are free text that changed from
//! driver to driver, so lines are recognised by the fragments that all drivers have; an
//! unrecognised line is an [`Entry`] without an event, not an error.
//!
//! | module | content |
//! |---|---|
//! | [`line`](mod@line) | `[2026-11-21 01:43:39.056 Server  1201] text`, parsed |
//! | [`event`] | the meaning of a text |
//! | [`reader`] | from bytes to entries, including lists over several lines |
//! | [`tail`] | a file that grows, is rotated and is truncated |

pub mod event;
pub mod line;
pub mod reader;
pub mod tail;

pub use event::{ClientName, Event};
pub use line::{Line, Source, Stamp};
pub use reader::{Entry, LogReader};
pub use tail::Tail;
