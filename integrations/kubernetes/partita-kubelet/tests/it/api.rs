//! A fake API server: resource versions, watches, conflicts (409), versions that are too old (410),
//! and the validation of slices as a real Kubernetes 1.36.2 did it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use k8s_openapi::api::resource::v1::{
    ResourceClaimStatus, ResourceClaimTemplate, ResourceSlice, ResourceSliceSpec,
};
use partita_kubelet::quantity::whole;
use serde_json::{Value, json};

#[derive(Default)]
pub struct Store {
    version: u64,
    /// Versions up to this one are forgotten: a watch from there gets 410.
    forgotten: u64,
    pub slices: BTreeMap<String, Value>,
    /// By `namespace/name`.
    claims: BTreeMap<String, Value>,
    /// By `namespace/name`.
    pub templates: BTreeMap<String, Value>,
    pub events: Vec<Value>,
    /// Version, collection, type, object.
    log: Vec<(u64, &'static str, &'static str, Value)>,
    /// How many writes of slices the server is to refuse as conflicts.
    pub conflicts: u32,
    /// What validation refused.
    pub invalid: Vec<String>,
    /// No answers at all.
    pub is_down: bool,
    /// What was asked for, in the words of RBAC: API group, resource (with the name, where a role
    /// gives rights to names), verb.
    pub asked: BTreeSet<Right>,
    /// How often, and the bytes of the answers; watches have none here.
    pub answers: BTreeMap<Right, (u64, u64)>,
    /// The driver's service account lacks the right to write `status.devices`.
    pub refuses_status: bool,
    /// The claim whose status no write reaches.
    pub stuck_status: Option<&'static str>,
    /// The driver may get claims by name alone, as the kubelet may.
    pub refuses_claim_lists: bool,
    /// How many writes of a claim's status the server is to refuse as conflicts.
    pub status_conflicts: u32,
    /// How many it took.
    pub status_writes: u32,
}

/// API group, resource, verb.
pub type Right = (String, String, &'static str);

impl Store {
    fn note(&mut self, kind: &'static str, what: &'static str, object: &mut Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.log.push((self.version, kind, what, object.clone()));
    }

    pub fn delete_slice(&mut self, name: &str) {
        if let Some(mut slice) = self.slices.remove(name) {
            self.note("resourceslices", "DELETED", &mut slice);
        }
    }

    /// All, as a kubelet does when it starts.
    pub fn delete_slices(&mut self) {
        let names: Vec<String> = self.slices.keys().cloned().collect();
        names.iter().for_each(|name| self.delete_slice(name));
    }

    /// Somebody else's change.
    pub fn edit_slice(&mut self, name: &str, edit: impl Fn(&mut Value)) {
        let mut slice = self.slices[name].clone();
        edit(&mut slice);
        self.note("resourceslices", "MODIFIED", &mut slice);
        self.slices.insert(name.to_owned(), slice);
    }

    /// A slice of a driver that is not there.
    pub fn put_slice(&mut self, name: &str, spec: &ResourceSliceSpec) {
        let mut slice = json!({"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1",
            "metadata": {"name": name, "uid": format!("uid-{name}")}, "spec": spec});
        check(&slice).unwrap();
        self.note("resourceslices", "ADDED", &mut slice);
        self.slices.insert(name.to_owned(), slice);
    }

    /// Somebody else's slice too many.
    pub fn copy_slice(&mut self, name: &str) {
        let mut slice = self.slices[name].clone();
        let name = format!("{name}-copy");
        slice["metadata"]["name"] = name.clone().into();
        slice["metadata"]["uid"] = format!("uid-{name}").into();
        self.note("resourceslices", "ADDED", &mut slice);
        self.slices.insert(name, slice);
    }

    pub fn put_claim(&mut self, mut claim: Value) {
        let meta = &claim["metadata"];
        let key = format!("{}/{}", meta["namespace"].as_str().unwrap(), meta["name"].as_str().unwrap());
        let what = if self.claims.contains_key(&key) { "MODIFIED" } else { "ADDED" };
        self.note("resourceclaims", what, &mut claim);
        self.claims.insert(key, claim);
    }

    pub fn edit_claim(&mut self, key: &str, edit: impl Fn(&mut Value)) {
        let mut claim = self.claims[key].clone();
        edit(&mut claim);
        self.put_claim(claim);
    }

    pub fn annotate(&mut self, key: &str, value: &str) {
        self.edit_claim(key, |claim| claim["metadata"]["annotations"]["partita.dev/resize"] = value.into());
    }

    pub fn remove_annotations(&mut self, key: &str) {
        self.edit_claim(key, |claim| claim["metadata"]["annotations"] = Value::Null);
    }

    /// `status.devices` of a claim.
    pub fn devices_of(&self, key: &str) -> Vec<Value> {
        self.claims[key]["status"]["devices"].as_array().cloned().unwrap_or_default()
    }

    pub fn remove_claim(&mut self, key: &str) {
        if let Some(mut claim) = self.claims.remove(key) {
            self.note("resourceclaims", "DELETED", &mut claim);
        }
    }

    /// Forgets history, as etcd's compaction does.
    pub fn compact(&mut self) {
        self.forgotten = self.version;
        self.log.clear();
    }
}

pub type Shared = Arc<Mutex<Store>>;

fn status(code: StatusCode, reason: &str, message: &str) -> Response {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
        "code": code.as_u16(), "reason": reason, "message": message,
    });
    (code, Json(body)).into_response()
}

/// What the real server says of a slice.
fn check(slice: &Value) -> Result<(), String> {
    let slice: ResourceSlice = serde_json::from_value(slice.clone()).map_err(|error| error.to_string())?;
    let spec = slice.spec;
    let devices = spec.devices.unwrap_or_default();
    let counters = spec.shared_counters.unwrap_or_default();
    if devices.is_empty() == counters.is_empty() {
        return Err("exactly one of `sharedCounters` and `devices` is required".to_owned());
    }
    let has_counters =
        devices.iter().any(|device| device.consumes_counters.is_some() || device.taints.is_some());
    if devices.len() > if has_counters { 64 } else { 128 } || counters.len() > 8 {
        return Err("too many devices or counter sets".to_owned());
    }
    for device in &devices {
        let name = &device.name;
        let is_label = |text: &str| {
            let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            text.len() <= 63 && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
        };
        if !is_label(name) {
            return Err(format!("{name} is no DNS label"));
        }
        let attributes = device.attributes.clone().unwrap_or_default();
        let capacities = device.capacity.clone().unwrap_or_default();
        if attributes.len() + capacities.len() > 32 {
            return Err(format!("{name}: more than 32 attributes and capacities"));
        }
        for (key, value) in attributes {
            if value.string.is_some_and(|text| text.len() > 64) {
                return Err(format!("{key} is too long"));
            }
            let is_version = |text: &str| {
                let parts: Vec<&str> = text.split('.').collect();
                let plain =
                    |part: &&str| part.parse::<u64>().is_ok() && (part.len() == 1 || !part.starts_with('0'));
                parts.len() == 3 && parts.iter().all(plain)
            };
            if value.version.is_some_and(|text| !is_version(&text)) {
                return Err(format!("{key} is no semantic version"));
            }
        }
        for (key, capacity) in capacities {
            let Some(policy) = capacity.request_policy else { continue };
            if device.allow_multiple_allocations != Some(true) {
                return Err(format!("{key}: a request policy needs allowMultipleAllocations"));
            }
            let Some(range) = policy.valid_range else { continue };
            let (min, step) = (whole(&range.min)?, range.step.as_ref().map_or(Ok(1), whole)?);
            for value in [range.max.as_ref(), policy.default.as_ref()].into_iter().flatten() {
                let value = whole(value)?;
                if value < min || (value - min) % step != 0 {
                    return Err(format!("{key}: {value} is not a multiple of a given step"));
                }
            }
        }
    }
    Ok(())
}

/// The value of a selector's field.
fn matches(object: &Value, selector: &str) -> bool {
    selector.split(',').filter(|term| !term.is_empty()).all(|term| {
        let (path, wanted) = term.split_once('=').unwrap();
        let found = path.split('.').fold(object, |value, key| &value[key]);
        found.as_str() == Some(wanted)
    })
}

type Params = Query<BTreeMap<String, String>>;

fn list_or_watch(
    store: &Shared,
    kind: &'static str,
    items: Vec<Value>,
    params: &BTreeMap<String, String>,
) -> Response {
    let selector = params.get("fieldSelector").cloned().unwrap_or_default();
    let locked = store.lock().unwrap();
    if params.get("watch").is_none_or(|value| value == "false" || value == "0") {
        let items: Vec<Value> = items.into_iter().filter(|item| matches(item, &selector)).collect();
        let list = if kind == "resourceslices" { "ResourceSliceList" } else { "ResourceClaimList" };
        return Json(json!({
            "kind": list, "apiVersion": "resource.k8s.io/v1",
            "metadata": {"resourceVersion": locked.version.to_string()}, "items": items,
        }))
        .into_response();
    }
    let from: u64 = params.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
    drop(locked);
    let stream = futures::stream::unfold((store.clone(), from, false), move |(store, from, is_over)| {
        let selector = selector.clone();
        async move {
            if is_over {
                return None;
            }
            loop {
                {
                    let locked = store.lock().unwrap();
                    if locked.is_down {
                        return None;
                    }
                    if from < locked.forgotten {
                        let gone = json!({"type": "ERROR", "object": {
                            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                            "code": 410, "reason": "Expired", "message": "too old resource version"}});
                        drop(locked);
                        return Some((Ok::<_, std::io::Error>(format!("{gone}\n")), (store, from, true)));
                    }
                    let next = locked.log.iter().find(|(version, of, _, object)| {
                        *version > from && *of == kind && matches(object, &selector)
                    });
                    if let Some((version, _, what, object)) = next {
                        let line = format!("{}\n", json!({"type": what, "object": object}));
                        let version = *version;
                        drop(locked);
                        return Some((Ok(line), (store, version, false)));
                    }
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
    Response::new(Body::from_stream(stream))
}

async fn slices(State(store): State<Shared>, Query(params): Params) -> Response {
    let selector = params.get("fieldSelector").cloned().unwrap_or_default();
    let all = store.lock().unwrap();
    // Those of a thousand nodes are not copied for each of them.
    let items = all.slices.values().filter(|slice| matches(slice, &selector)).cloned().collect();
    drop(all);
    list_or_watch(&store, "resourceslices", items, &params)
}

async fn claims(
    State(store): State<Shared>,
    Path(namespace): Path<String>,
    Query(params): Params,
) -> Response {
    let of = format!("{namespace}/");
    let locked = store.lock().unwrap();
    if locked.refuses_claim_lists {
        return status(StatusCode::FORBIDDEN, "Forbidden", "cannot list resource resourceclaims");
    }
    let items = locked.claims.iter().filter(|(key, _)| key.starts_with(&of)).map(|(_, claim)| claim.clone());
    let items = items.collect();
    drop(locked);
    list_or_watch(&store, "resourceclaims", items, &params)
}

async fn claim(State(store): State<Shared>, Path((namespace, name)): Path<(String, String)>) -> Response {
    match store.lock().unwrap().claims.get(&format!("{namespace}/{name}")) {
        Some(claim) => Json(claim.clone()).into_response(),
        None => status(StatusCode::NOT_FOUND, "NotFound", "there is no such claim"),
    }
}

/// What the real server says of a claim's new `status.devices`.
fn check_devices(status: &Value) -> Result<(), String> {
    let typed: ResourceClaimStatus =
        serde_json::from_value(status.clone()).map_err(|error| error.to_string())?;
    let key = |value: &Value| ["driver", "pool", "device", "shareID"].map(|name| value[name].clone());
    let none = Vec::new();
    let allocated = status["allocation"]["devices"]["results"].as_array().unwrap_or(&none);
    let mut keys = Vec::new();
    for (device, raw) in
        typed.devices.unwrap_or_default().iter().zip(status["devices"].as_array().unwrap_or(&none))
    {
        if !allocated.iter().any(|result| key(result) == key(raw)) {
            return Err(format!("{}: must be an allocated device in the claim", device.device));
        }
        if keys.contains(&key(raw)) {
            return Err(format!("{}: Duplicate value", device.device));
        }
        keys.push(key(raw));
        let conditions = device.conditions.clone().unwrap_or_default();
        if conditions.len() > 8 {
            return Err("conditions: Too many".to_owned());
        }
        for (condition, raw) in conditions.iter().zip(raw["conditions"].as_array().unwrap_or(&none)) {
            let reason = &condition.reason;
            let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"_,:".contains(&byte);
            if reason.is_empty()
                || reason.len() > 1024
                || !reason.bytes().all(inner)
                || !reason.starts_with(|char: char| char.is_ascii_alphabetic())
                || reason.ends_with([',', ':'])
            {
                return Err(format!("conditions.reason: {reason:?}"));
            }
            if !["True", "False", "Unknown"].contains(&condition.status.as_str()) {
                return Err(format!("conditions.status: {:?}", condition.status));
            }
            if condition.type_.is_empty() || condition.message.len() > 32768 {
                return Err("conditions: type or message".to_owned());
            }
            // Go's time in JSON, to the second.
            let time = raw["lastTransitionTime"].as_str().unwrap_or_default();
            if time.len() != "1970-01-01T00:00:00Z".len() || !time.ends_with('Z') {
                return Err(format!("conditions.lastTransitionTime: {time:?}"));
            }
        }
        if !raw["data"].is_null() {
            let bytes = serde_json::to_vec(&raw["data"]).unwrap().len();
            if !raw["data"].is_object() || bytes > 10 * 1024 {
                return Err(format!("data: an object of at most 10 Ki, not {bytes} bytes"));
            }
        }
    }
    Ok(())
}

/// The node that a claim's devices are tied to, as the scheduler writes it.
fn node_of(claim: &Value) -> Option<&str> {
    let terms = claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"].as_array()?;
    let [term] = &terms[..] else { return None };
    let fields = term["matchFields"].as_array()?;
    let [field] = &fields[..] else { return None };
    let is_name = field["key"] == "metadata.name" && field["operator"] == "In";
    let values = field["values"].as_array().filter(|values| values.len() == 1)?;
    if is_name && term["matchExpressions"].is_null() { values[0].as_str() } else { None }
}

/// A merge patch of a claim's status, from the service account of a pod on the node.
async fn patch_status(
    State(store): State<Shared>,
    Path((namespace, name)): Path<(String, String)>,
    Json(patch): Json<Value>,
) -> Response {
    let mut store = store.lock().unwrap();
    let key = format!("{namespace}/{name}");
    let Some(old) = store.claims.get(&key).cloned() else {
        return status(StatusCode::NOT_FOUND, "NotFound", "there is no such claim");
    };
    if store.stuck_status == Some(&*name) {
        return status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "etcdserver: no leader");
    }
    let mut fresh = old.clone();
    json_patch::merge(&mut fresh, &patch);
    for field in ["uid", "resourceVersion"] {
        if fresh["metadata"][field] != old["metadata"][field] {
            return status(StatusCode::CONFLICT, "Conflict", "the object has been modified");
        }
    }
    if store.status_conflicts > 0 {
        store.status_conflicts -= 1;
        return status(StatusCode::CONFLICT, "Conflict", "the object has been modified");
    }
    // Of the status alone.
    fresh["metadata"] = old["metadata"].clone();
    fresh["spec"] = old["spec"].clone();
    let without = |claim: &Value| {
        let mut status = claim["status"].clone();
        status.as_object_mut().map(|fields| fields.remove("devices"));
        status
    };
    if without(&fresh) != without(&old) {
        return status(StatusCode::FORBIDDEN, "Forbidden", "it may change status.devices alone");
    }
    let entries = |claim: &Value| claim["status"]["devices"].as_array().cloned().unwrap_or_default();
    let (before, after) = (entries(&old), entries(&fresh));
    let differ = before.iter().filter(|one| !after.contains(one));
    let differ = differ.chain(after.iter().filter(|one| !before.contains(one)));
    let drivers: BTreeSet<String> = differ.map(|one| one["driver"].as_str().unwrap().to_owned()).collect();
    for driver in drivers {
        // The writer is a pod on the node whose pool its entries name.
        let verb = match node_of(&old)
            .is_some_and(|node| after.iter().chain(&before).any(|one| one["pool"] == node))
        {
            true => "associated-node:patch",
            false => "arbitrary-node:patch",
        };
        if verb == "arbitrary-node:patch" || store.refuses_status {
            let message = format!(
                "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"{verb}\""
            );
            return status(StatusCode::FORBIDDEN, "Forbidden", &message);
        }
        let right = ("resource.k8s.io".to_owned(), format!("resourceclaims/driver:{driver}"), verb);
        store.asked.insert(right);
    }
    if let Err(message) = check_devices(&fresh["status"]) {
        store.invalid.push(message.clone());
        return status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &message);
    }
    store.status_writes += 1;
    store.put_claim(fresh.clone());
    Json(store.claims[&key].clone()).into_response()
}

/// Writes quantities as the real server does, with the largest suffix, and the times of taints.
fn rewrite(value: &mut Value) {
    const QUANTITIES: [&str; 6] = ["value", "default", "min", "max", "step", "validValues"];
    if let Value::Object(fields) = value {
        for (name, field) in fields.iter_mut() {
            match field {
                Value::String(text) if QUANTITIES.contains(&name.as_str()) => *text = shortest(text),
                Value::Array(taints) if name == "taints" => {
                    taints.iter_mut().for_each(|taint| taint["timeAdded"] = "2026-11-28T01:20:14Z".into());
                }
                _ => rewrite(field),
            }
        }
    } else if let Value::Array(all) = value {
        all.iter_mut().for_each(rewrite);
    }
}

/// A whole number with the largest suffix of its kind.
fn shortest(text: &str) -> String {
    let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let (mut number, suffix) = (text[..end].parse::<u64>().unwrap(), &text[end..]);
    let (suffixes, base) = match suffix.ends_with('i') {
        true => (&["Ki", "Mi", "Gi", "Ti"][..], 1024),
        false => (&["", "k", "M", "G"][..], 1000),
    };
    let mut at = suffixes.iter().position(|one| *one == suffix).unwrap();
    while number != 0 && number.is_multiple_of(base) && at + 1 < suffixes.len() {
        (number, at) = (number / base, at + 1);
    }
    format!("{number}{}", suffixes[at])
}

fn refuse(store: &mut Store, slice: &Value) -> Option<Response> {
    if store.conflicts > 0 {
        store.conflicts -= 1;
        return Some(status(StatusCode::CONFLICT, "Conflict", "the object has been modified"));
    }
    let message = check(slice).err()?;
    store.invalid.push(message.clone());
    Some(status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &message))
}

async fn create(State(store): State<Shared>, Json(mut slice): Json<Value>) -> Response {
    let mut store = store.lock().unwrap();
    if let Some(refused) = refuse(&mut store, &slice) {
        return refused;
    }
    let name = format!("{}{:05}", slice["metadata"]["generateName"].as_str().unwrap(), store.version);
    rewrite(&mut slice["spec"]);
    slice["metadata"]["name"] = name.clone().into();
    slice["metadata"]["uid"] = format!("uid-{name}").into();
    store.note("resourceslices", "ADDED", &mut slice);
    store.slices.insert(name, slice.clone());
    (StatusCode::CREATED, Json(slice)).into_response()
}

async fn replace(
    State(store): State<Shared>,
    Path(name): Path<String>,
    Json(mut slice): Json<Value>,
) -> Response {
    let mut store = store.lock().unwrap();
    if let Some(refused) = refuse(&mut store, &slice) {
        return refused;
    }
    let Some(old) = store.slices.get(&name) else {
        return status(StatusCode::NOT_FOUND, "NotFound", "there is no such slice");
    };
    if old["metadata"]["resourceVersion"] != slice["metadata"]["resourceVersion"] {
        return status(StatusCode::CONFLICT, "Conflict", "the object has been modified");
    }
    rewrite(&mut slice["spec"]);
    store.note("resourceslices", "MODIFIED", &mut slice);
    store.slices.insert(name, slice.clone());
    Json(slice).into_response()
}

async fn delete(State(store): State<Shared>, Path(name): Path<String>) -> Response {
    let mut store = store.lock().unwrap();
    if !store.slices.contains_key(&name) {
        return status(StatusCode::NOT_FOUND, "NotFound", "there is no such slice");
    }
    store.delete_slice(&name);
    Json(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})).into_response()
}

/// What the real server says of a template.
fn check_template(template: &Value) -> Result<(), String> {
    let typed: ResourceClaimTemplate =
        serde_json::from_value(template.clone()).map_err(|error| error.to_string())?;
    let devices = typed.spec.spec.devices.unwrap_or_default();
    let requests = devices.requests.unwrap_or_default();
    for request in &requests {
        if request.exactly.is_some() == request.first_available.is_some() {
            return Err("exactly one of `exactly` or `firstAvailable` is required".to_owned());
        }
        if request.first_available.as_ref().is_some_and(|all| all.is_empty() || all.len() > 8) {
            return Err("1 to 8 alternatives".to_owned());
        }
    }
    for constraint in devices.constraints.iter().flatten() {
        for name in constraint.requests.iter().flatten() {
            if !requests.iter().any(|request| request.name == *name) {
                return Err(format!("{name} must be the name of a request in the claim"));
            }
        }
    }
    Ok(())
}

async fn create_template(
    State(store): State<Shared>,
    Path(namespace): Path<String>,
    Json(mut template): Json<Value>,
) -> Response {
    let mut store = store.lock().unwrap();
    if let Err(message) = check_template(&template) {
        store.invalid.push(message.clone());
        return status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &message);
    }
    let key = format!("{namespace}/{}", template["metadata"]["name"].as_str().unwrap());
    if store.templates.contains_key(&key) {
        return status(StatusCode::CONFLICT, "AlreadyExists", "it already exists");
    }
    template["metadata"]["namespace"] = namespace.into();
    store.note("resourceclaimtemplates", "ADDED", &mut template);
    store.templates.insert(key, template.clone());
    (StatusCode::CREATED, Json(template)).into_response()
}

async fn node(Path(name): Path<String>) -> Response {
    Json(json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "uid": "uid-of-the-node"}}))
        .into_response()
}

async fn event(State(store): State<Shared>, Json(event): Json<Value>) -> Response {
    store.lock().unwrap().events.push(event.clone());
    (StatusCode::CREATED, Json(event)).into_response()
}

/// Starts it; the address is the second value.
pub async fn start() -> (Shared, String) {
    let store = Shared::default();
    let group = "/apis/resource.k8s.io/v1";
    let events = "/apis/events.k8s.io/v1/namespaces/{namespace}/events";
    let router = Router::new()
        .route(&format!("{group}/resourceslices"), get(slices).post(create))
        .route(&format!("{group}/resourceslices/{{name}}"), put(replace).delete(delete))
        .route(&format!("{group}/namespaces/{{namespace}}/resourceclaims"), get(claims))
        .route(&format!("{group}/namespaces/{{namespace}}/resourceclaims/{{name}}"), get(claim))
        .route(
            &format!("{group}/namespaces/{{namespace}}/resourceclaims/{{name}}/status"),
            axum::routing::patch(patch_status),
        )
        .route(&format!("{group}/namespaces/{{namespace}}/resourceclaimtemplates"), post(create_template))
        .route("/api/v1/nodes/{name}", get(node))
        .route(events, post(event))
        .route(&format!("{events}/{{name}}"), axum::routing::patch(event))
        .layer(axum::middleware::from_fn_with_state(store.clone(), down))
        .with_state(store.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (store, address)
}

/// API group, resource and verb of a request, as the API server's authorizers see them.
fn right(method: &str, path: &str, query: &str) -> Right {
    let words: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, rest) = match &words[..] {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => panic!("{path} is of no API"),
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let is_watch = query.split('&').any(|term| ["watch=true", "watch=1"].contains(&term));
    let verb = match (method, rest.len()) {
        ("GET", 1) if is_watch => "watch",
        ("GET", 1) => "list",
        ("GET", _) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", 1) => "deletecollection",
        ("DELETE", _) => "delete",
        other => panic!("{other:?} is no verb"),
    };
    let resource = match rest {
        [resource] | [resource, _] => (*resource).to_owned(),
        [resource, _, part] => format!("{resource}/{part}"),
        _ => panic!("{path} is no resource"),
    };
    (group.to_owned(), resource, verb)
}

async fn down(
    State(store): State<Shared>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> Response {
    let uri = request.uri();
    let asked = right(request.method().as_str(), uri.path(), uri.query().unwrap_or_default());
    let is_down = {
        let mut store = store.lock().unwrap();
        store.asked.insert(asked.clone());
        store.is_down
    };
    if is_down {
        return status(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "the server is down");
    }
    let answer = next.run(request).await;
    let bytes = axum::body::HttpBody::size_hint(answer.body()).exact().unwrap_or(0);
    let mut store = store.lock().unwrap();
    let (count, sum) = store.answers.entry(asked).or_default();
    (*count, *sum) = (*count + 1, *sum + bytes);
    drop(store);
    answer
}
