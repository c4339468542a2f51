//! `libpartita.so`: the interposer in a tenant's process.
//!
//! `partita run` preloads it. It stands between the program and libcuda in three ways, which
//! together catch every program that the dynamic linker starts: its exported functions shadow
//! libcuda's for programs that are linked against it, `dlsym` and `dlvsym` answer with them
//! ([`linker`](entry::linker)), and so does `cuGetProcAddress` ([`resolve`](entry::resolve)), from
//! one table ([`table`](entry::table)).
//!
//! # Floors
//!
//! Each folder is a floor, listed here from the ground up. A module may use modules of its own
//! floor and of lower ones, and no two modules use each other, directly or through others. A test
//! (`tests/it/floors.rs`) reads this list.
//!
//! ```floors
//! sys       the system, the loaded libraries, messages, what a forked child does, the one thread
//! driver    libcuda's own functions, and the calls that this library makes of them
//! account   the tenant that this process belongs to, its account and limits on each GPU
//! persistent  kernels rewritten into persistent blocks: code, parameters, and what they count in
//! memory    charges what a program obtains, credits what it gives back
//! time      shares of time: measures launches, and has them wait when the budget is spent
//! holder    what is held of this process after its death, and what the GPU tells of its work
//! slots     shares of the task slots: how many kernels of this process run at once
//! gate      priorities: launches of low priority wait for those of high priority
//! launch    what fits the partition, and the mask that every launch carries
//! graph     executable graphs, which keep the mask that they were uploaded with
//! session   where the process attaches to its tenant, and where contexts end
//! entry     the exports: libcuda's names, `dlsym`, `dlopen`, `ioctl`, the management library's
//! ```
//!
//! State belongs to the module that changes it, in a static of its own, and the module says what a
//! forked child does with it ([`fork`](sys::fork)). Most launches of most programs take the fast
//! path ([`fast_path`](launch::fast_path)).
//!
//! # The process stays the tenant's
//!
//! No thread (but one for tenants with a priority, a share of time, persistent blocks or a holder,
//! [`watcher`](sys::watcher)), no signal handler, nothing on standard output, no exit. A process
//! that never touches CUDA pays for a few string comparisons in `dlsym` and nothing else. If
//! neither `PARTITA_LEDGER` nor the variables of HAMi-core ([`hami`](session::hami)) name a tenant,
//! and the policy of the site makes none ([`outside`](session::outside)), the library passes
//! everything through.
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
mod holder;
mod launch;
mod memory;
mod persistent;
mod session;
mod slots;
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
