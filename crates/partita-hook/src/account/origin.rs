//! How this process came to belong to a tenant, if it does.

use core::sync::atomic::{AtomicU8, Ordering};

use partita_ledger::LEDGER_VARIABLE;

use crate::account::environment;

/// [`Origin`] by its number; 0 before the first look.
static ORIGIN: AtomicU8 = AtomicU8::new(0);
/// A copy of the directory's name, so that nothing is allocated in a process that never uses it.
/// Empty if no ledger was named, or if the name is too long for a path.
static LEDGER: [AtomicU8; libc::PATH_MAX as usize] = [const { AtomicU8::new(0) }; libc::PATH_MAX as usize];

/// How this process came to belong to a tenant.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Origin {
    /// It belongs to no tenant.
    NoTenant = 1,
    /// `partita run` named the ledger.
    Ledger = 2,
    /// An environment like HAMi-core's sets its limits ([`hami`](crate::session::hami)).
    Environment = 3,
    /// `partita run` did not start it, and the environment has not been checked yet.
    Undecided = 4,
}

/// How this process belongs to a tenant.
///
/// Decided once: a program that later changes its own environment does not leave its partition.
pub fn origin() -> Origin {
    match ORIGIN.load(Ordering::Acquire) {
        1 => Origin::NoTenant,
        2 => Origin::Ledger,
        3 => Origin::Environment,
        4 => {
            let decided = if environment::is_tenant() { Origin::Environment } else { Origin::NoTenant };
            ORIGIN.store(decided as u8, Ordering::Relaxed);
            decided
        }
        _ => {
            look_at_load();
            origin()
        }
    }
}

/// Stores how the process was started. Only once, before the program runs.
pub fn look_at_load() {
    if ORIGIN.load(Ordering::Relaxed) != 0 {
        return;
    }
    // SAFETY: a valid name; the first call happens while the program
    // starts or resolves symbols, and only the answer is kept.
    let directory = unsafe { libc::getenv(LEDGER_VARIABLE.as_ptr()) };
    let origin = if directory.is_null() {
        environment::look_at_load();
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
pub fn is_tenant() -> bool {
    matches!(origin(), Origin::Ledger | Origin::Environment)
}

/// The tenant's directory, as the process was started with it.
pub fn ledger_directory() -> Option<&'static core::ffi::CStr> {
    // SAFETY: the bytes end with a zero and do not change once the origin is known.
    let directory = is_tenant().then(|| unsafe { core::ffi::CStr::from_ptr(LEDGER.as_ptr().cast()) })?;
    (!directory.is_empty()).then_some(directory)
}
