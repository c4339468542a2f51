//! Live resize: `partita.dev/resize` on a claim changes its tenant while its pod runs.
//!
//! ```text
//! kubectl annotate resourceclaim NAME partita.dev/resize=multiprocessors=34,memory=20Gi
//! ```
//!
//! A tenant can become smaller than its claim, and as large as it again. The scheduler goes on
//! counting the claim, so a larger tenant would take what it has promised to others.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use partita::limits::LimitSet;
use partita::registry::Registry;
use partita::set::{SetRequest, Whose, set};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::device::{MEMORY, MEMORY_LEAST_MIB, MULTIPROCESSORS};
use crate::journal::Entry;
use crate::plan::Size;
use crate::plugin::Driver;
use crate::prepare::limits_of;
use crate::quantity::{is_in_steps, whole};

/// The annotation.
pub const ANNOTATION: &str = "partita.dev/resize";

/// The size that an annotation asks for; without one the claim's own. Pure.
///
/// # Errors
/// What is not understood, or not in the claim's size.
pub fn wanted(annotation: Option<&str>, claim: Size, sms_per_tpc: u32) -> Result<Size, String> {
    let mut size = claim;
    for word in annotation.unwrap_or_default().split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (name, value) = word.split_once('=').ok_or_else(|| {
            format!("{ANNOTATION}: {word:?} is not NAME=SIZE; write {MULTIPROCESSORS}=34,{MEMORY}=20Gi")
        })?;
        let value = whole(&Quantity(value.to_owned())).map_err(|reason| format!("{ANNOTATION}: {reason}"))?;
        let check = |least: u64, step: u64, most: u64| {
            if !is_in_steps(value, least, step, most) {
                return Err(format!(
                    "{ANNOTATION}: {word} goes from {least} to {most}, what the claim was allocated, in steps of \
                     {step}; for more, make a larger claim"
                ));
            }
            Ok(value)
        };
        match name.trim() {
            MULTIPROCESSORS => {
                let step = sms_per_tpc.into();
                size.sms = check(step, step, claim.sms.into())? as u32;
            }
            MEMORY => size.memory_bytes = check(MEMORY_LEAST_MIB << 20, 1 << 20, claim.memory_bytes)?,
            other => {
                return Err(format!(
                    "{ANNOTATION}: there is no {other:?}; there are {MULTIPROCESSORS}, {MEMORY}"
                ));
            }
        }
    }
    Ok(size)
}

fn apply(tenant: &str, size: Size) -> Result<(), String> {
    let limits = LimitSet { driver_allowance: None, ..limits_of(size) };
    let registry = Registry::open().map_err(|error| error.to_string())?;
    let request = SetRequest { limits, ..SetRequest::new(Whose::Name(tenant.to_owned())) };
    set(&registry, &request).map(drop).map_err(|error| error.to_string())
}

/// Follows one claim.
async fn follow(driver: Arc<Driver>, entry: Entry, claim_size: Size) {
    let api: Api<ResourceClaim> = Api::namespaced(driver.client.clone(), &entry.namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={}", entry.name));
    let mut events = watcher(api, config).default_backoff().boxed();
    // After a restart of this driver the tenant has the size that was set before it.
    let mut seen: Option<Option<String>> = None;
    while let Some(event) = events.next().await {
        let claim = match event {
            Ok(watcher::Event::Apply(claim) | watcher::Event::InitApply(claim)) => claim,
            _ => continue,
        };
        let annotation = claim.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION)).cloned();
        let is_first_without = seen.is_none() && annotation.is_none();
        if claim.metadata.uid.as_deref() != Some(&entry.uid) || seen.as_ref() == Some(&annotation) {
            continue;
        }
        seen = Some(annotation.clone());
        if is_first_without {
            continue;
        }
        let uuid = entry.definition.allocated.first().map(|one| one.uuid.clone());
        let board = driver.tenants.boards().into_iter().find(|board| Some(&board.uuid) == uuid.as_ref());
        let asked = board.ok_or("the GPU is not on this node any more".to_owned());
        let asked = asked.and_then(|board| wanted(annotation.as_deref(), claim_size, board.sms_per_tpc));
        let done = match asked {
            Err(reason) => Err(reason),
            Ok(size) => {
                let _turn = driver.turn.lock().await;
                let tenant = entry.definition.tenant.clone();
                let done = tokio::task::spawn_blocking(move || apply(&tenant, size)).await;
                done.unwrap_or_else(|error| Err(error.to_string())).map(|()| size)
            }
        };
        match done {
            Ok(size) => {
                let (tenant, mib) = (&entry.definition.tenant, size.memory_bytes >> 20);
                let note =
                    format!("tenant {tenant} has {} multiprocessors and {mib} MiB of memory now", size.sms);
                driver.events.publish(&claim, false, "TenantResized", &note);
                driver.statuses.look_at(&entry.uid, &entry.namespace, &entry.name, None);
            }
            Err(reason) => driver.events.publish(&claim, true, "TenantNotResized", &reason),
        }
    }
}

/// Follows every prepared claim until the process ends: one watch each, so that the server sends
/// this node nothing of the claims of others.
pub async fn keep(driver: Arc<Driver>, mut changed: watch::Receiver<u64>) {
    let mut followed: BTreeMap<String, JoinHandle<()>> = BTreeMap::new();
    loop {
        let uids = driver.tenants.journal.uids().unwrap_or_default();
        followed.retain(|uid, task| {
            let is_there = uids.contains(uid);
            if !is_there {
                task.abort();
            }
            is_there
        });
        for uid in uids {
            if followed.contains_key(&uid) {
                continue;
            }
            if let Ok(Some(entry)) = driver.tenants.journal.get(&uid)
                && let Some(size) = entry.definition.size
            {
                followed.insert(uid, tokio::spawn(follow(driver.clone(), entry, size)));
            }
        }
        if changed.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_at_most_its_claim() {
        let claim = Size { sms: 66, memory_bytes: 40 << 30 };
        assert_eq!(wanted(None, claim, 2), Ok(claim));
        assert_eq!(wanted(Some(""), claim, 2), Ok(claim));
        let smaller = Size { sms: 34, memory_bytes: 20 << 30 };
        assert_eq!(wanted(Some("multiprocessors=34, memory=20Gi"), claim, 2), Ok(smaller));
        for (text, named) in [
            ("multiprocessors=68", "larger claim"),
            ("multiprocessors=33", "steps of 2"),
            ("multiprocessors=0", "from 2"),
            ("memory=41Gi", "larger claim"),
            ("memory=1", "memory=1"),
            ("memory=x", "\"x\""),
            ("sm=34", "\"sm\""),
            ("34", "NAME=SIZE"),
        ] {
            let said = wanted(Some(text), claim, 2).unwrap_err();
            assert!(said.contains(named) && said.starts_with(ANNOTATION), "{text}: {said}");
        }
    }
}
