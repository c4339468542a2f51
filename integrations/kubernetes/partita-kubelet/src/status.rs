//! `status.devices` of claims: what each device that was allocated has become on this node.
//!
//! A claim's entries say the tenant's name, its TPCs and its memory as they are now, and by the
//! condition `Ready` whether the GPU can be used. The API server wants each entry to be of a device
//! that is allocated, and the writer to be the service account of a pod on that node. Other
//! drivers' entries stay as they are.
//!
//! Nothing waits for it: a claim is prepared whether the API server takes its status or not. What
//! should be there follows from the journal and the tenants alone, so a writer that was away
//! catches up.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use partita::ps::{TenantRow, ps_named};
use partita::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use crate::device::Board;
use crate::plan::Definition;
use crate::plugin::Driver;
use crate::{DRIVER, claims};

/// How long the API server may take for one write.
const LIMIT: Duration = Duration::from_secs(10);
/// After an error: the first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// The entries of a tenant, or of MIG instances. Pure.
#[must_use]
pub fn entries(definition: &Definition, rows: &[TenantRow], boards: &[Board], now: Timestamp) -> Vec<Value> {
    let entry = |one: &crate::plan::Allocated| {
        let row = rows.iter().find(|row| row.gpu_uuid.as_deref() == Some(&one.uuid));
        if row.is_none() && !definition.is_mig {
            return None;
        }
        let board = boards.iter().find(|board| board.uuid == one.uuid);
        let fault = match board {
            Some(board) => board.fault.clone(),
            None => Some("it is not on this node any more".to_owned()),
        };
        let (status, reason, message) = match fault {
            None if definition.is_mig => ("True", "Prepared", format!("instance {}", one.uuid)),
            None => ("True", "Prepared", format!("tenant {}", definition.tenant)),
            Some(fault) => ("False", "Unusable", format!("{}: {fault}", one.uuid)),
        };
        let mut data = json!({"apiVersion": "partita.dev/v1", "gpu": one.uuid});
        let known = match row {
            Some(row) => [
                ("kind", Some("TenantStatus".into())),
                ("tenant", Some(definition.tenant.as_str().into())),
                ("multiprocessors", row.sms.map(Value::from)),
                ("tpcs", row.tpcs.clone().map(Value::from)),
                ("memoryBytes", row.memory_quota_bytes().map(Value::from)),
            ],
            None => [
                ("kind", Some("InstanceStatus".into())),
                ("profile", board.and_then(|board| Some(board.mig.as_ref()?.profile.as_str().into()))),
                ("parent", board.and_then(|board| Some(board.mig.as_ref()?.parent.as_str().into()))),
                ("multiprocessors", board.map(|board| board.sms().into())),
                ("memoryBytes", board.map(|board| board.memory_bytes.into())),
            ],
        };
        for (name, value) in known {
            if let Some(value) = value {
                data[name] = value;
            }
        }
        let mut entry = json!({
            "driver": DRIVER,
            "pool": one.pool,
            "device": one.device,
            "conditions": [{
                "type": "Ready",
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            }],
            "data": data,
        });
        if let Some(share) = &one.share_id {
            entry["shareID"] = share.as_str().into();
        }
        Some(entry)
    };
    definition.allocated.iter().filter_map(entry).collect()
}

/// The device and share of an entry or of a result.
fn key(entry: &Value) -> [&str; 4] {
    ["driver", "pool", "device", "shareID"].map(|name| entry[name].as_str().unwrap_or_default())
}

/// `status.devices` as it should be, if it is not: this pool's entries are those that are wanted
/// and whose devices are still allocated. Pure.
#[must_use]
pub fn changed(claim: &Value, pool: &str, wanted: Vec<Value>) -> Option<Vec<Value>> {
    let none = Vec::new();
    let results = claim["status"]["allocation"]["devices"]["results"].as_array().unwrap_or(&none);
    let present = claim["status"]["devices"].as_array().unwrap_or(&none);
    let is_own = |entry: &Value| entry["driver"] == DRIVER && entry["pool"] == pool;
    let mut wanted: Vec<Value> =
        wanted.into_iter().filter(|one| results.iter().any(|result| key(result) == key(one))).collect();
    for one in &mut wanted {
        let before = present.iter().find(|before| key(before) == key(one));
        // The time is that of the last change of the condition, not of the last write.
        if let Some(before) = before.map(|before| &before["conditions"][0])
            && before["status"] == one["conditions"][0]["status"]
            && before["type"] == one["conditions"][0]["type"]
        {
            one["conditions"][0]["lastTransitionTime"] = before["lastTransitionTime"].clone();
        }
    }
    let own: Vec<&Value> = present.iter().filter(|one| is_own(one)).collect();
    let is_same = own.len() == wanted.len() && wanted.iter().all(|one| own.contains(&one));
    (!is_same).then(|| present.iter().filter(|one| !is_own(one)).cloned().chain(wanted).collect())
}

/// A claim whose status may have to be written.
#[derive(Debug)]
struct Due {
    namespace: String,
    name: String,
    /// The claim as it was just read, which saves one request.
    seen: Option<Value>,
}

/// The claims whose status may have to be written.
#[derive(Debug, Default)]
pub struct Statuses {
    due: Mutex<BTreeMap<String, Due>>,
    wake: Notify,
}

/// What became of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The entries are right, or the claim is gone.
    Done,
    /// Another client has written since the claim was read.
    Outdated,
    /// Why it may succeed later.
    Again(String),
    /// Why the same write would be refused again.
    Refused(String),
}

impl Statuses {
    /// Has a claim's status looked at. `seen` is the claim if it was just read.
    pub fn look_at(&self, uid: &str, namespace: &str, name: &str, seen: Option<Value>) {
        let due = Due { namespace: namespace.to_owned(), name: name.to_owned(), seen };
        self.due.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned(), due);
        self.wake.notify_one();
    }

    /// The claim after `last`, or the first one.
    fn next(&self, last: &str) -> Option<String> {
        let all = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let after = all.range::<str, _>((Bound::Excluded(last), Bound::Unbounded)).next();
        after.or_else(|| all.first_key_value()).map(|(uid, _)| uid.clone())
    }

    fn take(&self, uid: &str) -> Option<Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner).remove(uid)
    }

    /// Writes what is due until the process ends, in rounds: a claim whose status cannot be written
    /// does not hold up those after it. `boards` rises when the GPUs changed.
    pub async fn keep(driver: Arc<Driver>, mut boards: watch::Receiver<u64>) {
        let mut pause = PAUSES.0;
        let mut last = String::new();
        let mut has_failed = false;
        loop {
            let Some(uid) = driver.statuses.next(&last) else {
                (pause, has_failed) = (PAUSES.0, false);
                tokio::select! {
                    () = driver.statuses.wake.notified() => {}
                    Ok(()) = boards.changed() => driver.look_at_all(),
                }
                continue;
            };
            let is_new_round = uid <= last;
            if is_new_round && std::mem::take(&mut has_failed) {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
            last.clone_from(&uid);
            let Some(Due { namespace, name, seen }) = driver.statuses.take(&uid) else { continue };
            match write(&driver, &uid, &namespace, &name, seen).await {
                Outcome::Done => {}
                Outcome::Outdated => driver.statuses.again(uid, namespace, name),
                Outcome::Refused(reason) => {
                    tracing::warn!(
                        claim.namespace = namespace,
                        claim.name = name,
                        reason,
                        "the status of the claim's devices is not written; the claim works without it"
                    );
                }
                Outcome::Again(reason) => {
                    tracing::warn!(claim.namespace = namespace, claim.name = name, reason, "tried again");
                    driver.statuses.again(uid, namespace, name);
                    has_failed = true;
                }
            }
        }
    }

    /// Unless it is due again already.
    fn again(&self, uid: String, namespace: String, name: String) {
        let mut all = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(uid).or_insert(Due { namespace, name, seen: None });
    }
}

/// The time of a condition's change, for people.
#[expect(clippy::disallowed_methods, reason = "it is written into the status; nothing here reads it")]
fn now() -> Timestamp {
    Timestamp::now()
}

/// The claim's tenant as it is; `None` while it is being made or ended.
async fn wanted(driver: &Driver, uid: &str) -> Result<Option<Vec<Value>>, String> {
    let asked = uid.to_owned();
    let read = driver.on_tenants(move |tenants| {
        let Some(entry) = tenants.journal.get(&asked).map_err(|error| error.to_string())? else {
            return Ok(Some(Vec::new()));
        };
        let rows = match entry.definition.is_mig {
            true => Ok(Vec::new()),
            false => Registry::open().and_then(|registry| ps_named(&registry, &entry.definition.tenant)),
        };
        match rows {
            Ok(rows) => Ok(Some(entries(&entry.definition, &rows, &tenants.boards(), now()))),
            Err(partita::Error::NoSuchTenant { .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    });
    read.await
}

async fn write(driver: &Driver, uid: &str, namespace: &str, name: &str, seen: Option<Value>) -> Outcome {
    let wanted = match wanted(driver, uid).await {
        Ok(Some(wanted)) => wanted,
        Ok(None) => return Outcome::Done,
        Err(reason) => return Outcome::Refused(reason),
    };
    let read = match seen {
        Some(claim) => Ok(Some(claim)),
        None => claims::get(&driver.client, namespace, name).await.map(|claim| claim.map(|claim| claim.raw)),
    };
    match read {
        Ok(Some(claim)) if claim["metadata"]["uid"] == uid => {
            put(&driver.client, &claim, &driver.node, wanted).await
        }
        Ok(_) => Outcome::Done,
        Err(reason) => Outcome::Again(reason),
    }
}

/// Writes a claim's entries of this pool, unless they are right.
pub async fn put(client: &Client, claim: &Value, pool: &str, wanted: Vec<Value>) -> Outcome {
    let Some(devices) = changed(claim, pool, wanted) else { return Outcome::Done };
    let meta = &claim["metadata"];
    let patch = json!({
        // With the version, a write in between is a conflict.
        "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
        "status": {"devices": if devices.is_empty() { Value::Null } else { devices.into() }},
    });
    let text = |field: &str| meta[field].as_str().unwrap_or_default();
    let api: Api<ResourceClaim> = Api::namespaced(client.clone(), text("namespace"));
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    match tokio::time::timeout(LIMIT, api.patch_status(text("name"), &params, &patch)).await {
        Ok(Ok(_)) => Outcome::Done,
        Ok(Err(kube::Error::Api(status))) => match status.code {
            404 => Outcome::Done,
            409 => Outcome::Outdated,
            403 => Outcome::Refused(format!(
                "{}; from Kubernetes 1.36 on the driver's service account needs `associated-node:patch` on \
                 resourceclaims/driver, as in the chart's role, and a pod on the claim's node",
                status.message
            )),
            code if (400..500).contains(&code) && code != 429 => Outcome::Refused(status.message),
            _ => Outcome::Again(status.message),
        },
        Ok(Err(error)) => Outcome::Again(error.to_string()),
        Err(_) => Outcome::Again("the API server did not answer within 10 s".to_owned()),
    }
}

#[cfg(test)]
#[path = "status/tests.rs"]
mod tests;
