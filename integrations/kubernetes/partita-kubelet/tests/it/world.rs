//! A node of its own: directories, GPUs, API server, kubelet, and the program.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use partita_kubelet::wire::dra::Claim;
use serde_json::{Value, json};

use crate::api::{self, Shared};
use crate::kubelet::{Kubelet, PATIENCE};

pub const NODE: &str = "node-a";

/// The directory of Partita's own programs. `PARTITA_TEST_LIB_DIR` names one where they are built.
pub fn parts() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(dir) = std::env::var_os("PARTITA_TEST_LIB_DIR") {
            return std::path::absolute(dir).unwrap();
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let packages = ["partita-cli", "partita-hook", "partita-simcuda-so"];
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet"]).args(packages.iter().flat_map(|name| ["-p", name]));
        // The main workspace has its own target directory.
        assert!(cargo.current_dir(&root).status().unwrap().success(), "Partita does not build");
        root.join("target/debug").canonicalize().unwrap()
    });
    &BUILT
}

/// Whether tests that can run on the machine's first GPU do so (`PARTITA_TEST_GPU=real`).
pub fn is_real() -> bool {
    std::env::var_os("PARTITA_TEST_GPU").is_some_and(|value| value == "real")
}

pub struct World {
    temp: tempfile::TempDir,
    pub store: Shared,
    address: String,
    pub kubelet: Kubelet,
    driver: Option<Child>,
    /// The GPUs, as `--gpu` takes them.
    selector: &'static str,
    gpus: u32,
    /// The profiles of the instances of every GPU, with commas; `None` for GPUs without MIG.
    instances: Option<&'static str>,
}

impl World {
    /// A node with so many simulated GPUs, whose driver is published.
    pub async fn start(gpus: u32) -> Self {
        Self::bare(gpus).await.driven().await
    }

    /// A node with one GPU, whose driver is published. It is the machine's own where tests use it.
    pub async fn with_a_gpu() -> Self {
        let mut world = Self::bare(1).await;
        if is_real() {
            world.selector = "0";
        }
        world.driven().await
    }

    /// A node whose driver is to offer these GPUs.
    pub async fn offering(selector: &'static str) -> Self {
        let mut world = Self::bare(1).await;
        world.selector = selector;
        world
    }

    /// A node with a GPU in MIG mode, whose driver is published.
    pub async fn with_instances(instances: &'static str) -> Self {
        let mut world = Self::bare(1).await;
        world.instances = Some(instances);
        world.driven().await
    }

    pub async fn driven(mut self) -> Self {
        self.start_driver();
        self.registered().await;
        self.published().await;
        self
    }

    /// A node with a simulated GPU whose run directory is in memory, as in system mode, and whose
    /// driver is published.
    pub async fn in_memory() -> Self {
        Self::bare_in("/dev/shm", 1).await.driven().await
    }

    /// A node with so many simulated GPUs, and nothing that offers them.
    pub async fn bare(gpus: u32) -> Self {
        Self::bare_in("/tmp", gpus).await
    }

    async fn bare_in(parent: &str, gpus: u32) -> Self {
        let temp = tempfile::Builder::new().prefix("pk").tempdir_in(parent).unwrap();
        for (name, mode) in [("run", 0o700), ("sim", 0o755)] {
            let dir = temp.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        // The same GPUs in every test, so that one calibration is enough.
        std::fs::write(temp.path().join("sim/serial"), "tests").unwrap();
        let (store, address) = api::start().await;
        let kubelet = Kubelet::new(&temp.path().join("kubelet"));
        std::os::unix::fs::symlink(parts().join("partita"), temp.path().join("partita")).unwrap();
        Self { temp, store, address, kubelet, driver: None, selector: "sim:h200:all", gpus, instances: None }
    }

    pub fn dir(&self) -> &Path {
        self.temp.path()
    }

    fn surround(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            if ["PARTITA_", "CUDA_", "XDG_"].iter().any(|own| name.to_string_lossy().starts_with(own)) {
                command.env_remove(name);
            }
        }
        command
            .env("PARTITA_LIB_DIR", parts())
            .env("PARTITA_RUN_DIR", self.dir().join("run"))
            .env("PARTITA_SIM_DIR", self.dir().join("sim"))
            .env("PARTITA_CACHE_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"))
            .env("PARTITA_SIM_GPUS", self.gpus.to_string())
            .envs(self.instances.map(|instances| ("PARTITA_SIM_MIG", instances)));
    }

    pub fn start_driver(&mut self) {
        self.start_driver_as(Command::new(env!("CARGO_BIN_EXE_partita-kubelet")));
    }

    /// A driver into which this library is loaded, as into the programs that it starts.
    pub fn start_driver_with(&mut self, library: &Path) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partita-kubelet"));
        command.env("LD_PRELOAD", library);
        self.start_driver_as(command);
    }

    /// A device plugin instead of a driver; one that ends itself at a step if one is named.
    pub fn start_plugin(&mut self, words: &[&str], step: Option<&str>) {
        let command = self.plugin(words, step);
        self.spawn(command);
    }

    /// The command of a device plugin.
    pub fn plugin(&self, words: &[&str], step: Option<&str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partita-kubelet"));
        command.arg("device-plugin").args(words);
        command.arg("--device-plugins-dir").arg(self.dir().join("device-plugins"));
        self.surround(&mut command);
        command.envs(step.map(|step| ("PARTITA_TEST_END_AT", step)));
        // As in the chart's pod.
        command.env("NODE_NAME", NODE);
        self.of_node(&mut command);
        command
    }

    /// A driver that ends itself at this step.
    pub fn start_driver_until(&mut self, step: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partita-kubelet"));
        command.env("PARTITA_TEST_END_AT", step);
        self.start_driver_as(command);
    }

    /// A driver for which `dir` is a file system of its own, with so many KiB. The result is where
    /// the test finds that.
    pub fn start_driver_with_small(&mut self, dir: &str, size_kib: u32) -> PathBuf {
        let dir = self.dir().join(dir);
        std::fs::create_dir_all(&dir).unwrap();
        let script = format!(
            "mount -t tmpfs -o size={size_kib}k,mode=0700 small '{}' && exec {} \"$@\"",
            dir.display(),
            env!("CARGO_BIN_EXE_partita-kubelet")
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        self.start_driver_as(command);
        let process = self.driver.as_ref().unwrap().id();
        Path::new("/proc").join(process.to_string()).join("root").join(dir.strip_prefix("/").unwrap())
    }

    fn start_driver_as(&mut self, mut command: Command) {
        let step = command
            .get_envs()
            .find(|one| one.0 == "PARTITA_TEST_END_AT")
            .map(|one| one.1.unwrap().to_owned());
        self.surround(&mut command);
        command.envs(step.map(|step| ("PARTITA_TEST_END_AT", step)));
        command.args(["--node-name", NODE, "--api-server", &self.address]);
        self.of_node(&mut command);
        self.spawn(command);
    }

    /// The options of everything that offers GPUs.
    fn of_node(&self, command: &mut Command) {
        command.args(["--gpu", self.selector, "--look-s", "1", "--metrics", "127.0.0.1:0"]);
        command.arg("--partita").arg(self.dir().join("partita"));
        for (option, name) in [("--kubelet-dir", "kubelet"), ("--state-dir", "state"), ("--cdi-dir", "cdi")] {
            command.arg(option).arg(self.dir().join(name));
        }
    }

    fn spawn(&mut self, mut command: Command) {
        let log = std::fs::File::options().append(true).create(true).open(self.dir().join("log")).unwrap();
        command.stderr(log).stdout(Stdio::null());
        self.driver = Some(command.spawn().unwrap());
    }

    pub async fn registered(&self) {
        let info = self.kubelet.register().await;
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", "partita.dev"));
        let versions = ["v1.DRAPlugin"].into_iter().chain(partita_kubelet::health::SERVICES);
        assert_eq!(info.supported_versions, versions.collect::<Vec<_>>());
        assert_eq!(Path::new(&info.endpoint), self.dir().join("kubelet/plugins/partita.dev/dra.sock"));
    }

    /// Where the driver serves `/metrics`.
    pub fn metrics_address(&self) -> String {
        let log = std::fs::read_to_string(self.dir().join("log")).unwrap();
        let line = log.lines().rfind(|line| line.contains("serves /metrics")).unwrap();
        line.rsplit_once("address=").unwrap().1.to_owned()
    }

    /// How often the API server was asked since the last call: resource, verb, count.
    pub fn requests(&self) -> Vec<(String, &'static str, u64)> {
        let answers = std::mem::take(&mut self.store.lock().unwrap().answers);
        answers.into_iter().map(|((_, resource, verb), (count, _))| (resource, verb, count)).collect()
    }

    /// Whether the driver has the file of its lock open.
    pub fn waits_for_its_lock(&self) -> bool {
        let open = format!("/proc/{}/fd", self.driver.as_ref().unwrap().id());
        let lock = self.dir().join("state/lock");
        let mut files = std::fs::read_dir(open).unwrap().flatten();
        files.any(|file| std::fs::read_link(file.path()).is_ok_and(|path| path == lock))
    }

    /// Whether the driver has children that have ended and that it has not waited for.
    pub fn has_zombies(&self) -> bool {
        let driver = self.driver.as_ref().unwrap().id().to_string();
        let is_one = |entry: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
            (fields.next(), fields.next()) == (Some("Z"), Some(&*driver))
        };
        std::fs::read_dir("/proc").unwrap().flatten().any(is_one)
    }

    /// What the driver has said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("log")).unwrap()
    }

    /// SIGTERM, as the kubelet ends a pod, until the driver has ended.
    pub fn end_driver(&mut self) {
        let mut driver = self.driver.take().unwrap();
        let kill = Command::new("kill").args(["-TERM", &driver.id().to_string()]).status().unwrap();
        assert!(kill.success() && driver.wait().unwrap().success());
    }

    /// Waits until the driver has ended at its step.
    pub fn ended_at(&mut self, step: &str) {
        let status = self.driver.take().unwrap().wait().unwrap();
        let log = std::fs::read_to_string(self.dir().join("log")).unwrap();
        assert!(!status.success() && log.ends_with(&format!("ends at the step {step}\n")), "{status}\n{log}");
    }

    /// SIGKILL, at this moment.
    pub fn kill_driver(&mut self) {
        let mut driver = self.driver.take().unwrap();
        driver.kill().unwrap();
        driver.wait().unwrap();
    }

    pub async fn eventually(&self, what: &str, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done() {
            let log = || std::fs::read_to_string(self.dir().join("log")).unwrap();
            assert!(Instant::now() < deadline, "{what}; the driver says:\n{}", log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits for a whole pool of one generation.
    pub async fn published(&self) {
        self.eventually("the pool is never whole", || self.is_published()).await;
    }

    pub fn is_published(&self) -> bool {
        let store = self.store.lock().unwrap();
        let pools: Vec<&Value> = store.slices.values().map(|slice| &slice["spec"]["pool"]).collect();
        let is_whole = |pool: &&Value| **pool == *pools[0] && pool["resourceSliceCount"] == pools.len();
        assert_eq!(store.invalid, Vec::<String>::new(), "the real server would refuse this");
        !pools.is_empty() && pools.iter().all(is_whole)
    }

    /// How many slices there are.
    pub fn slices(&self) -> usize {
        self.store.lock().unwrap().slices.len()
    }

    /// The devices of the published slices.
    pub fn devices(&self) -> Vec<Value> {
        let store = self.store.lock().unwrap();
        let of = |slice: &Value| slice["spec"]["devices"].as_array().cloned().unwrap_or_default();
        store.slices.values().flat_map(of).collect()
    }

    /// The name of the first shared device.
    pub fn shared(&self) -> String {
        let devices = self.devices();
        let names = devices.iter().filter_map(|device| device["name"].as_str());
        names.filter(|name| name.ends_with("-shared")).min().unwrap().to_owned()
    }

    /// A claim as the scheduler leaves it.
    pub fn claim(&self, which: u32, device: &str, consumed: Value, parameters: Value) -> Claim {
        let uid = format!("5c1d9a70-0000-4000-8000-{which:012}");
        let mut result = json!({
            "request": "gpu", "driver": "partita.dev", "pool": NODE, "device": device,
            "shareID": format!("aaaaaaaa-0000-4000-8000-{which:012}"), "consumedCapacity": consumed,
        });
        if consumed.is_null() {
            let result = result.as_object_mut().unwrap();
            result.remove("consumedCapacity");
            result.remove("shareID");
        }
        let mut config = json!([]);
        if !parameters.is_null() {
            let mut all = json!({"apiVersion": "partita.dev/v1", "kind": "TenantParameters"});
            all.as_object_mut().unwrap().extend(parameters.as_object().unwrap().clone());
            config = json!([{"source": "FromClaim", "requests": [],
                "opaque": {"driver": "partita.dev", "parameters": all}}]);
        }
        let name = format!("claim-{which}");
        self.store.lock().unwrap().put_claim(json!({
            "kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1",
            "metadata": {"namespace": "default", "name": name, "uid": uid},
            "spec": {"devices": {}},
            "status": {
                "allocation": {
                    "devices": {"results": [result], "config": config},
                    "nodeSelector": {"nodeSelectorTerms": [{
                        "matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}],
                    }]},
                },
                "reservedFor": [{"resource": "pods", "name": format!("pod-{which}"), "uid": "pod-uid"}],
            },
        }));
        Claim { namespace: "default".to_owned(), uid, name }
    }

    /// A claim whose scheduler chose this request or alternative.
    pub fn claim_of(&self, which: u32, request: &str, device: &str, consumed: Value) -> Claim {
        let claim = self.claim(which, device, consumed, Value::Null);
        let mut store = self.store.lock().unwrap();
        store.edit_claim(&format!("default/{}", claim.name), |claim| {
            claim["status"]["allocation"]["devices"]["results"][0]["request"] = request.into();
        });
        claim
    }

    /// `status.devices` of a claim.
    pub fn status_of(&self, name: &str) -> Vec<Value> {
        self.store.lock().unwrap().devices_of(&format!("default/{name}"))
    }

    /// A share of the first GPU.
    pub fn share(&self, which: u32, sms: &str, memory: &str) -> Claim {
        let consumed = json!({"multiprocessors": sms, "memory": memory, "clients": "1"});
        self.claim(which, &self.shared(), consumed, Value::Null)
    }

    pub fn partita(&self, words: &[&str]) -> Command {
        let mut command = Command::new(parts().join("partita"));
        self.surround(&mut command);
        command.args(words);
        command
    }

    /// The rows of `partita ps --json`.
    pub fn tenants(&self) -> Vec<Value> {
        let out = self.partita(&["ps", "--json"]).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        serde_json::from_slice(&out.stdout).unwrap()
    }

    fn names(&self, dir: &str) -> Vec<String> {
        let files = std::fs::read_dir(self.dir().join(dir)).into_iter().flatten();
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Takes the program away that lists the GPUs, or brings it back.
    pub fn set_listable(&self, is_listable: bool) {
        let [here, away] = ["partita", "away"].map(|name| self.dir().join(name));
        let (from, to) = if is_listable { (away, here) } else { (here, away) };
        std::fs::rename(from, to).unwrap();
    }

    /// Makes the program that lists the GPUs fail, or work again.
    pub fn set_working(&self, is_working: bool) {
        let link = self.dir().join("partita");
        std::fs::remove_file(&link).unwrap();
        let target = if is_working { parts().join("partita") } else { "/bin/false".into() };
        std::os::unix::fs::symlink(target, link).unwrap();
    }

    /// How many entries a journal has.
    pub fn journal(&self, name: &str) -> usize {
        self.names(&format!("state/{name}")).len()
    }

    /// Nothing of any claim is there: no tenant, no device, no entry, no file half written.
    pub fn assert_nothing(&self) {
        assert_eq!(self.tenants(), Vec::<Value>::new());
        assert_eq!(self.names("cdi"), Vec::<String>::new());
        for dir in ["state/claims", "state/devices", "state/metadata"] {
            assert_eq!(self.names(dir), Vec::<String>::new());
        }
    }

    /// The file of the tenant among the devices of a container.
    pub fn tenant_file(&self, ids: &[String]) -> PathBuf {
        let tenant = ids.iter().find(|id| id.starts_with(partita::cdi::KIND)).unwrap();
        self.cdi_file(tenant)
    }

    /// The file of one of this driver's devices.
    pub fn cdi_file(&self, id: &str) -> PathBuf {
        let (kind, name) = id.split_once('=').unwrap();
        self.dir().join("cdi").join(format!("{}-{name}.json", kind.replace('/', "-")))
    }

    /// Waits for an event of this reason on the object, and returns its note.
    pub async fn event(&self, kind: &str, name: &str, reason: &str) -> String {
        let find = || {
            let store = self.store.lock().unwrap();
            let is_it = |event: &&Value| {
                event["regarding"]["kind"] == kind
                    && event["regarding"]["name"] == name
                    && event["reason"] == reason
            };
            store.events.iter().rev().find(is_it).map(|event| event["note"].as_str().unwrap().to_owned())
        };
        self.eventually(&format!("no event {reason} on {name}"), || find().is_some()).await;
        find().unwrap()
    }
}

/// The control daemons of MPS with this directory in their environment.
fn services(dir: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let read = |path: &Path, file: &str| std::fs::read(path.join(file)).unwrap_or_default();
    let is_service = |path: &PathBuf| {
        let has_dir = String::from_utf8_lossy(&read(path, "environ")).contains(dir);
        has_dir && read(path, "comm").starts_with(b"nvidia-cuda-mps")
    };
    processes.filter(is_service).map(|path| path.display().to_string()).collect()
}

impl Drop for World {
    fn drop(&mut self) {
        if self.driver.is_some() {
            self.kill_driver();
        }
        if !std::thread::panicking() {
            let allowed = crate::chart::rights();
            let asked = self.store.lock().unwrap().asked.clone();
            let refused: Vec<_> = asked.difference(&allowed).collect();
            assert!(refused.is_empty(), "the chart's role does not allow {refused:?}");
        }
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.dir().join("log")).unwrap_or_default());
        }
        let names: Vec<String> =
            self.tenants().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect();
        for name in names {
            let _ = self.partita(&["cdi", "remove", "--force", &name, "--output", "/nonexistent"]).output();
        }
        // Each GPU has an MPS service. A tenant that was just removed may still be its client.
        for first in self.selector.split(',').map(|word| word.trim_end_matches(":all")) {
            for gpu in 0..self.gpus {
                let gpu = if gpu == 0 { first.to_owned() } else { format!("{first}:{gpu}") };
                let _ = self.partita(&["mps", "stop", "--gpu", &gpu, "--force"]).output();
            }
        }
        if !std::thread::panicking() {
            let left = services(&self.dir().display().to_string());
            assert!(left.is_empty(), "control daemons of MPS are left: {left:?}");
        }
        // A board leaves when its directory is gone.
        let _ = std::fs::remove_file(self.dir().join("sim/.containers"));
    }
}
