//! Kubernetes' own programs as a cluster of one node, in namespaces of this test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::http::{Method, Request};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use super::image::Image;
use crate::kubelet::PATIENCE;
use crate::world::NODE;

/// What the directory must have. `loopback` is a plugin of CNI: without a network of pods the
/// node never becomes ready.
pub const PROGRAMS: [&str; 10] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "runc",
    "loopback",
];

/// The address of the service `kubernetes`. No kube-proxy runs: the server listens there itself.
const SERVICE: &str = "10.0.0.1";
/// The node's address, which may not be one of 127.0.0.0/8.
const ADDRESS: &str = "10.0.1.1";
/// Users and their groups. A token is `token-` and the name.
const USERS: [(&str, &str, &str); 4] = [
    ("admin", "admin", "system:masters"),
    ("scheduler", "system:kube-scheduler", ""),
    ("controllers", "system:kube-controller-manager", ""),
    ("kubelet", "system:node:node-a", "system:nodes"),
];

pub struct Cluster {
    dir: PathBuf,
    programs: PathBuf,
    running: Vec<(&'static str, Child)>,
    client: Option<Client>,
}

/// What a command prints, which must succeed.
fn output(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {out:?}");
    String::from_utf8(out.stdout).unwrap()
}

/// The path of a kind's objects.
fn collection(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let [api, kind] = [text(&object["apiVersion"]), text(&object["kind"])];
    let (plural, is_namespaced) = match kind.as_str() {
        "ClusterRole" => ("clusterroles", false),
        "ClusterRoleBinding" => ("clusterrolebindings", false),
        "DaemonSet" => ("daemonsets", true),
        "Deployment" => ("deployments", true),
        "DeviceClass" => ("deviceclasses", false),
        "MutatingWebhookConfiguration" => ("mutatingwebhookconfigurations", false),
        "Namespace" => ("namespaces", false),
        "Pod" => ("pods", true),
        "ResourceClaim" => ("resourceclaims", true),
        "ResourceClaimTemplate" => ("resourceclaimtemplates", true),
        "ResourceSlice" => ("resourceslices", false),
        "Secret" => ("secrets", true),
        "Service" => ("services", true),
        "ServiceAccount" => ("serviceaccounts", true),
        "ValidatingAdmissionPolicy" => ("validatingadmissionpolicies", false),
        "ValidatingAdmissionPolicyBinding" => ("validatingadmissionpolicybindings", false),
        other => panic!("the kind {other} has no path here"),
    };
    let base = if api.contains('/') { format!("/apis/{api}") } else { format!("/api/{api}") };
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    match is_namespaced {
        true => format!("{base}/namespaces/{namespace}/{plural}"),
        false => format!("{base}/{plural}"),
    }
}

impl Cluster {
    /// Starts all programs, until the node is ready. This process must be in namespaces of its own.
    pub async fn start(dir: &Path, programs: &Path) -> Self {
        let mut cluster =
            Self { dir: dir.to_owned(), programs: programs.to_owned(), running: Vec::new(), client: None };
        cluster.prepare_files();
        cluster.start_servers().await;
        cluster.start_runtime().await;
        cluster.start_kubelet();
        cluster
            .eventually("the node is not ready", &format!("/api/v1/nodes/{NODE}"), |node| {
                let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
                conditions.into_iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
            })
            .await;
        cluster
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    fn prepare_files(&self) {
        for name in ["etcd", "kubelet", "cni", "logs", "cdi"] {
            fs::create_dir_all(self.dir.join(name)).unwrap();
        }
        let names = [SERVICE, ADDRESS, "127.0.0.1", "kubernetes.default.svc"];
        let made = rcgen::generate_simple_self_signed(names.map(str::to_owned)).unwrap();
        fs::write(self.path("ca.crt"), made.cert.pem()).unwrap();
        fs::write(self.path("server.key"), made.signing_key.serialize_pem()).unwrap();
        let accounts = rcgen::KeyPair::generate().unwrap();
        fs::write(self.path("accounts.key"), accounts.serialize_pem()).unwrap();
        fs::write(self.path("accounts.pub"), accounts.public_key_pem()).unwrap();
        let tokens: Vec<String> = USERS
            .iter()
            .map(|(name, user, group)| format!("token-{name},{user},{name},\"{group}\"\n"))
            .collect();
        fs::write(self.path("tokens"), tokens.concat()).unwrap();
        for (name, ..) in USERS {
            let config = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "it",
                "clusters": [{"name": "it", "cluster": {
                    "server": format!("https://{SERVICE}:443"),
                    "certificate-authority": self.path("ca.crt"),
                }}],
                "users": [{"name": name, "user": {"token": format!("token-{name}")}}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": name}}],
            });
            fs::write(self.path(&format!("{name}.conf")), config.to_string()).unwrap();
        }
        // Pods have the node's network, so a network of pods needs to exist, and no more.
        let network = json!({"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "loopback"}]});
        fs::write(self.path("cni/none.conflist"), network.to_string()).unwrap();
        let kubelet = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs", "cgroupRoot": self.cgroup(), "enforceNodeAllocatable": [],
            "failCgroupV1": false, "failSwapOn": false, "localStorageCapacityIsolation": false,
            "containerRuntimeEndpoint": format!("unix://{}", self.path("containerd.sock")),
            "podLogsDir": self.path("logs"), "resolvConf": "",
            "evictionHard": {"memory.available": "1Mi"}, "imageGCHighThresholdPercent": 100,
            "syncFrequency": "5s", "oomScoreAdj": 0,
        });
        fs::write(self.path("kubelet.json"), kubelet.to_string()).unwrap();
        let containerd = format!(
            r#"version = 3
root = "{0}/images"
state = "{0}/containers"
[grpc]
address = "{0}/containerd.sock"
[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = true
cdi_spec_dirs = ["{0}/cdi"]
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{1}"]
conf_dir = "{0}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{1}/runc"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "localhost/pause:it"
"#,
            self.dir.display(),
            self.programs.display()
        );
        fs::write(self.path("containerd.toml"), containerd).unwrap();
    }

    /// The control group of all pods, of the form that the kubelet takes.
    fn cgroup(&self) -> String {
        format!("/{}", self.dir.file_name().unwrap().to_str().unwrap())
    }

    fn spawn(&mut self, name: &'static str, arguments: &[String]) {
        let log = fs::File::options().append(true).create(true).open(self.dir.join(format!("{name}.log")));
        let log = log.unwrap();
        let mut command = Command::new(self.programs.join(name));
        // containerd looks for its shims there, and they for runc.
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.programs.display()));
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.running.push((name, command.spawn().unwrap()));
    }

    async fn start_servers(&mut self) {
        let dir = self.dir.display().to_string();
        self.spawn("etcd", &words(format!("--data-dir {dir}/etcd --log-level error --unsafe-no-fsync")));
        self.start_api_server().await;
        self.spawn(
            "kube-controller-manager",
            &words(format!(
                "--kubeconfig={dir}/controllers.conf --use-service-account-credentials=true
                 --service-account-private-key-file={dir}/accounts.key --root-ca-file={dir}/ca.crt
                 --leader-elect=false --bind-address=127.0.0.1"
            )),
        );
        self.spawn(
            "kube-scheduler",
            &words(format!(
                "--kubeconfig={dir}/scheduler.conf --leader-elect=false --bind-address=127.0.0.1"
            )),
        );
    }

    pub async fn start_api_server(&mut self) {
        let dir = self.dir.display().to_string();
        self.spawn(
            "kube-apiserver",
            &words(format!(
                "--etcd-servers=http://127.0.0.1:2379 --secure-port=443 --bind-address=0.0.0.0
                 --advertise-address={ADDRESS} --service-cluster-ip-range=10.0.0.0/24
                 --tls-cert-file={dir}/ca.crt --tls-private-key-file={dir}/server.key
                 --token-auth-file={dir}/tokens --authorization-mode=Node,RBAC
                 --enable-admission-plugins=NodeRestriction --allow-privileged=true
                 --service-account-issuer=https://kubernetes.default.svc
                 --service-account-key-file={dir}/accounts.pub
                 --service-account-signing-key-file={dir}/accounts.key"
            )),
        );
        let config = fs::read_to_string(self.path("admin.conf")).unwrap();
        let config = Kubeconfig::from_yaml(&config).unwrap();
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
        self.client = Some(Client::try_from(config.unwrap()).unwrap());
        let deadline = Instant::now() + PATIENCE;
        while self.client().request_text(request(Method::GET, "/readyz", None)).await.is_err() {
            self.check(deadline, "the API server does not become ready").await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn start_runtime(&mut self) {
        let config = self.path("containerd.toml");
        self.spawn("containerd", &["--config".to_owned(), config]);
        let deadline = Instant::now() + PATIENCE;
        while !self.ctr(&["version"]).output().unwrap().status.success() {
            self.check(deadline, "containerd does not answer").await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.import(&Image::shell("localhost/pause:it", &["sleep", "1000000"]));
    }

    fn ctr(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("ctr"));
        command.args(["--address", &self.path("containerd.sock"), "--namespace", "k8s.io"]).args(words);
        command
    }

    /// Gives the node an image. Pods never pull one.
    pub fn import(&self, image: &Image) {
        let archive = self.dir.join("image.tar");
        image.write(&archive);
        output(&mut self.ctr(&["images", "import", archive.to_str().unwrap()]));
        fs::remove_file(archive).unwrap();
    }

    pub fn start_kubelet(&mut self) {
        // In each hierarchy of version 1, or the only one of version 2.
        for place in cgroup_roots() {
            let _ = fs::create_dir(place.join(self.cgroup().trim_start_matches('/')));
        }
        let dir = self.dir.display().to_string();
        let arguments = format!(
            "--config={dir}/kubelet.json --kubeconfig={dir}/kubelet.conf --root-dir={dir}/kubelet
             --cert-dir={dir}/kubelet-pki --hostname-override={NODE} --node-ip={ADDRESS}
             --node-labels=nvidia.com/gpu.present=true"
        );
        self.spawn("kubelet", &arguments.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    }

    /// SIGKILL for one of the programs.
    pub fn kill(&mut self, name: &str) {
        let at = self.running.iter().position(|(running, _)| *running == name).expect("it runs");
        let (_, mut child) = self.running.remove(at);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub fn client(&self) -> &Client {
        self.client.as_ref().expect("the API server was started")
    }

    /// Fails with all that was printed if it is too late, or a program has ended.
    pub async fn check(&mut self, deadline: Instant, what: &str) {
        let ended = self.running.iter_mut().find_map(|(name, child)| {
            child.try_wait().unwrap().map(|status| format!("{name} has ended: {status}"))
        });
        if ended.is_some() || Instant::now() > deadline {
            let events = request(Method::GET, "/apis/events.k8s.io/v1/events", None);
            let events = self.ask(events).await.unwrap_or_default();
            let line = |event: &Value| {
                let regarding = &event["regarding"];
                format!(
                    "{} {}: {} {}\n",
                    regarding["kind"], regarding["name"], event["reason"], event["note"]
                )
            };
            let events: String = events["items"].as_array().into_iter().flatten().map(line).collect();
            panic!("{what}; {}\n{}\n{events}", ended.unwrap_or_default(), self.logs());
        }
    }

    /// The last lines of each program and of each container.
    fn logs(&self) -> String {
        let mut files: Vec<PathBuf> =
            fs::read_dir(&self.dir).unwrap().map(|file| file.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
        files.extend(self.container_logs(""));
        let tail = |path: PathBuf| {
            let text =
                fs::read(&path).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("== {}\n{}\n", path.display(), lines[lines.len().saturating_sub(25)..].join("\n"))
        };
        files.into_iter().map(tail).collect()
    }

    /// The log files of the containers of the pods whose directories begin so.
    pub fn container_logs(&self, begin: &str) -> Vec<PathBuf> {
        let entries = |dir: &Path| {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            paths.sort();
            paths
        };
        let mut pods = entries(&self.dir.join("logs"));
        pods.retain(|pod| pod.file_name().unwrap().to_str().unwrap().starts_with(begin));
        pods.iter().flat_map(|pod| entries(pod)).flat_map(|container| entries(&container)).collect()
    }

    /// What the containers of a pod of the namespace `default` have printed.
    pub fn printed(&self, pod: &str) -> String {
        let files = self.container_logs(&format!("default_{pod}_"));
        let text: String = files.into_iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        // Each line begins with its time, its stream, and whether it is whole.
        let lines = text.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
        lines.flat_map(|line| [line, "\n"]).collect()
    }

    async fn ask(&self, request: Request<Vec<u8>>) -> Result<Value, kube::Error> {
        self.client().request::<Value>(request).await
    }

    /// Reads an object. The result is `None` if it does not exist.
    pub async fn get(&self, path: &str) -> Option<Value> {
        match self.ask(request(Method::GET, path, None)).await {
            Ok(object) => Some(object),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => panic!("{path}: {error}\n{}", self.logs()),
        }
    }

    /// Makes or changes an object, as `kubectl apply --server-side` does.
    pub async fn apply(&self, object: &Value) -> Value {
        let name = object["metadata"]["name"].as_str().unwrap();
        let path = format!("{}/{name}?fieldManager=it&force=true", collection(object));
        let mut request = request(Method::PATCH, &path, Some(object));
        request.headers_mut().insert("content-type", "application/apply-patch+yaml".parse().unwrap());
        self.ask(request).await.unwrap_or_else(|error| panic!("{error}\n{object:#}"))
    }

    /// Changes fields of an object.
    pub async fn patch(&self, path: &str, changes: &Value) {
        let mut request = request(Method::PATCH, path, Some(changes));
        request.headers_mut().insert("content-type", "application/merge-patch+json".parse().unwrap());
        self.ask(request).await.unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Asks for another size of a claim.
    pub async fn annotate(&self, claim: &str, size: &str) {
        self.patch(claim, &json!({"metadata": {"annotations": {"partita.dev/resize": size}}})).await;
    }

    /// Makes an object, or returns why the server refuses it.
    pub async fn create(&self, object: &Value) -> Result<Value, String> {
        self.ask(request(Method::POST, &collection(object), Some(object)))
            .await
            .map_err(|error| error.to_string())
    }

    /// Makes an object as another user, whose token is of a pod on this node if one is named.
    pub async fn create_as(
        &self,
        user: &str,
        of_node: Option<&Value>,
        object: &Value,
    ) -> Result<Value, String> {
        let mut request = request(Method::POST, &collection(object), Some(object));
        let headers = request.headers_mut();
        headers.insert("impersonate-user", user.parse().unwrap());
        if let Some(node) = of_node {
            let name = "impersonate-extra-authentication.kubernetes.io%2fnode-name";
            headers.insert(name, node[0].as_str().unwrap().parse().unwrap());
        }
        self.ask(request).await.map_err(|error| error.to_string())
    }

    pub async fn delete(&self, path: &str) {
        self.ask(request(Method::DELETE, path, None)).await.unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Waits until there is no such object.
    pub async fn vanished(&mut self, path: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.get(path).await.is_some() {
            self.check(deadline, &format!("{path} does not vanish")).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the object, or the list, is as it should be, and returns it.
    pub async fn eventually(&mut self, what: &str, path: &str, done: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let object = self.get(path).await.unwrap_or_default();
            if done(&object) {
                return object;
            }
            self.check(deadline, &format!("{what}; {path} is {object:#}")).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the containers of a pod have printed what they should.
    pub async fn prints(&mut self, pod: &str, what: &str, done: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.printed(pod);
            if done(&text) {
                return text;
            }
            self.check(deadline, &format!("{pod} does not print {what}")).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// The root of each mounted hierarchy of control groups.
pub fn cgroup_roots() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.filter(|field| field[2].starts_with("cgroup")).map(|field| PathBuf::from(field[1])).collect()
}

fn words(text: String) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn request(method: Method, path: &str, body: Option<&Value>) -> Request<Vec<u8>> {
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    Request::builder().method(method).uri(path).body(body).unwrap()
}

/// The addresses of the cluster, which only this test's network namespace has.
pub fn prepare_network() {
    output(Command::new("ip").args(["link", "set", "lo", "up"]));
    add_address(SERVICE);
    add_address(ADDRESS);
}

/// Makes an address one of this machine.
pub fn add_address(address: &str) {
    output(Command::new("ip").args(["addr", "add", &format!("{address}/32"), "dev", "lo"]));
}
