//! The memory that the board shares with one client: a ring of commands to the board, a place for
//! one request and its reply, the progress of each stream and a queue of host work back. Each
//! client has one such block, which no other process sees.

use std::io;
use std::mem;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::sys::{SharedMap, futex_wait, futex_wake_all, memfd};

/// Room for the commands of all streams, in bytes: about two thousand launches.
pub const RING_BYTES: u64 = 1 << 20;
/// Streams that one client may have at a time.
pub const STREAMS_MAX: usize = 4096;
/// Host work items that may wait for the client's worker at a time; the board keeps the rest.
pub const HOST_QUEUE_LEN: usize = 1024;

/// Room for a request or its reply, in bytes. Longer ones, and those with descriptors, take the
/// socket.
pub const CALL_BYTES: usize = 4096;

/// States of a call.
mod call {
    /// No call is in progress.
    pub const IDLE: u32 = 0;
    /// The client has written a request.
    pub const REQUESTED: u32 = 1;
    /// A request comes through the socket.
    pub const ANNOUNCED: u32 = 2;
    /// The board has written the reply.
    pub const REPLIED: u32 = 3;
    /// The reply comes through the socket, or the board has closed that.
    pub const ELSEWHERE: u32 = 4;
}

/// A value alone on its pair of cache lines, so that the two sides do not fight over it.
#[repr(C, align(128))]
pub struct Apart<T>(pub T);

/// The progress of one stream.
#[repr(C)]
pub struct StreamProgress {
    /// Sequence number of the last command that is complete.
    pub completed: AtomicU64,
}

/// The head of the shared block; the ring's bytes follow it.
#[repr(C)]
pub struct ChannelHead {
    /// Bytes that the client has published since the start.
    pub tail: Apart<AtomicU64>,
    /// Bytes that the board has taken since the start.
    pub head: Apart<AtomicU64>,
    /// The board increments it when something completes or room appears: clients sleep on this
    /// word.
    pub progress: Apart<AtomicU32>,
    /// How many threads of the client sleep on `progress`.
    pub waiters: Apart<AtomicU32>,
    /// The error that ended this client's GPU work, or 0.
    pub fault: Apart<AtomicI32>,
    /// 1 while the engine reports that a launch of this client can never be dispatched.
    pub stuck: Apart<AtomicU32>,
    /// 1 once this client's MPS server is stuck: no launch of any client returns any more.
    pub server_stuck: Apart<AtomicU32>,
    /// The state of the client's call, on which its thread sleeps.
    pub call: Apart<AtomicU32>,
    /// 1 while that thread sleeps.
    pub call_waits: AtomicU32,
    /// Length of the request or the reply, in bytes.
    call_bytes: AtomicU32,
    call_room: [AtomicU64; CALL_BYTES / 8],
    /// Host work that the board has queued since the start; also the word that the worker sleeps
    /// on.
    pub host_tail: Apart<AtomicU32>,
    /// Host work that the worker has taken since the start.
    pub host_head: Apart<AtomicU32>,
    /// The queued host work: tokens that the client chose.
    pub host_queue: [AtomicU64; HOST_QUEUE_LEN],
    /// Progress by stream slot.
    pub streams: [StreamProgress; STREAMS_MAX],
}

const HEAD_BYTES: u64 = (mem::size_of::<ChannelHead>() as u64).next_multiple_of(4096);

/// Kind of a filler, after which the board continues at the ring's start.
const KIND_WRAP: u32 = u32::MAX;

/// The header of each command in the ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// Length with this head and padding, in bytes; a multiple of 64.
    pub bytes: u32,
    /// Which command (`super::command`).
    pub kind: u32,
    /// The stream's slot.
    pub stream: u32,
    /// Length of the body, in bytes.
    pub body_bytes: u32,
    /// The command's number on its stream.
    pub seq: u64,
}

const RECORD_HEAD_BYTES: usize = mem::size_of::<RecordHead>();

/// One side's view of the shared block.
#[derive(Debug)]
pub struct Channel {
    map: SharedMap,
}

impl Channel {
    /// Makes a new block, all zero, and the descriptor to hand to the client.
    ///
    /// # Errors
    /// Those of `memfd_create` and `mmap`.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let fd = memfd(c"partita-sim-channel", HEAD_BYTES + RING_BYTES)?;
        let channel = Self::open(std::os::fd::AsFd::as_fd(&fd))?;
        Ok((channel, fd))
    }

    /// Maps a block that the board made.
    ///
    /// # Errors
    /// Those of `mmap`.
    pub fn open(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self { map: SharedMap::new(fd, (HEAD_BYTES + RING_BYTES) as usize)? })
    }

    /// The words that both sides use.
    pub fn head(&self) -> &ChannelHead {
        // SAFETY: the mapping is page-aligned, longer than the head, and holds atomics only, for
        // which every bit pattern is valid.
        unsafe { &*self.map.base().cast::<ChannelHead>() }
    }

    fn ring(&self) -> *mut u8 {
        // SAFETY: the ring follows the head inside the same mapping.
        unsafe { self.map.base().add(HEAD_BYTES as usize) }
    }

    fn call_room(&self) -> *mut u8 {
        self.head().call_room.as_ptr().cast_mut().cast()
    }

    /// Writes a request, after which the client rings the doorbell. Only if there is no other call.
    ///
    /// # Panics
    /// If it is longer than [`CALL_BYTES`].
    pub fn request(&self, bytes: &[u8]) {
        self.put_call(bytes, call::REQUESTED);
    }

    /// Announces a request through the socket, before it is sent. Only if there is no other call.
    pub fn announce_request(&self) {
        self.head().call.0.store(call::ANNOUNCED, Ordering::SeqCst);
    }

    /// Ends a call whose request could not be sent.
    pub fn withdraw_request(&self) {
        self.head().call.0.store(call::IDLE, Ordering::SeqCst);
    }

    /// Whether the client waits for a reply.
    pub fn is_called(&self) -> bool {
        matches!(self.head().call.0.load(Ordering::Acquire), call::REQUESTED | call::ANNOUNCED)
    }

    /// Copies the request, if there is one here, so that the client cannot change it later. One of
    /// an impossible length is empty.
    pub fn take_request(&self) -> Option<Vec<u8>> {
        let is_here = self.head().call.0.load(Ordering::Acquire) == call::REQUESTED;
        is_here.then(|| self.copy_call().unwrap_or_default())
    }

    /// Writes the reply and wakes the client; without a reply here the client receives it from the
    /// socket.
    pub fn reply(&self, bytes: Option<&[u8]>) {
        match bytes.filter(|bytes| bytes.len() <= CALL_BYTES) {
            Some(bytes) => self.put_call(bytes, call::REPLIED),
            None => self.head().call.0.store(call::ELSEWHERE, Ordering::SeqCst),
        }
        let head = self.head();
        if head.call_waits.load(Ordering::SeqCst) != 0 {
            futex_wake_all(&head.call.0);
        }
    }

    /// Sleeps until the board has replied or some time has passed. Returns whether it has replied.
    pub fn await_reply(&self, patience: Duration) -> bool {
        let head = self.head();
        head.call_waits.store(1, Ordering::SeqCst);
        let state = head.call.0.load(Ordering::SeqCst);
        if matches!(state, call::REQUESTED | call::ANNOUNCED) {
            futex_wait(&head.call.0, state, Some(patience));
        }
        head.call_waits.store(0, Ordering::Relaxed);
        !self.is_called()
    }

    /// Takes the reply. `None` if it comes through the socket.
    pub fn take_reply(&self) -> Option<Vec<u8>> {
        match self.head().call.0.swap(call::IDLE, Ordering::Acquire) {
            call::REPLIED => self.copy_call(),
            _ => None,
        }
    }

    fn put_call(&self, bytes: &[u8], state: u32) {
        assert!(bytes.len() <= CALL_BYTES, "a call has room for {CALL_BYTES} bytes");
        let head = self.head();
        // SAFETY: the bytes fit into the room. The other side reads it after the state is stored
        // below, and writes to it only after it has changed the state itself.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.call_room(), bytes.len()) };
        head.call_bytes.store(bytes.len() as u32, Ordering::Relaxed);
        head.call.0.store(state, Ordering::SeqCst);
    }

    fn copy_call(&self) -> Option<Vec<u8>> {
        let bytes = self.head().call_bytes.load(Ordering::Relaxed) as usize;
        if bytes > CALL_BYTES {
            return None;
        }
        let mut copy = vec![0; bytes];
        // SAFETY: the length was checked to be inside the room; the copy goes to memory of this
        // process alone.
        unsafe { std::ptr::copy_nonoverlapping(self.call_room(), copy.as_mut_ptr(), bytes) };
        Some(copy)
    }

    /// Wakes the client's sleeping threads, if there are any.
    pub fn announce_progress(&self) {
        let head = self.head();
        head.progress.0.fetch_add(1, Ordering::SeqCst);
        if head.waiters.0.load(Ordering::SeqCst) != 0 {
            futex_wake_all(&head.progress.0);
        }
    }
}

/// The client's end of the ring. One at a time may write, so it lives behind a lock.
#[derive(Debug, Default)]
pub struct Producer {
    tail: u64,
    seen_head: u64,
}

impl Producer {
    /// Writes one command whose body is `parts` end to end, or returns `false` without room.
    ///
    /// The caller rings the board's doorbell afterwards.
    pub fn publish(&mut self, channel: &Channel, kind: u32, stream: u32, seq: u64, parts: &[&[u8]]) -> bool {
        let body: usize = parts.iter().map(|part| part.len()).sum();
        let bytes = (RECORD_HEAD_BYTES + body).next_multiple_of(64) as u64;
        let at = self.tail % RING_BYTES;
        let skip = if at + bytes > RING_BYTES { RING_BYTES - at } else { 0 };
        if !self.has_room(channel, bytes + skip) {
            return false;
        }
        let ring = channel.ring();
        if skip > 0 {
            let filler = RecordHead { bytes: skip as u32, kind: KIND_WRAP, stream: 0, body_bytes: 0, seq: 0 };
            // SAFETY: `at` is a multiple of 64 below RING_BYTES, so a head fits, and the board does
            // not read beyond `tail`.
            unsafe { ring.add(at as usize).cast::<RecordHead>().write(filler) };
        }
        let at = (self.tail + skip) % RING_BYTES;
        let head = RecordHead { bytes: bytes as u32, kind, stream, body_bytes: body as u32, seq };
        // SAFETY: `at + bytes` is inside the ring (else it was skipped), the room was checked to be
        // free, and the board does not read it before `tail` is stored below.
        unsafe {
            let mut to = ring.add(at as usize);
            to.cast::<RecordHead>().write(head);
            to = to.add(RECORD_HEAD_BYTES);
            for part in parts {
                std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                to = to.add(part.len());
            }
        }
        self.tail += skip + bytes;
        channel.head().tail.0.store(self.tail, Ordering::Release);
        true
    }

    fn has_room(&mut self, channel: &Channel, bytes: u64) -> bool {
        if self.tail + bytes - self.seen_head <= RING_BYTES {
            return true;
        }
        self.seen_head = channel.head().head.0.load(Ordering::Acquire);
        self.tail + bytes - self.seen_head <= RING_BYTES
    }
}

/// The board's end of the ring. It trusts nothing that it reads there.
#[derive(Debug, Default)]
pub struct Consumer {
    head: u64,
    body: Vec<u8>,
}

/// The ring's contents make no sense: the client overwrote its own commands.
#[derive(Debug, PartialEq, Eq)]
pub struct Corrupt;

impl Consumer {
    /// Whether a command waits.
    pub fn is_empty(&self, channel: &Channel) -> bool {
        channel.head().tail.0.load(Ordering::Acquire) == self.head
    }

    /// Takes the next command, copied out of the shared memory, so that the client cannot change it
    /// later.
    ///
    /// # Errors
    /// [`Corrupt`] when lengths contradict each other; disconnect the client then.
    pub fn take(&mut self, channel: &Channel) -> Result<Option<(RecordHead, &[u8])>, Corrupt> {
        loop {
            let tail = channel.head().tail.0.load(Ordering::Acquire);
            let waiting = tail.wrapping_sub(self.head);
            if waiting == 0 {
                return Ok(None);
            }
            let at = self.head % RING_BYTES;
            if waiting > RING_BYTES || !waiting.is_multiple_of(64) {
                return Err(Corrupt);
            }
            // SAFETY: `at` is a multiple of 64 below RING_BYTES, so a head is inside the ring. The
            // bytes are plain data; a volatile read takes them once.
            let record = unsafe { channel.ring().add(at as usize).cast::<RecordHead>().read_volatile() };
            let bytes = u64::from(record.bytes);
            if bytes == 0 || bytes % 64 != 0 || bytes > waiting || at + bytes > RING_BYTES {
                return Err(Corrupt);
            }
            if record.kind == KIND_WRAP {
                self.advance(channel, bytes);
                continue;
            }
            let body = record.body_bytes as usize;
            if RECORD_HEAD_BYTES + body > bytes as usize {
                return Err(Corrupt);
            }
            self.body.resize(body, 0);
            // SAFETY: the body is inside the record, which is inside the ring; the copy goes to
            // memory of this process alone.
            unsafe {
                let from = channel.ring().add(at as usize + RECORD_HEAD_BYTES);
                std::ptr::copy_nonoverlapping(from, self.body.as_mut_ptr(), body);
            }
            self.advance(channel, bytes);
            return Ok(Some((record, &self.body)));
        }
    }

    fn advance(&mut self, channel: &Channel, bytes: u64) {
        self.head += bytes;
        channel.head().head.0.store(self.head, Ordering::Release);
    }
}

/// Puts one token into the client's queue of host work; `false` when the queue is full.
pub fn push_host_work(channel: &Channel, token: u64) -> bool {
    let head = channel.head();
    let tail = head.host_tail.0.load(Ordering::Relaxed);
    if tail.wrapping_sub(head.host_head.0.load(Ordering::Acquire)) as usize >= HOST_QUEUE_LEN {
        return false;
    }
    head.host_queue[tail as usize % HOST_QUEUE_LEN].store(token, Ordering::Relaxed);
    head.host_tail.0.store(tail.wrapping_add(1), Ordering::SeqCst);
    futex_wake_all(&head.host_tail.0);
    true
}

/// Takes one token from the queue of host work. Only for the client's worker.
pub fn pop_host_work(channel: &Channel) -> Option<u64> {
    let head = channel.head();
    let at = head.host_head.0.load(Ordering::Relaxed);
    if at == head.host_tail.0.load(Ordering::Acquire) {
        return None;
    }
    let token = head.host_queue[at as usize % HOST_QUEUE_LEN].load(Ordering::Relaxed);
    head.host_head.0.store(at.wrapping_add(1), Ordering::Release);
    Some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_out_as_they_went_in_across_many_wraps() {
        let (board, fd) = Channel::create().unwrap();
        let client = Channel::open(std::os::fd::AsFd::as_fd(&fd)).unwrap();
        let mut producer = Producer::default();
        let mut consumer = Consumer::default();
        let mut sent = 0u64;
        let mut taken = 0u64;
        while taken < 20_000 {
            while sent < 20_000 {
                let body = vec![sent as u8; (sent % 700) as usize];
                if !producer.publish(&client, 7, 3, sent, &[&body[..body.len() / 2], &body[body.len() / 2..]])
                {
                    break;
                }
                sent += 1;
            }
            let (record, body) = consumer.take(&board).unwrap().expect("something waits");
            assert_eq!((record.seq, record.kind, record.stream), (taken, 7, 3));
            assert_eq!(body.len() as u64, taken % 700);
            assert!(body.iter().all(|byte| *byte == taken as u8));
            taken += 1;
        }
        assert!(consumer.is_empty(&board));
    }

    #[test]
    fn a_full_ring_refuses_and_a_forged_length_is_noticed() {
        let (board, _fd) = Channel::create().unwrap();
        let mut producer = Producer::default();
        let body = [0u8; 1000];
        let count = (0..).take_while(|seq| producer.publish(&board, 1, 0, *seq, &[&body])).count() as u64;
        assert_eq!(count, RING_BYTES / 1024);
        // SAFETY: the first record's length lies at the ring's start.
        unsafe { board.ring().cast::<u32>().write(12345) };
        assert_eq!(Consumer::default().take(&board), Err(Corrupt));
    }

    #[test]
    fn a_call_is_answered_here_or_through_the_socket_and_a_forged_length_is_noticed() {
        let (board, fd) = Channel::create().unwrap();
        let client = Channel::open(std::os::fd::AsFd::as_fd(&fd)).unwrap();
        for (request, reply) in [(&[1u8; 3][..], Some(&[2u8; CALL_BYTES][..])), (&[3; CALL_BYTES], Some(&[]))]
        {
            assert!(!board.is_called());
            client.request(request);
            assert!(board.is_called() && !client.await_reply(Duration::ZERO));
            assert_eq!(board.take_request().as_deref(), Some(request));
            board.reply(reply);
            assert!(!board.is_called() && client.await_reply(Duration::MAX));
            assert_eq!(client.take_reply().as_deref(), reply);
        }
        for reply in [None, Some(&[0; CALL_BYTES + 1][..])] {
            client.request(&[1]);
            board.reply(reply);
            assert!(client.await_reply(Duration::MAX));
            assert_eq!(client.take_reply(), None);
        }
        client.request(&[1]);
        client.head().call_bytes.store(CALL_BYTES as u32 + 1, Ordering::Relaxed);
        assert_eq!(board.take_request(), Some(Vec::new()));
        client.announce_request();
        assert!(board.is_called());
        assert_eq!(board.take_request(), None);
        client.withdraw_request();
        assert!(!board.is_called());
    }

    #[test]
    fn a_thread_that_sleeps_in_its_call_is_woken() {
        let (board, fd) = Channel::create().unwrap();
        let client = Channel::open(std::os::fd::AsFd::as_fd(&fd)).unwrap();
        client.request(&[7]);
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| client.await_reply(Duration::from_secs(3600)));
            while board.head().call_waits.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            board.reply(Some(&[8]));
            // The thread may have set its word and not sleep yet: then it sees the reply.
            assert!(caller.join().unwrap());
        });
        assert_eq!(client.take_reply(), Some(vec![8]));
    }

    #[test]
    fn host_work_is_queued_in_order_and_bounded() {
        let (board, _fd) = Channel::create().unwrap();
        let count = (0..).take_while(|token| push_host_work(&board, *token)).count();
        assert_eq!(count, HOST_QUEUE_LEN);
        assert_eq!(pop_host_work(&board), Some(0));
        assert!(push_host_work(&board, 9));
        for token in 1..HOST_QUEUE_LEN as u64 {
            assert_eq!(pop_host_work(&board), Some(token));
        }
        assert_eq!((pop_host_work(&board), pop_host_work(&board)), (Some(9), None));
    }
}
