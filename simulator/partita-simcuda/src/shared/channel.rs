//! The memory that the board shares with one client: a ring of commands to the board, the progress
//! of each stream and a queue of host work back. Each client has one such block, which no other
//! process sees.

use std::io;
use std::mem;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::sys::{SharedMap, futex_wake_all, memfd};

/// Room for the commands of all streams, in bytes: about two thousand launches.
pub const RING_BYTES: u64 = 1 << 20;
/// Streams that one client may have at a time.
pub const STREAMS_MAX: usize = 4096;
/// Host work items that may wait for the client's worker at a time; the board keeps the rest.
pub const HOST_QUEUE_LEN: usize = 1024;

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
