//! Keeps the node's ResourceSlices in the API server as they should be.
//!
//! The kubelet deletes them when it starts, and 30 s after it lost this driver; people delete and
//! edit them. So they are watched, and what differs is written again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams, Preconditions};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;

use crate::DRIVER;
use crate::device::{Board, slices};
use crate::prepare::Tenants;
use crate::quantity::{count, whole};

/// Time in which several events become one look.
const SETTLE: Duration = Duration::from_millis(100);
/// A look without an event, in case one was lost.
const LOOK: Duration = Duration::from_secs(300);
/// After an error or a write: the first pause, and the longest. A look that finds everything as it
/// should be ends them.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// What to do with the slices that are there.
#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    /// New ones.
    pub create: Vec<ResourceSliceSpec>,
    /// Those to write again, with what they should say.
    pub replace: Vec<(ResourceSlice, ResourceSliceSpec)>,
    /// Those to delete.
    pub delete: Vec<ResourceSlice>,
}

/// A spec as the API server's answers are compared: it shortens quantities (`1024Mi` to `1Gi`) and
/// notes when a taint was added.
fn comparable(spec: &ResourceSliceSpec) -> ResourceSliceSpec {
    let mut spec = spec.clone();
    let plain = |quantity: &mut Quantity| {
        if let Ok(number) = whole(quantity) {
            *quantity = count(number);
        }
    };
    for set in spec.shared_counters.iter_mut().flatten() {
        set.counters.values_mut().for_each(|counter| plain(&mut counter.value));
    }
    for device in spec.devices.iter_mut().flatten() {
        for consumed in device.consumes_counters.iter_mut().flatten() {
            consumed.counters.values_mut().for_each(|counter| plain(&mut counter.value));
        }
        device.taints.iter_mut().flatten().for_each(|taint| taint.time_added = None);
        for capacity in device.capacity.iter_mut().flat_map(BTreeMap::values_mut) {
            plain(&mut capacity.value);
            let Some(policy) = &mut capacity.request_policy else { continue };
            policy.default.iter_mut().for_each(plain);
            policy.valid_values.iter_mut().flatten().for_each(plain);
            if let Some(range) = &mut policy.valid_range {
                plain(&mut range.min);
                range.max.iter_mut().chain(&mut range.step).for_each(plain);
            }
        }
    }
    spec
}

/// From what is there to what should be. A pool that changes gets a new generation in all its
/// slices, because the scheduler believes only slices of one generation. Pure.
#[must_use]
pub fn changes(node: &str, boards: &[Board], present: &[ResourceSlice]) -> Changes {
    let generation = present.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or(0);
    let as_they_are = slices(node, boards, generation);
    let wanted: Vec<ResourceSliceSpec> = as_they_are.iter().map(comparable).collect();
    let found: Vec<ResourceSliceSpec> = present.iter().map(|slice| comparable(&slice.spec)).collect();
    let same: Vec<bool> = wanted.iter().map(|spec| found.contains(spec)).collect();
    if same.iter().all(|&is_same| is_same) && present.len() == as_they_are.len() {
        return Changes::default();
    }
    // Slices that were deleted alone come back as they were: the rest of the pool still stands.
    let all_known = found.iter().all(|spec| wanted.contains(spec));
    let is_distinct = same.iter().filter(|&&is_same| is_same).count() == present.len();
    if !present.is_empty() && all_known && is_distinct {
        let missing = as_they_are.into_iter().zip(same).filter(|(_, is_same)| !is_same);
        return Changes { create: missing.map(|(spec, _)| spec).collect(), ..Changes::default() };
    }
    let wanted = slices(node, boards, generation + 1);
    let (kept, extra) = present.split_at(present.len().min(wanted.len()));
    Changes {
        create: wanted[kept.len()..].to_vec(),
        replace: kept.iter().cloned().zip(wanted.iter().cloned()).collect(),
        delete: extra.to_vec(),
    }
}

/// The slices of this node.
pub struct Publisher {
    client: Client,
    node: String,
    tenants: Arc<Tenants>,
}

impl Publisher {
    /// A publisher of the tenants' boards.
    pub fn new(client: Client, node: &str, tenants: Arc<Tenants>) -> Self {
        Self { client, node: node.to_owned(), tenants }
    }

    fn api(&self) -> Api<ResourceSlice> {
        Api::all(self.client.clone())
    }

    fn fields(&self) -> String {
        format!("spec.driver={DRIVER},spec.nodeName={}", self.node)
    }

    /// Looks once, and writes what differs.
    ///
    /// # Errors
    /// The API server's, a conflict among them: look again.
    pub async fn look(&self) -> Result<usize, kube::Error> {
        let api = self.api();
        let present = api.list(&ListParams::default().fields(&self.fields())).await?.items;
        let changes = changes(&self.node, &self.tenants.boards(), &present);
        let count = changes.create.len() + changes.replace.len() + changes.delete.len();
        if count == 0 {
            return Ok(0);
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        // With the node as their owner they vanish with it.
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node.clone(),
            uid: nodes.get(&self.node).await?.uid().unwrap_or_default(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        for (slice, spec) in changes.replace {
            let name = slice.name_any();
            // The resource version makes another writer's change a conflict.
            let slice = ResourceSlice { metadata: slice.metadata, spec };
            api.replace(&name, &PostParams::default(), &slice).await?;
        }
        for spec in changes.create {
            let metadata = ObjectMeta {
                generate_name: Some(format!("{}-{DRIVER}-", self.node)),
                owner_references: Some(vec![owner.clone()]),
                ..ObjectMeta::default()
            };
            api.create(&PostParams::default(), &ResourceSlice { metadata, spec }).await?;
        }
        for slice in changes.delete {
            let only = Preconditions { uid: slice.uid(), resource_version: slice.resource_version() };
            let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
            match api.delete(&slice.name_any(), &params).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                deleted => {
                    deleted?;
                }
            }
        }
        Ok(count)
    }

    /// Keeps the slices until the process ends. `boards` rises when the GPUs changed.
    pub async fn keep(self, mut boards: watch::Receiver<u64>) {
        let config = watcher::Config::default().fields(&self.fields());
        // It lists again where the server has forgotten its version (410), and waits after errors.
        let mut events = watcher(self.api(), config).default_backoff().boxed();
        let mut pause = PAUSES.0;
        loop {
            match self.look().await {
                Ok(0) => pause = PAUSES.0,
                Ok(count) => {
                    tracing::info!(count, "slices written");
                    // Something else may write them again and again.
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
                Err(error) => {
                    tracing::warn!(%error, "the slices are not as they should be; tried again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                    continue;
                }
            }
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => tracing::warn!(%error, "the watch of the slices"),
                    None => tracing::warn!("the watch of the slices ended"),
                },
                _ = boards.changed() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
            let settled = tokio::time::sleep(SETTLE);
            tokio::pin!(settled);
            loop {
                tokio::select! {
                    () = &mut settled => break,
                    Some(_) = events.next() => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::device::tests::h200;

    fn published(specs: Vec<ResourceSliceSpec>) -> Vec<ResourceSlice> {
        let named = |(spec, at)| {
            let metadata = ObjectMeta { name: Some(format!("s{at}")), ..ObjectMeta::default() };
            ResourceSlice { metadata, spec }
        };
        specs.into_iter().zip(0..).map(named).collect()
    }

    #[test]
    fn what_is_right_stays_and_what_is_gone_comes_back() {
        let boards = [h200(0)];
        let first = changes("n", &boards, &[]);
        assert_eq!((first.create.len(), first.replace.len(), first.delete.len()), (2, 0, 0));
        let mut present = published(first.create);
        assert_eq!(changes("n", &boards, &present), Changes::default());
        let gone = present.pop().unwrap();
        let again = changes("n", &boards, &present);
        assert_eq!((again.create.clone(), again.replace.len()), (vec![gone.spec], 0));
    }

    #[test]
    fn what_the_server_writes_in_its_own_way_is_the_same() {
        let ill = Board { fault: Some("it fell off the bus".to_owned()), ..h200(0) };
        let mut present = published(slices("n", std::slice::from_ref(&ill), 3));
        let device = &mut present[1].spec.devices.as_mut().unwrap()[0];
        let time = "2026-11-28T01:20:14Z".parse().unwrap();
        device.taints.as_mut().unwrap()[0].time_added = Some(Time(time));
        let capacity = device.capacity.as_mut().unwrap().get_mut("memory").unwrap();
        let least = &mut capacity.request_policy.as_mut().unwrap().valid_range.as_mut().unwrap().min;
        assert_eq!(std::mem::replace(&mut least.0, "1Gi".to_owned()), "1024Mi");
        assert_eq!(changes("n", std::slice::from_ref(&ill), &present), Changes::default());
    }

    #[test]
    fn a_changed_pool_has_one_new_generation() {
        let boards = [h200(0)];
        let present = published(slices("n", &boards, 4));
        // More GPUs; an edited slice; slices that are too many; the same slice twice.
        let more: Vec<Board> = (0..9).map(h200).collect();
        let mut edited = present.clone();
        edited[1].spec.devices.as_mut().unwrap()[0].name = "mine".to_owned();
        let many = published(slices("n", &more, 4));
        let twice = [present.clone(), vec![present[0].clone()]].concat();
        for (boards, present) in
            [(&more[..], &present), (&boards, &edited), (&boards, &many), (&boards, &twice)]
        {
            let change = changes("n", boards, present);
            let wanted = slices("n", boards, 5);
            let written = change.replace.iter().map(|(_, spec)| spec.clone()).chain(change.create);
            assert_eq!(written.collect::<Vec<_>>(), wanted);
            assert_eq!(change.delete.len(), present.len().saturating_sub(wanted.len()));
        }
    }
}
