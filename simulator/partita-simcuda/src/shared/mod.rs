//! What the board and its clients have in common.

pub mod ask;
pub mod channel;
pub mod command;
pub mod driver;
pub mod page;
pub mod place;
pub mod protocol;
pub mod qmd;
pub mod socket;
pub mod sys;
pub mod visible;
