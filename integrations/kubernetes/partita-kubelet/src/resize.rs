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
use std::time::Duration;

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
use crate::prepare::{Tenants, limits_of};
use crate::quantity::{is_in_steps, whole};

/// The annotation.
pub const ANNOTATION: &str = "partita.dev/resize";

/// After a refusal: the first pause, and the longest. It may pass, such as one for lack of room.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

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

/// Gives the tenant of a claim the size that the annotation asks for. `None`: it has that size, or
/// there is no such tenant now.
fn resize(tenants: &Tenants, uid: &str, annotation: Option<&str>) -> Result<Option<Size>, String> {
    let Some(entry) = tenants.journal.get(uid).map_err(|error| error.to_string())? else { return Ok(None) };
    let definition = &entry.definition;
    let (Some(claim), Some(first)) = (definition.size, definition.allocated.first()) else { return Ok(None) };
    if entry.resized.as_deref() == annotation {
        return Ok(None);
    }
    let board = tenants.boards().into_iter().find(|board| board.uuid == first.uuid);
    let board = board.ok_or("the GPU is not on this node any more")?;
    let size = wanted(annotation, claim, board.sms_per_tpc)?;
    let limits = LimitSet { driver_allowance: None, ..limits_of(size) };
    let request = SetRequest { limits, ..SetRequest::new(Whose::Name(definition.tenant.clone())) };
    match Registry::open().and_then(|registry| set(&registry, &request)) {
        Ok(_) => {}
        // The next prepare makes it, and the annotation is looked at again.
        Err(partita::Error::NoSuchTenant { .. }) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    }
    let entry = entry.resized_by(annotation);
    tenants.journal.put(&entry).map_err(|error| format!("it has its new size, but the journal: {error}"))?;
    Ok(Some(size))
}

fn annotation(claim: &ResourceClaim) -> Option<&String> {
    claim.metadata.annotations.as_ref()?.get(ANNOTATION)
}

/// Follows one claim. What is applied is in the journal, so another driver goes on from there, and
/// a tenant that is made again gets its size again.
async fn follow(driver: Arc<Driver>, entry: Entry, mut changed: watch::Receiver<u64>) {
    let api: Api<ResourceClaim> = Api::namespaced(driver.client.clone(), &entry.namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={}", entry.name));
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut last: Option<ResourceClaim> = None;
    // Each text is reported once, however often it comes again.
    let (mut watch_error, mut refusal) = (String::new(), String::new());
    let (mut pause, mut retry_at) = (PAUSES.0, None);
    loop {
        let retry = async {
            match retry_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(watcher::Event::Apply(claim) | watcher::Event::InitApply(claim))) => {
                    if claim.metadata.uid.as_deref() != Some(&entry.uid) {
                        continue;
                    }
                    if last.as_ref().and_then(annotation) != annotation(&claim) {
                        refusal.clear();
                        pause = PAUSES.0;
                    }
                    last = Some(claim);
                }
                Some(Ok(_)) => continue,
                Some(Err(error)) => {
                    let error = error.to_string();
                    if error != watch_error {
                        tracing::warn!(
                            claim.namespace = entry.namespace,
                            claim.name = entry.name,
                            error,
                            "the annotation {ANNOTATION} has no effect while the claim cannot be \
                             watched; the driver needs the rights to list and watch resourceclaims"
                        );
                        watch_error = error;
                    }
                    continue;
                }
                None => return,
            },
            Ok(()) = changed.changed() => {}
            () = retry => {}
        }
        let Some(claim) = &last else { continue };
        let (uid, wanted) = (entry.uid.clone(), annotation(claim).cloned());
        let done = {
            let _turn = driver.turn.lock().await;
            driver.on_tenants(move |tenants| resize(tenants, &uid, wanted.as_deref())).await
        };
        retry_at = None;
        match done {
            Ok(None) => {}
            Ok(Some(size)) => {
                let (tenant, mib) = (&entry.definition.tenant, size.memory_bytes >> 20);
                let note =
                    format!("tenant {tenant} has {} multiprocessors and {mib} MiB of memory now", size.sms);
                driver.events.publish(claim, false, "TenantResized", &note);
                driver.statuses.look_at(&entry.uid, &entry.namespace, &entry.name, None);
                refusal.clear();
                pause = PAUSES.0;
            }
            Err(reason) => {
                if reason != refusal {
                    driver.events.publish(claim, true, "TenantNotResized", &reason);
                    refusal = reason;
                }
                retry_at = Some(tokio::time::Instant::now() + pause);
                pause = (pause * 2).min(PAUSES.1);
            }
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
                && entry.definition.size.is_some()
            {
                followed.insert(uid, tokio::spawn(follow(driver.clone(), entry, changed.clone())));
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
