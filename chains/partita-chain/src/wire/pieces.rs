//! A frame in UDP messages, each acknowledged: lost ones are sent again.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::place::Place;
use super::system::{is_late, system};
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

/// A frame in host memory, and the sockets between a component and its neighbours.
#[derive(Debug)]
pub(crate) struct Pieces {
    pub host: Vec<u8>,
    message: Vec<u8>,
    inbound: UdpSocket,
    outbound: UdpSocket,
}

impl Pieces {
    /// At that place, with host memory for one frame.
    pub fn new(place: &Place, frame_bytes: u64) -> Result<Self, Error> {
        let inbound = place.bind_udp()?;
        let outbound = UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).map_err(system("a UDP socket"))?;
        outbound.set_read_timeout(Some(ACKNOWLEDGED_MAX)).map_err(system("a UDP socket"))?;
        Ok(Self {
            host: vec![0; frame_bytes as usize],
            message: vec![0; HEAD_BYTES + PIECE_BYTES],
            inbound,
            outbound,
        })
    }

    /// Receives a frame's bytes; returns when its sender began to release it. `None` if `goes_on`
    /// says so: it is asked when nothing has come for a while, with whether nothing has come at
    /// all, and for how long nothing has.
    pub fn receive(
        &mut self,
        sequence: u64,
        first: Duration,
        goes_on: &mut dyn FnMut(bool, Duration) -> bool,
    ) -> Result<Option<u64>, Error> {
        let pieces = self.host.len().div_ceil(PIECE_BYTES);
        let mut there = vec![false; pieces];
        let mut missing = pieces;
        let mut wait = first.max(Duration::from_micros(1));
        let mut sent_ns = 0;
        let mut progressed = Instant::now();
        while missing > 0 {
            self.inbound.set_read_timeout(Some(wait)).map_err(system("a UDP socket"))?;
            let (bytes, from) = match self.inbound.recv_from(&mut self.message) {
                Ok(received) => received,
                Err(error) if is_late(&error) => {
                    if !goes_on(missing == pieces, progressed.elapsed()) {
                        return Ok(None);
                    }
                    continue;
                }
                Err(error) => return Err(system("a message of the component before")(error)),
            };
            let Some(head) = Head::decode(&self.message[..bytes]) else { continue };
            let data = &self.message[HEAD_BYTES..bytes];
            // An acknowledgement of an arrived piece may have been lost.
            if head.sequence <= sequence {
                let _ = self.inbound.send_to(&head.encode(), from);
            }
            let offset = head.offset as usize;
            let is_next = head.sequence == sequence && head.total == self.host.len() as u64;
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
            progressed = Instant::now();
        }
        Ok(Some(sent_ns))
    }

    /// Sends the bytes in host memory, and waits until all have arrived. `next` says to whom, at
    /// each round; it gets how long nothing was acknowledged, and `None` gives up: then this is
    /// false.
    pub fn send(
        &mut self,
        sequence: u64,
        sent_ns: u64,
        next: &mut dyn FnMut(Duration) -> Result<Option<SocketAddr>, Error>,
    ) -> Result<bool, Error> {
        let total = self.host.len() as u64;
        let mut waiting: Vec<usize> = (0..self.host.len().div_ceil(PIECE_BYTES)).rev().collect();
        let mut under_way: Vec<usize> = Vec::with_capacity(WINDOW);
        let mut progressed = Instant::now();
        let Some(mut to) = next(Duration::ZERO)? else { return Ok(false) };
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
                Err(error) if is_late(&error) => {
                    let Some(now) = next(progressed.elapsed())? else { return Ok(false) };
                    to = now;
                    waiting.append(&mut under_way);
                }
                Err(error) => return Err(system("an acknowledgement of the next component")(error)),
            }
        }
        Ok(true)
    }
}

/// Whether a message was not sent because a buffer of the system is full.
fn is_full(error: &std::io::Error) -> bool {
    let code = rustix::io::Errno::from_io_error(error);
    is_late(error) || matches!(code, Some(rustix::io::Errno::NOBUFS | rustix::io::Errno::NOMEM))
}
