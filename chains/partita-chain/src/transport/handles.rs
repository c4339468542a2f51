//! A frame's memory handle in a datagram: the paper's method over UDP, opened at each hand-over, or
//! kept open over a Unix socket.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use partita_driver::ipc::{HANDLE_BYTES, MemoryHandle, OpenedMemory};
use partita_driver::{Buffer, Gpu, KERNEL_DEADLINE_MS, Stream};
use partita_frames::monotonic_ns;

use super::{Item, Passed, Transport, Work};
use crate::error::Error;
use crate::wire::{MESSAGE_BYTES, Message, Place, is_late, meet, system};

/// Allocations are a multiple of this, in bytes: smaller ones may share a block of the driver's,
/// and a handle would open the whole block.
const UNIT_BYTES: u64 = 2 << 20;
/// How long the sender waits for room in the next component's full queue before it serves its own.
const ROOM_MAX: Duration = Duration::from_millis(20);

/// The socket type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// UDP on the loopback interface.
    Udp,
    /// A Unix datagram socket, which loses nothing: the sender waits.
    Unix,
}

enum Socket {
    Udp { own: UdpSocket, next: std::net::SocketAddr },
    Unix { own: UnixDatagram, next: std::path::PathBuf },
}

impl Socket {
    fn open(carrier: Carrier, place: &Place) -> Result<Self, Error> {
        // The first follows the last, and gets the memory back.
        let next = if place.is_last() { 0 } else { place.role + 1 };
        match carrier {
            Carrier::Udp => {
                let own = place.bind_udp()?;
                Ok(Self::Udp { own, next: place.udp_of(next)? })
            }
            Carrier::Unix => {
                let own =
                    UnixDatagram::bind(place.socket_file(place.role)).map_err(system("a Unix socket"))?;
                own.set_write_timeout(Some(ROOM_MAX)).map_err(system("a Unix socket"))?;
                let next = place.socket_file(next);
                meet(&next)?;
                Ok(Self::Unix { own, next })
            }
        }
    }

    /// The next message; `None` without one in time.
    fn receive(&self, limit: Duration) -> Result<Option<[u8; MESSAGE_BYTES]>, Error> {
        let limit = Some(limit.max(Duration::from_micros(1)));
        let mut message = [0; MESSAGE_BYTES];
        let received = match self {
            Self::Udp { own, .. } => own.set_read_timeout(limit).and_then(|()| own.recv(&mut message)),
            Self::Unix { own, .. } => own.set_read_timeout(limit).and_then(|()| own.recv(&mut message)),
        };
        match received {
            Ok(MESSAGE_BYTES) => Ok(Some(message)),
            // From another sender.
            Ok(_) => Ok(None),
            Err(error) if is_late(&error) => Ok(None),
            Err(error) => Err(system("a message of the component before")(error)),
        }
    }

    /// Sends a message; false if the next component's queue stayed full.
    fn send(&self, message: &[u8; MESSAGE_BYTES]) -> Result<bool, Error> {
        let sent = match self {
            Self::Udp { own, next } => own.send_to(message, next),
            Self::Unix { own, next } => own.send_to(message, next),
        };
        match sent {
            Ok(_) => Ok(true),
            Err(error) if is_late(&error) => Ok(false),
            Err(error) => Err(system("a message to the next component")(error)),
        }
    }
}

/// A component that passes handles on, when the GPU is done with the frame.
pub struct Handles<'g> {
    gpu: &'g Gpu<'g>,
    stream: Stream<'g>,
    socket: Socket,
    place: Place,
    /// The first component's memory, with its free parts.
    pool: Vec<(Buffer<'g>, [u8; HANDLE_BYTES])>,
    free: VecDeque<usize>,
    begun: u64,
    /// Messages that could not be sent yet.
    backlog: VecDeque<[u8; MESSAGE_BYTES]>,
    /// Opened memory, if it is kept open.
    kept: Option<HashMap<[u8; HANDLE_BYTES], OpenedMemory<'g>>>,
}

impl<'g> Handles<'g> {
    /// At that place. The first component allocates `frames` of `frame_bytes`, each with its own
    /// handle. With `keep_open`, memory is opened once; otherwise at each hand-over, as in the
    /// paper.
    ///
    /// # Errors
    /// Those of the driver and the system; and if the neighbour does not appear within 20 seconds.
    pub fn new(
        gpu: &'g Gpu<'g>,
        place: Place,
        carrier: Carrier,
        keep_open: bool,
        frames: u32,
        frame_bytes: u64,
    ) -> Result<Self, Error> {
        let stream = Stream::new(gpu.cuda()).map_err(Error::driver("a component's stream"))?;
        let count = if place.is_first() { frames as usize } else { 0 };
        let allocate = |_| {
            let bytes = frame_bytes.next_multiple_of(UNIT_BYTES) as usize;
            let buffer = gpu.alloc(bytes).map_err(Error::driver("memory of a frame"))?;
            let handle = MemoryHandle::of(gpu, &buffer).map_err(Error::driver("a handle of a frame"))?;
            Ok((buffer, handle.to_bytes()))
        };
        let pool = (0..count).map(allocate).collect::<Result<_, Error>>()?;
        let socket = Socket::open(carrier, &place)?;
        let kept = keep_open.then(HashMap::new);
        Ok(Self {
            gpu,
            stream,
            socket,
            place,
            pool,
            free: (0..count).collect(),
            begun: 0,
            backlog: VecDeque::new(),
            kept,
        })
    }

    fn work(
        &self,
        span: partita_driver::ipc::Span<'_>,
        sequence: u64,
        work: &mut Work<'_>,
    ) -> Result<(), Error> {
        work(Item { span, stream: self.stream.as_ref(), sequence })?;
        let done = self.gpu.wait_on(self.stream.as_ref(), "work on a frame", KERNEL_DEADLINE_MS);
        done.map_err(Error::driver("work on a frame"))
    }

    /// Sends the waiting messages, the oldest first, as far as there is room.
    fn send(&mut self, message: Message) -> Result<(), Error> {
        self.backlog.push_back(message.encode());
        self.send_backlog()
    }

    fn send_backlog(&mut self) -> Result<(), Error> {
        while let Some(oldest) = self.backlog.front() {
            if !self.socket.send(oldest)? {
                break;
            }
            self.backlog.pop_front();
        }
        Ok(())
    }

    fn begin(&mut self, limit: Duration, work: &mut Work<'_>) -> Result<Option<Passed>, Error> {
        let limit = if self.free.is_empty() { limit } else { Duration::from_micros(1) };
        if self.free.is_empty()
            && let Some(message) = self.socket.receive(limit)?
        {
            let number = Message::decode(&message).number as usize;
            if number < self.pool.len() {
                self.free.push_back(number);
            }
        }
        let Some(number) = self.free.pop_front() else { return Ok(None) };
        let (sequence, (buffer, handle)) = (self.begun, &self.pool[number]);
        self.begun += 1;
        self.work(buffer.span(), sequence, work)?;
        let message = Message {
            handle: *handle,
            sequence,
            sent_ns: monotonic_ns(),
            bytes: buffer.bytes() as u64,
            number: number as u64,
        };
        self.send(message)?;
        Ok(Some(Passed { sequence, hand_over_ns: None }))
    }
}

impl Transport for Handles<'_> {
    fn step(&mut self, limit: Duration, work: &mut Work<'_>) -> Result<Option<Passed>, Error> {
        self.send_backlog()?;
        if self.place.is_first() {
            return self.begin(limit, work);
        }
        let Some(message) = self.socket.receive(limit)? else { return Ok(None) };
        let mut message = Message::decode(&message);
        let open = || {
            let handle = MemoryHandle::from_bytes(message.handle);
            OpenedMemory::open(self.gpu, &handle, message.bytes).map_err(Error::driver("memory of a frame"))
        };
        let mut opened = None;
        if let Some(kept) = &mut self.kept {
            if let Entry::Vacant(unknown) = kept.entry(message.handle) {
                unknown.insert(open()?);
            }
        } else {
            opened = Some(open()?);
        }
        let hand_over_ns = monotonic_ns().saturating_sub(message.sent_ns);
        let memory = match (&opened, &self.kept) {
            (Some(opened), _) => Some(opened),
            (None, kept) => kept.as_ref().and_then(|kept| kept.get(&message.handle)),
        };
        if let Some(memory) = memory {
            self.work(memory.span(), message.sequence, work)?;
        }
        // Closed before the next one has it, as the paper's library does.
        let let_go_ns = monotonic_ns();
        drop(opened);
        message.sent_ns = let_go_ns;
        let sequence = message.sequence;
        self.send(message)?;
        Ok(Some(Passed { sequence, hand_over_ns: Some(hand_over_ns) }))
    }
}
