//! Claims as the API server has them.

use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};

/// How long the API server may take for one answer: less than the kubelet waits, so that it hears
/// the reason.
const LIMIT: Duration = Duration::from_secs(10);

/// Reads a claim. `None`: the API server has no claim of this name.
///
/// # Errors
/// Why the API server gave no answer.
pub async fn get(client: &Client, namespace: &str, name: &str) -> Result<Option<ResourceClaim>, String> {
    let api: Api<ResourceClaim> = Api::namespaced(client.clone(), namespace);
    match tokio::time::timeout(LIMIT, api.get_opt(name)).await {
        Ok(Ok(claim)) => Ok(claim),
        Ok(Err(error)) => Err(format!("the API server on claim {namespace}/{name}: {error}")),
        Err(_) => Err(format!("the API server did not answer on claim {namespace}/{name} within 10 s")),
    }
}
