//! Ways to hand over a frame, for comparison: one component's loop is the same on each.
//!
//! | transport | what travels | waits on the host |
//! |---|---|---|
//! | [`UdpCopy`] | the frame, in UDP messages, through host memory | for the GPU and each message |
//! | [`Handles`], UDP, opened each time | the memory's handle | for the GPU; opens and closes it |
//! | [`Handles`], Unix socket, kept open | the same | for the GPU |
//! | [`RingTransport`] | a number in shared memory | only for the frame |
//!
//! A handle has 64 bytes; over UDP this is the method of Luo and Wei 2023, section 4.1.
//! [`RingTransport`] is the method of [`Component`](crate::Component).
//!
//! Only [`RingTransport`] survives a component's death without losing memory, and has queues and
//! policies; the others are for comparison.

mod handles;
mod ring;
mod udp_copy;

use std::time::Duration;

use partita_driver::StreamRef;
use partita_driver::ipc::Span;

use crate::error::Error;
use crate::order::Waits;

pub use crate::wire::Place;
pub use handles::{Carrier, Handles};
pub use ring::RingTransport;
pub use udp_copy::UdpCopy;

/// A frame for a component to work on.
#[derive(Debug, Clone, Copy)]
pub struct Item<'i> {
    /// Its memory.
    pub span: Span<'i>,
    /// The stream on which it is in order.
    pub stream: StreamRef<'i>,
    /// Its number in the order of their starts, from 0.
    pub sequence: u64,
}

/// One frame's passage through one component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// Its number.
    pub sequence: u64,
    /// From the moment when the component before began to release it until this one could launch on
    /// it, in nanoseconds; `None` for the first component.
    pub hand_over_ns: Option<u64>,
}

/// A component's work on a frame: it launches on the stream, and may wait for it.
pub type Work<'w> = dyn FnMut(Item<'_>) -> Result<(), Error> + 'w;

/// A component's ends of the hand-overs before and after it.
pub trait Transport {
    /// Waits for the next frame, or as the first component for memory for a new one, for `limit` at
    /// most; calls `work`; and passes the frame on, or as the last component returns its memory.
    /// `None` if none came.
    ///
    /// # Errors
    /// Those of the work, the driver and the system.
    fn step(&mut self, limit: Duration, work: &mut Work<'_>) -> Result<Option<Passed>, Error>;

    /// How the frames so far were ordered, if the GPU may do it; `None` if the sender waits for the
    /// GPU.
    fn waits(&self) -> Option<Waits> {
        None
    }
}
