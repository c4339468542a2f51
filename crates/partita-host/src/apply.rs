//! `partita apply`: tenants as a file describes them.

mod file;
mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use partita_ledger::{FLAG_GATED, FLAG_TIMED};

pub use self::file::{Wanted, read};
pub use self::plan::{Action, Applied, Consent, Current, Plan, plan};
use crate::detached::Records;
use crate::error::Error;
use crate::limits::{LIMITS, LimitSet};
use crate::registry::{Registry, Tenant, acting_user};
use crate::{system, time};

/// The tenants of the current user that live or wait for room.
///
/// # Errors
/// As [`Registry::lock`].
pub fn current(registry: &Registry, records: &Records) -> Result<Vec<Current>, Error> {
    let lock = registry.lock()?;
    // Under one lock: what waits may start between two looks.
    let (tenants, queue) = (lock.tenants()?, registry.queue()?);
    drop(lock);
    let mut own: Vec<&Tenant> = tenants.iter().filter(|tenant| tenant.user == acting_user()).collect();
    own.sort_by(|a, b| (&a.name, a.gpu_label()).cmp(&(&b.name, b.gpu_label())));
    let current = |parts: &[&Tenant]| {
        let tenant = parts.first()?;
        let meta = tenant.meta.as_ref().ok();
        // The record may be of an earlier run of the same name.
        let is_of_record = |run| meta.is_some_and(|meta| meta.run == run);
        let record = records.get(&tenant.name).ok().filter(|record| is_of_record(record.run));
        let applied: Option<Applied> = record.and_then(|_| records.applied(&tenant.name));
        let mut limits = limits_of(tenant);
        // It has the same limits on each of its GPUs, unless `partita set --gpu` changed them.
        for part in parts.iter().skip(1) {
            let is_changed = |(name, value): &(String, String)| {
                applied.as_ref().is_some_and(|applied| applied.limits.get(name) != Some(value))
            };
            limits.extend(limits_of(part).into_iter().filter(is_changed));
        }
        Some(Current { name: tenant.name.clone(), applied, limits, fixed: fixed_of(tenant), waits: false })
    };
    let mut all: Vec<Current> = own.chunk_by(|a, b| a.name == b.name).filter_map(current).collect();
    for waiter in queue.iter().filter(|waiter| waiter.user == acting_user()) {
        if !all.iter().any(|one| one.name == waiter.name) {
            all.push(Current {
                name: waiter.name.clone(),
                applied: records.waiting(&waiter.name),
                limits: BTreeMap::new(),
                fixed: BTreeSet::new(),
                waits: true,
            });
        }
    }
    Ok(all)
}

/// Refuses names that tenants of other users have: these cannot be started.
///
/// # Errors
/// [`Error::Refused`] for the first such name; as [`Registry::lock`].
pub fn check_names(registry: &Registry, wanted: &[Wanted], current: &[Current]) -> Result<(), Error> {
    let starts = wanted.iter().filter(|one| !current.iter().any(|tenant| tenant.name == one.name));
    let tenants = registry.lock()?.tenants()?;
    for Wanted { name, .. } in starts {
        // `partitad` sees the tenants of all users.
        let is_taken = match registry.is_client() {
            true => system::of_another_user(registry, name).is_some(),
            false => tenants.iter().any(|tenant| tenant.name == *name),
        };
        if is_taken {
            return Err(Error::Refused {
                what: format!("tenant {name}"),
                reason: "another user's tenant has this name; rename it in the file".to_owned(),
            });
        }
    }
    Ok(())
}

/// The limits of a tenant that can change while it runs, by the names of their options.
fn limits_of(tenant: &Tenant) -> BTreeMap<String, String> {
    let limits = LimitSet::of(tenant.limits.as_ref().ok(), tenant.meta.as_ref().ok());
    let live = LIMITS.iter().filter(|limit| limit.change.is_some());
    live.filter_map(|limit| Some((limit.name.to_owned(), limit.text(&limits)?))).collect()
}

/// The options that [`set`](crate::set::set) refuses because of how a tenant was started.
fn fixed_of(tenant: &Tenant) -> BTreeSet<String> {
    let has = |flag| tenant.limits().is_ok_and(|limits| limits.flags & flag != 0);
    let fixed = [
        ("sm", time::takes_turns(tenant)),
        ("time", !has(FLAG_TIMED)),
        ("time-policy", !has(FLAG_TIMED)),
        ("priority", !has(FLAG_GATED)),
    ];
    fixed.into_iter().filter(|(_, is_fixed)| *is_fixed).map(|(name, _)| name.to_owned()).collect()
}

/// Notes that a tenant is as the file describes it, with the limits that it has now.
///
/// # Errors
/// As [`current`] and [`Records::note_applied`].
pub fn note(registry: &Registry, records: &Records, file: &Path, wanted: &Wanted) -> Result<(), Error> {
    let now = current(registry, records)?.into_iter().find(|tenant| tenant.name == wanted.name);
    let limits = now.map(|now| now.limits).unwrap_or_default();
    records.note_applied(&wanted.name, &applied(file, wanted, limits))
}

/// Notes that this process starts a tenant that waits for room, until it runs or
/// [`Records::forget_waiting`].
///
/// # Errors
/// As [`Records::note_waiting`].
pub fn note_waiting(records: &Records, file: &Path, wanted: &Wanted) -> Result<(), Error> {
    records.note_waiting(&wanted.name, &applied(file, wanted, BTreeMap::new()))
}

fn applied(file: &Path, wanted: &Wanted, limits: BTreeMap<String, String>) -> Applied {
    let Wanted { options, command, .. } = wanted.clone();
    Applied { file: file.to_owned(), options, command, limits }
}
