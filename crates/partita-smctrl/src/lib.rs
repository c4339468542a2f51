//! `libsmctrl.so` and `libsmctrl.a`: the C interface of libsmctrl, on what Partita proves.
//!
//! A program puts masks on its own kernel launches: on the next one of a thread, on those of a
//! stream, on all of the process. A set bit disables a TPC. The functions, their meaning and their
//! errors are documented for C programmers in `include/libsmctrl.h`; [`abi`] has them by name.
//!
//! | module | what it does |
//! |---|---|
//! | [`abi`] | the exported functions; of several copies in one process, one does the work of all (`abi::copies`) |
//! | `mask` | masks of 64, 128 and 256 bits to sets of TPCs |
//! | `state` | the driver, the process's masks, the masks of streams |
//! | `board` | which bit stands for which TPC here: `kept` calibrations, a `prover`, or the control interface |
//! | `info`, `validate` | what a GPU has, and whether a stream stays where it should |
//!
//! The library is `no_std` and needs the C library alone, like the interposer of a tenant: a
//! program that links the archive needs nothing else either. No call ends the process, and none
//! prints to standard output.
#![cfg_attr(not(test), no_std)]
#![allow(clippy::missing_safety_doc, reason = "what C callers owe stands in the header")]

extern crate alloc;

pub mod abi;
mod board;
mod contain;
mod fault;
#[cfg(not(test))]
mod heap;
mod info;
mod lock;
mod mask;
mod prover;
mod report;
mod state;
mod thread;
#[cfg(not(test))]
mod unwind;
mod validate;

/// Nothing here panics by intent; what might is contained (`contain`).
#[cfg(not(test))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    contain::end(info)
}
