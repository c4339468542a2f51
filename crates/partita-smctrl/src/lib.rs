//! `libsmctrl.so` and `libsmctrl.a`: the C interface of libsmctrl, based on what Partita proves.
//!
//! A program masks its own kernel launches: the next one of a thread, those of a stream, or all of
//! the process. A set bit disables a TPC, which is two SMs. `include/libsmctrl.h` documents the
//! functions, their meaning and their errors for C programmers; [`abi`] has them by name.
//!
//! | module | what it does |
//! |---|---|
//! | [`abi`] | the exported functions; of several copies in one process, one does the work of all (`abi::copies`) |
//! | `mask` | converts masks of 64, 128 and 256 bits to sets of TPCs |
//! | `state` | the driver, the process's masks, the masks of streams |
//! | `board` | which bit stands for which TPC: cached calibrations, a `prover`, or the control interface |
//! | `info`, `validate` | what a GPU has, and whether a stream stays on its TPCs |
//!
//! The library is `no_std` and needs only the C library, like the hook of a tenant: a program that
//! links the archive needs nothing else. No call ends the process or prints to standard output.
#![cfg_attr(not(test), no_std)]
#![allow(clippy::missing_safety_doc, reason = "the header documents what C callers must ensure")]

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

/// Nothing here panics by intent; work that might is contained (`contain`).
#[cfg(not(test))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    contain::end(info)
}
