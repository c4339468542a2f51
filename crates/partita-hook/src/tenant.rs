//! The tenant that this process belongs to, once it has attached.
//!
//! # The order of locks
//! What a call takes is noted before the driver is asked, and taken back if the driver refuses.
//! Plain allocations take no lock but the table's. Calls that change who holds something are made
//! one at a time: two threads could otherwise make the driver's changes in one order and note them
//! in the other. Locks are taken in this order:
//!
//! 1. `contexts`: contexts are made and ended, and their limits set;
//! 2. `references`: physical memory is made, mapped, retained, released, exported or imported;
//!    memory of other processes is opened or closed;
//! 3. the memory of graphs ([`graph_memory`](crate::graph_memory)): graphs that allocate, and their
//!    executables, are made and ended;
//! 4. `pools`: memory is allocated from a pool, or a pool is looked at;
//! 5. `allocations`, the table, under which the driver is asked what it has at an address, and no
//!    more;
//! 6. `shares`, and the lists of one module.
//!
//! The first four are held across the driver's call. No lock is held by what the driver calls (a
//! launch's callback, `ioctl`), but for that of [`driver_memory`](crate::driver_memory), which
//! comes last.

use alloc::vec::Vec;

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use partita_abi::CuResult;

use crate::account::{Account, Charge, Gpu};
use crate::allocations::{Allocations, Kind};
use crate::driver::{DriverCalls, GraphCalls, ModuleCalls};
use crate::driver_memory::Charging;
use crate::executables::Executables;
use crate::fork::in_child;
use crate::gate::lanes;
use crate::locate;
use crate::places::PlaceCalls;
use crate::pools::{Pools, Source};
use crate::shares::Shares;
use crate::spill;
use crate::time::meter;
use partita_ledger::mutex::{Guard, Mutex};

/// Null before attaching, [`refused`] after a refusal, else the tenant.
static TENANT: AtomicPtr<Tenant> = AtomicPtr::new(core::ptr::null_mut());

/// An address that no tenant has: marks that attaching was refused.
fn refused() -> *mut Tenant {
    core::ptr::without_provenance_mut(align_of::<Tenant>())
}

/// This process's part in its tenant. Made once and kept for ever, because
/// launches on any thread may be reading it.
pub struct Tenant {
    /// The GPUs that the process sees, by the driver's ordinals. At least one.
    gpus: Vec<Gpu>,
    /// Compute capability of the GPUs, major × 10 + minor.
    pub compute_capability: u32,
    driver: DriverCalls,
    /// What tells the GPUs apart where there are several.
    places: Option<PlaceCalls>,
    graph_calls: Option<GraphCalls>,
    module_calls: Option<ModuleCalls>,
    contexts: Mutex<()>,
    /// How many contexts have ended.
    contexts_ended: AtomicU64,
    references: Mutex<()>,
    pools: Mutex<Pools>,
    allocations: Mutex<Allocations>,
    shares: Mutex<Shares>,
    executables: Mutex<Executables>,
}

/// The tenant, if the process has attached to it.
#[inline]
pub fn current() -> Option<&'static Tenant> {
    let tenant = TENANT.load(Ordering::Acquire);
    if tenant.is_null() || tenant == refused() {
        return None;
    }
    // SAFETY: publish() stored a leaked Tenant.
    Some(unsafe { &*tenant })
}

/// Whether the process tried to attach and its limits could not be enforced.
pub fn is_refused() -> bool {
    TENANT.load(Ordering::Acquire) == refused()
}

/// Makes the tenant known to every thread.
pub fn publish(tenant: &'static Tenant) {
    TENANT.store(core::ptr::from_ref(tenant).cast_mut(), Ordering::Release);
}

/// Marks the process as one that must not use the GPU.
pub fn refuse() {
    TENANT.store(refused(), Ordering::Release);
}

in_child!(forget_after_fork);

/// Forgets the parent's tenant in a forked child, which attaches anew if it
/// uses CUDA.
///
/// # Safety
/// Called in the only thread of a forked child.
unsafe fn forget_after_fork() {
    if let Some(tenant) = current() {
        // SAFETY: passed on to the caller.
        unsafe {
            tenant.contexts.reset_after_fork();
            tenant.references.reset_after_fork();
            tenant.pools.reset_after_fork();
            tenant.allocations.reset_after_fork();
            tenant.shares.reset_after_fork();
            tenant.executables.reset_after_fork();
            // The copies are the only use from here on: nobody finds the tenant again.
            tenant.gpus.iter().for_each(|gpu| core::ptr::read(&gpu.slot).abandon_in_fork_child());
        }
    }
    TENANT.store(core::ptr::null_mut(), Ordering::Release);
}

/// Where an allocation is made: the context that ends it, and how many had ended before.
#[derive(Debug, Clone, Copy)]
pub struct Here {
    context: usize,
    contexts_ended: u64,
}

impl Tenant {
    /// Brings the parts together. With several GPUs there is what tells them apart.
    pub fn new(
        gpus: Vec<Gpu>,
        compute_capability: u32,
        driver: DriverCalls,
        places: Option<PlaceCalls>,
    ) -> Self {
        Self {
            gpus,
            compute_capability,
            driver,
            places,
            graph_calls: GraphCalls::resolve().ok(),
            module_calls: ModuleCalls::resolve().ok(),
            contexts: Mutex::reentrant(),
            contexts_ended: AtomicU64::new(0),
            references: Mutex::new(()),
            pools: Mutex::new(Pools::new()),
            allocations: Mutex::new(Allocations::new()),
            shares: Mutex::new(Shares::new()),
            executables: Mutex::new(Executables::new()),
        }
    }

    /// The GPUs that the process sees, by the driver's ordinals.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// The first of them, which is the only one unless there is a way to tell several apart.
    #[inline]
    pub fn first(&self) -> &Gpu {
        &self.gpus[0]
    }

    /// What tells several GPUs apart; none where the process sees one.
    #[inline]
    pub fn places(&self) -> Option<&PlaceCalls> {
        self.places.as_ref()
    }

    /// The driver's calls.
    pub fn driver(&self) -> &DriverCalls {
        &self.driver
    }

    /// The driver's calls that look into graphs, if it has them all.
    pub fn graph_calls(&self) -> Option<&GraphCalls> {
        self.graph_calls.as_ref()
    }

    /// The driver's calls that look into modules, if it has them all.
    pub fn module_calls(&self) -> Option<&ModuleCalls> {
        self.module_calls.as_ref()
    }

    /// The process's executable graphs, locked.
    pub fn executables(&self) -> Guard<'_, Executables> {
        self.executables.lock()
    }

    /// The process's holdings, locked.
    pub fn allocations(&self) -> Guard<'_, Allocations> {
        self.allocations.lock()
    }

    /// The right to make and end contexts, and to set their limits.
    pub fn contexts(&self) -> Guard<'_, ()> {
        self.contexts.lock()
    }

    /// The right to change who holds physical memory, or memory of other processes.
    pub fn references(&self) -> Guard<'_, ()> {
        self.references.lock()
    }

    /// What the process's pools keep, locked.
    pub fn pools(&self) -> Guard<'_, Pools> {
        self.pools.lock()
    }

    /// The process's shares, locked.
    pub fn shares(&self) -> Guard<'_, Shares> {
        self.shares.lock()
    }

    /// Whether launches carry a mask on any of the GPUs.
    pub fn is_masked(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.mask.is_some())
    }

    /// Whether the tenant has a memory quota on any of its GPUs.
    pub fn has_quota(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.quota_bytes().is_some())
    }

    /// Takes `bytes` from the quota if they fit, once idle memory of this process's pools is given
    /// back if need be.
    pub fn reserve(&self, gpu: &Gpu, bytes: u64) -> bool {
        Charging::on(gpu);
        gpu.reserve(bytes) || (self.reclaim(gpu) && gpu.reserve(bytes))
    }

    /// Takes what is to be charged from the quota; not for shared memory.
    pub fn reserve_on(&self, charge: Charge) -> bool {
        self.gpus.get(usize::from(charge.gpu)).is_some_and(|gpu| self.reserve(gpu, charge.bytes))
    }

    /// Tries something that the quota may have no room for, again if idle memory of this process's
    /// pools can be given back.
    ///
    /// # Errors
    /// Those of the last try.
    pub fn with_room<R>(&self, gpu: &Gpu, attempt: impl Fn() -> Result<R, CuResult>) -> Result<R, CuResult> {
        match attempt() {
            Err(CuResult::OUT_OF_MEMORY) if self.reclaim(gpu) => attempt(),
            result => result,
        }
    }

    /// Gives what was charged back: to the quota, to the pool that it came from, or to those who
    /// share it.
    pub fn credit(&self, charge: Charge) {
        let Some(gpu) = self.gpus.get(usize::from(charge.gpu)) else { return };
        match charge.account {
            Account::Own => gpu.credit(charge.bytes),
            Account::Pool(pool) => self.pools().give_back(Source::Pool(pool), charge.gpu, charge.bytes),
            Account::Shared(key) => self.leave(gpu, key),
            Account::Host(_) => spill::ended(gpu, charge.bytes),
        }
    }

    /// Where an allocation is made that the driver is asked for next.
    pub fn here(&self) -> Here {
        // First: a context that ends from now on is noticed.
        let contexts_ended = self.contexts_ended.load(Ordering::Acquire);
        Here { context: self.driver.current_context(), contexts_ended }
    }

    /// Records what the driver gave for bytes already reserved.
    pub fn hold(&self, kind: Kind, handle: u64, charge: Charge, here: Here) {
        let bytes = || match kind {
            Kind::Pointer => self.driver.range_of(handle).map(|(_, bytes)| bytes),
            _ => None,
        };
        let stale = self.allocations().insert(kind, handle, charge, here.context, bytes);
        stale.into_iter().for_each(|stale| self.credit(stale));
        if self.contexts_ended.load(Ordering::Acquire) != here.contexts_ended {
            // Its context may have ended before it was recorded.
            self.bury(kind, handle, self.driver.context_is_gone());
        }
    }

    /// Credits a holding that is there no more, for certain or because the driver has no allocation
    /// there.
    pub fn bury(&self, kind: Kind, handle: u64, is_gone: bool) {
        let charge = self.take_dead(kind, handle, is_gone);
        charge.into_iter().for_each(|charge| self.credit(charge));
    }

    /// As [`Self::bury`], for the caller to credit.
    pub fn take_dead(&self, kind: Kind, handle: u64, is_gone: bool) -> Option<Charge> {
        let mut allocations = self.allocations();
        let charge = allocations.charge(kind, handle)?;
        let can_ask =
            matches!(kind, Kind::Pointer | Kind::Opened) && !matches!(charge.account, Account::Host(_));
        if !(is_gone || can_ask && self.driver.is_gone(handle)) {
            return None;
        }
        allocations.remove(kind, handle).map(|holding| holding.charge)
    }

    /// Reports of every GPU what the hook has found of itself.
    pub fn report(&self, flags: u32) {
        self.gpus.iter().for_each(|gpu| gpu.report(flags));
    }

    /// Credits everything that ended with a context. Its caller keeps [`quiet`](crate::quiet) and
    /// has [`contexts`](Self::contexts), so that no other context has its address yet.
    pub fn end_context(&self, context: usize) {
        locate::forget_contexts();
        lanes::context_ended();
        meter::context_ended(context);
        // Before the table is looked through: what is recorded later looks by itself.
        self.contexts_ended.fetch_add(1, Ordering::AcqRel);
        let mut allocations = self.allocations();
        allocations.remove_context(context, |ended| self.credit(ended));
    }
}
