//! The frame itself in UDP messages: the paper's baseline.
//!
//! A frame goes from the GPU to host memory, in messages to the next component, and to the GPU
//! again. UDP guarantees nothing, so each message is acknowledged, a few are in flight at a time,
//! and lost ones are sent again: a benchmark with lost frames would favour the method compared with
//! it.

use std::net::SocketAddr;
use std::time::Duration;

use partita_driver::{Buffer, Gpu, KERNEL_DEADLINE_MS, Stream};
use partita_frames::monotonic_ns;

use super::{Item, Passed, Transport, Work};
use crate::error::Error;
use crate::wire::{Pieces, Place, system};

/// How long the next component may accept nothing.
const STALLED_MAX: Duration = Duration::from_secs(20);

/// A component that passes frames on through host memory.
pub struct UdpCopy<'g> {
    gpu: &'g Gpu<'g>,
    stream: Stream<'g>,
    buffer: Buffer<'g>,
    pieces: Pieces,
    place: Place,
    next: Option<SocketAddr>,
    /// The next frame's number: to start as the first component, otherwise to receive.
    sequence: u64,
}

impl<'g> UdpCopy<'g> {
    /// At that place, with memory for one frame.
    ///
    /// # Errors
    /// As [`Handles::new`](super::Handles::new).
    pub fn new(gpu: &'g Gpu<'g>, place: Place, frame_bytes: u64) -> Result<Self, Error> {
        let pieces = Pieces::new(&place, frame_bytes)?;
        let next = if place.is_last() { None } else { Some(place.udp_of(place.role + 1)?) };
        Ok(Self {
            gpu,
            stream: Stream::new(gpu.cuda()).map_err(Error::driver("a component's stream"))?,
            buffer: gpu.alloc(frame_bytes as usize).map_err(Error::driver("memory of a frame"))?,
            pieces,
            place,
            next,
            sequence: 0,
        })
    }
}

impl Transport for UdpCopy<'_> {
    fn step(&mut self, limit: Duration, work: &mut Work<'_>) -> Result<Option<Passed>, Error> {
        let mut hand_over_ns = None;
        let sequence = self.sequence;
        if !self.place.is_first() {
            let received = self.pieces.receive(sequence, limit, &mut |is_nothing, _| !is_nothing);
            let Some(sent_ns) = received? else { return Ok(None) };
            self.buffer.span().write(&self.pieces.host).map_err(Error::driver("a copy to a frame"))?;
            hand_over_ns = Some(monotonic_ns().saturating_sub(sent_ns));
        }
        self.sequence += 1;
        work(Item { span: self.buffer.span(), stream: self.stream.as_ref(), sequence })?;
        let done = self.gpu.wait_on(self.stream.as_ref(), "work on a frame", KERNEL_DEADLINE_MS);
        done.map_err(Error::driver("work on a frame"))?;
        if let Some(next) = self.next {
            let let_go_ns = monotonic_ns();
            self.buffer.span().read(&mut self.pieces.host).map_err(Error::driver("a copy from a frame"))?;
            let mut to = |stalled| Ok(Some(next).filter(|_| stalled < STALLED_MAX));
            if !self.pieces.send(sequence, let_go_ns, &mut to)? {
                let source = std::io::ErrorKind::TimedOut.into();
                return Err(system("an acknowledgement of the next component")(source));
            }
        }
        Ok(Some(Passed { sequence, hand_over_ns }))
    }
}
