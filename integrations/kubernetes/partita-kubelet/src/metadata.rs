//! The file in which a container's programs read what their claim was given, by Kubernetes'
//! protocol of device metadata.
//!
//! It is at `/var/run/kubernetes.io/dra-device-attributes/…/partita.dev-metadata.json` in every
//! container of the claim, read-only. It says what was allocated and never changes; what a resize
//! leaves, programs see by CUDA. A CDI device of its own brings it, beside the tenant's.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::resource::v1::DeviceAttribute;
use partita::points::reached;
use serde_json::{Value, json};

use crate::DRIVER;
use crate::device::{Board, MULTIPROCESSORS};
use crate::journal::Entry;

/// The annotation of a claim that was made from a template: the claim's name in the pod.
pub const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// The kind of the CDI devices.
pub const KIND: &str = "partita.dev/metadata";

/// Where drivers put the files, in containers.
const DIR_IN_CONTAINER: &str = "/var/run/kubernetes.io/dra-device-attributes";
/// The versions of the protocol, the newest first. They have the same fields so far.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];

/// The files of this node.
#[derive(Debug, Clone)]
pub struct Files {
    /// Where the files are on the node.
    dir: PathBuf,
}

/// A request's name without that of the alternative that the scheduler chose: `gpu` of
/// `gpu/size-0`.
pub(crate) fn base(request: &str) -> &str {
    request.split('/').next().unwrap_or(request)
}

/// Where the file is in containers. Pure.
#[must_use]
pub fn path_in_container(entry: &Entry) -> PathBuf {
    let request = entry.definition.allocated.first().map_or("", |one| base(&one.request));
    let claim = match &entry.pod_claim {
        Some(pod_claim) => Path::new("resourceclaimtemplates").join(pod_claim),
        None => Path::new("resourceclaims").join(&entry.name),
    };
    Path::new(DIR_IN_CONTAINER).join(claim).join(request).join(format!("{DRIVER}-metadata.json"))
}

/// The file's content: the same object in every version, so that a reader takes the first that it
/// knows. Pure.
#[must_use]
pub fn content(entry: &Entry, boards: &[Board]) -> String {
    let text = |value: &str| DeviceAttribute { string: Some(value.to_owned()), ..DeviceAttribute::default() };
    let number =
        |value: u64| DeviceAttribute { int: i64::try_from(value).ok(), ..DeviceAttribute::default() };
    let device = |one: &crate::plan::Allocated| {
        let board = boards.iter().find(|board| board.uuid == one.uuid);
        let mut attributes: BTreeMap<String, DeviceAttribute> =
            board.map(|board| board.attributes_of(&one.device)).unwrap_or_default();
        attributes.insert("tenant".to_owned(), text(&entry.definition.tenant));
        attributes.extend(one.share_id.as_ref().map(|share| ("shareID".to_owned(), text(share))));
        let sms = match entry.definition.size {
            Some(size) => {
                attributes.insert("memoryBytes".to_owned(), number(size.memory_bytes));
                Some(size.sms)
            }
            None => board.map(Board::sms),
        };
        attributes.extend(sms.map(|sms| (MULTIPROCESSORS.to_owned(), number(sms.into()))));
        json!({"driver": DRIVER, "pool": one.pool, "name": one.device, "attributes": attributes})
    };
    let devices: Vec<Value> = entry.definition.allocated.iter().map(device).collect();
    let request = entry.definition.allocated.first().map_or("", |one| one.request.as_str());
    let mut all = String::new();
    for version in VERSIONS {
        let mut object = json!({
            "kind": "DeviceMetadata",
            "apiVersion": format!("metadata.resource.k8s.io/{version}"),
            "metadata": {
                "name": entry.name,
                "namespace": entry.namespace,
                "uid": entry.uid,
                "generation": 1,
            },
            "requests": [{"name": request, "devices": devices}],
        });
        if let Some(pod_claim) = &entry.pod_claim {
            object["podClaimName"] = pod_claim.as_str().into();
        }
        all += &format!("{object:#}\n");
    }
    all
}

/// The CDI device that brings the file into containers. Pure.
fn spec(entry: &Entry, file: &Path) -> Value {
    json!({
        "cdiVersion": "0.5.0",
        "kind": KIND,
        "devices": [{
            "name": entry.definition.tenant,
            "containerEdits": {"mounts": [{
                "hostPath": file,
                "containerPath": path_in_container(entry),
                "options": ["bind", "ro", "nosuid", "nodev"],
            }]},
        }],
    })
}

impl Files {
    /// The files in `dir`, which is made if it is missing.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        fs::set_permissions(dir, PermissionsExt::from_mode(0o700))?;
        Ok(Self { dir: dir.to_owned() })
    }

    fn places(&self, tenant: &str, cdi: &Path) -> [PathBuf; 2] {
        let device = format!("{}-{tenant}.json", KIND.replace('/', "-"));
        [self.dir.join(format!("{tenant}.json")), cdi.join(device)]
    }

    /// Writes the file of a claim and its CDI device, unless they are there.
    ///
    /// # Errors
    /// Those of the file system, with the path.
    pub fn write(&self, entry: &Entry, boards: &[Board], cdi: &Path) -> Result<(), String> {
        let [file, device] = self.places(&entry.definition.tenant, cdi);
        put(&file, &content(entry, boards))?;
        reached("metadata-written");
        put(&device, &format!("{:#}\n", spec(entry, &file)))
    }

    /// Removes both, the device first.
    ///
    /// # Errors
    /// Those of the file system, with the path.
    pub fn remove(&self, entry: &Entry, cdi: &Path) -> Result<(), String> {
        for path in self.places(&entry.definition.tenant, cdi).into_iter().rev() {
            for path in [path.with_extension("new"), path] {
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(format!("{}: {error}", path.display()));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Writes a file by one rename. One that is there is right: a tenant's name is never used twice.
fn put(path: &Path, content: &str) -> Result<(), String> {
    if path.exists() {
        return Ok(());
    }
    let fresh = path.with_extension("new");
    let write = || {
        let mut file = File::create(&fresh)?;
        file.write_all(content.as_bytes())?;
        file.set_permissions(PermissionsExt::from_mode(0o644))?;
        reached("metadata-half-written");
        fs::rename(&fresh, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&fresh);
        format!("{}: {error}", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tests::h200;
    use crate::plan::{Allocated, Definition, Size};

    fn entry(request: &str, size: Option<Size>, pod_claim: Option<&str>) -> Entry {
        let board = h200(0);
        let device = if size.is_some() { board.shared_device() } else { board.device() };
        let allocated = Allocated {
            request: request.to_owned(),
            pool: "node-a".to_owned(),
            device,
            share_id: size.map(|_| "share-1".to_owned()),
            uuid: board.uuid,
        };
        let definition = Definition {
            tenant: "t-1".to_owned(),
            selectors: vec!["0".to_owned()],
            size,
            is_mig: false,
            limits: BTreeMap::new(),
            allocated: vec![allocated],
        };
        Entry::new("ns", "claim-x", "uid-1", definition).in_pod(pod_claim)
    }

    fn objects(text: &str) -> Vec<Value> {
        serde_json::Deserializer::from_str(text).into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn the_file_says_what_was_allocated() {
        let size = Size { sms: 34, memory_bytes: 40 << 30 };
        let all = objects(&content(&entry("gpu/small", Some(size), Some("gpu")), &[h200(0)]));
        let versions: Vec<&str> = all.iter().map(|one| one["apiVersion"].as_str().unwrap()).collect();
        assert_eq!(versions, ["metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1"]);
        for one in &all {
            assert_eq!(one["kind"], "DeviceMetadata");
            let metadata = json!({"name": "claim-x", "namespace": "ns", "uid": "uid-1", "generation": 1});
            assert_eq!((&one["metadata"], &one["podClaimName"]), (&metadata, &json!("gpu")));
            let [request] = &one["requests"].as_array().unwrap()[..] else { panic!("one request") };
            assert_eq!(request["name"], "gpu/small");
            let device = &request["devices"][0];
            assert_eq!(
                [&device["driver"], &device["pool"], &device["name"]],
                [&json!(DRIVER), &json!("node-a"), &json!(h200(0).shared_device())]
            );
            let attributes = device["attributes"].as_object().unwrap();
            assert_eq!(attributes["tenant"], json!({"string": "t-1"}));
            assert_eq!(attributes["shareID"], json!({"string": "share-1"}));
            assert_eq!(attributes["multiprocessors"], json!({"int": 34}));
            assert_eq!(attributes["memoryBytes"], json!({"int": 40u64 << 30}));
            // Those of the slice, too; the limits are those of the protocol.
            assert_eq!(attributes["uuid"], json!({"string": h200(0).uuid}));
            assert_eq!(attributes["type"], json!({"string": "shared"}));
            assert!(attributes.len() <= 32, "{}", attributes.len());
        }
        // The whole GPU; a GPU that is not there any more.
        let whole = &objects(&content(&entry("gpu", None, None), &[h200(0)]))[0];
        let device = &whole["requests"][0]["devices"][0];
        assert_eq!(device["attributes"]["multiprocessors"], json!({"int": 132}));
        assert_eq!(device["attributes"]["type"], json!({"string": "gpu"}));
        assert!(device["attributes"].get("memoryBytes").is_none());
        let gone = &objects(&content(&entry("gpu", Some(size), None), &[]))[0];
        assert_eq!(gone["requests"][0]["devices"][0]["attributes"]["multiprocessors"], json!({"int": 34}));
    }

    #[test]
    fn the_path_is_that_of_the_protocol() {
        let dir = "/var/run/kubernetes.io/dra-device-attributes";
        let file = "partita.dev-metadata.json";
        for (entry, path) in [
            (entry("gpu", None, None), format!("{dir}/resourceclaims/claim-x/gpu/{file}")),
            (entry("gpu/small", None, Some("mine")), format!("{dir}/resourceclaimtemplates/mine/gpu/{file}")),
        ] {
            assert_eq!(path_in_container(&entry), Path::new(&path));
        }
    }

    #[test]
    fn files_come_and_go() {
        let temp = tempfile::tempdir().unwrap();
        let [dir, cdi] = ["metadata", "cdi"].map(|name| temp.path().join(name));
        fs::create_dir(&cdi).unwrap();
        let files = Files::open(&dir).unwrap();
        let entry = entry("gpu", None, None);
        fs::write(dir.join("t-1.new"), "half").unwrap();
        for _ in 0..2 {
            files.write(&entry, &[h200(0)], &cdi).unwrap();
        }
        let device = cdi.join("partita.dev-metadata-t-1.json");
        let spec: Value = serde_json::from_slice(&fs::read(&device).unwrap()).unwrap();
        let mount = &spec["devices"][0]["containerEdits"]["mounts"][0];
        assert_eq!(spec["devices"][0]["name"], "t-1");
        let host = fs::read_to_string(mount["hostPath"].as_str().unwrap()).unwrap();
        assert_eq!(host, content(&entry, &[h200(0)]));
        // What was written stays as it was: it says what was allocated.
        files.write(&entry, &[], &cdi).unwrap();
        assert_eq!(fs::read_to_string(mount["hostPath"].as_str().unwrap()).unwrap(), host);
        fs::write(device.with_extension("new"), "half").unwrap();
        for _ in 0..2 {
            files.remove(&entry, &cdi).unwrap();
        }
        for dir in [dir, cdi] {
            assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
        }
    }
}
