//! The frames between clients and the keeper.
//!
//! A frame is one message of a Unix `SOCK_SEQPACKET` socket, so it arrives whole or not at all. It
//! starts with 16 bytes: its length (4), its kind (2), zero (2), and a tag (8) that the answer
//! repeats. All numbers are little-endian; the rest is fixed for each kind, or a count and as many
//! fixed items. A client sends a request and gets one answer, in order. The first request is
//! [`Request::Hello`].
//!
//! A descriptor may come with a frame (`SCM_RIGHTS`): a chain's file with [`Request::Own`], a
//! slab's memory with [`Reply::Slab`].
//!
//! The answer to an invalid frame is an error that names the fault; the frame changes nothing.

mod bytes;
mod fault;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use fault::{BadFrame, Code};
pub use reply::{Beat, HANDLE_BYTES, HandleKind, LeaseRow, Reply, Status, TenantRow, Welcome};
pub use request::{Privileged, Request};

/// The version of the frames. A keeper supports one.
pub const VERSION: u32 = 1;

/// Bytes of the longest frame, in either direction.
pub const FRAME_BYTES_MAX: usize = 8192;

/// Bytes before the fields of each kind.
pub const HEADER_BYTES: usize = 16;

/// Largest number of items in a frame: leases to give or to return, slabs to close.
pub const ITEMS_MAX: usize = 128;

/// Largest number of rows of a listing in a frame.
pub const ROWS_MAX: usize = 48;

/// The tag of a frame, if readable: an error answer repeats it.
#[must_use]
pub fn tag_of(frame: &[u8]) -> u64 {
    frame.get(8..HEADER_BYTES).and_then(|tag| tag.try_into().ok()).map_or(0, u64::from_le_bytes)
}
