//! Claims as the API server has them.

use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Client;
use kube::api::GetParams;
use serde_json::Value;

/// How long the API server may take for one answer: less than the kubelet waits, so that it hears
/// the reason.
const LIMIT: Duration = Duration::from_secs(10);

/// A claim.
#[derive(Debug)]
pub struct Claim {
    /// What this driver knows of it.
    pub claim: ResourceClaim,
    /// All of it, fields of later versions of Kubernetes included.
    pub raw: Value,
}

/// Reads a claim. `None`: the API server has no claim of this name.
///
/// # Errors
/// Why the API server gave no answer.
pub async fn get(client: &Client, namespace: &str, name: &str) -> Result<Option<Claim>, String> {
    let on_claim =
        |error: &dyn std::fmt::Display| format!("the API server on claim {namespace}/{name}: {error}");
    let path = <ResourceClaim as kube::Resource>::url_path(&(), Some(namespace));
    let request = kube::core::Request::new(path).get(name, &GetParams::default());
    let request = request.map_err(|error| on_claim(&error))?;
    let raw: Value = match tokio::time::timeout(LIMIT, client.request(request)).await {
        Ok(Ok(claim)) => claim,
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => return Ok(None),
        Ok(Err(error)) => return Err(on_claim(&error)),
        Err(_) => {
            return Err(format!("the API server did not answer on claim {namespace}/{name} within 10 s"));
        }
    };
    let claim = serde_json::from_value(raw.clone()).map_err(|error| on_claim(&error))?;
    Ok(Some(Claim { claim, raw }))
}
