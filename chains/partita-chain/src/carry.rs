//! What travels beside a frame's place in the ring: nothing, or what the paper's ways send.
//!
//! The ring keeps the account of frames in each case, so no death loses memory. With the other ways
//! the sender waits for the GPU, and a frame whose message is lost is dropped and counted.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use partita_driver::ipc::{MemoryHandle, OpenedMemory};
use partita_driver::{Gpu, KERNEL_DEADLINE_MS, StreamRef};
use partita_frames::{ChainSeat, Lease, SlabInfo, SlabOwner, monotonic_ns};
use partita_memory::client::OpenSlab;

use crate::error::Error;
use crate::memory::Memory;
use crate::wire::{MESSAGE_BYTES, Message, Pieces, Place, is_late, meet, system};

/// How long a message may be on its way: it was sent before its frame was queued.
const UNDER_WAY_MAX: Duration = Duration::from_millis(100);
/// How long a send may wait for room before it looks at the next component again.
const ROOM_MAX: Duration = Duration::from_millis(20);
/// How long a neighbour that has died or was replaced is waited for.
const QUIET_MAX: Duration = Duration::from_secs(1);

/// How frames' content reaches the next component.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FrameTransport {
    /// In shared GPU memory: a frame's place in the ring is all that travels.
    #[default]
    Ring,
    /// The memory's handle in a UDP message; it is opened and closed at each hand-over. The method
    /// of Luo and Wei 2023, section 4.1.
    UdpHandle,
    /// The memory's handle in a message over a Unix socket; the memory stays open.
    UnixHandle,
    /// The frame itself in UDP messages, through host memory.
    UdpCopy,
}

impl FrameTransport {
    const NAMES: [(&'static str, Self); 4] = [
        ("ring", Self::Ring),
        ("udp-handle", Self::UdpHandle),
        ("unix-handle", Self::UnixHandle),
        ("udp-copy", Self::UdpCopy),
    ];

    /// The one with that name in definitions.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, carrier)| *carrier)
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        Self::NAMES.map(|(name, _)| name).join(", ")
    }
}

/// What a component has to do to use the frame of a lease.
pub(crate) enum Arrived<'g> {
    /// Nothing: its memory is shared.
    Shared,
    /// It uses this memory, and closes it after.
    Memory(Memory<'g>),
    /// It copies the content from host memory.
    Content,
    /// Its message was lost.
    Lost,
}

/// A component's ends of the messages before and after it.
pub(crate) enum Carry {
    Ring,
    Handles { door: RefCell<Door>, keeps_open: bool },
    Copy { pieces: RefCell<Pieces>, next: RefCell<Next<SocketAddr>>, place: Place },
}

impl Carry {
    /// Binds the component's sockets in the chain's directory.
    pub fn open(carrier: FrameTransport, place: Place, frame_bytes: u64) -> Result<Self, Error> {
        Ok(match carrier {
            FrameTransport::Ring => Self::Ring,
            FrameTransport::UdpHandle => {
                Self::Handles { door: RefCell::new(Door::udp(place)?), keeps_open: false }
            }
            FrameTransport::UnixHandle => {
                Self::Handles { door: RefCell::new(Door::unix(place)?), keeps_open: true }
            }
            FrameTransport::UdpCopy => {
                let pieces = RefCell::new(Pieces::new(&place, frame_bytes)?);
                Self::Copy { pieces, next: RefCell::default(), place }
            }
        })
    }

    /// Waits for the GPU, and sends what must be there before the frame is queued.
    pub fn before(
        &self,
        gpu: &Gpu<'_>,
        seat: &ChainSeat,
        stream: StreamRef<'_>,
        lease: &Lease,
        sequence: u64,
        span: partita_driver::ipc::Span<'_>,
    ) -> Result<(), Error> {
        if matches!(self, Self::Ring) {
            return Ok(());
        }
        let done = gpu.wait_on(stream, "work on a frame", KERNEL_DEADLINE_MS);
        done.map_err(Error::driver("work on a frame"))?;
        match self {
            Self::Ring => Ok(()),
            Self::Handles { door, .. } => {
                let slab = seat.slab(lease.slab).ok_or(Error::Damaged { offset: lease.offset, bytes: 0 })?;
                let message = Message {
                    handle: slab.plan.handle,
                    sequence,
                    sent_ns: monotonic_ns(),
                    bytes: slab.plan.bytes,
                    number: 0,
                };
                door.borrow_mut().send(seat, &message)
            }
            Self::Copy { pieces, .. } => {
                span.read(&mut pieces.borrow_mut().host).map_err(Error::driver("a copy from a frame"))
            }
        }
    }

    /// Sends what follows a queued frame. If the next component dies meanwhile, the frame is lost.
    pub fn after(&self, seat: &ChainSeat, sequence: u64) -> Result<(), Error> {
        let Self::Copy { pieces, next, place } = self else { return Ok(()) };
        let role = seat.role() + 1;
        let begun = seat.incarnation(role);
        let mut to = |quiet: Duration| {
            let is_other = seat.incarnation(role) != begun || !seat.is_held(role)?;
            if is_other && quiet > QUIET_MAX {
                return Ok(None);
            }
            next.borrow_mut().of(seat, || place.udp_of(role)).map(Some)
        };
        pieces.borrow_mut().send(sequence, monotonic_ns(), &mut to).map(drop)
    }

    /// What has come for the frame that was taken from the ring.
    pub fn receive<'g>(
        &self,
        gpu: &'g Gpu<'g>,
        seat: &ChainSeat,
        sequence: u64,
    ) -> Result<Arrived<'g>, Error> {
        match self {
            Self::Ring => Ok(Arrived::Shared),
            Self::Handles { door, keeps_open } => {
                let Some(message) = door.borrow_mut().message(sequence)? else { return Ok(Arrived::Lost) };
                if *keeps_open {
                    return Ok(Arrived::Shared);
                }
                let handle = MemoryHandle::from_bytes(message.handle);
                match OpenedMemory::open(gpu, &handle, message.bytes) {
                    Ok(opened) => Ok(Arrived::Memory(Memory::Opened(OpenSlab::Opened(opened)))),
                    Err(_) if memory_has_left(seat)? => Ok(Arrived::Lost),
                    Err(error) => Err(Error::driver("memory of a frame")(error)),
                }
            }
            Self::Copy { pieces, .. } => {
                let role = seat.role() - 1;
                let begun = seat.incarnation(role);
                let mut goes_on = |_, quiet| {
                    let lives = seat.incarnation(role) == begun && seat.is_held(role).unwrap_or(false);
                    lives || quiet < QUIET_MAX
                };
                let received = pieces.borrow_mut().receive(sequence, ROOM_MAX, &mut goes_on)?;
                Ok(if received.is_some() { Arrived::Content } else { Arrived::Lost })
            }
        }
    }

    /// Copies the received content to a frame.
    pub fn fill(&self, span: partita_driver::ipc::Span<'_>) -> Result<(), Error> {
        let Self::Copy { pieces, .. } = self else { return Ok(()) };
        span.write(&pieces.borrow().host).map_err(Error::driver("a copy to a frame"))
    }
}

/// Whether the frames' memory was the first component's, and that has left.
fn memory_has_left(seat: &ChainSeat) -> Result<bool, Error> {
    let is_firsts = |info: &SlabInfo| matches!(info.plan.owner, SlabOwner::FirstRole(_));
    if !seat.slabs().iter().any(is_firsts) {
        return Ok(false);
    }
    // A process that ends may lose its memory before its seat.
    let until = Instant::now() + Duration::from_secs(1);
    while seat.is_held(0)? {
        if Instant::now() > until {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(true)
}

/// The next component's address, as its present process has it.
pub(crate) struct Next<A>(Option<(u64, A)>);

impl<A> Default for Next<A> {
    fn default() -> Self {
        Self(None)
    }
}

impl<A: Clone> Next<A> {
    fn of(&mut self, seat: &ChainSeat, find: impl FnOnce() -> Result<A, Error>) -> Result<A, Error> {
        let now = seat.incarnation(seat.role() + 1);
        match &self.0 {
            Some((incarnation, address)) if *incarnation == now => Ok(address.clone()),
            _ => Ok(self.0.insert((now, find()?)).1.clone()),
        }
    }
}

enum Own {
    Udp(UdpSocket, Next<SocketAddr>),
    Unix(UnixDatagram, Next<PathBuf>),
}

/// Messages to the next component, and from the one before.
pub(crate) struct Door {
    own: Own,
    place: Place,
    /// Messages of later frames that came first.
    early: VecDeque<Message>,
}

impl Door {
    fn udp(place: Place) -> Result<Self, Error> {
        let socket = place.bind_udp()?;
        socket.set_write_timeout(Some(ROOM_MAX)).map_err(system("a UDP socket"))?;
        Ok(Self { own: Own::Udp(socket, Next::default()), place, early: VecDeque::new() })
    }

    fn unix(place: Place) -> Result<Self, Error> {
        let file = place.socket_file(place.role);
        // A dead process of this component has left one.
        let _ = std::fs::remove_file(&file);
        let socket = UnixDatagram::bind(&file).map_err(system("a Unix socket"))?;
        socket.set_write_timeout(Some(ROOM_MAX)).map_err(system("a Unix socket"))?;
        Ok(Self { own: Own::Unix(socket, Next::default()), place, early: VecDeque::new() })
    }

    /// Sends a message. If there is no room until the next component has died, it is lost.
    fn send(&mut self, seat: &ChainSeat, message: &Message) -> Result<(), Error> {
        let role = self.place.role + 1;
        let (bytes, begin) = (message.encode(), Instant::now());
        loop {
            let sent = match &mut self.own {
                Own::Udp(own, next) => own.send_to(&bytes, next.of(seat, || self.place.udp_of(role))?),
                Own::Unix(own, next) => {
                    let file = self.place.socket_file(role);
                    own.send_to(&bytes, next.of(seat, || meet(&file).map(|()| file.clone()))?)
                }
            };
            match sent {
                Ok(_) => return Ok(()),
                Err(error) if is_late(&error) && (begin.elapsed() < QUIET_MAX || seat.is_held(role)?) => {}
                Err(error) if is_late(&error) || is_gone(&error) => return Ok(()),
                Err(error) => return Err(system("a message to the next component")(error)),
            }
        }
    }

    /// The message of a frame; `None` if it was lost.
    fn message(&mut self, sequence: u64) -> Result<Option<Message>, Error> {
        self.early.retain(|message| message.sequence >= sequence);
        if let Some(at) = self.early.iter().position(|message| message.sequence == sequence) {
            return Ok(self.early.remove(at));
        }
        let begin = Instant::now();
        loop {
            let left = UNDER_WAY_MAX.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            let mut bytes = [0; MESSAGE_BYTES];
            let received = match &self.own {
                Own::Udp(own, _) => own.set_read_timeout(Some(left)).and_then(|()| own.recv(&mut bytes)),
                Own::Unix(own, _) => own.set_read_timeout(Some(left)).and_then(|()| own.recv(&mut bytes)),
            };
            match received {
                Ok(MESSAGE_BYTES) => {
                    let message = Message::decode(&bytes);
                    match message.sequence.cmp(&sequence) {
                        std::cmp::Ordering::Equal => return Ok(Some(message)),
                        std::cmp::Ordering::Greater => self.early.push_back(message),
                        // Its frame was dropped.
                        std::cmp::Ordering::Less => {}
                    }
                }
                // From another sender.
                Ok(_) => {}
                Err(error) if is_late(&error) => return Ok(None),
                Err(error) => return Err(system("a message of the component before")(error)),
            }
        }
    }
}

/// Whether the next component's process has left its socket.
fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound)
}
