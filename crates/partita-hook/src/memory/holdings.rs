//! This process's holdings of its tenant's memory: reserved, recorded and credited.
//!
//! # The order of locks
//! An allocation is recorded before the driver is called, and the record is removed if the driver
//! refuses. Plain allocations take only the table's lock. Calls that change who holds something are
//! made one at a time: two threads could otherwise make the driver's changes in one order and
//! record them in the other. Locks are taken in this order:
//!
//! 1. `contexts`: contexts are made and destroyed, and their limits set;
//! 2. `references`: physical memory is made, mapped, retained, released, exported or imported;
//!    memory of other processes is opened or closed;
//! 3. the memory of graphs ([`graph_memory`](crate::memory::graph_memory)): graphs that allocate,
//!    and their executables, are made and destroyed;
//! 4. `pools`: memory is allocated from a pool, or a pool is queried;
//! 5. `allocations`, the table, under which the driver is only queried about an address;
//! 6. `shares`, and the lists of one module.
//!
//! The first four are held across the driver's call. Code that the driver calls (a launch's
//! callback, `ioctl`) takes no lock except that of [`driver_memory`](crate::memory::driver_memory),
//! which comes last.

use partita_abi::CuResult;
use partita_ledger::mutex::{Guard, Mutex};

use crate::account::gpu::{Account, Charge, Gpu};
use crate::account::tenant::Tenant;
use crate::memory::allocations::{self, Holding, Kind, Moment};
use crate::memory::driver_memory::Charging;
use crate::memory::pools::{self, Source};
use crate::memory::{shares, spilled};
use crate::sys::fork::in_child;

static CONTEXTS: Mutex<()> = Mutex::reentrant();
static REFERENCES: Mutex<()> = Mutex::new(());

// Makes the locks usable in a child.
in_child! {
    CONTEXTS.reset_after_fork();
    REFERENCES.reset_after_fork();
}

/// The right to make and end contexts, and to set their limits.
pub fn contexts() -> Guard<'static, ()> {
    CONTEXTS.lock()
}

/// The right to change who holds physical memory, or memory of other processes.
pub fn references() -> Guard<'static, ()> {
    REFERENCES.lock()
}

/// Where an allocation is made: the context that ends it, and a moment before the driver's call.
#[derive(Debug, Clone, Copy)]
pub struct Here {
    context: usize,
    since: Moment,
}

/// Takes `bytes` from the quota if they fit, after releasing idle memory of this process's pools if
/// necessary.
pub fn reserve(tenant: &Tenant, gpu: &Gpu, bytes: u64) -> bool {
    Charging::on(gpu);
    gpu.reserve(bytes) || (pools::reclaim(tenant, gpu) && gpu.reserve(bytes))
}

/// Takes the bytes of a charge from the quota; not for shared memory.
pub fn reserve_on(tenant: &Tenant, charge: Charge) -> bool {
    tenant.gpu(charge.gpu).is_some_and(|gpu| reserve(tenant, gpu, charge.bytes))
}

/// Tries an action for which the quota may have no room, and again if idle memory of this process's
/// pools can be released.
///
/// # Errors
/// Those of the last try.
pub fn with_room<R>(
    tenant: &Tenant,
    gpu: &Gpu,
    attempt: impl Fn() -> Result<R, CuResult>,
) -> Result<R, CuResult> {
    match attempt() {
        Err(CuResult::OUT_OF_MEMORY) if pools::reclaim(tenant, gpu) => attempt(),
        result => result,
    }
}

/// Credits a charge: to the quota, to the pool that it came from, or to the processes that share
/// it.
pub fn credit(tenant: &Tenant, charge: Charge) {
    let Some(gpu) = tenant.gpu(charge.gpu) else { return };
    match charge.account {
        Account::Own => gpu.credit(charge.bytes),
        Account::Pool(pool) => pools::lock().give_back(Source::Pool(pool), charge.gpu, charge.bytes),
        Account::Shared(key) => shares::leave(gpu, key),
        Account::Host(_) => spilled::ended(gpu, charge.bytes),
    }
}

/// Where an allocation is made that the driver is asked for next.
pub fn here(tenant: &Tenant) -> Here {
    // First: a context that ends from now on is noticed.
    let since = allocations::lock().now();
    Here { context: tenant.driver().current_context(), since }
}

/// Records the driver's allocation for bytes already reserved.
pub fn hold(tenant: &Tenant, kind: Kind, handle: u64, charge: Charge, here: Here) {
    let bytes = || match kind {
        Kind::Pointer => tenant.driver().range_of(handle).map(|(_, bytes)| bytes),
        _ => None,
    };
    let mut allocations = allocations::lock();
    // Its context may have ended before it was recorded.
    let has_ended = allocations.has_ended(here.context, here.since);
    if has_ended == Some(true) {
        drop(allocations);
        return credit(tenant, charge);
    }
    let stale = allocations.insert(kind, handle, charge, here.context, bytes);
    drop(allocations);
    stale.into_iter().for_each(|stale| credit(tenant, stale));
    if has_ended.is_none() {
        bury(tenant, kind, handle, tenant.driver().context_is_gone());
    }
}

/// Returns a holding to the table after the driver refused to free it with `code`, or credits it if
/// it ended meanwhile: another thread freed it, or its context ended since the moment at which it
/// was taken out.
pub fn restore(tenant: &Tenant, kind: Kind, handle: u64, holding: Holding, since: Moment, code: CuResult) {
    let mut allocations = allocations::lock();
    let freed = match allocations.has_ended(holding.context, since) {
        Some(true) => Some(holding.charge),
        _ => allocations.restore(kind, handle, holding),
    };
    drop(allocations);
    match freed {
        Some(freed) => credit(tenant, freed),
        None => bury(tenant, kind, handle, code == CuResult::INVALID_HANDLE),
    }
}

/// Credits a holding that no longer exists, for certain or because the driver has no allocation
/// there.
pub fn bury(tenant: &Tenant, kind: Kind, handle: u64, is_gone: bool) {
    let charge = take_dead(tenant, kind, handle, is_gone);
    charge.into_iter().for_each(|charge| credit(tenant, charge));
}

/// As [`bury`], for the caller to credit.
pub fn take_dead(tenant: &Tenant, kind: Kind, handle: u64, is_gone: bool) -> Option<Charge> {
    let mut allocations = allocations::lock();
    let charge = allocations.charge(kind, handle)?;
    let can_ask = matches!(kind, Kind::Pointer | Kind::Opened) && !matches!(charge.account, Account::Host(_));
    if !(is_gone || can_ask && tenant.driver().is_gone(handle)) {
        return None;
    }
    allocations.remove(kind, handle).map(|holding| holding.charge)
}

/// Credits everything that ended with a context. The caller has [`contexts`], so that no other
/// context has its address yet.
pub fn context_ended(tenant: &Tenant, context: usize) {
    allocations::lock().remove_context(context, |ended| credit(tenant, ended));
}
