//! PTX, NVIDIA's language of kernels: a parser, a printer, and a rewriter.
//!
//! [`Module::parse`] reads what compilers emit for ordinary kernels. `Display` prints a module as
//! text, which parses to the same module.
//!
//! ```
//! let text = ".version 8.0 .target sm_90 .address_size 64 .visible .entry nothing() { ret; }";
//! let module = partita_ptx::Module::parse(text)?;
//! assert_eq!(module.functions().next().map(|function| function.name.as_str()), Some("nothing"));
//! assert_eq!(partita_ptx::Module::parse(&module.to_string())?.to_string(), module.to_string());
//! # Ok::<(), partita_ptx::PtxError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

extern crate alloc;

mod error;
pub mod fatbin;
pub mod module;
mod parse;
pub mod persistent;
mod print;
mod token;
mod types;

pub use error::{Position, PtxError};
pub use module::Module;
pub use types::Type;
