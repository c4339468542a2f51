//! From extended resources of a pod, HAMi's names among them, to claims of this driver. Pure.
//!
//! Each container that asks gets a claim of its own, because a claim is one tenant. The templates
//! of claims are named by a hash of their content: the same request has the same template, however
//! often it is translated, and a pod that is made again needs no new one.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{
    CELDeviceSelector, CapacityRequirements, DeviceClaim, DeviceConstraint, DeviceRequest, DeviceSelector,
    DeviceSubRequest, ExactDeviceRequest, ResourceClaimSpec, ResourceClaimTemplate,
    ResourceClaimTemplateSpec, ResourceSlice,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ObjectMeta;
use serde_json::{Map, Value, json};

use crate::DRIVER;
use crate::device::{MEMORY, MEMORY_LEAST_MIB, MULTIPROCESSORS};
use crate::quantity::{count, mebibytes, whole};

/// HAMi's name for GPUs, and NVIDIA's.
pub const GPU: &str = "nvidia.com/gpu";
/// HAMi's name for memory, in MiB.
pub const GPUMEM: &str = "nvidia.com/gpumem";
/// HAMi's name for memory, in percent of the GPU's.
pub const GPUMEM_PERCENTAGE: &str = "nvidia.com/gpumem-percentage";
/// HAMi's name for compute, in percent of the GPU's.
pub const GPUCORES: &str = "nvidia.com/gpucores";
/// HAMi's name for the priority of a container's work.
pub const PRIORITY: &str = "nvidia.com/priority";
/// Compute, in SMs.
pub const OWN_MULTIPROCESSORS: &str = "partita.dev/multiprocessors";
/// Memory, in bytes.
pub const OWN_MEMORY: &str = "partita.dev/memory";
/// All that are translated.
pub const RESOURCES: [&str; 7] =
    [GPU, GPUMEM, GPUMEM_PERCENTAGE, GPUCORES, PRIORITY, OWN_MULTIPROCESSORS, OWN_MEMORY];

/// What the names of templates, and of claims in pods, begin with.
const PREFIX: &str = "partita-";
/// Alternatives of a request, and devices of a claim: limits of the API.
const ALTERNATIVES_MAX: usize = 8;
const DEVICES_MAX: u64 = 32;

/// The most SMs or MiB of a request: more than any GPU has, and a quantity of the API.
const AMOUNT_MAX: u64 = 1 << 32;

/// The size of a GPU that the cluster offers. Percentages are percentages of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BoardSize {
    /// TPCs.
    pub tpcs: u64,
    /// SMs of a TPC.
    pub sms_per_tpc: u64,
    /// What tenants may have, in MiB.
    pub memory_mib: u64,
}

/// The sizes of the shared devices in these slices.
pub fn sizes<'a>(slices: impl IntoIterator<Item = &'a ResourceSlice>) -> BTreeSet<BoardSize> {
    let slices = slices.into_iter().filter(|slice| slice.spec.driver == DRIVER);
    let devices = slices.flat_map(|slice| slice.spec.devices.iter().flatten());
    devices
        .filter(|device| device.allow_multiple_allocations == Some(true))
        .filter_map(|device| {
            let number = |name: &str| {
                let attribute = device.attributes.as_ref()?.get(name)?;
                u64::try_from(attribute.int?).ok()
            };
            let memory = whole(&device.capacity.as_ref()?.get(MEMORY)?.value).ok()?;
            Some(BoardSize {
                tpcs: number("tpcs")?,
                sms_per_tpc: number("smsPerTpc")?,
                memory_mib: memory >> 20,
            })
        })
        .collect()
}

/// What a translation depends on beside the pod.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The device class of shares.
    pub share_class: String,
    /// The device class of whole GPUs.
    pub whole_class: String,
    /// The compute of a container that names memory alone, in percent.
    pub default_cores: Option<u32>,
    /// The GPUs of the cluster; `None` if they are not known yet.
    pub boards: Option<BTreeSet<BoardSize>>,
}

/// Why a pod is not translated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Claims cannot express it. The reason and the remedy, for the pod's author.
    NotExpressible(String),
    /// The GPUs of the cluster are not known yet.
    NotYet,
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self::NotExpressible(reason)
    }
}

/// A pod that is translated.
#[derive(Debug, Clone, PartialEq)]
pub struct Translation {
    /// The templates that must exist in the pod's namespace.
    pub templates: Vec<ResourceClaimTemplate>,
    /// The change of the pod, a JSON Patch (RFC 6902).
    pub patch: Value,
    /// What the pod's author should know.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    Percent(u64),
    /// SMs, or MiB.
    Exactly(u64),
}

/// What a container asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ask {
    gpus: u64,
    /// Without it, whole GPUs.
    share: Option<(Part, Part)>,
}

fn quantity(value: &Value) -> Quantity {
    match value {
        Value::String(text) => Quantity(text.clone()),
        other => Quantity(other.to_string()),
    }
}

/// The amounts of a container, by the names that are translated.
fn amounts(resources: &Value) -> Result<BTreeMap<&'static str, u64>, String> {
    let mut amounts = BTreeMap::new();
    for name in RESOURCES {
        let [limit, request] = ["limits", "requests"].map(|kind| resources[kind].get(name));
        let Some(limit) = limit else {
            match request {
                Some(_) => {
                    return Err(format!("{name} is in `requests` alone; write it in `limits`"));
                }
                None => continue,
            }
        };
        let value = whole(&quantity(limit)).map_err(|reason| format!("{name}: {reason}"))?;
        if let Some(request) = request {
            let requested = whole(&quantity(request)).map_err(|reason| format!("{name}: {reason}"))?;
            if requested != value {
                return Err(format!(
                    "{name} has the limit {value} and the request {requested}, and a share has one size; write the \
                     limit alone"
                ));
            }
        }
        let amount = if name == OWN_MEMORY { value >> 20 } else { value };
        if amount > AMOUNT_MAX {
            return Err(format!("{name} is {value}, which no GPU has; write a smaller number"));
        }
        amounts.insert(name, value);
    }
    Ok(amounts)
}

fn percent(name: &str, value: u64, zero: &str) -> Result<Part, String> {
    match value {
        0 => Err(format!("{name} is 0: {zero}")),
        1..100 => Ok(Part::Percent(value)),
        100 => Ok(Part::All),
        _ => Err(format!("{name} is {value}; it is a percentage of one GPU, 1 to 100")),
    }
}

fn ask(resources: &Value, rules: &Rules) -> Result<Option<(Ask, Vec<String>)>, String> {
    let amounts = amounts(resources)?;
    let is_sized = amounts.keys().any(|&name| name != GPU && name != PRIORITY);
    let gpus = match (amounts.get(GPU).copied(), is_sized) {
        (None, false) if amounts.is_empty() => return Ok(None),
        // What remains in the pod would be a request that no node has.
        (None | Some(0), false) => 0,
        (None, true) => 1,
        (Some(0), true) => {
            return Err(format!("{GPU} is 0 and a size is given; write {GPU}: 1, or remove the size"));
        }
        (Some(gpus), _) => gpus,
    };
    if gpus > DEVICES_MAX {
        return Err(format!("{GPU} is {gpus}; a claim has at most {DEVICES_MAX} devices"));
    }
    if amounts.contains_key(PRIORITY) {
        return Err(format!(
            "{PRIORITY} is not enforced in containers, which do not see the neighbours with which they would take \
             turns; remove it"
        ));
    }
    let both = |one: &str, other: &str| match amounts.contains_key(one) && amounts.contains_key(other) {
        true => Err(format!("{one} and {other} are two names of one size; write one of them")),
        false => Ok(()),
    };
    both(GPUCORES, OWN_MULTIPROCESSORS)?;
    both(GPUMEM, GPUMEM_PERCENTAGE)?;
    both(GPUMEM, OWN_MEMORY)?;
    both(GPUMEM_PERCENTAGE, OWN_MEMORY)?;
    if !is_sized {
        return Ok(Some((Ask { gpus, share: None }, Vec::new())));
    }
    let unlimited =
        "compute without a limit leaves nothing for other pods; write a percentage, 100 for all of the GPU";
    let compute = match (amounts.get(GPUCORES), amounts.get(OWN_MULTIPROCESSORS), rules.default_cores) {
        (Some(&cores), ..) => percent(GPUCORES, cores, unlimited)?,
        (_, Some(0), _) => return Err(format!("{OWN_MULTIPROCESSORS} is 0; write at least one TPC's")),
        (_, Some(&sms), _) => Part::Exactly(sms),
        (_, _, Some(cores)) => percent("the default for cores", cores.into(), unlimited)?,
        _ => {
            return Err(format!(
                "memory is given and {GPUCORES} is not: {unlimited}, or let an administrator set webhook.defaultCores"
            ));
        }
    };
    let mut warnings = Vec::new();
    let mut exactly = |name: &str, mib: u64| {
        if mib < MEMORY_LEAST_MIB {
            warnings.push(format!("{name}: {mib} MiB become {MEMORY_LEAST_MIB} MiB, the least of a share"));
        }
        Part::Exactly(mib.max(MEMORY_LEAST_MIB))
    };
    let nothing = "a program needs memory to start; leave it out for all of the GPU's";
    let memory = match (amounts.get(GPUMEM), amounts.get(GPUMEM_PERCENTAGE), amounts.get(OWN_MEMORY)) {
        (Some(0), ..) => return Err(format!("{GPUMEM} is 0: {nothing}")),
        (_, _, Some(0)) => return Err(format!("{OWN_MEMORY} is 0: {nothing}")),
        (Some(&mib), ..) => exactly(GPUMEM, mib),
        (_, Some(&value), _) => percent(GPUMEM_PERCENTAGE, value, nothing)?,
        (_, _, Some(&bytes)) => exactly(OWN_MEMORY, bytes.div_ceil(1 << 20)),
        _ => Part::All,
    };
    Ok(Some((Ask { gpus, share: Some((compute, memory)) }, warnings)))
}

/// What HAMi's annotations say of the GPUs that a pod may have.
fn selectors(annotations: &Value) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    let quoted = |text: &str| Value::from(text).to_string();
    for (name, is_wanted, attribute) in [
        ("nvidia.com/use-gputype", true, "productName"),
        ("nvidia.com/nouse-gputype", false, "productName"),
        ("nvidia.com/use-gpuuuid", true, "uuid"),
        ("nvidia.com/nouse-gpuuuid", false, "uuid"),
    ] {
        let text = match &annotations[name] {
            Value::Null => continue,
            Value::String(text) => text,
            other => return Err(format!("the annotation {name} is {other}, no text")),
        };
        let words: Vec<&str> = text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
        if words.is_empty() {
            return Err(format!("the annotation {name} names nothing; remove it"));
        }
        if words.iter().any(|word| !word.bytes().all(|byte| (0x20..0x7f).contains(&byte))) {
            return Err(format!("the annotation {name} is {text:?}; use ASCII"));
        }
        let value = format!("device.attributes[{}].{attribute}", quoted(DRIVER));
        let terms: Vec<String> = match attribute {
            "uuid" => words.iter().map(|word| format!("{value} == {}", quoted(word))).collect(),
            // Parts of names, in whatever case.
            _ => {
                let upper = words.iter().map(|word| quoted(&word.to_ascii_uppercase()));
                upper.map(|word| format!("{value}.upperAscii().contains({word})")).collect()
            }
        };
        let any = terms.join(" || ");
        all.push(if is_wanted { any } else { format!("!({any})") });
    }
    for name in ["nvidia.com/numa-bind", "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"] {
        if annotations.get(name).is_some_and(|value| value != "" && value != "false") {
            return Err(format!(
                "the annotation {name} is for HAMi's scheduler, and a claim has no field for it; remove it"
            ));
        }
    }
    if let Some(mode) = annotations.get("nvidia.com/vgpu-mode").filter(|mode| *mode != "hami-core") {
        return Err(format!(
            "the annotation nvidia.com/vgpu-mode is {mode}; shares of this driver have one mode: remove it"
        ));
    }
    Ok(all)
}

fn cel(expressions: &[String]) -> Option<Vec<DeviceSelector>> {
    let selector = |expression: &String| DeviceSelector {
        cel: Some(CELDeviceSelector { expression: expression.clone() }),
    };
    (!expressions.is_empty()).then(|| expressions.iter().map(selector).collect())
}

/// A size on one kind of GPU: what selects the kind, and what it consumes there.
type Alternative = (Vec<String>, BTreeMap<String, Quantity>);

fn alternatives(compute: Part, memory: Part, rules: &Rules) -> Result<Vec<Alternative>, Refusal> {
    let sms = |value| (MULTIPROCESSORS.to_owned(), count(value));
    let mib = |value| (MEMORY.to_owned(), mebibytes(value));
    let mut fixed = BTreeMap::new();
    if let Part::Exactly(value) = compute {
        fixed.extend([sms(value)]);
    }
    if let Part::Exactly(value) = memory {
        fixed.extend([mib(value)]);
    }
    let (of_compute, of_memory) = match (compute, memory) {
        (Part::Percent(compute), Part::Percent(memory)) => (Some(compute), Some(memory)),
        (Part::Percent(compute), _) => (Some(compute), None),
        (_, Part::Percent(memory)) => (None, Some(memory)),
        _ => return Ok(vec![(Vec::new(), fixed)]),
    };
    let boards = rules.boards.as_ref().ok_or(Refusal::NotYet)?;
    if boards.is_empty() {
        let reason = format!(
            "no node offers a GPU of {DRIVER} yet, and a percentage is one of a GPU's size; wait for the driver, or \
             write {OWN_MULTIPROCESSORS} and {GPUMEM}"
        );
        return Err(reason.into());
    }
    // A set: GPUs that differ in nothing that matters here are one kind.
    let mut all = BTreeSet::new();
    for board in boards {
        let (mut selectors, mut consumed) = (Vec::new(), fixed.clone());
        let of = |name: &str| format!("device.attributes[\"{DRIVER}\"].{name}");
        if let Some(percent) = of_compute {
            let tpcs = board.tpcs * percent / 100;
            if tpcs == 0 {
                continue;
            }
            selectors.push(format!(
                "{} == {} && {} == {}",
                of("tpcs"),
                board.tpcs,
                of("smsPerTpc"),
                board.sms_per_tpc
            ));
            consumed.extend([sms(tpcs * board.sms_per_tpc)]);
        }
        if let Some(percent) = of_memory {
            selectors.push(format!(
                "device.capacity[\"{DRIVER}\"].{MEMORY}.compareTo(quantity(\"{}Mi\")) == 0",
                board.memory_mib
            ));
            consumed.extend([mib((board.memory_mib * percent / 100).max(MEMORY_LEAST_MIB))]);
        }
        let key: Vec<(String, String)> =
            consumed.iter().map(|(name, value)| (name.clone(), value.0.clone())).collect();
        all.insert((board.tpcs * board.sms_per_tpc, selectors, key));
    }
    let distinct: BTreeSet<&Vec<String>> = all.iter().map(|(_, selectors, _)| selectors).collect();
    if distinct.len() > ALTERNATIVES_MAX {
        let reason = format!(
            "the cluster has GPUs of {} sizes, and a request has at most {ALTERNATIVES_MAX} alternatives; write \
             {OWN_MULTIPROCESSORS} and {GPUMEM} instead of percentages",
            distinct.len()
        );
        return Err(reason.into());
    }
    if all.is_empty() {
        let most = boards.iter().map(|board| board.tpcs).max().unwrap_or(1).max(1);
        let reason = format!(
            "{GPUCORES} is {} percent, which is less than one TPC of every GPU; write at least {}",
            of_compute.unwrap_or_default(),
            100_u64.div_ceil(most)
        );
        return Err(reason.into());
    }
    // The smallest first; a kind of GPU once.
    let mut kinds: Vec<Alternative> = Vec::new();
    for (_, selectors, consumed) in all {
        if !kinds.iter().any(|(known, _)| *known == selectors) {
            let consumed = consumed.into_iter().map(|(name, value)| (name, Quantity(value)));
            kinds.push((selectors, consumed.collect()));
        }
    }
    Ok(kinds)
}

fn claim(ask: Ask, wanted: &[String], rules: &Rules) -> Result<ResourceClaimSpec, Refusal> {
    let gpus = (ask.gpus > 1).then_some(ask.gpus as i64);
    let capacity = |consumed: BTreeMap<String, Quantity>| {
        (!consumed.is_empty()).then_some(CapacityRequirements { requests: Some(consumed) })
    };
    let (class, kinds) = match ask.share {
        None => (&rules.whole_class, vec![(Vec::new(), BTreeMap::new())]),
        Some((compute, memory)) => (&rules.share_class, alternatives(compute, memory, rules)?),
    };
    let mut request = DeviceRequest { name: "gpu".to_owned(), ..DeviceRequest::default() };
    match &kinds[..] {
        [(selectors, consumed)] => {
            request.exactly = Some(ExactDeviceRequest {
                device_class_name: class.clone(),
                count: gpus,
                selectors: cel(&[wanted, selectors].concat()),
                capacity: capacity(consumed.clone()),
                ..ExactDeviceRequest::default()
            });
        }
        kinds => {
            let kind = |(which, (selectors, consumed)): (usize, &Alternative)| DeviceSubRequest {
                name: format!("size-{which}"),
                device_class_name: class.clone(),
                count: gpus,
                selectors: cel(&[wanted, selectors].concat()),
                capacity: capacity(consumed.clone()),
                ..DeviceSubRequest::default()
            };
            request.first_available = Some(kinds.iter().enumerate().map(kind).collect());
        }
    }
    // Two shares of one GPU are not two GPUs.
    let distinct = (ask.share.is_some() && gpus.is_some()).then(|| {
        vec![DeviceConstraint {
            requests: Some(vec!["gpu".to_owned()]),
            distinct_attribute: Some(format!("{DRIVER}/uuid")),
            ..DeviceConstraint::default()
        }]
    });
    let devices =
        DeviceClaim { requests: Some(vec![request]), constraints: distinct, ..DeviceClaim::default() };
    Ok(ResourceClaimSpec { devices: Some(devices) })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash(content: &[u8]) -> String {
    hex(&ring::digest::digest(&ring::digest::SHA256, content).as_ref()[..10])
}

/// The template of a claim, named by its content. Fields have one order, so the text has one form.
fn template(spec: ResourceClaimSpec) -> Result<ResourceClaimTemplate, String> {
    let text = serde_json::to_vec(&spec).map_err(|error| format!("the claim has no text: {error}"))?;
    let label = BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), "partita-webhook".to_owned())]);
    Ok(ResourceClaimTemplate {
        metadata: ObjectMeta {
            name: Some(format!("{PREFIX}{}", hash(&text))),
            labels: Some(label),
            ..ObjectMeta::default()
        },
        spec: ResourceClaimTemplateSpec { metadata: None, spec },
    })
}

/// The name of a container's claim in its pod, a DNS label.
fn claim_name(container: &str) -> String {
    let name = format!("{PREFIX}{container}");
    if name.len() <= 63 { name } else { format!("{PREFIX}{}", hash(container.as_bytes())) }
}

/// The resources without what was translated, and with the claim.
fn rewritten(resources: &Value, claim: Option<&str>) -> Value {
    let mut resources = resources.clone();
    for kind in ["limits", "requests"] {
        if let Some(map) = resources[kind].as_object_mut() {
            map.retain(|name, _| !RESOURCES.contains(&name.as_str()));
        }
    }
    if let Some(all) = resources.as_object_mut() {
        all.retain(|_, value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty()));
        if let Some(claim) = claim {
            let claims = all.entry("claims").or_insert_with(|| json!([]));
            if let Some(claims) = claims.as_array_mut() {
                claims.push(json!({"name": claim}));
            }
        }
    }
    resources
}

/// The translation of a pod; `None` if it asks for nothing that is translated, as after a
/// translation.
///
/// # Errors
/// What claims cannot express.
pub fn translate(pod: &Value, rules: &Rules) -> Result<Option<Translation>, Refusal> {
    let spec = &pod["spec"];
    let empty = Vec::new();
    let list = |name: &str| spec[name].as_array().unwrap_or(&empty);
    let is_sidecar = |container: &Value| container["restartPolicy"] == "Always";
    // First what lives as long as the pod.
    let apps = list("containers").iter().enumerate().map(|(at, one)| ("containers", at, one, true));
    let inits = list("initContainers").iter().enumerate();
    let inits = inits.map(|(at, one)| ("initContainers", at, one, is_sidecar(one)));
    let (sidecars, inits): (Vec<_>, Vec<_>) = inits.partition(|(.., is_lasting)| *is_lasting);
    let mut wanted = None;
    let mut translation = Translation { templates: Vec::new(), patch: json!([]), warnings: Vec::new() };
    // Name, template, and whether an init container may use it too: not while a sidecar does.
    let mut claims: Vec<(String, String, bool)> = Vec::new();
    let mut operations = Vec::new();
    for (kind, at, container, is_lasting) in apps.chain(sidecars).chain(inits) {
        let name = container["name"].as_str().unwrap_or_default();
        let at_container = |reason: String| format!("container {name}: {reason}");
        let Some((ask, warnings)) = ask(&container["resources"], rules).map_err(at_container)? else {
            continue;
        };
        translation.warnings.extend(warnings.into_iter().map(at_container));
        let mut named = None;
        if ask.gpus > 0 {
            if wanted.is_none() {
                wanted = Some(selectors(&pod["metadata"]["annotations"])?);
            }
            let spec =
                claim(ask, wanted.as_deref().unwrap_or_default(), rules).map_err(
                    |refusal| match refusal {
                        Refusal::NotExpressible(reason) => at_container(reason).into(),
                        other => other,
                    },
                )?;
            let template = template(spec)?;
            let of = template.metadata.name.clone().unwrap_or_default();
            let held = container["resources"]["claims"].as_array().unwrap_or(&empty);
            let is_ours = |one: &&Value| one["name"].as_str().is_some_and(|name| name.starts_with(PREFIX));
            if let Some(other) = held.iter().find(is_ours) {
                return Err(at_container(format!(
                    "it has the claim {} already, and a container has one share; remove the claim or the resources",
                    other["name"]
                ))
                .into());
            }
            // Whose it is, only the API server knows.
            translation.warnings.extend(held.iter().map(|other| {
                at_container(format!(
                    "it has the claim {} already; if that has a device of {DRIVER}, the mounts of one \
                     hide those of the other: remove the claim or the resources",
                    other["name"]
                ))
            }));
            // Init containers run before the others, so they use the claim of one of them.
            let is_free = |(_, other, is_free): &&(String, String, bool)| *is_free && *other == of;
            let shared = claims.iter().find(is_free).filter(|_| !is_lasting);
            let claim = match shared {
                Some((claim, ..)) => claim.clone(),
                None if !is_lasting && !claims.is_empty() => {
                    return Err(at_container(
                        "this init container requests other sizes than the containers that run after it, and a claim \
                         is held for the whole life of the pod; give it the sizes of one of them, or none"
                            .to_owned(),
                    )
                    .into());
                }
                None => {
                    let claim = claim_name(name);
                    if list("resourceClaims").iter().any(|one| one["name"] == claim.as_str()) {
                        return Err(at_container(format!(
                            "the pod has a resource claim of the name {claim} already; rename it"
                        ))
                        .into());
                    }
                    claims.push((claim.clone(), of.clone(), kind == "containers" || !is_lasting));
                    claim
                }
            };
            if !translation.templates.contains(&template) {
                translation.templates.push(template);
            }
            named = Some(claim);
        }
        operations.push(json!({
            "op": "replace",
            "path": format!("/spec/{kind}/{at}/resources"),
            "value": rewritten(&container["resources"], named.as_deref()),
        }));
    }
    if operations.is_empty() {
        return Ok(None);
    }
    if !claims.is_empty() {
        let mut all = list("resourceClaims").clone();
        all.extend(claims.into_iter().map(|(name, template, _)| {
            Value::Object(Map::from_iter([
                ("name".to_owned(), name.into()),
                ("resourceClaimTemplateName".to_owned(), template.into()),
            ]))
        }));
        operations.push(json!({"op": "add", "path": "/spec/resourceClaims", "value": all}));
    }
    translation.patch = operations.into();
    Ok(Some(translation))
}

#[cfg(test)]
#[path = "translate/tests.rs"]
mod tests;
