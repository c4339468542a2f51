//! The frame itself in UDP messages: the paper's baseline.
//!
//! A frame goes from the GPU to host memory, in messages to the next component, and to the GPU
//! again. UDP guarantees nothing, so each message is acknowledged, a few are in flight at a time,
//! and lost ones are sent again: a benchmark with lost frames would favour the method compared with
//! it.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use partita_driver::{Buffer, Gpu, KERNEL_DEADLINE_MS, Stream};
use partita_frames::monotonic_ns;

use super::handles::is_late;
use super::place::Place;
use super::{Item, Passed, Transport, Work, system};
use crate::error::Error;

/// Bytes of a message after its header: near the largest datagram.
const PIECE_BYTES: usize = 60_000;
/// Sequence, time, size of the frame, offset.
const HEAD_BYTES: usize = 4 * 8;
/// Messages in flight: as many as the usual socket buffer holds (`net.core.rmem_default`, 212,992
/// bytes).
const WINDOW: usize = 2;
/// The timeout of an acknowledgement.
const ACKNOWLEDGED_MAX: Duration = Duration::from_millis(20);
/// How long the next component may accept nothing.
const STALLED_MAX: Duration = Duration::from_secs(20);

/// The header of a piece; sequence and offset are its acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    sequence: u64,
    sent_ns: u64,
    total: u64,
    offset: u64,
}

impl Head {
    fn encode(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let words = [self.sequence, self.sent_ns, self.total, self.offset];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let words = bytes.first_chunk::<HEAD_BYTES>()?.as_chunks::<8>().0;
        let [sequence, sent_ns, total, offset] = core::array::from_fn(|at| u64::from_le_bytes(words[at]));
        Some(Self { sequence, sent_ns, total, offset })
    }
}

/// A component that passes frames on through host memory.
pub struct UdpCopy<'g> {
    gpu: &'g Gpu<'g>,
    stream: Stream<'g>,
    buffer: Buffer<'g>,
    host: Vec<u8>,
    message: Vec<u8>,
    place: Place,
    inbound: UdpSocket,
    outbound: UdpSocket,
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
        let inbound = place.bind_udp()?;
        let outbound = UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).map_err(system("a UDP socket"))?;
        outbound.set_read_timeout(Some(ACKNOWLEDGED_MAX)).map_err(system("a UDP socket"))?;
        let next = if place.is_last() { None } else { Some(place.udp_of(place.role + 1)?) };
        Ok(Self {
            gpu,
            stream: Stream::new(gpu.cuda()).map_err(Error::driver("a component's stream"))?,
            buffer: gpu.alloc(frame_bytes as usize).map_err(Error::driver("memory of a frame"))?,
            host: vec![0; frame_bytes as usize],
            message: vec![0; HEAD_BYTES + PIECE_BYTES],
            place,
            inbound,
            outbound,
            next,
            sequence: 0,
        })
    }

    /// Receives a frame's bytes; returns when its sender began to release it, or `None` if no frame
    /// came in time.
    fn receive(&mut self, limit: Duration) -> Result<Option<u64>, Error> {
        let pieces = self.host.len().div_ceil(PIECE_BYTES);
        let mut there = vec![false; pieces];
        let mut missing = pieces;
        let mut wait = limit.max(Duration::from_micros(1));
        let mut sent_ns = 0;
        while missing > 0 {
            self.inbound.set_read_timeout(Some(wait)).map_err(system("a UDP socket"))?;
            let (bytes, from) = match self.inbound.recv_from(&mut self.message) {
                Ok(received) => received,
                Err(error) if is_late(&error) && missing == pieces => return Ok(None),
                Err(error) if is_late(&error) => continue,
                Err(error) => return Err(system("a message of the component before")(error)),
            };
            let Some(head) = Head::decode(&self.message[..bytes]) else { continue };
            let data = &self.message[HEAD_BYTES..bytes];
            // An acknowledgement of an arrived piece may have been lost.
            if head.sequence <= self.sequence {
                let _ = self.inbound.send_to(&head.encode(), from);
            }
            let offset = head.offset as usize;
            let is_next = head.sequence == self.sequence && head.total == self.host.len() as u64;
            let piece = offset / PIECE_BYTES;
            if !is_next || !offset.is_multiple_of(PIECE_BYTES) || there.get(piece) != Some(&false) {
                continue;
            }
            let Some(to) = self.host.get_mut(offset..offset + data.len()) else { continue };
            to.copy_from_slice(data);
            there[piece] = true;
            missing -= 1;
            sent_ns = head.sent_ns;
            wait = ACKNOWLEDGED_MAX;
        }
        Ok(Some(sent_ns))
    }

    /// Sends the bytes in host memory, and waits until all have arrived.
    fn send(&mut self, to: SocketAddr, sequence: u64, sent_ns: u64) -> Result<(), Error> {
        let total = self.host.len() as u64;
        let mut waiting: Vec<usize> = (0..self.host.len().div_ceil(PIECE_BYTES)).rev().collect();
        let mut under_way: Vec<usize> = Vec::with_capacity(WINDOW);
        let mut progressed = Instant::now();
        while !(waiting.is_empty() && under_way.is_empty()) {
            while under_way.len() < WINDOW
                && let Some(piece) = waiting.pop()
            {
                let offset = piece * PIECE_BYTES;
                let data = &self.host[offset..(offset + PIECE_BYTES).min(self.host.len())];
                let head = Head { sequence, sent_ns, total, offset: offset as u64 };
                let message = &mut self.message[..HEAD_BYTES + data.len()];
                message[..HEAD_BYTES].copy_from_slice(&head.encode());
                message[HEAD_BYTES..].copy_from_slice(data);
                match self.outbound.send_to(message, to) {
                    Ok(_) => {}
                    // It counts as lost, and is sent again.
                    Err(error) if is_full(&error) => {}
                    Err(error) => return Err(system("a message to the next component")(error)),
                }
                under_way.push(piece);
            }
            let mut answer = [0; HEAD_BYTES];
            match self.outbound.recv(&mut answer) {
                Ok(HEAD_BYTES) => {
                    let Some(head) = Head::decode(&answer).filter(|head| head.sequence == sequence) else {
                        continue;
                    };
                    under_way.retain(|piece| *piece * PIECE_BYTES != head.offset as usize);
                    progressed = Instant::now();
                }
                Ok(_) => {}
                Err(error) if is_late(&error) && progressed.elapsed() < STALLED_MAX => {
                    waiting.append(&mut under_way);
                }
                Err(error) => return Err(system("an acknowledgement of the next component")(error)),
            }
        }
        Ok(())
    }
}

/// Whether a message was not sent because a buffer of the system is full.
fn is_full(error: &std::io::Error) -> bool {
    let code = rustix::io::Errno::from_io_error(error);
    is_late(error) || matches!(code, Some(rustix::io::Errno::NOBUFS | rustix::io::Errno::NOMEM))
}

impl Transport for UdpCopy<'_> {
    fn step(&mut self, limit: Duration, work: &mut Work<'_>) -> Result<Option<Passed>, Error> {
        let mut hand_over_ns = None;
        let sequence = self.sequence;
        if !self.place.is_first() {
            let Some(sent_ns) = self.receive(limit)? else { return Ok(None) };
            self.buffer.span().write(&self.host).map_err(Error::driver("a copy to a frame"))?;
            hand_over_ns = Some(monotonic_ns().saturating_sub(sent_ns));
        }
        self.sequence += 1;
        work(Item { span: self.buffer.span(), stream: self.stream.as_ref(), sequence })?;
        let done = self.gpu.wait_on(self.stream.as_ref(), "work on a frame", KERNEL_DEADLINE_MS);
        done.map_err(Error::driver("work on a frame"))?;
        if let Some(next) = self.next {
            let let_go_ns = monotonic_ns();
            self.buffer.span().read(&mut self.host).map_err(Error::driver("a copy from a frame"))?;
            self.send(next, sequence, let_go_ns)?;
        }
        Ok(Some(Passed { sequence, hand_over_ns }))
    }
}
