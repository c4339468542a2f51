//! What a tenant's files say about a process and its GPU.

use partita_host::process::ProcessId;
use partita_host::registry::{GpuMeta, Tenant};
use partita_ledger::SlotInfo;

/// The driver rounds sizes up and keeps memory for contexts, which no account includes. It explains
/// differences below this.
const ROUNDING_BYTES: u64 = 256 << 20;

/// A tenant's GPU, with the name of its directory.
pub(super) fn gpu_of(tenant: &Tenant) -> Option<GpuMeta> {
    Some(GpuMeta { key: tenant.gpu_key.clone(), ..tenant.meta().ok()?.gpu.clone() })
}

/// What a tenant's ledger says about a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Charged {
    /// Charged to the process.
    pub own_bytes: u64,
    /// Charged to memory that processes share; any part of it may be this one's.
    pub shared_bytes: u64,
    /// The driver's allowance in each process; `None` if the limits cannot be read.
    pub allowance_bytes: Option<u64>,
}

impl Charged {
    /// The part of the driver's number that the ledger lacks, unless rounding explains it.
    pub fn missing_bytes(&self, used_bytes: u64) -> Option<u64> {
        let known = self.own_bytes.saturating_add(self.shared_bytes).saturating_add(self.allowance_bytes?);
        Some(used_bytes.saturating_sub(known)).filter(|missing| *missing > ROUNDING_BYTES)
    }
}

/// The charges of a process in a tenant's ledger, if it has a slot there.
pub(super) fn charged(tenant: &Tenant, process: ProcessId) -> Option<Charged> {
    let numbers = process.numbers();
    // In a container, its number differs, but its start time is the same.
    let is_it = |slot: &SlotInfo| {
        slot.live
            && slot.pid > 0
            && slot.start_ticks == process.start_ticks
            && numbers.contains(&slot.pid.unsigned_abs())
    };
    // Another user's file could name any process.
    if process.user() != Some(tenant.user) && !tenant.is_in_container(process) {
        return None;
    }
    let slots: Vec<SlotInfo> = tenant.usage().ok()?.slots().flatten().collect();
    Some(Charged {
        own_bytes: slots.iter().find(|slot| is_it(slot))?.bytes,
        shared_bytes: slots.iter().filter(|slot| slot.shared).map(|slot| slot.bytes).sum(),
        allowance_bytes: tenant.limits.as_ref().ok().map(|limits| limits.driver_allowance_bytes),
    })
}
