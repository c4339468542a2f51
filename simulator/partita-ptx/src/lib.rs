//! PTX, NVIDIA's language of kernels: a parser, a printer and an interpreter.
//!
//! [`Module::parse`](module::Module::parse) reads what compilers emit for ordinary kernels.
//! `Display` prints a module as text, which parses to the same module.
#![forbid(unsafe_code)]

mod error;
pub mod module;
mod parse;
mod print;
mod token;
mod types;

pub use error::{Position, PtxError};
pub use module::Module;
pub use types::Type;
