//! How many task slots this process has on a GPU: its part in its tenant's share.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use partita_core::task_slots;
use partita_ledger::GPUS_MAX;
use partita_ledger::mutex::Mutex;

use crate::account::gpu::Gpu;
use crate::sys::fork::in_child;

/// No limit: the tenant has no neighbours, or its GPU's slots were not measured.
pub const NONE: u32 = u32::MAX;

/// What was found last on a GPU.
struct Known {
    version: AtomicU64,
    slots: AtomicU32,
}

static KNOWN: [Known; GPUS_MAX] =
    [const { Known { version: AtomicU64::new(u64::MAX), slots: AtomicU32::new(NONE) } }; GPUS_MAX];
static LOOKING: Mutex<()> = Mutex::new(());

// A child reads them itself.
in_child! {
    LOOKING.reset_after_fork();
    KNOWN.iter().for_each(|known| known.version.store(u64::MAX, Ordering::Relaxed));
}

/// Changes whenever the tenant's share or the number of its processes may have changed. Both parts
/// only grow. Two loads.
#[inline]
pub fn version(gpu: &Gpu) -> u64 {
    gpu.limits.epoch().wrapping_add(gpu.slot.map().claims())
}

/// The process's slots, and the [`version`] for which that holds.
pub fn slots(gpu: &Gpu) -> (u32, u64) {
    let version = version(gpu);
    let Some(known) = KNOWN.get(usize::from(gpu.index)) else { return (NONE, version) };
    if known.version.load(Ordering::Acquire) != version {
        look(gpu, known, version);
    }
    (known.slots.load(Ordering::Relaxed), version)
}

#[cold]
fn look(gpu: &Gpu, known: &Known, version: u64) {
    // A second thread continues with the old value.
    let Some(_looking) = LOOKING.try_lock() else { return };
    // Limits that change too fast to be read are read at the next launch.
    let Ok(share) = gpu.limits.task_slots() else { return };
    let slots = match share {
        0 => NONE,
        // If the processes cannot be counted, this one takes the whole share.
        share => task_slots::of_process(share, gpu.slot.map().processes().unwrap_or(1)),
    };
    known.slots.store(slots, Ordering::Relaxed);
    known.version.store(version, Ordering::Release);
}
