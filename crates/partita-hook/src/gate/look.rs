//! What the hook's threads look at.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::account::tenant::Tenant;
use crate::gate::{lanes, slices};
use crate::holder::{deliver, fences};
use crate::persistent::pool;
use crate::slots;
use crate::sys::clock::now_ns;
use crate::sys::fork::in_child;
use crate::sys::watcher;
use crate::time::{meter, watch};

/// How often it is seen whether the tenant's holder still is there, in nanoseconds.
const HOLDER_LOOK_NS: u64 = 500_000_000;

/// The tenant; stays when the process is refused later, for what waits by then must be let go on.
static TENANT: AtomicPtr<Tenant> = AtomicPtr::new(core::ptr::null_mut());

// Forgets the parent's tenant.
in_child! {
    TENANT.store(core::ptr::null_mut(), Ordering::Relaxed);
}

/// Has the threads look at this tenant, once they are started.
pub fn prepare(tenant: &'static Tenant) {
    TENANT.store(core::ptr::from_ref(tenant).cast_mut(), Ordering::Release);
    watcher::RELEASES.prepare(look);
    watcher::COMMANDS.prepare(put_commands);
}

fn tenant() -> Option<&'static Tenant> {
    // SAFETY: null, or stored by prepare().
    unsafe { TENANT.load(Ordering::Acquire).as_ref() }
}

fn put_commands() -> Option<u64> {
    /// When the holder was looked for last.
    static HOLDER_NS: AtomicU64 = AtomicU64::new(0);
    let tenant = tenant()?;
    meter::mark_paused(tenant);
    let now_ns = now_ns();
    if now_ns.saturating_sub(HOLDER_NS.load(Ordering::Relaxed)) > HOLDER_LOOK_NS {
        HOLDER_NS.store(now_ns, Ordering::Relaxed);
        deliver::keep(tenant);
    }
    [fences::look(tenant, meter::is_gate_open()), pool::look(tenant)].into_iter().flatten().min()
}

fn look() -> Option<u64> {
    let tenant = tenant()?;
    // The gate is opened first: others wait for that.
    let (lanes, time) = (lanes::look(), watch::look(tenant));
    let presences = tenant.gpus().iter().filter_map(|gpu| gpu.presence.as_ref());
    let borrowed = presences.filter_map(|presence| presence.look()).min();
    let next = [lanes, time, slots::watch::look(now_ns()), borrowed];
    let next = next.into_iter().flatten().min();
    // A process has its slices on all of its GPUs together.
    slices::shorten(lanes::gives_way(tenant));
    next
}
