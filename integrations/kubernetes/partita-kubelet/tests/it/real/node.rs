//! The node: its cluster, the chart, pods, and tenants.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::image::Image;
use crate::chart::NAMESPACE;
use crate::container;
use crate::kubelet::PATIENCE;
use crate::lifecycle::sms;
use crate::world::parts;

pub const IMAGE: &str = "localhost/partita-kubelet";
/// The image of pods.
pub const PROGRAM: &str = "localhost/program:it";

pub struct Node {
    pub cluster: Cluster,
    /// The simulated GPU, which is no part of the driver's pod.
    board: Child,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.board.kill();
        let _ = self.board.wait();
    }
}

impl Node {
    /// A cluster of one node with a GPU, its MPS service, and the images of pods.
    pub async fn start(dir: &Path, programs: &Path) -> Self {
        let cluster = Cluster::start(dir, programs).await;
        let sim = dir.join("sim");
        for dir in [&sim, &dir.join("run")] {
            fs::create_dir(dir).unwrap();
        }
        // The same GPU as in the other tests.
        fs::write(sim.join("serial"), "tests").unwrap();
        // Its directory is in containers: it does not replace it.
        fs::write(sim.join(".containers"), "").unwrap();
        let mut board = Command::new(parts().join("partita-simgpu"));
        let board = board.args(["--device", "h200", "--index", "0", "--dir"]).arg(&sim).spawn().unwrap();
        let node = Self { cluster, board };
        node.cluster.import(&driver_image("it"));
        let programs = container::programs();
        let library = parts().join("libpartita_simcuda.so");
        let image = Image::shell(PROGRAM, &["sh"])
            .with(&programs.join("gpu"), "gpu")
            .with(&library, "lib/for-its-libraries.so");
        node.cluster.import(&image.with(&programs.join("kernels.ptx"), "kernels.ptx"));
        node.partita(&["mps", "start", "--gpu", "sim:h200:0"]);
        node
    }

    pub fn path(&self, name: &str) -> String {
        self.cluster.dir().join(name).to_str().unwrap().to_owned()
    }

    pub fn partita(&self, words: &[&str]) -> Value {
        let mut command = Command::new(parts().join("partita"));
        command.args(words).env("PARTITA_LIB_DIR", parts());
        for (name, value) in self.variables() {
            command.env(name, value);
        }
        let out = command.output().unwrap();
        assert!(out.status.success(), "{words:?}: {out:?}");
        serde_json::from_slice(&out.stdout).unwrap_or_default()
    }

    pub fn variables(&self) -> [(&'static str, String); 4] {
        [
            ("PARTITA_RUN_DIR", self.path("run")),
            ("PARTITA_SIM_DIR", self.path("sim")),
            ("PARTITA_SIM_GPUS", "1".to_owned()),
            ("PARTITA_CACHE_DIR", self.path("cache")),
        ]
    }

    pub fn tenants(&self) -> Vec<Value> {
        self.partita(&["ps", "--json"]).as_array().unwrap().clone()
    }

    /// The objects of the chart, on the simulated GPUs and with the node's network.
    fn chart(&self, tag: &str, changes: &Value) -> Vec<Value> {
        let mut values = json!({
            "image": {"repository": IMAGE, "tag": tag}, "runtimeClassName": "", "gpu": "sim:h200:all",
            "lookSeconds": 1, "mps": {"enabled": false},
            "directories": {
                "kubelet": self.path("kubelet"), "state": self.path("state"), "run": self.path("run"),
                "cache": self.variables()[3].1, "cdi": self.path("cdi"),
            },
        });
        for (key, value) in changes.as_object().unwrap() {
            values[key] = value.clone();
        }
        // The webhook listens on a port that its service has, too: nothing else translates.
        let mut objects = crate::chart::objects(&crate::chart::rendered(&values));
        for object in &mut objects {
            match object["kind"].as_str().unwrap() {
                "Service" => object["spec"]["ports"][0]["port"] = 8443.into(),
                "MutatingWebhookConfiguration" => {
                    object["webhooks"][0]["clientConfig"]["service"]["port"] = 8443.into();
                }
                _ => {}
            }
            let has_devices = object["kind"] == "DaemonSet";
            if !has_devices && object["kind"] != "Deployment" {
                continue;
            }
            let spec = &mut object["spec"]["template"]["spec"];
            spec["hostNetwork"] = true.into();
            if has_devices {
                let volume = json!({"name": "sim", "hostPath": {"path": self.path("sim")}});
                spec["volumes"].as_array_mut().unwrap().push(volume);
                let container = &mut spec["containers"][0];
                let mount = json!({"name": "sim", "mountPath": self.path("sim")});
                container["volumeMounts"].as_array_mut().unwrap().push(mount);
                let env = container["env"].as_array_mut().unwrap();
                env.push(json!({"name": "PARTITA_SIM_DIR", "value": self.path("sim")}));
                env.push(json!({"name": "PARTITA_SIM_GPUS", "value": "1"}));
            }
        }
        objects
    }

    pub async fn install(&mut self, tag: &str, changes: &Value) {
        let name = NAMESPACE;
        self.cluster
            .apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
            .await;
        for object in self.chart(tag, changes) {
            self.cluster.apply(&object).await;
        }
    }

    /// The chart with a device plugin instead of the driver.
    pub async fn install_plugin(&mut self, offer: &str) {
        let none = json!({"create": false});
        let plugin = json!({"enabled": true, "offer": [offer]});
        let values =
            json!({"devicePlugin": plugin, "rbac": none, "deviceClasses": none, "admissionPolicy": none});
        self.install("next", &values).await;
    }

    /// Waits for slices that are of one generation and all there.
    pub async fn published(&mut self) -> Vec<Value> {
        let is_whole = |list: &Value| {
            let slices = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            let pools: Vec<&Value> = slices.iter().map(|slice| &slice["spec"]["pool"]).collect();
            let all = |pool: &&Value| **pool == *pools[0] && pool["resourceSliceCount"] == pools.len();
            !pools.is_empty() && pools.iter().all(all)
        };
        let path = "/apis/resource.k8s.io/v1/resourceslices";
        let list = self.cluster.eventually("no whole pool is published", path, is_whole).await;
        list["items"].as_array().unwrap().clone()
    }

    /// Waits until the driver has deleted slices of its pool that are not its own.
    pub async fn published_anew(&mut self) {
        let is_gone = |list: &Value| {
            let all = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            !all.is_empty() && all.iter().all(|slice| slice["metadata"]["name"] != "stolen")
        };
        let path = "/apis/resource.k8s.io/v1/resourceslices";
        self.cluster.eventually("the foreign slice stays", path, is_gone).await;
        self.published().await;
    }

    /// Waits until there are as many tenants.
    pub async fn eventually_tenants(&mut self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.tenants().len() != count {
            self.cluster.check(deadline, &format!("not {count} tenants: {:?}", self.tenants())).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// A pod with a claim of a template of its own.
    pub async fn start_pod(
        &self,
        name: &str,
        class: &str,
        capacity: Value,
        parameters: Value,
        words: &[&str],
    ) {
        let mut exactly = json!({"deviceClassName": class});
        if !capacity.is_null() {
            exactly["capacity"] = json!({"requests": capacity});
        }
        let mut devices = json!({"requests": [{"name": "gpu", "exactly": exactly}]});
        if !parameters.is_null() {
            let mut all = json!({"apiVersion": "partita.dev/v1", "kind": "TenantParameters"});
            all.as_object_mut().unwrap().extend(parameters.as_object().unwrap().clone());
            devices["config"] = json!([{"opaque": {"driver": "partita.dev", "parameters": all}}]);
        }
        self.cluster
            .apply(&json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
                "metadata": {"name": name}, "spec": {"spec": {"devices": devices}},
            }))
            .await;
        self.cluster.apply(&pod(name, json!({"resourceClaimTemplateName": name}), words)).await;
    }

    pub async fn pod(&mut self, name: &str, what: &str, done: impl Fn(&Value) -> bool) -> Value {
        self.cluster.eventually(what, &format!("/api/v1/namespaces/default/pods/{name}"), done).await
    }

    pub async fn delete_pod(&mut self, name: &str) {
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        self.cluster.delete(&path).await;
        self.cluster.vanished(&path).await;
    }

    /// The claim that Kubernetes made for a pod.
    pub async fn claim_of(&mut self, pod: &str) -> String {
        let is_there =
            |pod: &Value| pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"].is_string();
        let pod = self.pod(pod, "no claim is made", is_there).await;
        pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"].as_str().unwrap().to_owned()
    }

    pub async fn claim_path(&mut self, pod: &str) -> String {
        let name = self.claim_of(pod).await;
        format!("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}")
    }

    /// The container of a running pod. Another one has another identifier.
    pub async fn container(&mut self, pod: &str) -> String {
        let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
        let pod = self.pod(pod, "it does not run", |pod| id(pod).is_string()).await;
        id(&pod).as_str().unwrap().to_owned()
    }

    /// The UID of the driver's only pod.
    pub async fn driver(&mut self) -> String {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        let is_one = |list: &Value| list["items"].as_array().is_some_and(|pods| pods.len() == 1);
        let list = self.cluster.eventually("there is not one driver", &path, is_one).await;
        list["items"][0]["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// SIGKILL for the driver. Every process of the namespace is of this test.
    pub fn kill_driver(&self) {
        let is_it = |process: &&PathBuf| {
            let command = fs::read(process.join("cmdline")).unwrap_or_default();
            command.starts_with(format!("{}/parts/", self.path("state")).as_bytes())
        };
        let processes: Vec<PathBuf> =
            fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path()).collect();
        let process = processes.iter().find(is_it).expect("the driver runs");
        let status = Command::new("kill").arg("-KILL").arg(process.file_name().unwrap()).status().unwrap();
        assert!(status.success());
    }

    /// The chart with the webhook. No kube-proxy runs, so its service's address is this machine's.
    pub async fn install_webhook(&mut self, tag: &str) {
        let name = format!("partita-webhook.{NAMESPACE}.svc");
        let made = rcgen::generate_simple_self_signed([name]).unwrap();
        let ca = BASE64_STANDARD.encode(made.cert.pem());
        let key = BASE64_STANDARD.encode(made.signing_key.serialize_pem());
        self.cluster
            .apply(&json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": {"name": "partita-webhook-tls", "namespace": NAMESPACE},
                "data": {"tls.crt": ca, "tls.key": key},
            }))
            .await;
        self.install(tag, &json!({"webhook": {"enabled": true, "replicas": 1, "caBundle": ca}})).await;
        let service =
            self.cluster.get(&format!("/api/v1/namespaces/{NAMESPACE}/services/partita-webhook")).await;
        super::cluster::add_address(service.unwrap()["spec"]["clusterIP"].as_str().unwrap());
        let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/partita-webhook");
        let is_ready = |deployment: &Value| deployment["status"]["readyReplicas"] == 1;
        self.cluster.eventually("the webhook is not ready", &path, is_ready).await;
    }

    pub async fn remove_webhook(&mut self) {
        let configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
        self.cluster.delete(&format!("{configurations}/partita-webhook")).await;
        self.cluster
            .delete(&format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/partita-webhook"))
            .await;
    }

    /// Waits for an event about an object of the namespace `default`, and returns its note.
    pub async fn event(&mut self, kind: &str, name: &str, reason: &str) -> String {
        let find = |list: &Value| {
            let events = list["items"].as_array().into_iter().flatten();
            let mut events = events.filter(|event| {
                event["regarding"]["kind"] == kind
                    && event["regarding"]["name"] == name
                    && event["reason"] == reason
            });
            events.next_back().map(|event| event["note"].as_str().unwrap().to_owned())
        };
        let path = "/apis/events.k8s.io/v1/namespaces/default/events";
        let what = format!("no event {reason} on {name}");
        let list = self.cluster.eventually(&what, path, |list| find(list).is_some()).await;
        find(&list).unwrap()
    }

    /// Waits until a pod that prints its SMs again and again has printed as many.
    pub async fn runs_on(&mut self, pod: &str, count: usize) -> BTreeSet<u32> {
        let last = |text: &str| text.lines().rfind(|line| line.starts_with("sms")).map(sms);
        let is_it = |text: &str| last(text).is_some_and(|all| all.len() == count);
        let text = self.cluster.prints(pod, &format!("{count} SMs"), is_it).await;
        last(&text).unwrap()
    }
}

/// A pod with the network of the node.
fn bare_pod(name: &str, words: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "hostNetwork": true, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": PROGRAM, "imagePullPolicy": "Never", "command": words}],
        },
    })
}

/// A pod with a claim, which `source` names.
pub fn pod(name: &str, source: Value, words: &[&str]) -> Value {
    let mut pod = bare_pod(name, words);
    let mut claim = source;
    claim["name"] = "gpu".into();
    pod["spec"]["resourceClaims"] = json!([claim]);
    pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "gpu"}]});
    pod
}

/// A pod that names resources.
pub fn plain_pod(name: &str, limits: &Value, words: &[&str]) -> Value {
    let mut pod = bare_pod(name, words);
    pod["spec"]["containers"][0]["resources"] = json!({"limits": limits});
    pod
}

pub fn driver_image(tag: &str) -> Image {
    let mut image = Image::shell(&format!("{IMAGE}:{tag}"), &["sh"])
        .with(&parts().join("partita"), "usr/bin/partita")
        .with(Path::new(env!("CARGO_BIN_EXE_partita-kubelet")), "usr/bin/partita-kubelet");
    for file in ["libpartita.so", "libpartita_simcuda.so", "partita-simgpu", "partita-sim-mps-control"] {
        image = image.with(&parts().join(file), &format!("usr/lib/partita/{file}"));
    }
    image
}
