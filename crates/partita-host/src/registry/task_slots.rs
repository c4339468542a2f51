//! Tenants that run at the same time on a GPU divide its task slots, in proportion to their TPCs.
//! They also learn whether they have neighbours, for their copies, and whether they can see all of
//! them, for soft shares of time.
//!
//! Each command that makes, changes or removes a tenant divides them again. It writes the shares
//! that shrink first, so that all shares never add up to more than the slots. In user mode a user's
//! command writes only the shares of that user's tenants: those of other users count in the
//! division, and their own commands write them. In system mode root writes all of them.

use std::collections::BTreeMap;

use partita_core::{TpcSet, task_slots};
use partita_ledger::{Limits, TaskSlots};

use super::tenant::{Isolation, Meta, Tenant};

/// Divides the slots of every GPU among these tenants.
pub(super) fn divide(tenants: &[Tenant]) {
    let mut gpus: BTreeMap<&str, Vec<&Tenant>> = BTreeMap::new();
    for tenant in tenants {
        gpus.entry(&tenant.gpu_key).or_default().push(tenant);
    }
    for tenants in gpus.values() {
        divide_gpu(tenants);
    }
}

fn divide_gpu(tenants: &[&Tenant]) {
    let slots = tenants.iter().find_map(|tenant| tenant.meta().ok()?.task_slots);
    let (sharing, alone): (Vec<&Tenant>, Vec<&Tenant>) =
        tenants.iter().partition(|tenant| is_sharing(tenant));
    let weights: Vec<u32> = sharing.iter().map(|tenant| weight(tenant)).collect();
    let shares = slots.and_then(|slots| task_slots::shares(slots, &weights));
    let shares = shares.unwrap_or_else(|| vec![0; sharing.len()]);
    // 0 means no limit, so it is more than any share.
    let shares = sharing.iter().zip(shares).map(|(tenant, share)| match tenant.limits().map(TaskSlots::of) {
        Ok(TaskSlots::All) => 0,
        _ => share,
    });
    let shares: Vec<u32> = shares.collect();
    let all = sharing.into_iter().zip(shares).chain(alone.into_iter().map(|tenant| (tenant, 0)));
    let grows = |tenant: &Tenant, share: u32| {
        let before = tenant.limits().map_or(0, |limits| limits.task_slots);
        share.wrapping_sub(1) > before.wrapping_sub(1)
    };
    let (larger, smaller): (Vec<_>, Vec<_>) = all.partition(|(tenant, share)| grows(tenant, *share));
    for (tenant, share) in smaller.into_iter().chain(larger) {
        // Also where this process acts for another user, and the tenant is not its own.
        let is_in_containers = tenant.meta.as_ref().is_ok_and(Meta::is_prepared);
        let mut others = tenants.iter().filter(|other| other.counts() && !other.is_of_same(tenant));
        let has_neighbours = others.clone().next().is_some();
        let has_strangers = others.any(|other| is_in_containers || other.user != tenant.user);
        store(tenant, |limits| {
            limits.task_slots = share;
            limits.put_neighbours(has_neighbours);
            limits.put_strangers(has_strangers);
        });
    }
}

/// Whether a tenant's kernels run beside those of others, and may have a share.
fn is_sharing(tenant: &Tenant) -> bool {
    tenant.counts() && tenant.meta().is_ok_and(|meta| meta.isolation == Isolation::Shared)
}

/// A tenant without its own TPCs, such as a client of an MPS partition, weighs as much as the GPU.
fn weight(tenant: &Tenant) -> u32 {
    tenant.limits().map_or(0, |limits| match TpcSet::from_words(limits.set).len() {
        0 => limits.tpc_count,
        tpcs => tpcs,
    })
}

fn store(tenant: &Tenant, put: impl Fn(&mut Limits)) {
    let changes = |limits: &Limits| {
        let mut now = limits.clone();
        put(&mut now);
        now != *limits
    };
    if tenant.limits().is_ok_and(changes)
        && let Ok(mut file) = tenant.kept_limits_file()
    {
        // The next command that reads a damaged file reports it.
        let _ = file.update(put);
    }
}
