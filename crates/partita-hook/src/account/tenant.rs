//! The tenant that this process belongs to, once it has attached.

use alloc::vec::Vec;

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};

use partita_ledger::{Key, UsageView};

use crate::account::gpu::Gpu;
use crate::driver::calls::{DriverCalls, GraphCalls, ModuleCalls};
use crate::driver::capture;
use crate::driver::places::PlaceCalls;
use crate::driver::stream::PER_THREAD;
use crate::sys::fork::in_child;

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
    /// The tenant's accounts on GPUs that the process does not see.
    unseen: Vec<UsageView>,
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

/// The tenant, if its kernels keep to its SMs by themselves
/// ([`persistent`](crate::persistent)).
#[inline]
pub fn persistent() -> Option<&'static Tenant> {
    current().filter(|tenant| tenant.first().is_persistent)
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

// Forgets the parent's tenant in a forked child, which attaches again if it uses CUDA.
in_child! {
    if let Some(tenant) = current() {
        // The copies are the only use from here on: no lookup finds the tenant again.
        for gpu in &tenant.gpus {
            core::ptr::read(&gpu.slot).abandon_in_fork_child();
            if let Some(presence) = core::ptr::read(&gpu.presence) {
                presence.map.abandon_in_fork_child();
            }
        }
    }
    TENANT.store(core::ptr::null_mut(), Ordering::Release);
}

impl Tenant {
    /// Brings the parts together. With several GPUs there is what tells them apart. `unseen` are
    /// the tenant's accounts on GPUs that the process does not see.
    pub fn new(
        gpus: Vec<Gpu>,
        compute_capability: u32,
        driver: DriverCalls,
        places: Option<PlaceCalls>,
        unseen: Vec<UsageView>,
    ) -> Self {
        Self {
            gpus,
            compute_capability,
            driver,
            places,
            graph_calls: GraphCalls::resolve().ok(),
            module_calls: ModuleCalls::resolve().ok(),
            unseen,
        }
    }

    /// The GPUs that the process sees, by the driver's ordinals.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// The GPU with an [index](Gpu::index).
    pub fn gpu(&self, index: u8) -> Option<&Gpu> {
        self.gpus.get(usize::from(index))
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

    /// Whether shared memory of this key is charged on one of the tenant's GPUs that the process
    /// does not see.
    pub fn is_charged_unseen(&self, key: Key) -> bool {
        self.unseen.iter().any(|usage| usage.has_shared(key))
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

    /// Whether a launch in the stream is captured rather than run: null may mean the thread's own.
    pub fn is_captured(&self, stream: *mut c_void) -> bool {
        if !capture::is_any() {
            return false;
        }
        let asked = if stream.is_null() { core::ptr::without_provenance_mut(PER_THREAD) } else { stream };
        self.driver.is_capturing(asked)
    }

    /// Whether launches carry a mask on any of the GPUs.
    pub fn is_masked(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.mask.is_some())
    }

    /// Whether the tenant has a memory quota on any of its GPUs.
    pub fn has_quota(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.quota_bytes().is_some())
    }

    /// Reports of every GPU what the hook has found of itself.
    pub fn report(&self, flags: u32) {
        self.gpus.iter().for_each(|gpu| gpu.report(flags));
    }
}
