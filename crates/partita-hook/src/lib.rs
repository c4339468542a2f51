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
mod driver;
mod entry;
mod gate;
mod graph;
mod launch;
mod memory;
mod session;
mod sys;
mod time;

/// Looks at the environment as soon as the library is loaded, before the
/// program can change it.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        sys::next::find_next_ioctl();
        account::origin::look_at_load();
    }
    at_load
};

/// Nothing in the hook panics by intent. If something does, the tenant's limits
/// can no longer be vouched for, and unwinding into C is undefined.
#[cfg(not(test))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    sys::report::line(format_args!("internal error: {info}; please report it"));
    // SAFETY: ends the process without running anything of it.
    unsafe { libc::abort() }
}
