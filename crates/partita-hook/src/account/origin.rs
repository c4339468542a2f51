//! How this process came to belong to a tenant, if it does.

use alloc::ffi::CString;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use partita_ledger::LEDGER_VARIABLE;

use crate::account::environment;
use crate::sys::fork::in_child;

/// [`Origin`] by its number; 0 before the first look.
static ORIGIN: AtomicU8 = AtomicU8::new(0);
/// A copy of the directory's name, so that nothing is allocated in a process that never uses it.
/// Empty if no ledger was named, or if the name is too long for a path.
static LEDGER: [AtomicU8; libc::PATH_MAX as usize] = [const { AtomicU8::new(0) }; libc::PATH_MAX as usize];

/// Whether the environment named a ledger, even if by an empty name.
static IS_NAMED: AtomicBool = AtomicBool::new(false);

/// The tenant's directory on its first GPU in a container.
pub const CONTAINER_LEDGER: &CStr = c"/usr/local/partita/gpu/0/tenant";

/// The run directory in system mode, and the socket of `partitad` in it.
const SYSTEM_RUN_DIR: &CStr = c"/run/partita";
const SYSTEM_SOCKET: &[u8] = b"/.system.sock";

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
    /// It belongs to no tenant, and `partitad` has yet to say whether the site limits it
    /// ([`outside`](crate::session::outside)).
    Unasked = 6,
    /// `partitad` has made it part of a tenant, by the policy of the site.
    Outside = 7,
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
        6 => Origin::Unasked,
        7 => Origin::Outside,
        4 => {
            // The container's mounts count, whatever its programs set in their environment.
            let decided = if is_container() {
                Origin::Container
            } else if IS_NAMED.load(Ordering::Relaxed) {
                Origin::Ledger
            } else if environment::is_tenant() {
                Origin::Environment
            } else if may_be_limited() {
                Origin::Unasked
            } else {
                Origin::NoTenant
            };
            // Another thread may have decided and gone on from there.
            match ORIGIN.compare_exchange(4, decided as u8, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => decided,
                Err(_) => origin(),
            }
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
    // SAFETY: a plain call. The user who starts a program with more rights than the user's own
    // chooses its environment, and may not choose what it opens with these rights.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        ORIGIN.store(Origin::NoTenant as u8, Ordering::Release);
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
        // Two threads that come here at once write the same bytes.
        keep(directory);
        IS_NAMED.store(true, Ordering::Relaxed);
    }
    // Whether this is a container is asked of the file system only if the process uses CUDA.
    ORIGIN.store(Origin::Undecided as u8, Ordering::Release);
}

/// Keeps the name of the ledger's directory. The last byte stays zero.
fn keep(directory: &[u8]) {
    let bytes = if directory.len() < LEDGER.len() { directory } else { &[] };
    let zeros = core::iter::repeat(&0);
    LEDGER.iter().zip(bytes.iter().chain(zeros)).for_each(|(to, &byte)| to.store(byte, Ordering::Relaxed));
}

/// Whether the site may limit this program, which no tenant was made for: the machine is in system
/// mode, and the program is no service of the system's.
fn may_be_limited() -> bool {
    // SAFETY: a plain call, and a valid path.
    unsafe { libc::geteuid() != 0 && libc::access(system_socket().as_ptr(), libc::F_OK) == 0 }
}

/// Where `partitad` takes requests in system mode.
pub fn system_socket() -> CString {
    let named = partita_driver::files::variable(c"PARTITA_RUN_DIR");
    let directory = named.as_ref().map_or(SYSTEM_RUN_DIR.to_bytes(), |named| named.as_bytes());
    CString::new([directory, SYSTEM_SOCKET].concat()).unwrap_or_default()
}

/// Stores what `partitad` has said of a program that no tenant was made for: the directory of its
/// tenant, empty if the program is refused; or that it has none.
pub fn settle(directory: Option<&[u8]>) {
    keep(directory.unwrap_or_default());
    IS_INHERITED.store(false, Ordering::Relaxed);
    let settled = if directory.is_some() { Origin::Outside } else { Origin::NoTenant };
    ORIGIN.store(settled as u8, Ordering::Release);
}

/// Whether a child of `fork` has the answer that its parent got.
static IS_INHERITED: AtomicBool = AtomicBool::new(false);

// The parent, and with it the tenant, may have ended by the time at which the child uses the GPU.
in_child! {
    IS_INHERITED.store(true, Ordering::Relaxed);
}

/// Whether `partitad` is to be asked whether the site limits this program.
pub fn is_to_be_asked() -> bool {
    match origin() {
        Origin::Unasked => true,
        Origin::Outside => IS_INHERITED.load(Ordering::Relaxed),
        _ => false,
    }
}

/// Whether this process is part of a tenant.
pub fn is_tenant() -> bool {
    matches!(origin(), Origin::Ledger | Origin::Environment | Origin::Container | Origin::Outside)
}

/// Whether this process is part of a tenant, or may be from its `cuInit` on. What it gets of the
/// driver before must lead to the hook, too.
pub fn may_be_tenant() -> bool {
    is_tenant() || origin() == Origin::Unasked
}

/// The tenant's directory, as the process was started with it or `partitad` has named it.
pub fn ledger_directory() -> Option<&'static core::ffi::CStr> {
    if origin() == Origin::Container {
        return Some(CONTAINER_LEDGER);
    }
    // SAFETY: the bytes end with a zero and do not change once the process is a tenant's.
    let directory = is_tenant().then(|| unsafe { core::ffi::CStr::from_ptr(LEDGER.as_ptr().cast()) })?;
    (!directory.is_empty()).then_some(directory)
}
