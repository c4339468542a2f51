//! Events on claims and their pods, for `kubectl describe`.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

/// The longest note, in bytes: a limit of the API.
const NOTE_BYTES_MAX: usize = 1024;
/// An event that cannot be stored is logged instead.
const LIMIT: Duration = Duration::from_secs(10);

/// Publishes events.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

/// The claim and the pods for which it is reserved.
pub fn about(claim: &ResourceClaim) -> Vec<ObjectReference> {
    let namespace = claim.metadata.namespace.clone();
    let mut all = vec![ObjectReference {
        api_version: Some("resource.k8s.io/v1".to_owned()),
        kind: Some("ResourceClaim".to_owned()),
        name: claim.metadata.name.clone(),
        namespace: namespace.clone(),
        uid: claim.metadata.uid.clone(),
        ..ObjectReference::default()
    }];
    let reserved = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    let pods = reserved.filter(|one| one.resource == "pods" && one.api_group.as_deref().unwrap_or("") == "");
    all.extend(pods.map(|pod| ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(pod.name.clone()),
        namespace: namespace.clone(),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }));
    all
}

impl Events {
    /// Events of the driver on this node.
    pub fn new(client: Client, node: &str) -> Self {
        let reporter = Reporter { controller: crate::DRIVER.to_owned(), instance: Some(node.to_owned()) };
        Self { recorder: Recorder::new(client, reporter) }
    }

    /// Publishes in the background: the kubelet does not wait for it.
    pub fn publish(&self, claim: &ResourceClaim, is_warning: bool, reason: &str, note: &str) {
        let mut end = note.len().min(NOTE_BYTES_MAX);
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        for reference in about(claim) {
            let recorder = self.recorder.clone();
            let event = Event {
                type_: if is_warning { EventType::Warning } else { EventType::Normal },
                reason: reason.to_owned(),
                note: Some(note[..end].to_owned()),
                action: reason.to_owned(),
                secondary: None,
            };
            tokio::spawn(async move {
                match tokio::time::timeout(LIMIT, recorder.publish(&event, &reference)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!(%error, "an event was not stored"),
                    Err(_) => tracing::warn!("an event was not stored within 10 s"),
                }
            });
        }
    }
}
