//! The tenants of this machine.
//!
//! ```text
//! /dev/shm/partita/               root's, sticky, or one user's alone; PARTITA_RUN_DIR overrides
//!   .lock                         held while its owner's tenants are planned or changed
//!   GPU-1b2c…/                    its owner's tenants on a GPU
//!     .mps-0/                     its owner's MPS service of this GPU
//!     train/                      a tenant
//!       limits, usage             the ledger
//!       meta.json                 who runs what, since when
//!       owner                     locked by `partita run` and by every process it started
//!       gpu-1                     of a tenant on several GPUs: a link to its directory on the next
//!   user-1000/                    the same of user 1000
//! ```
//!
//! In system mode `partitad` alone makes, changes and removes tenants, of every user:
//!
//! ```text
//! /run/partita/                   root's, mode 755
//!   .system                       says that it is in system mode
//!   .lock                         held while tenants are planned, made, changed or removed
//!   GPU-1b2c…/.mps-0/             the MPS service of this GPU, for every user
//!   user-1000/                    root's too; only user 1000 can enter it, and cannot write in it
//!     GPU-1b2c…/train/            of user 1000, who owns `usage`, `time` and `owner`
//! ```
//!
//! A directory belongs to one user with all that is in it, and only that user makes, changes and
//! removes entries there: root too leaves alone what is another user's. Whose a directory is the
//! kernel says of the open one (`dir`). Others may read `limits`, `meta.json` and `owner`, to plan
//! beside the tenant and to see that it lives. They cannot open what the tenant's processes lock
//! and map.
//!
//! A tenant lives while its `owner` file is locked for writing or a process holds a slot
//! of its ledger. The kernel drops both with the last process, so what a
//! killed `partita run` leaves is recognised and removed by its user's next command.
//! A tenant appears and goes by one rename: nobody sees half of one. A tenant on
//! several GPUs has such a directory on each, all made or none under the lock;
//! it lives while any of them does.

mod dir;
mod layout;
mod lock;
mod name;
mod owned;
mod root;
mod task_slots;
mod tenant;
#[cfg(test)]
mod tests;
mod user;

pub use self::layout::{DEFAULT_ROOT, LEDGER_VARIABLE, SYSTEM_ROOT, c_path, only_the_daemon};
pub use self::lock::RegistryLock;
pub use self::name::check_name;
pub use self::owned::{NewPart, OwnedTenant};
pub use self::root::Registry;
pub use self::tenant::{GpuMeta, Isolation, META_VERSION, Meta, SimMeta, Tenant};
pub(crate) use self::user::{act_for, acting_user};
