//! How much host memory this process has in place of device memory
//! ([`spill`](crate::memory::spill)).

use core::sync::atomic::{AtomicU64, Ordering};

use partita_ledger::GPUS_MAX;

use crate::account::gpu::Gpu;
use crate::sys::fork::in_child;

/// Bytes on each GPU.
static BYTES: [AtomicU64; GPUS_MAX] = [const { AtomicU64::new(0) }; GPUS_MAX];

fn show(gpu: &Gpu, bytes: u64) {
    gpu.slot.show_spilled(bytes);
}

/// Bytes of host memory in place of the device's that this process has.
pub fn bytes() -> u64 {
    BYTES.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
}

/// Notes that there is more of it.
pub fn began(gpu: &Gpu, bytes: u64) {
    if let Some(all) = BYTES.get(usize::from(gpu.index)) {
        show(gpu, all.fetch_add(bytes, Ordering::Relaxed) + bytes);
    }
}

/// Notes that such memory is gone.
pub fn ended(gpu: &Gpu, bytes: u64) {
    if let Some(all) = BYTES.get(usize::from(gpu.index)) {
        show(gpu, all.fetch_sub(bytes, Ordering::Relaxed).saturating_sub(bytes));
    }
}

// Forgets the parent's in a child of `fork`.
in_child! {
    BYTES.iter().for_each(|bytes| bytes.store(0, Ordering::Relaxed));
}
