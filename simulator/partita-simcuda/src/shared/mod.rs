//! The code that the board and its clients share.

pub mod ask;
pub mod channel;
pub mod command;
pub mod driver;
pub mod mig;
pub mod page;
pub mod place;
pub mod protocol;
pub mod qmd;
pub mod socket;
pub mod sys;
pub mod visible;
