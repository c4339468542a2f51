//! `libpartita.so`: the interposer in a tenant's process.
//!
//! Preloaded by `partita run`. It stands between the program and libcuda by
//! three ways in, which together catch every program that the dynamic linker
//! starts: its exported functions shadow libcuda's for programs linked against
//! it, `dlsym`/`dlvsym` answer with them ([`linker`]), and so does
//! `cuGetProcAddress` ([`resolve`]), from one table ([`table`]).
//!
//! What it does there: memory is charged to the tenant's ledger before the
//! driver is asked ([`memory`], [`vmm`]), memory totals are the quota's
//! ([`query`]), launches that could never fit are refused ([`launch`], [`misfit`]),
//! every kernel's descriptor gets the tenant's mask ([`mask`]), and those of
//! executable graphs get it anew when it changes ([`graph_exec`]). A tenant's process that sees
//! several GPUs obeys the limits of each ([`gpu`], [`locate`]).
//!
//! The process stays the tenant's: no thread (but one for
//! tenants with a priority or a share of time, [`watcher`]), no signal handler, nothing on
//! standard output, no exit. A process that never touches CUDA pays for a few
//! string comparisons in `dlsym` and nothing else. Where neither `PARTITA_LEDGER` nor the
//! variables of HAMi-core ([`hami`]) name a tenant, the library passes everything through.
#![no_std]
#![allow(
    clippy::missing_safety_doc,
    reason = "the bodies of wrapped calls share the contract of the driver's call"
)]

extern crate alloc;

mod allocations;
mod attach;
mod beside;
mod caller;
mod calls;
mod capture;
mod carried;
mod counter;
mod driver;
mod driver_memory;
mod elf;
mod executables;
mod floor;
mod functions;
mod futex;
mod gate;
mod gpu;
mod graph;
mod graph_change;
mod graph_exec;
mod graph_memory;
mod graph_nodes;
mod graph_place;
mod green;
mod hami;
mod heap;
mod imports;
mod ioctl;
mod launch;
mod linker;
mod locate;
mod managed;
mod mask;
mod memory;
mod misfit;
mod multicast;
mod namespaces;
mod nvml;
mod occupancy;
mod page;
mod pools;
mod query;
mod quiet;
mod real;
mod report;
mod resolve;
mod row;
mod shares;
mod slices;
mod spill;
mod subscribers;
mod table;
mod tenant;
mod thread_word;
mod time;
mod unwind;
mod vmm;
mod watcher;
mod widen;

use core::sync::atomic::{AtomicU8, Ordering};

use partita_ledger::mutex as lock;

/// The environment variable that names the tenant's directory.
const LEDGER_VARIABLE: &core::ffi::CStr = c"PARTITA_LEDGER";

/// [`Origin`] by its number; 0 before anybody looked.
static ORIGIN: AtomicU8 = AtomicU8::new(0);
/// A copy of the directory's name, so that nothing is allocated in a process that never uses it.
/// Empty where there is none, or one that is too long for a path.
static LEDGER: [AtomicU8; libc::PATH_MAX as usize] = [const { AtomicU8::new(0) }; libc::PATH_MAX as usize];

/// How this process came to belong to a tenant.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Origin {
    /// It does not.
    Nobody = 1,
    /// `partita run` named the ledger.
    Ledger = 2,
    /// An environment like HAMi-core's says what it may use ([`hami`]).
    Environment = 3,
    /// `partita run` did not, and nobody has asked yet whether an environment does.
    Undecided = 4,
}

/// How this process belongs to a tenant.
///
/// Decided once: a program that later changes its own environment does not leave its partition.
fn origin() -> Origin {
    match ORIGIN.load(Ordering::Acquire) {
        1 => Origin::Nobody,
        2 => Origin::Ledger,
        3 => Origin::Environment,
        4 => {
            let decided = if hami::is_tenant() { Origin::Environment } else { Origin::Nobody };
            ORIGIN.store(decided as u8, Ordering::Relaxed);
            decided
        }
        _ => {
            look_at_load();
            origin()
        }
    }
}

/// Keeps what the process was started with. Only once: the program comes later.
fn look_at_load() {
    if ORIGIN.load(Ordering::Relaxed) != 0 {
        return;
    }
    // SAFETY: a valid name; the first call happens while the program
    // starts or resolves symbols, and only the answer is kept.
    let directory = unsafe { libc::getenv(LEDGER_VARIABLE.as_ptr()) };
    let origin = if directory.is_null() {
        hami::look_at_load();
        Origin::Undecided
    } else {
        // SAFETY: getenv returned a string.
        let directory = unsafe { core::ffi::CStr::from_ptr(directory) }.to_bytes();
        // The last byte stays zero. Two threads that come here at once write the same bytes.
        if directory.len() < LEDGER.len() {
            LEDGER.iter().zip(directory).for_each(|(to, &byte)| to.store(byte, Ordering::Relaxed));
        }
        Origin::Ledger
    };
    ORIGIN.store(origin as u8, Ordering::Release);
}

/// Whether this process was started as part of a tenant.
fn is_tenant() -> bool {
    matches!(origin(), Origin::Ledger | Origin::Environment)
}

/// The tenant's directory, as the process was started with it.
fn ledger_directory() -> Option<&'static core::ffi::CStr> {
    // SAFETY: the bytes end with a zero and do not change once the origin is known.
    let directory = is_tenant().then(|| unsafe { core::ffi::CStr::from_ptr(LEDGER.as_ptr().cast()) })?;
    (!directory.is_empty()).then_some(directory)
}

/// Looks at the environment as soon as the library is loaded, before the
/// program can change it.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        ioctl::find_next();
        look_at_load();
    }
    at_load
};

/// Nothing in the hook panics by intent. If something does, the tenant's limits
/// can no longer be vouched for, and unwinding into C is undefined.
#[cfg(not(test))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    report::line(format_args!("internal error: {info}; please report it"));
    // SAFETY: ends the process without running anything of it.
    unsafe { libc::abort() }
}
