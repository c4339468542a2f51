//! Leases of device memory and the keepers that own it, as the daemon shows them.

mod keepers;
mod rented;

pub use keepers::Keepers;
use partita::process::ProcessId;
use partita_memory::TenantName;
use partita_memory::client::Error;
use partita_memory::wire::Code;
use serde::Serialize;
use utoipa::ToSchema;

use crate::caller::Caller;
use crate::problem::{Kind, Problem};

/// The keepers of this machine and their leases.
pub trait Memory: std::fmt::Debug + Send + Sync + 'static {
    /// Every living keeper. Can block for as long as one takes to answer.
    ///
    /// # Errors
    /// Why they are unknown.
    fn keepers(&self) -> Result<Vec<Keeper>, Problem>;

    /// Every lease that is held, and ended ones whose memory is still in quarantine.
    ///
    /// # Errors
    /// Why they are unknown.
    fn leases(&self) -> Result<Vec<Lease>, Problem>;

    /// Leases memory of the keeper with that process for another process, at the request of
    /// `caller`. The lease ends with that process.
    ///
    /// # Errors
    /// [`Kind::NotFound`], [`Kind::Forbidden`],
    /// [`Kind::Conflict`] without room or for a keeper whose handles HTTP
    /// cannot carry; [`Kind::Unavailable`].
    fn lease(&self, caller: Caller, keeper: u32, wanted: &Wanted) -> Result<Held, Problem>;

    /// A lease that [`Memory::lease`] made.
    ///
    /// # Errors
    /// [`Kind::NotFound`], [`Kind::Forbidden`].
    fn held(&self, caller: Caller, keeper: u32, lease: u64) -> Result<Held, Problem>;

    /// Gives back a lease that [`Memory::lease`] made. Ends any other lease of the keeper with that
    /// process, at the request of `caller`.
    ///
    /// # Errors
    /// [`Kind::NotFound`], [`Kind::Forbidden`];
    /// [`Kind::Conflict`] if it has ended already.
    fn take_back(&self, caller: Caller, keeper: u32, lease: u64) -> Result<(), Problem>;

    /// Releases the leases of an owner that has left, and returns how many there were. `force`:
    /// although a process of it lives.
    ///
    /// # Errors
    /// As [`Memory::take_back`]; [`Kind::Conflict`] too for an owner that
    /// lives, or without `force` where it is needed.
    fn disown(&self, caller: Caller, keeper: u32, owner: u64, force: bool) -> Result<u64, Problem>;
}

/// A lease to make.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The process that uses the memory.
    pub process: ProcessId,
    /// Its user.
    pub user: u32,
    /// The tenant of the memory. Processes of one user and tenant share slabs.
    pub tenant: TenantName,
    /// How much, in bytes.
    pub bytes: u64,
}

/// A lease that the daemon holds for a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Held {
    /// The keeper's process.
    pub keeper: u32,
    /// Its number with the keeper.
    pub id: u64,
    /// The process with whose end it ends.
    pub pid: u32,
    /// The tenant of the memory.
    pub tenant: String,
    /// Its size, in bytes.
    pub bytes: u64,
    /// Where it begins in the memory that the handle opens, in bytes.
    pub offset: u64,
    /// The size of the memory that the handle opens, in bytes.
    pub slab_bytes: u64,
    /// The 64 bytes of the handle in hexadecimal, for `cuIpcOpenMemHandle` or
    /// `cudaIpcOpenMemHandle`. Leases of one tenant can have the same one: open it once.
    #[schema(min_length = 128, max_length = 128, pattern = "^[0-9a-f]{128}$")]
    pub handle: String,
}

/// A keeper: the process that owns a GPU's leased memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Keeper {
    /// The GPU: its UUID, or the name of a simulated one.
    pub gpu: String,
    /// The chain whose frames it keeps; null for a keeper that serves any client.
    pub chain: Option<String>,
    /// Its user.
    pub user: u32,
    /// Its process.
    pub pid: u32,
    /// Device memory that it holds, in bytes.
    pub held_bytes: u64,
    /// What of it is leased, in bytes.
    pub leased_bytes: u64,
    /// Leases that are held.
    pub leases: u64,
}

/// A lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Lease {
    /// The GPU: its UUID, or the name of a simulated one.
    pub gpu: String,
    /// The keeper's process.
    pub keeper: u32,
    /// Its number with the keeper.
    pub id: u64,
    /// Its owner's number with the keeper: a connection, or a chain.
    pub owner: u64,
    /// The owner's process; none for a chain.
    pub pid: Option<u32>,
    /// The tenant that holds it, or the process.
    pub holder: String,
    /// Its size, in bytes.
    pub bytes: u64,
    /// How long it still lasts without a heartbeat, in milliseconds; null if it lasts as long as
    /// its holder lives.
    pub left_ms: Option<u64>,
    /// Whether it has ended: its memory rests until no former holder can write to it.
    pub resting: bool,
}

/// A keeper's refusal.
fn told(error: Error) -> Problem {
    let kind = match &error {
        Error::Refused { code: Code::Quota | Code::OutOfMemory | Code::TooMany, .. } => Kind::Conflict,
        Error::Refused { code: Code::Unknown, .. } => Kind::NotFound,
        Error::Refused { code: Code::Bounds, .. } => Kind::Invalid,
        Error::Refused { code: Code::InUse, .. } => Kind::Conflict,
        Error::Refused { code: Code::NotAllowed, .. } => Kind::Forbidden,
        _ => Kind::Unavailable,
    };
    Problem::new(kind, error.to_string())
}
