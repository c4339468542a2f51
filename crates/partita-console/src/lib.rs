//! Terminal code that Partita's programs share: failures in one line, tables, JSON, `--gpu`, manual
//! pages, and the hidden commands with which a program runs itself.

pub mod complete;
mod fail;
mod gpu;
mod internal;
mod output;
pub mod pages;
mod table;

pub use fail::{Failure, parse, parse_or, tell};
pub use gpu::{GpuOption, GpusOption, select, select_several, selector, selectors};
pub use internal::Internal;
pub use output::{pause, print, print_bytes, print_json, print_json_on, print_on};
pub use table::{Table, shorten};
