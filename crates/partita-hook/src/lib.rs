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
//! several GPUs obeys the limits of each ([`account`], [`locate`]).
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

mod account;
mod allocations;
mod attach;
mod beside;
mod caller;
mod calls;
mod capture;
mod carried;
mod claim;
mod contexts;
mod counter;
mod driver;
mod driver_memory;
mod elf;
mod executables;
mod floor;
mod fork;
mod functions;
mod futex;
mod gate;
mod graph;
mod graph_change;
mod graph_exec;
mod graph_gpus;
mod graph_memory;
mod graph_nodes;
mod graph_place;
mod green;
mod hami;
mod heap;
mod holdings;
mod imports;
mod ioctl;
mod launch;
mod launch_mask;
mod linker;
mod locate;
mod look;
mod managed;
mod mask;
mod memory;
mod misfit;
mod multicast;
mod namespaces;
mod nvml;
mod occupancy;
mod origin;
mod page;
mod per_gpu;
mod places;
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
mod spilled;
mod stream;
mod stream_memory;
mod subscribers;
mod sys;
mod table;
mod tenant;
mod thread_word;
mod time;
mod unwind;
mod vmm;
mod waits;
mod watcher;
mod widen;
mod word;

/// Looks at the environment as soon as the library is loaded, before the
/// program can change it.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        sys::find_next_ioctl();
        origin::look_at_load();
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
