//! Ways to hand a frame over, to be compared: one component's loop is the same on each.
//!
//! | transport | what travels | waits on the host |
//! |---|---|---|
//! | [`UdpCopy`] | the frame's bytes in UDP messages, through host memory | for the GPU, both copies and every message |
//! | [`Handles`] over UDP, opened each time | the 64 bytes of a memory handle (Luo and Wei 2023, 4.1) | for the GPU, and to open and close the memory |
//! | [`Handles`] over Unix datagrams, kept open | the same | for the GPU |
//! | [`RingTransport`] | a number in shared memory, what [`Component`](crate::Component) does | for nothing but the frame |
//!
//! [`RingTransport`] alone survives a component's death without losing memory, and has queues and
//! policies; the others are what they are compared with.

mod handles;
mod place;
mod ring;
mod udp_copy;

use std::time::Duration;

use partita_driver::StreamRef;
use partita_driver::ipc::Span;

use crate::error::Error;
use crate::order::Waits;

pub use handles::{Carrier, Handles};
pub use place::Place;
pub use ring::RingTransport;
pub use udp_copy::UdpCopy;

/// A frame that is a component's to work on.
#[derive(Debug, Clone, Copy)]
pub struct Item<'i> {
    /// Its memory.
    pub span: Span<'i>,
    /// The stream on which it is in order.
    pub stream: StreamRef<'i>,
    /// Its number in the order in which frames were begun, from 0.
    pub sequence: u64,
}

/// One frame's way through one component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// Its number.
    pub sequence: u64,
    /// From when the component before began to let go of it until this one could launch on it, in
    /// nanoseconds; none for the first component.
    pub hand_over_ns: Option<u64>,
}

/// What a component does to a frame: it launches on the stream, and may wait for it.
pub type Work<'w> = dyn FnMut(Item<'_>) -> Result<(), Error> + 'w;

/// A component's ends of the hand-overs before and behind it.
pub trait Transport {
    /// Waits for the next frame, or as the first component for memory for a new one, for `limit` at
    /// most; has `work` done; and passes the frame on, or as the last component gives its memory
    /// back. `None` if none came.
    ///
    /// # Errors
    /// Those of the work, the driver and the system.
    fn step(&mut self, limit: Duration, work: &mut Work<'_>) -> Result<Option<Passed>, Error>;

    /// How the frames so far came to be in order, where the GPU may keep it; `None` where the
    /// sender waits for the GPU.
    fn waits(&self) -> Option<Waits> {
        None
    }
}

pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::System { what, source }
}
