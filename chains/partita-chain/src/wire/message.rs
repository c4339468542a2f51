//! The message with the handle of a frame's memory.

use partita_frames::HANDLE_BYTES;

/// Handle, sequence, time, size, number in the pool.
pub(crate) const MESSAGE_BYTES: usize = HANDLE_BYTES + 4 * 8;

/// The fields of a message.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    pub handle: [u8; HANDLE_BYTES],
    pub sequence: u64,
    pub sent_ns: u64,
    pub bytes: u64,
    pub number: u64,
}

impl Message {
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut message = [0; MESSAGE_BYTES];
        let (handle, words) = message.split_at_mut(HANDLE_BYTES);
        handle.copy_from_slice(&self.handle);
        let values = [self.sequence, self.sent_ns, self.bytes, self.number];
        for (to, value) in words.as_chunks_mut::<8>().0.iter_mut().zip(values) {
            *to = value.to_le_bytes();
        }
        message
    }

    pub fn decode(message: &[u8; MESSAGE_BYTES]) -> Self {
        let (handle, words) = message.split_at(HANDLE_BYTES);
        let word = |at: usize| words.as_chunks::<8>().0.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        let mut this = Self {
            handle: [0; HANDLE_BYTES],
            sequence: word(0),
            sent_ns: word(1),
            bytes: word(2),
            number: word(3),
        };
        this.handle.copy_from_slice(handle);
        this
    }
}
