//! `partita_step`: a program names its own unit of work.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::account::tenant;
use crate::sys::clock::now_ns;
use crate::sys::fork::in_child;

/// When the last step ended, on the monotonic clock in nanoseconds; 0 before the first call.
static LAST_NS: AtomicU64 = AtomicU64::new(0);

// The child's first step does not begin in its parent.
in_child! {
    LAST_NS.store(0, Ordering::Relaxed);
}

/// `void partita_step(void)`: a step of the program has ended, and the next one begins. The time
/// since the call before, of any thread, is counted for the tenant. Outside of a tenant, and before
/// the process has initialised CUDA, the call does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn partita_step() {
    let Some(tenant) = tenant::current() else { return };
    let now_ns = now_ns();
    let last_ns = LAST_NS.swap(now_ns, Ordering::Relaxed);
    if last_ns != 0 {
        tenant.first().slot.count_step(now_ns.saturating_sub(last_ns));
    }
}
