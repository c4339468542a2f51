//! The shared-memory files of a tenant.
//!
//! A tenant on one GPU is a directory with two files. The [`limits`](LIMITS_FILE_NAME) file holds
//! the tenant's limits; its owner writes it ([`LimitsFile`]) and every process of the tenant maps
//! it read-only ([`LimitsMap`]). The [`usage`](USAGE_FILE_NAME) file holds its use; every process
//! of the tenant maps it writable ([`UsageMap`]), claims a [`Slot`] and accounts its memory there,
//! and any process that may read the file observes it without mapping it ([`UsageView`]).
//!
//!
//! A tenant with a share of the GPU's time has a third one, [`time`](TIME_FILE_NAME): its gate and
//! its account of time ([`TimeMap`]).
//!
//! # What keeps it right
//! * Limits are a double buffer with an epoch: a reader gets one whole version, and a dead writer
//!   blocks no process (`epoch.rs`).
//! * A lock-free algorithm accounts bytes; it is exact at every instruction at which a process may
//!   die (`account.rs`).
//! * The owner of a slot holds an open-file-description lock on its bytes; the kernel releases it
//!   with the process (`lock.rs`).
//!
//! # Who trusts whom
//! The tenant trusts its owner: the directory's permissions decide who can write, shrink or replace
//! the limits file. The owner does not trust the tenant: a [`UsageView`] and [`Limits::read`] never
//! map a file, so that a truncated file cannot kill the observer with a SIGBUS, and no content
//! makes a reader panic or loop. Files are created at their full size with all blocks allocated,
//! and Partita never shrinks them, so a mapping stays valid once its size was checked; a tenant
//! that shrinks its own usage file harms only its own processes.
#![no_std]
#![deny(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(loom)]
pub mod account;
#[cfg(not(loom))]
mod account;
#[cfg(loom)]
pub mod claims;
#[cfg(not(loom))]
mod claims;
#[cfg(loom)]
pub mod epoch;
#[cfg(not(loom))]
mod epoch;
#[cfg(loom)]
pub mod sync;
#[cfg(not(loom))]
mod sync;

// Files are mapped, which a model's atomics do not support.
#[cfg(not(loom))]
mod elastic;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod file;
#[cfg(not(loom))]
mod flight;
#[cfg(not(loom))]
mod forked;
#[cfg(not(loom))]
mod gate;
#[cfg(not(loom))]
mod header;
#[cfg(not(loom))]
mod limits;
#[cfg(not(loom))]
mod limits_file;
#[cfg(not(loom))]
mod lock;
#[cfg(not(loom))]
mod mapped;
#[cfg(not(loom))]
pub mod mutex;
#[cfg(not(loom))]
mod partition;
#[cfg(not(loom))]
mod peer;
#[cfg(loom)]
pub mod record;
#[cfg(not(loom))]
mod record;
#[cfg(not(loom))]
mod time_file;
#[cfg(not(loom))]
mod usage;
#[cfg(not(loom))]
mod view;

#[cfg(not(loom))]
pub use self::{
    account::{SLOTS, Totals},
    elastic::{ELASTIC_FILE_BYTES, ELASTIC_FILE_NAME, ElasticMap, RECORDS},
    error::{Errno, LedgerError, LimitsFault, Problem},
    file::At,
    flight::{FENCES, FLIGHT_BYTES, Fence, Flight, FlightPage, round_pause_ns},
    gate::{GATE_FILE_BYTES, GATE_FILE_NAME, GATE_LANES, GateMap, Lane, OPEN},
    limits::{
        DRIVER_ALLOWANCE_BYTES, DRIVER_ALLOWANCES, FLAG_ALL_TASK_SLOTS, FLAG_GATED, FLAG_GPCS_UNPROVED,
        FLAG_LENDS, FLAG_MEMORY_REST, FLAG_ON_MISFIT_WIDEN, FLAG_SM_COUNT_PARTITION, FLAG_SPILL_HOST,
        FLAG_TIME_SOFT, FLAG_TIME_TOKENS, FLAG_TIMED, FLAG_TURNS, Limits, MECHANISM_MASK, MECHANISM_NONE,
        MECHANISM_PERSISTENT, NAME_BYTES_MAX, NO_QUOTA, OnMisfit, SmCount, Spill, TaskSlots,
    },
    limits_file::{LIMITS_FILE_BYTES, LIMITS_FILE_NAME, LimitsBusy, LimitsFile, LimitsMap},
    lock::{is_locked_alone, is_locked_elsewhere, lock_alone},
    peer::SocketPeer,
    time_file::{Seat, TIME_FILE_BYTES, TIME_FILE_NAME, TIME_PAGE_BYTES, TIME_WORDS, TimeMap, TimeView},
    usage::{
        AccountError, HookState, Key, LAUNCH_COUNTERS, Owner, PROCESS_SLOTS, Pace, Share, Slot,
        USAGE_FILE_BYTES, USAGE_FILE_NAME, UsageMap, Waited,
    },
    view::{SlotInfo, UsageView},
};

/// Used also for other files that several processes map.
#[cfg(not(loom))]
pub mod shared {
    pub use crate::epoch::DoubleBuffer;
    pub use crate::file::{Access, Fd, unlink};
    pub use crate::forked::Process;
    pub use crate::header::{Header, Kind};
    pub use crate::lock::{is_locked, sleep, try_lock, unlock};
    pub use crate::mapped::MappedFile;
    pub use crate::sync::{Word, acquire, see_each_other};
}

/// A tenant on several GPUs has a directory with both files for each. The directory of its first
/// GPU has links to the others, whose names are this and 1, 2 and so on.
pub const GPU_LINK_PREFIX: &str = "gpu-";

/// The environment variable with the directory of a process's tenant.
pub const LEDGER_VARIABLE: &core::ffi::CStr = c"PARTITA_LEDGER";

/// The socket in a tenant's directory on which its holder takes descriptors; missing if the tenant
/// has no holder.
pub const HOLDER_SOCKET_NAME: &core::ffi::CStr = c"holder/socket";
/// The version of the message that comes with them.
pub const HOLDER_MESSAGE_VERSION: u32 = 2;
/// The most descriptors that come with one message, by the kernel's limit.
pub const HOLDER_DESCRIPTORS_MAX: usize = 253;

/// The largest number of GPUs of a tenant.
pub const GPUS_MAX: usize = 32;

/// The version of both files' layout.
pub const LAYOUT_VERSION: u32 = 7;
