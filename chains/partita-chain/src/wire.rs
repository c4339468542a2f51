//! What components send each other beside the ring: sockets, and the form of the messages.

mod message;
mod pieces;
mod place;
mod system;

pub(crate) use message::{MESSAGE_BYTES, Message};
pub(crate) use pieces::Pieces;
pub use place::Place;
pub(crate) use place::meet;
pub(crate) use system::{is_late, system};
