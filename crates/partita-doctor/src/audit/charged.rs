//! What a tenant's files say of a process and of its GPU.

use partita_host::process::ProcessId;
use partita_host::registry::{GpuMeta, Tenant};
use partita_ledger::SlotInfo;

/// The driver rounds sizes up and keeps memory for contexts, which nothing counts. A difference below
/// this may be that.
const ROUNDING_BYTES: u64 = 256 << 20;

/// A tenant's GPU, with the name of the directory that it is in.
pub(super) fn gpu_of(tenant: &Tenant) -> Option<GpuMeta> {
    Some(GpuMeta { key: tenant.gpu_key.clone(), ..tenant.meta().ok()?.gpu.clone() })
}

/// What a tenant's ledger says of a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Charged {
    /// Charged to the process.
    pub own_bytes: u64,
    /// Charged to memory that processes share; any of it may be this one's.
    pub shared_bytes: u64,
    /// Free of charge for the driver in each process; none if the limits cannot be read.
    pub allowance_bytes: Option<u64>,
}

impl Charged {
    /// What is missing of the memory that the driver counts, where rounding does not explain it.
    pub fn missing_bytes(&self, used_bytes: u64) -> Option<u64> {
        let known = self.own_bytes.saturating_add(self.shared_bytes).saturating_add(self.allowance_bytes?);
        Some(used_bytes.saturating_sub(known)).filter(|missing| *missing > ROUNDING_BYTES)
    }
}

/// What a tenant's ledger charges a process, if it has a slot there.
pub(super) fn charged(tenant: &Tenant, process: ProcessId) -> Option<Charged> {
    let numbers = process.numbers();
    // In a container it has another number, and the same start.
    let is_it = |slot: &SlotInfo| {
        slot.live
            && slot.pid > 0
            && slot.start_ticks == process.start_ticks
            && numbers.contains(&slot.pid.unsigned_abs())
    };
    // Another user's file may name any process.
    if process.user() != Some(tenant.user) {
        return None;
    }
    let slots: Vec<SlotInfo> = tenant.usage().ok()?.slots().flatten().collect();
    Some(Charged {
        own_bytes: slots.iter().find(|slot| is_it(slot))?.bytes,
        shared_bytes: slots.iter().filter(|slot| slot.shared).map(|slot| slot.bytes).sum(),
        allowance_bytes: tenant.limits.as_ref().ok().map(|limits| limits.driver_allowance_bytes),
    })
}
