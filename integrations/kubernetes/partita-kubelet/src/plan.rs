//! From an allocated claim to the tenant that it is. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use partita::registry::Isolation;
use partita_core::kept::fnv1a;
use serde::{Deserialize, Serialize};

use crate::DRIVER;
use crate::device::{Board, CLIENTS, MEMORY, MEMORY_LEAST_MIB, MULTIPROCESSORS};
use crate::parameters;
use crate::quantity::{is_in_steps, whole};

/// A part of an answer to the kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocated {
    /// The claim's request.
    pub request: String,
    /// The pool.
    pub pool: String,
    /// The device.
    pub device: String,
    /// The scheduler's name for this share of it.
    pub share_id: Option<String>,
    /// `GPU-…` or `MIG-…`.
    pub uuid: String,
}

/// The size of a tenant on each of its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// SMs, whole TPCs.
    pub sms: u32,
    /// All that it may hold, the driver's part included.
    pub memory_bytes: u64,
}

/// A tenant as a claim asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// The tenant's name: the claim's UID and its shares. A name is never used twice, because
    /// container runtimes may remember what a CDI device was.
    pub tenant: String,
    /// The values of `--gpu`.
    pub selectors: Vec<String>,
    /// Its size; `None` for whole GPUs and MIG instances.
    pub size: Option<Size>,
    /// Whether it is MIG instances, which are no tenant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_mig: bool,
    /// Other limits by the names of the command's options.
    pub limits: BTreeMap<String, String>,
    /// What the scheduler allocated.
    pub allocated: Vec<Allocated>,
}

/// The tenant of a claim on this node.
///
/// # Errors
/// Why there can be no such tenant, for the pod's event.
pub fn plan(claim: &ResourceClaim, uid: &str, pool: &str, boards: &[Board]) -> Result<Definition, String> {
    let found = claim.metadata.uid.as_deref().unwrap_or_default();
    if found != uid {
        return Err(format!(
            "the claim of this name has the UID {found} now, and the pod's has {uid}: it was made again; the \
             pod must be made again too"
        ));
    }
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation
        .and_then(|allocation| allocation.devices.as_ref())
        .ok_or("the scheduler has allocated nothing to the claim")?;
    let results: Vec<&DeviceRequestAllocationResult> = devices
        .results
        .iter()
        .flatten()
        .filter(|result| result.driver == DRIVER && result.pool == pool)
        .collect();
    let [first, rest @ ..] = &results[..] else {
        return Err(format!("nothing of the claim is allocated in the pool {pool} of {DRIVER}"));
    };
    if let Some(other) = rest.iter().find(|other| other.request != first.request) {
        return Err(format!(
            "the requests {} and {} are in one claim, which is one tenant with one size; make a claim of \
             each; if the scheduler made this one for an extended resource of several containers, write a \
             claim for each container instead of the resource, or let partita-kubelet's webhook do it",
            first.request, other.request
        ));
    }
    let limits = parameters::read(devices.config.as_deref().unwrap_or_default(), &first.request)?;
    let mut size: Option<(bool, Option<Size>)> = None;
    let mut allocated: Vec<Allocated> = Vec::new();
    let mut selectors = Vec::new();
    for result in &results {
        if result.admin_access == Some(true) {
            return Err("admin access is not offered: a tenant is an exclusive share".to_owned());
        }
        let (board, own) = size_of(result, boards)?;
        let own = (board.mig.is_some(), own);
        if size.is_some_and(|size| size != own) {
            return Err(
                "the claim's devices have unequal sizes, and a tenant has one size on all of them".into()
            );
        }
        if allocated.iter().any(|other| other.uuid == board.uuid) {
            return Err(format!(
                "the claim has two shares of {}; request one share with the sum of their sizes",
                board.uuid
            ));
        }
        size = Some(own);
        if !selectors.contains(&board.selector) {
            selectors.push(board.selector.clone());
        }
        allocated.push(Allocated {
            request: result.request.clone(),
            pool: result.pool.clone(),
            device: result.device.clone(),
            share_id: result.share_id.clone(),
            uuid: board.uuid.clone(),
        });
    }
    let (is_mig, size) = size.unwrap_or_default();
    if is_mig && let [_, _, ..] = &selectors[..] {
        return Err("the claim's MIG instances are of several GPUs; make a claim for each GPU".to_owned());
    }
    if size.is_none() && limits.isolation == Some(Isolation::Shared) {
        return Err("isolation: shared is for shares; the whole GPU has no neighbour".to_owned());
    }
    let limits: BTreeMap<String, String> = partita::limits::LIMITS
        .iter()
        .filter(|limit| parameters::NAMES.contains(&limit.name))
        .filter_map(|limit| Some((limit.name.to_owned(), limit.text(&limits)?)))
        .collect();
    if is_mig && let Some(name) = limits.keys().next() {
        return Err(format!("{name} is for shares and whole GPUs; a MIG instance is no tenant"));
    }
    Ok(Definition { tenant: tenant_name(uid, &allocated)?, selectors, size, is_mig, limits, allocated })
}

/// The name of a claim's tenant, at most 63 characters of those that tenants' names have.
fn tenant_name(uid: &str, allocated: &[Allocated]) -> Result<String, String> {
    let shares: Vec<String> = allocated
        .iter()
        .map(|one| format!("{}={}", one.device, one.share_id.as_deref().unwrap_or_default()))
        .collect();
    let is_plain = uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if uid.is_empty() || uid.len() > 40 || uid.starts_with('-') || !is_plain {
        return Err(format!("{uid:?} is no UID of a claim"));
    }
    Ok(format!("{uid}-{:016x}", fnv1a(shares.join(",").as_bytes())))
}

fn size_of<'b>(
    result: &DeviceRequestAllocationResult,
    boards: &'b [Board],
) -> Result<(&'b Board, Option<Size>), String> {
    let device = &result.device;
    let board = boards.iter().find(|board| board.devices().contains(device));
    let Some(board) = board else {
        let present: Vec<String> = boards.iter().map(Board::device).collect();
        return Err(format!(
            "the device {device} is not on this node any more; it has {}; delete the pod, so that the scheduler \
             chooses again",
            if present.is_empty() { "no GPU".to_owned() } else { present.join(", ") }
        ));
    };
    if let Some(fault) = &board.fault {
        return Err(format!("the device {device} cannot be used: {fault}"));
    }
    if *device == board.device() {
        return Ok((board, None));
    }
    let none = BTreeMap::new();
    let consumed = result.consumed_capacity.as_ref().unwrap_or(&none);
    let known = [MULTIPROCESSORS, MEMORY, CLIENTS];
    if let Some(name) = consumed.keys().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("the claim consumes {name:?} of {device}, which has {}", known.join(", ")));
    }
    let read = |name: &str, least: u64, step: u64, most: u64| {
        let quantity = consumed.get(name).ok_or_else(|| {
            format!(
                "the claim consumes no {name} of {device}: consumable capacities must be on in the cluster"
            )
        })?;
        let value = whole(quantity).map_err(|reason| format!("{name} of {device}: {reason}"))?;
        if !is_in_steps(value, least, step, most) {
            return Err(format!(
                "{name} of {device} is {}: it goes from {least} to {most} in steps of {step}",
                quantity.0
            ));
        }
        Ok(value)
    };
    let step = u64::from(board.sms_per_tpc);
    let sms = read(MULTIPROCESSORS, step, step, board.sms().into())?;
    let memory_bytes = read(MEMORY, MEMORY_LEAST_MIB << 20, 1 << 20, board.memory_mib() << 20)?;
    read(CLIENTS, 1, 1, board.clients.into())?;
    let sms = u32::try_from(sms).map_err(|_| format!("{MULTIPROCESSORS} of {device} is {sms}"))?;
    Ok((board, Some(Size { sms, memory_bytes })))
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
