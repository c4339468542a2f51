//! What a device plugin offers, and the tenants of its devices. Pure.
//!
//! A device plugin knows identifiers alone: the kubelet counts them, and a container has some. So
//! each way to offer GPUs is such that counts which fit are tenants which fit.

use std::collections::BTreeMap;

use prost::Message;

use crate::device::{Board, MEMORY_LEAST_MIB};
use crate::plan::{Allocated, Definition, Size};
use crate::translate::{GPU, GPUCORES, GPUMEM, GPUMEM_PERCENTAGE};
use crate::wire::deviceplugin::{Device, ListAndWatchResponse};
use crate::wire::podresources::{ContainerResources, ListPodResourcesResponse};

/// NVIDIA's name for a share of a GPU.
pub const SHARED: &str = "nvidia.com/gpu.shared";

/// The longest message that the kubelet takes.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// How GPUs are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// `nvidia.com/gpu.shared`: equal shares of each GPU.
    Shared {
        /// Shares of a GPU.
        replicas: u32,
    },
    /// HAMi's names, on a node with one GPU.
    Hami {
        /// Containers that may have the GPU at once.
        split: u32,
        /// How memory is named. One way alone: the kubelet counts each name by itself.
        memory: MemoryUnit,
    },
}

/// What a device of memory stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryUnit {
    /// `nvidia.com/gpumem`: so many MiB.
    Mib(u32),
    /// `nvidia.com/gpumem-percentage`.
    Percent,
}

impl MemoryUnit {
    fn resource(self) -> &'static str {
        match self {
            Self::Mib(_) => GPUMEM,
            Self::Percent => GPUMEM_PERCENTAGE,
        }
    }

    fn count(self, board: &Board) -> u64 {
        match self {
            Self::Mib(mib) => board.memory_mib() / u64::from(mib.max(1)),
            Self::Percent => 100,
        }
    }

    fn mib(self, board: &Board, count: u64) -> u64 {
        match self {
            Self::Mib(mib) => count * u64::from(mib),
            Self::Percent => board.memory_mib() * count / 100,
        }
    }
}

/// The devices of each resource.
pub type Offered = BTreeMap<&'static str, Vec<Device>>;

/// Whether a resource's devices are tenants; the others are sizes.
pub fn has_tenants(resource: &str) -> bool {
    resource == GPU || resource == SHARED
}

impl Offer {
    /// Whether tenants are made when a container starts: before that their sizes are not known.
    pub fn is_sized_late(self) -> bool {
        matches!(self, Self::Hami { .. })
    }

    /// What the node offers.
    ///
    /// # Errors
    /// Why it cannot be offered this way.
    pub fn resources(self, boards: &[Board]) -> Result<Offered, String> {
        let named = |board: &Board, count: u64| -> Vec<Device> {
            (0..count).map(|which| device(format!("{}::{which}", board.uuid), board)).collect()
        };
        let mut offered = Offered::new();
        match self {
            Self::Shared { replicas } => {
                let mut all = Vec::new();
                for board in boards {
                    equal_share(board, replicas)?;
                    all.extend(named(board, replicas.into()));
                }
                offered.insert(SHARED, all);
            }
            Self::Hami { split, memory } => {
                let [board] = boards else {
                    return Err(format!(
                        "this node has {} GPUs, and nothing ties memory and cores to one of several; name one with \
                         --gpu, or use --shared, or dynamic resource allocation",
                        boards.len()
                    ));
                };
                let sizes =
                    |count: u64| (0..count).map(|which| device(which.to_string(), board)).collect::<Vec<_>>();
                offered.insert(GPU, named(board, split.into()));
                offered.insert(GPUCORES, sizes(100));
                offered.insert(memory.resource(), sizes(memory.count(board)));
            }
        }
        for (resource, devices) in &offered {
            let bytes = ListAndWatchResponse { devices: devices.clone() }.encoded_len();
            if bytes > MESSAGE_BYTES_MAX {
                return Err(format!(
                    "{resource} has {} devices, more than the kubelet takes in one message; write a larger \
                     --memory-unit-mib",
                    devices.len()
                ));
            }
        }
        Ok(offered)
    }
}

fn device(id: String, board: &Board) -> Device {
    let health = if board.fault.is_none() { "Healthy" } else { "Unhealthy" };
    Device { id, health: health.to_owned() }
}

/// The name of a device's tenant, which is its entry in the journal too. A device has one tenant at
/// a time, so a container that starts again finds its own.
pub fn tenant_name(id: &str) -> String {
    id.replace("::", "-")
}

/// One of so many equal shares of a GPU.
fn equal_share(board: &Board, replicas: u32) -> Result<Size, String> {
    let tpcs = board.tpcs / replicas.max(1);
    let mib = board.memory_mib() / u64::from(replicas.max(1));
    if tpcs == 0 || mib < MEMORY_LEAST_MIB {
        let most = u64::from(board.tpcs).min(board.memory_mib() / MEMORY_LEAST_MIB);
        return Err(format!(
            "{} shares of {} are less than a TPC or {MEMORY_LEAST_MIB} MiB each; it has at most {most}",
            replicas, board.uuid
        ));
    }
    Ok(Size { sms: tpcs * board.sms_per_tpc, memory_bytes: mib << 20 })
}

fn definition(board: &Board, id: &str, size: Size) -> Definition {
    Definition {
        tenant: tenant_name(id),
        selectors: vec![board.selector.clone()],
        size: Some(size),
        is_mig: false,
        limits: BTreeMap::new(),
        allocated: vec![Allocated {
            request: String::new(),
            pool: String::new(),
            device: id.to_owned(),
            share_id: None,
            uuid: board.uuid.clone(),
        }],
    }
}

/// The device that a container has of a resource, and its GPU.
///
/// # Errors
/// If that is not exactly one.
pub fn the_device<'a>(
    boards: &'a [Board],
    resource: &str,
    ids: &'a [String],
) -> Result<(&'a Board, &'a str), String> {
    let [id] = ids else {
        return Err(format!(
            "the container requests {} of {resource}; each is a separate share of a GPU, and several do not add up to a \
             larger one; request 1",
            ids.len()
        ));
    };
    let board =
        boards.iter().find(|board| id.strip_prefix(&board.uuid).is_some_and(|rest| rest.starts_with("::")));
    let board = board.ok_or_else(|| format!("{id} is of no GPU that this node offers now"))?;
    if let Some(fault) = &board.fault {
        return Err(format!("{} cannot be used: {fault}", board.uuid));
    }
    Ok((board, id))
}

/// The tenant of a device of `nvidia.com/gpu.shared`.
///
/// # Errors
/// If a GPU has not so many shares.
pub fn shared(board: &Board, id: &str, replicas: u32) -> Result<Definition, String> {
    Ok(definition(board, id, equal_share(board, replicas)?))
}

/// The tenant of a device of `nvidia.com/gpu` as far as it is known when the device is allocated:
/// its name and its GPU.
pub fn without_size(board: &Board, id: &str) -> Definition {
    Definition { size: None, ..definition(board, id, Size { sms: 0, memory_bytes: 0 }) }
}

fn ids<'a>(container: &'a ContainerResources, resource: &'a str) -> impl Iterator<Item = &'a String> {
    let of = container.devices.iter().filter(move |devices| devices.resource_name == resource);
    of.flat_map(|devices| &devices.device_ids)
}

/// The devices of a resource that pods hold.
pub fn held<'a>(list: &'a ListPodResourcesResponse, resource: &'a str) -> impl Iterator<Item = &'a String> {
    let containers = list.pod_resources.iter().flat_map(|pod| &pod.containers);
    containers.flat_map(move |container| ids(container, resource))
}

/// The tenant of a device of `nvidia.com/gpu`, from what else its container has.
///
/// # Errors
/// If no container has it, or its sizes are missing or too small.
pub fn hami(
    board: &Board,
    id: &str,
    memory: MemoryUnit,
    list: &ListPodResourcesResponse,
) -> Result<Definition, String> {
    let mut sizes: Vec<(u64, u64)> = Vec::new();
    for container in list.pod_resources.iter().flat_map(|pod| &pod.containers) {
        if ids(container, GPU).any(|held| held == id) {
            let count = |resource| ids(container, resource).count() as u64;
            sizes.push((count(GPUCORES), count(memory.resource())));
        }
    }
    sizes.dedup();
    let [(cores, units)] = sizes[..] else {
        return Err(match sizes.len() {
            0 => format!(
                "the kubelet lists no container with {id}; it does not list init containers: request the GPU in a \
                 container of the pod, too"
            ),
            count => format!("{count} containers with unequal sizes have {id}; delete one of the pods"),
        });
    };
    let memory_name = memory.resource();
    if cores == 0 || units == 0 {
        let missing = if cores == 0 { GPUCORES } else { memory_name };
        return Err(format!(
            "the container requests {GPU} without {missing}: the kubelet counts only what is requested, and a share \
             without a limit leaves nothing for others; request {GPUCORES} and {memory_name}"
        ));
    }
    let tpcs = u64::from(board.tpcs) * cores / 100;
    if tpcs == 0 {
        let least = 100_u32.div_ceil(board.tpcs.max(1));
        return Err(format!(
            "{GPUCORES} is {cores}, less than one TPC of {}; request at least {least}",
            board.uuid
        ));
    }
    let mib = memory.mib(board, units);
    if mib < MEMORY_LEAST_MIB {
        return Err(format!("{memory_name} is {mib} MiB; a share has at least {MEMORY_LEAST_MIB} MiB"));
    }
    let sms = tpcs as u32 * board.sms_per_tpc;
    Ok(definition(board, id, Size { sms, memory_bytes: mib << 20 }))
}

/// Whether a tenant has room on its GPU beside those that there are, its own from before left out.
pub fn fits<'a>(board: &Board, present: impl Iterator<Item = &'a Definition>, new: &'a Definition) -> bool {
    let others = present.filter(|one| one.tenant != new.tenant);
    let sizes = others.chain([new]).filter_map(|one| one.size);
    let (sms, mib) =
        sizes.fold((0, 0), |(sms, mib), size| (sms + u64::from(size.sms), mib + (size.memory_bytes >> 20)));
    sms <= board.sms().into() && mib <= board.memory_mib()
}

/// Which devices the kubelet should take: those that it must, then those of the GPU with the most
/// devices left.
#[must_use]
pub fn preferred(available: &[String], must: &[String], size: usize) -> Vec<String> {
    let gpu = |id: &str| id.split("::").next().unwrap_or_default().to_owned();
    let mut left: BTreeMap<String, Vec<&String>> = BTreeMap::new();
    for id in available.iter().filter(|id| !must.contains(id)) {
        left.entry(gpu(id)).or_default().push(id);
    }
    let mut chosen = must.to_vec();
    while chosen.len() < size {
        let Some(most) = left.values_mut().max_by_key(|ids| ids.len()) else { break };
        let Some(id) = most.pop() else { break };
        chosen.push(id.clone());
    }
    chosen
}

#[cfg(test)]
#[path = "shares/tests.rs"]
mod tests;
