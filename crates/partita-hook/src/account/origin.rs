//! How this process came to belong to a tenant, if it does.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use partita_ledger::LEDGER_VARIABLE;

use crate::account::environment;

/// [`Origin`] by its number; 0 before the first look.
static ORIGIN: AtomicU8 = AtomicU8::new(0);
/// A copy of the directory's name, so that nothing is allocated in a process that never uses it.
/// Empty if no ledger was named, or if the name is too long for a path.
static LEDGER: [AtomicU8; libc::PATH_MAX as usize] = [const { AtomicU8::new(0) }; libc::PATH_MAX as usize];

/// Whether the environment named a ledger, even if by an empty name.
static IS_NAMED: AtomicBool = AtomicBool::new(false);

/// The tenant's directory on its first GPU in a container.
pub const CONTAINER_LEDGER: &CStr = c"/usr/local/partita/gpu/0/tenant";

/// Whether a CDI device of Partita's has mounted a tenant in this container.
pub fn is_container() -> bool {
    // SAFETY: a valid path.
    unsafe { libc::access(CONTAINER_LEDGER.as_ptr(), libc::F_OK) == 0 }
}

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
    /// It is in a container whose CDI device has mounted the ledger.
    Container = 5,
}

/// How this process belongs to a tenant.
///
/// Decided once: a program that later changes its own environment does not leave its partition.
pub fn origin() -> Origin {
    match ORIGIN.load(Ordering::Acquire) {
        1 => Origin::NoTenant,
        2 => Origin::Ledger,
        3 => Origin::Environment,
        5 => Origin::Container,
        4 => {
            // The container's mounts count, whatever its programs set in their environment.
            let decided = if is_container() {
                Origin::Container
            } else if IS_NAMED.load(Ordering::Relaxed) {
                Origin::Ledger
            } else if environment::is_tenant() {
                Origin::Environment
            } else {
                Origin::NoTenant
            };
            ORIGIN.store(decided as u8, Ordering::Release);
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
    if directory.is_null() {
        environment::look_at_load();
    } else {
        // SAFETY: getenv returned a string.
        let directory = unsafe { core::ffi::CStr::from_ptr(directory) }.to_bytes();
        // The last byte stays zero. Two threads that come here at once write the same bytes.
        if directory.len() < LEDGER.len() {
            LEDGER.iter().zip(directory).for_each(|(to, &byte)| to.store(byte, Ordering::Relaxed));
        }
        IS_NAMED.store(true, Ordering::Relaxed);
    }
    // Whether this is a container is asked of the file system only if the process uses CUDA.
    ORIGIN.store(Origin::Undecided as u8, Ordering::Release);
}

/// Whether this process was started as part of a tenant.
pub fn is_tenant() -> bool {
    matches!(origin(), Origin::Ledger | Origin::Environment | Origin::Container)
}

/// The tenant's directory, as the process was started with it.
pub fn ledger_directory() -> Option<&'static core::ffi::CStr> {
    if origin() == Origin::Container {
        return Some(CONTAINER_LEDGER);
    }
    // SAFETY: the bytes end with a zero and do not change once the origin is known.
    let directory = is_tenant().then(|| unsafe { core::ffi::CStr::from_ptr(LEDGER.as_ptr().cast()) })?;
    (!directory.is_empty()).then_some(directory)
}
