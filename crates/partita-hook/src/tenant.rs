//! The tenant that this process belongs to, once it has attached.

use alloc::vec::Vec;

use core::sync::atomic::{AtomicPtr, Ordering};
use partita_abi::CuResult;

use crate::allocations::{Allocations, Kind};
use crate::driver::{DriverCalls, GraphCalls, ModuleCalls};
use crate::driver_memory::Charging;
use crate::executables::{self, Executables};
use crate::gate::Gate;
use crate::gpu::{Account, Charge, Gpu};
use crate::locate::{self, PlaceCalls};
use crate::lock::{Guard, Mutex};
use crate::pools::{Pools, Source};
use crate::shares::Shares;
use crate::spill;

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
    /// Held while memory of other processes is opened or closed. Taken before the locks below.
    opening: Mutex<()>,
    /// Taken before the allocations' lock.
    pools: Mutex<Pools>,
    allocations: Mutex<Allocations>,
    /// Taken after the allocations' lock.
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

/// Forgets the parent's tenant in a forked child, which attaches anew if it
/// uses CUDA.
///
/// # Safety
/// Called in the only thread of a forked child.
pub unsafe fn forget_after_fork() {
    if let Some(tenant) = current() {
        // SAFETY: passed on to the caller.
        unsafe {
            tenant.opening.reset_after_fork();
            tenant.pools.reset_after_fork();
            tenant.allocations.reset_after_fork();
            tenant.shares.reset_after_fork();
            tenant.executables.reset_after_fork();
            executables::reset_after_fork();
            // The copies are the only use from here on: nobody finds the tenant again.
            tenant
                .gpus
                .iter()
                .filter_map(|gpu| gpu.gate.as_ref())
                .for_each(|gate| gate.abandon_in_fork_child());
            tenant
                .gpus
                .iter()
                .filter_map(|gpu| gpu.meter.as_ref())
                .for_each(|meter| meter.abandon_in_fork_child());
            tenant.gpus.iter().for_each(|gpu| core::ptr::read(&gpu.slot).abandon_in_fork_child());
        }
    }
    TENANT.store(core::ptr::null_mut(), Ordering::Release);
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
            opening: Mutex::new(()),
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

    /// The right to open and close memory of other processes.
    pub fn opening(&self) -> Guard<'_, ()> {
        self.opening.lock()
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

    /// Whether launches of the tenant go through a gate, or are measured.
    pub fn has_gate(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.gate.is_some() || gpu.meter.is_some())
    }

    /// Whether the tenant has a memory quota on any of its GPUs.
    pub fn has_quota(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.quota_bytes().is_some())
    }

    /// Takes `bytes` from the quota if they fit, once idle memory of this process's pools is given back if need be.
    pub fn reserve(&self, gpu: &Gpu, bytes: u64) -> bool {
        Charging::on(gpu);
        gpu.reserve(bytes) || (self.reclaim(gpu) && gpu.reserve(bytes))
    }

    /// Takes what is to be charged from the quota; not for shared memory.
    pub fn reserve_on(&self, charge: Charge) -> bool {
        self.gpus.get(usize::from(charge.gpu)).is_some_and(|gpu| self.reserve(gpu, charge.bytes))
    }

    /// Tries something that the quota may have no room for, again if idle memory of this process's pools can be
    /// given back.
    ///
    /// # Errors
    /// Those of the last try.
    pub fn with_room<R>(&self, gpu: &Gpu, attempt: impl Fn() -> Result<R, CuResult>) -> Result<R, CuResult> {
        match attempt() {
            Err(CuResult::OUT_OF_MEMORY) if self.reclaim(gpu) => attempt(),
            result => result,
        }
    }

    /// Gives what was charged back: to the quota, to the pool that it came from, or to those who share it.
    pub fn credit(&self, charge: Charge) {
        let Some(gpu) = self.gpus.get(usize::from(charge.gpu)) else { return };
        match charge.account {
            Account::Own => gpu.credit(charge.bytes),
            Account::Pool(pool) => self.pools().give_back(Source::Pool(pool), charge.gpu, charge.bytes),
            Account::Shared(key) => self.leave(gpu, key),
            Account::Host(_) => spill::ended(gpu, charge.bytes),
        }
    }

    /// Records what the driver gave for bytes already reserved.
    pub fn hold(&self, kind: Kind, handle: u64, charge: Charge) {
        let context = self.driver.current_context();
        let stale = self.allocations().insert(kind, handle, charge, context);
        stale.into_iter().for_each(|stale| self.credit(stale));
    }

    /// Reports of every GPU what the hook has found of itself.
    pub fn report(&self, flags: u32) {
        self.gpus.iter().for_each(|gpu| gpu.report(flags));
    }

    /// Credits everything that ended with a context. Its caller keeps [`quiet`](crate::quiet).
    pub fn end_context(&self, context: usize) {
        locate::forget_contexts();
        self.gpus.iter().filter_map(|gpu| gpu.gate.as_ref()).for_each(Gate::context_ended);
        self.gpus.iter().filter_map(|gpu| gpu.meter.as_ref()).for_each(|meter| meter.context_ended(context));
        let mut allocations = self.allocations();
        allocations.remove_context(context, |ended| self.credit(ended));
    }
}
