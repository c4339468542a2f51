//! The tenant that this process belongs to, once it has attached.

use core::sync::atomic::{AtomicPtr, Ordering};

use partita_ledger::{HookState, Limits, LimitsMap, NO_QUOTA, Slot};

use crate::allocations::{Allocations, Kind};
use crate::driver::{DriverCalls, GraphCalls};
use crate::executables::Executables;
use crate::lock::{Guard, Mutex};
use crate::mask::LaunchMask;

/// Null before attaching, [`refused`] after a refusal, else the tenant.
static TENANT: AtomicPtr<Tenant> = AtomicPtr::new(core::ptr::null_mut());

/// An address that no tenant has: marks that attaching was refused.
fn refused() -> *mut Tenant {
    core::ptr::without_provenance_mut(align_of::<Tenant>())
}

/// This process's part in its tenant. Made once and kept for ever, because
/// launches on any thread may be reading it.
pub struct Tenant {
    /// The limits, mapped read-only.
    pub limits: LimitsMap,
    /// This process's slot in the tenant's account.
    pub slot: Slot,
    /// What launches need, ready to use.
    pub mask: LaunchMask,
    /// Compute capability of the GPU, major × 10 + minor.
    pub compute_capability: u32,
    driver: DriverCalls,
    graph_calls: Option<GraphCalls>,
    allocations: Mutex<Allocations>,
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
            tenant.allocations.reset_after_fork();
            tenant.executables.reset_after_fork();
            // The copy is the only use from here on: nobody finds the tenant again.
            core::ptr::read(&tenant.slot).abandon_in_fork_child();
        }
    }
    TENANT.store(core::ptr::null_mut(), Ordering::Release);
}

impl Tenant {
    /// Brings the parts together.
    pub fn new(
        limits: LimitsMap,
        slot: Slot,
        mask: LaunchMask,
        compute_capability: u32,
        driver: DriverCalls,
    ) -> Self {
        Self {
            limits,
            slot,
            mask,
            compute_capability,
            driver,
            graph_calls: GraphCalls::resolve().ok(),
            allocations: Mutex::new(Allocations::new()),
            executables: Mutex::new(Executables::new()),
        }
    }

    /// The memory quota in bytes, `None` without one.
    pub fn quota_bytes(&self) -> Option<u64> {
        // A writer that holds the limits busy does so for microseconds; the
        // bound on the reader is there for one that was made to misbehave, and
        // then the safe answer is that nothing more may be had.
        match self.limits.memory_bytes() {
            Ok((NO_QUOTA, _)) => None,
            Ok((quota_bytes, _)) => Some(quota_bytes),
            Err(_) => Some(0),
        }
    }

    /// Bytes that the tenant's living processes hold together.
    pub fn used_bytes(&self) -> u64 {
        let usage = self.slot.map();
        if usage.used() > self.slot.bytes() {
            // Some are another process's, which may have ended. Without a look
            // at the file the answer is still right as to what can be had now.
            let _ = usage.reap();
        }
        usage.used()
    }

    /// The limits as they are now.
    pub fn limits_now(&self) -> Option<Limits> {
        self.limits.load().ok().map(|(_, limits)| limits)
    }

    /// The driver's calls.
    pub fn driver(&self) -> &DriverCalls {
        &self.driver
    }

    /// The driver's calls that look into graphs, if it has them all.
    pub fn graph_calls(&self) -> Option<&GraphCalls> {
        self.graph_calls.as_ref()
    }

    /// The process's executable graphs, locked.
    pub fn executables(&self) -> Guard<'_, Executables> {
        self.executables.lock()
    }

    /// The process's holdings, locked.
    pub fn allocations(&self) -> Guard<'_, Allocations> {
        self.allocations.lock()
    }

    /// Takes `bytes` from the quota if they fit.
    pub fn reserve(&self, bytes: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        let quota_bytes = self.quota_bytes().unwrap_or(NO_QUOTA);
        self.slot.reserve(bytes, quota_bytes).is_ok()
    }

    /// Gives `bytes` back to the quota.
    pub fn credit(&self, bytes: u64) {
        if bytes > 0 {
            // Fails only for a ledger that was damaged from outside; there is
            // nobody to tell on this path, and the observer sees the damage.
            let _ = self.slot.release(bytes);
        }
    }

    /// Records what the driver gave for bytes already reserved.
    pub fn hold(&self, kind: Kind, handle: u64, bytes: u64) {
        let context = self.driver.current_context();
        let stale_bytes = self.allocations().insert(kind, handle, bytes, context);
        self.credit(stale_bytes);
    }

    /// Reports what the hook has found of itself.
    pub fn report(&self, flags: u32) {
        self.slot.report(HookState { flags, code: 0 });
    }

    /// Credits everything that ended with a context.
    pub fn end_context(&self, context: usize) {
        let bytes = self.allocations().remove_context(context);
        self.credit(bytes);
    }
}
