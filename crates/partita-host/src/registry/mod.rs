//! The tenants of this machine.
//!
//! ```text
//! /dev/shm/partita/               root's, sticky, or one user's alone; PARTITA_RUN_DIR overrides
//!   .lock                         held while its owner's tenants are planned or changed
//!   .queue/17                     a program that waits for room: `partita run --wait`
//!   .mig-MIG-1b2c….lock           locked by the program in a MIG instance
//!   .mig-GPU-1b2c….lock           locked while the GPU's MIG instances change
//!   .mig-GPU-1b2c….json           the instances before a change that is not complete
//!   GPU-1b2c…/                    its owner's tenants on a GPU
//!     .mps-0/                     its owner's MPS service of this GPU
//!     .slo                        locked by the process that moves TPCs for targets
//!     .turns/gate                 by which its owner's tenants wait for each other
//!     train/                      a tenant
//!       limits, usage             the ledger
//!       meta.json                 the program, its user and its start
//!       owner                     locked by `partita run` and by every process it started
//!       holder/socket             where the tenant's holder takes descriptors
//!       slo.json                  how its target stands, and what was moved for it
//!       gpu-1                     of a tenant on several GPUs: a link to its directory on the next
//!   user-1000/                    the same of user 1000
//! ```
//!
//! In system mode only `partitad` makes, changes and removes tenants, for every user:
//!
//! ```text
//! /run/partita/                   root's, mode 755
//!   .system                       marks system mode
//!   .lock                         held while tenants are planned, made, changed or removed
//!   .queue/17                     a program that waits for room, of any user
//!   GPU-1b2c…/.mps-0/             the MPS service of this GPU, for every user
//!   user-1000/                    root's too; only user 1000 can enter it, and cannot write in it
//!     GPU-1b2c…/train/            of user 1000, who owns `usage`, `time` and `owner`
//! ```
//!
//! A directory and all of its content belong to one user, and only that user makes, changes and
//! removes entries there: even root does not touch another user's. The kernel reports the owner of
//! an open directory (`dir`). Others may read `limits`, `meta.json` and `owner`, to plan beside the
//! tenant and to see that it is alive. They cannot open the files that the tenant's processes lock
//! and map.
//!
//! A tenant is alive while its `owner` file is locked for writing or a process holds a slot of its
//! ledger. The kernel releases both with the last process, so its user's next command recognises
//! and removes what a killed `partita run` leaves. A tenant appears and disappears by one rename,
//! so that readers never see half of one. A tenant on several GPUs has such a directory on each,
//! all made or none under the lock; it is alive while any of them is.

mod dir;
mod elastic;
mod layout;
mod lock;
pub(crate) mod memory;
mod mig_lock;
mod name;
mod owned;
mod queue;
mod root;
mod steered;
mod task_slots;
mod tenant;
#[cfg(test)]
mod tests;
mod user;
mod waiter;

pub use self::layout::{CDI_KIND, DEFAULT_ROOT, LEDGER_VARIABLE, SYSTEM_ROOT, c_path, only_the_daemon};
pub(crate) use self::layout::{CONTAINER_DIR, container_dir};
pub use self::lock::RegistryLock;
pub use self::name::check_name;
pub(crate) use self::owned::TMPFS;
pub use self::owned::{NewPart, OwnedTenant};
pub use self::root::Registry;
pub(crate) use self::steered::{SLO_RECORD, SLO_RECORD_BYTES_MAX, Turn as ControlTurn};
pub(crate) use self::tenant::boot;
pub use self::tenant::{GpuMeta, Isolation, META_VERSION, Meta, Origin, SimMeta, Tenant};
pub use self::user::act_for;
pub(crate) use self::user::{acting_user, acts_for_user};
pub(crate) use self::waiter::{Waiter, ahead, now_unix_s};
