//! The device plugin against a kubelet that counts devices, as a real one does.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use partita_kubelet::metrics::pod_resources_socket;
use partita_kubelet::wire::deviceplugin as wire;
use partita_kubelet::wire::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use partita_kubelet::wire::podresources::{
    ContainerDevices, ContainerResources, ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
};
use serde_json::json;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};
use wire::device_plugin_client::DevicePluginClient;
use wire::registration_server::{Registration, RegistrationServer};

use crate::container;
use crate::kubelet::{PATIENCE, dial};
use crate::lifecycle::sms;
use crate::metrics::{page, sample};
use crate::world::World;

const SHARED: &str = "nvidia.com/gpu.shared";
const GPU: &str = "nvidia.com/gpu";
const MEM: &str = "nvidia.com/gpumem";
const CORES: &str = "nvidia.com/gpucores";

/// A pod's devices: a resource, and which.
type Asks<'a> = &'a [(&'a str, Vec<String>)];

#[derive(Clone, Default)]
struct Known {
    registered: Arc<Mutex<Vec<wire::RegisterRequest>>>,
    /// By pod.
    pods: Arc<Mutex<BTreeMap<String, Vec<ContainerDevices>>>>,
    /// How often the pods were listed.
    lists: Arc<AtomicU64>,
}

#[tonic::async_trait]
impl Registration for Known {
    async fn register(
        &self,
        request: Request<wire::RegisterRequest>,
    ) -> Result<Response<wire::Empty>, Status> {
        let request = request.into_inner();
        if request.version != "v1beta1" {
            return Err(Status::unimplemented(request.version));
        }
        self.registered.lock().unwrap().push(request);
        Ok(Response::new(wire::Empty {}))
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Known {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        let pods = self.pods.lock().unwrap();
        let pod = |(name, devices): (&String, &Vec<ContainerDevices>)| PodResources {
            name: name.clone(),
            namespace: "default".to_owned(),
            containers: vec![ContainerResources {
                name: "c".to_owned(),
                devices: devices.clone(),
                dynamic_resources: Vec::new(),
            }],
        };
        Ok(Response::new(ListPodResourcesResponse { pod_resources: pods.iter().map(pod).collect() }))
    }
}

/// A kubelet's manager of devices.
struct Manager {
    dir: PathBuf,
    kubelet_dir: PathBuf,
    known: Known,
    servers: Vec<JoinHandle<()>>,
}

impl Manager {
    fn of(world: &World) -> Self {
        let dir = world.dir().join("device-plugins");
        std::fs::create_dir_all(&dir).unwrap();
        let kubelet_dir = world.dir().join("kubelet");
        Self { dir, kubelet_dir, known: Known::default(), servers: Vec::new() }
    }

    /// A kubelet starts: it deletes every socket of the directory, and knows no plugin.
    fn start(&mut self) {
        self.known.registered.lock().unwrap().clear();
        for file in std::fs::read_dir(&self.dir).unwrap() {
            let file = file.unwrap();
            if file.file_type().unwrap().is_socket() {
                std::fs::remove_file(file.path()).unwrap();
            }
        }
        let pods = pod_resources_socket(&self.kubelet_dir);
        std::fs::create_dir_all(pods.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(&pods);
        let listen = |path: &Path| UnixListenerStream::new(UnixListener::bind(path).unwrap());
        let (registry, lister) = (listen(&self.dir.join("kubelet.sock")), listen(&pods));
        let known = self.known.clone();
        self.servers.push(tokio::spawn(async move {
            let server = Server::builder().add_service(RegistrationServer::new(known));
            server.serve_with_incoming(registry).await.unwrap();
        }));
        let known = self.known.clone();
        self.servers.push(tokio::spawn(async move {
            let server = Server::builder().add_service(PodResourcesListerServer::new(known));
            server.serve_with_incoming(lister).await.unwrap();
        }));
    }

    async fn stop(&mut self) {
        for server in self.servers.drain(..) {
            server.abort();
            let _ = server.await;
        }
    }

    /// Waits until this resource is registered with this kubelet.
    async fn registered(&self, resource: &str) -> wire::RegisterRequest {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self
                .known
                .registered
                .lock()
                .unwrap()
                .iter()
                .rfind(|one| one.resource_name == resource)
                .cloned();
            if let Some(found) = found {
                return found;
            }
            assert!(Instant::now() < deadline, "{resource} is never registered");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn client(&self, resource: &str) -> Option<DevicePluginClient<Channel>> {
        let endpoint = self.registered(resource).await.endpoint;
        assert!(!endpoint.contains('/'), "{endpoint} is a name beside the kubelet's socket");
        dial(self.dir.join(endpoint), "localhost").await.ok().map(DevicePluginClient::new)
    }

    /// The devices of a resource.
    async fn list(&self, resource: &str) -> Vec<wire::Device> {
        let mut client = self.client(resource).await.expect("the plugin listens");
        let mut stream = client.list_and_watch(wire::Empty {}).await.unwrap().into_inner();
        stream.message().await.unwrap().unwrap().devices
    }

    /// `None`: the plugin died in the call.
    async fn try_allocate(&self, resource: &str, ids: &[String]) -> Option<Result<Vec<String>, String>> {
        let asked = wire::ContainerAllocateRequest { devices_ids: ids.to_vec() };
        let request = wire::AllocateRequest { container_requests: vec![asked] };
        match self.client(resource).await?.allocate(request).await {
            Ok(answer) => {
                let mut responses = answer.into_inner().container_responses;
                assert_eq!(responses.len(), 1);
                Some(Ok(responses.remove(0).cdi_devices.into_iter().map(|device| device.name).collect()))
            }
            Err(status) if status.code() == tonic::Code::FailedPrecondition => {
                Some(Err(status.message().to_owned()))
            }
            Err(_) => None,
        }
    }

    async fn allocate(&self, resource: &str, ids: &[String]) -> Result<Vec<String>, String> {
        self.try_allocate(resource, ids).await.expect("the plugin answers")
    }

    /// What the kubelet does for a pod with one container: a call for each resource, the pod in its
    /// list, and a call before the start where the plugin wants one. The result are CDI devices.
    async fn run(&self, pod: &str, asks: Asks<'_>) -> Result<Vec<String>, String> {
        let mut names = Vec::new();
        for (resource, ids) in asks {
            names.extend(self.allocate(resource, ids).await?);
        }
        self.put(pod, asks);
        let started = self.start_container(asks).await;
        if started.is_err() {
            self.end(pod);
        }
        started.map(|()| names)
    }

    fn put(&self, pod: &str, asks: Asks<'_>) {
        let devices = asks.iter().map(|(resource, ids)| ContainerDevices {
            resource_name: (*resource).to_owned(),
            device_ids: ids.clone(),
        });
        self.known.pods.lock().unwrap().insert(pod.to_owned(), devices.collect());
    }

    async fn start_container(&self, asks: Asks<'_>) -> Result<(), String> {
        for (resource, ids) in asks {
            let options = self.registered(resource).await.options.unwrap();
            let mut client = self.client(resource).await.expect("the plugin listens");
            assert_eq!(client.get_device_plugin_options(wire::Empty {}).await.unwrap().into_inner(), options);
            if options.pre_start_required {
                let request = wire::PreStartContainerRequest { devices_ids: ids.clone() };
                client.pre_start_container(request).await.map_err(|status| status.message().to_owned())?;
            }
        }
        Ok(())
    }

    /// Waits until the plugin has queried the list of pods so often, after a first query that may
    /// have begun before.
    async fn looked(&self, times: u64) {
        let begin = self.known.lists.load(Ordering::Relaxed);
        let deadline = Instant::now() + PATIENCE;
        while self.known.lists.load(Ordering::Relaxed) <= begin + times {
            assert!(Instant::now() < deadline, "the plugin does not look");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The pod is over.
    fn end(&self, pod: &str) {
        self.known.pods.lock().unwrap().remove(pod);
    }
}

fn numbers(count: u32) -> Vec<String> {
    (0..count).map(|which| which.to_string()).collect()
}

fn census(world: &World, names: &[String]) -> BTreeSet<u32> {
    sms(&container::prints(&world.cdi_file(&names[0]), &["census"]))
}

/// Gives a tenant 4 SMs by hand.
fn resize(world: &World, device: &str) {
    let (_, name) = device.split_once('=').unwrap();
    let out = world.partita(&["set", name, "--sm", "4sm"]).output().unwrap();
    assert!(out.status.success(), "{out:?}");
}

fn sms_of(world: &World, device: &str) -> u64 {
    let (_, name) = device.split_once('=').unwrap();
    world.tenants().iter().find(|row| row["name"] == name).unwrap()["sms"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_shares_are_enforced_and_end_with_their_pods() {
    let mut world = World::bare(2).await;
    let mut manager = Manager::of(&world);
    manager.start();
    world.start_plugin(&["--shared", "4"], None);
    let devices = manager.list(SHARED).await;
    assert_eq!(devices.len(), 8);
    assert!(devices.iter().all(|device| device.health == "Healthy"));
    let ids: Vec<String> = devices.into_iter().map(|device| device.id).collect();
    let first = manager.run("one", &[(SHARED, vec![ids[0].clone()])]).await.unwrap();
    // The same again, as for an init container and the container after it.
    assert_eq!(manager.allocate(SHARED, &ids[..1]).await.as_ref(), Ok(&first));
    let second = manager.run("two", &[(SHARED, vec![ids[1].clone()])]).await.unwrap();
    assert_eq!(world.tenants().len(), 2);
    for row in world.tenants() {
        assert_eq!(row["sms"], 32, "a quarter of 66 TPCs is 16 whole ones: {row}");
    }
    // On the other GPU.
    let other = manager.run("other", &[(SHARED, vec![ids[7].clone()])]).await.unwrap();
    if container::can_mount() {
        let parts = [&first, &second, &other].map(|names| census(&world, names));
        assert!(parts.iter().all(|part| part.len() == 32) && parts[0].is_disjoint(&parts[1]), "{parts:?}");
    }
    // The kubelet's list says whose tenants they are.
    let text = page(&world);
    for pod in ["one", "two"] {
        let labels = [&*format!("pod=\"{pod}\""), "namespace=\"default\"", "container=\"c\""];
        assert!((sample(&text, "partita_pod_sms", &labels) - 32.0).abs() < 0.1);
    }
    assert!(!text.contains("NodePrepare"), "it is no DRA driver: {text}");
    let said = manager.allocate(SHARED, &ids[..2]).await.unwrap_err();
    assert!(said.contains("request 1"), "{said}");
    let said = manager.allocate(SHARED, &["GPU-other::0".to_owned()]).await.unwrap_err();
    assert!(said.contains("no GPU"), "{said}");
    // The GPU with more left.
    let mut client = manager.client(SHARED).await.unwrap();
    let asked = wire::ContainerPreferredAllocationRequest {
        available_device_i_ds: ids[2..].to_vec(),
        must_include_device_i_ds: Vec::new(),
        allocation_size: 1,
    };
    let request = wire::PreferredAllocationRequest { container_requests: vec![asked] };
    let preferred = client.get_preferred_allocation(request).await.unwrap().into_inner().container_responses;
    assert!(ids[4..].contains(&preferred[0].device_i_ds[0]), "{preferred:?}");
    manager.looked(1).await;
    manager.end("one");
    world.eventually("the tenant of a pod that ended stays", || world.tenants().len() == 2).await;
    assert!(!world.cdi_file(&first[0]).exists() && world.cdi_file(&second[0]).exists());
    // The device of a pod that ended, for a container whose pod is not listed yet. It does not
    // inherit what somebody has set meanwhile, and a pod that is there keeps it.
    resize(&world, &second[0]);
    assert_eq!(manager.allocate(SHARED, &ids[1..2]).await.as_ref(), Ok(&second));
    assert_eq!(sms_of(&world, &second[0]), 4);
    manager.end("two");
    manager.looked(0).await;
    assert_eq!(manager.allocate(SHARED, &ids[1..2]).await.as_ref(), Ok(&second));
    assert_eq!(sms_of(&world, &second[0]), 32);
    manager.looked(4).await;
    assert!(world.cdi_file(&second[0]).exists());
    manager.put("two", &[(SHARED, vec![ids[1].clone()])]);
    assert_eq!(manager.run("three", &[(SHARED, vec![ids[0].clone()])]).await, Ok(first));
    manager.looked(1).await;
    for pod in ["two", "three", "other"] {
        manager.end(pod);
    }
    world.eventually("tenants of pods that ended stay", || world.tenants().is_empty()).await;
    world.eventually("the journal keeps them", || world.journal("devices") == 0).await;
    world.assert_nothing();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_restarts_is_registered_with_again_and_ends_no_tenant() {
    let mut world = World::bare(1).await;
    let mut manager = Manager::of(&world);
    // The plugin is there before the kubelet.
    world.start_plugin(&["--shared", "2"], None);
    manager.start();
    let ids: Vec<String> = manager.list(SHARED).await.into_iter().map(|device| device.id).collect();
    let asks = [(SHARED, vec![ids[0].clone()])];
    manager.run("one", &asks).await.unwrap();
    manager.looked(1).await;
    manager.stop().await;
    // The new kubelet does not know its pods yet.
    manager.end("one");
    manager.start();
    assert_eq!(manager.list(SHARED).await.len(), 2);
    manager.looked(4).await;
    assert_eq!(world.tenants().len(), 1, "a kubelet that knows no pods yet ends none");
    manager.put("one", &asks);
    manager.looked(1).await;
    manager.end("one");
    world.eventually("the tenant of a pod that ended stays", || world.tenants().is_empty()).await;
    // Somebody deletes the plugin's socket alone.
    let socket = partita_kubelet::device_plugin::socket(&manager.dir, SHARED);
    manager.known.registered.lock().unwrap().clear();
    std::fs::remove_file(&socket).unwrap();
    assert_eq!(manager.list(SHARED).await.len(), 2);
    // At its end it goes without a socket, and another takes its place.
    world.end_driver();
    assert!(!socket.exists());
    manager.known.registered.lock().unwrap().clear();
    world.start_plugin(&["--shared", "2"], None);
    assert_eq!(manager.list(SHARED).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_hami_are_one_tenant() {
    let mut world = World::bare(1).await;
    let mut manager = Manager::of(&world);
    manager.start();
    world.start_plugin(&["--hami"], None);
    let ids: Vec<String> = manager.list(GPU).await.into_iter().map(|device| device.id).collect();
    assert_eq!((ids.len(), manager.list(CORES).await.len()), (10, 100));
    let mib = manager.list(MEM).await.len();
    assert!(mib > 140_000, "one of each MiB: {mib}");
    // In whatever order.
    let asks = |which: usize, cores: u32, mib: u32| {
        let mut asks = vec![(MEM, numbers(mib)), (GPU, vec![ids[which].clone()]), (CORES, numbers(cores))];
        asks.rotate_left(which % 3);
        asks
    };
    let first = manager.run("one", &asks(0, 25, 20_000)).await.unwrap();
    let second = manager.run("two", &asks(1, 50, 40_000)).await.unwrap();
    let mut rows: Vec<u64> = world.tenants().iter().map(|row| row["sms"].as_u64().unwrap()).collect();
    rows.sort_unstable();
    assert_eq!(rows, [32, 66]);
    if container::can_mount() {
        let parts = [&first, &second].map(|names| census(&world, names));
        assert!(parts[0].len() == 32 && parts[1].len() == 66 && parts[0].is_disjoint(&parts[1]), "{parts:?}");
        let total = container::prints(&world.cdi_file(&first[0]), &["total"]);
        assert_eq!(total.trim(), format!("total {}", 20_000u64 << 20));
    }
    // A container that starts again has the tenant that it had.
    manager.start_container(&asks(0, 25, 20_000)).await.unwrap();
    assert_eq!(world.tenants().len(), 2);
    for (asks, words) in [
        (vec![(GPU, vec![ids[2].clone()]), (MEM, numbers(2000))], "without nvidia.com/gpucores"),
        (vec![(GPU, vec![ids[2].clone()]), (CORES, numbers(5))], "without nvidia.com/gpumem"),
        (asks(2, 1, 2000), "request at least 2"),
        (asks(2, 5, 100), "at least 1024 MiB"),
        (vec![(GPU, ids[2..4].to_vec())], "request 1"),
    ] {
        let said = manager.run("bad", &asks).await.unwrap_err();
        assert!(said.contains(words), "{words}: {said}");
    }
    // An init container alone is in no list.
    let init = asks(2, 5, 2000);
    for (resource, ids) in &init {
        manager.allocate(resource, ids).await.unwrap();
    }
    let said = manager.start_container(&init).await.unwrap_err();
    assert!(said.contains("init containers"), "{said}");
    assert_eq!(world.tenants().len(), 2, "what was refused left nothing");
    // A pod ends while the kubelet is away. The kubelet then admits one that needs its room.
    manager.stop().await;
    manager.end("two");
    manager.start();
    let third = manager.run("three", &asks(3, 75, 50_000)).await.unwrap();
    assert!(world.cdi_file(&first[0]).exists() && world.cdi_file(&third[0]).exists());
    assert!(!world.cdi_file(&second[0]).exists());
    // A device that is given to a pod of another size.
    manager.looked(1).await;
    manager.end("three");
    manager.run("four", &asks(3, 10, 2000)).await.unwrap();
    let mut rows: Vec<u64> = world.tenants().iter().map(|row| row["sms"].as_u64().unwrap()).collect();
    rows.sort_unstable();
    assert_eq!(rows, [12, 32]);
    // And to one of the same size, which does not inherit what somebody has set meanwhile.
    resize(&world, &third[0]);
    manager.start_container(&asks(3, 10, 2000)).await.unwrap();
    assert_eq!(sms_of(&world, &third[0]), 4);
    manager.end("four");
    manager.run("five", &asks(3, 10, 2000)).await.unwrap();
    assert_eq!(sms_of(&world, &third[0]), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_is_killed_at_each_step_goes_on() {
    let mut world = World::bare(1).await;
    let mut manager = Manager::of(&world);
    manager.start();
    world.start_plugin(&["--shared", "2"], None);
    let ids: Vec<String> = manager.list(SHARED).await.into_iter().map(|device| device.id).collect();
    let asks = [(SHARED, vec![ids[0].clone()])];
    for step in [
        "allocate-asked",
        "journal-half-written",
        "journal-written",
        "cdi-tenant-made",
        "cdi-service-ready",
        "cdi-device-half-written",
        "cdi-written",
        "allocate-done",
    ] {
        world.kill_driver();
        manager.known.registered.lock().unwrap().clear();
        world.start_plugin(&["--shared", "2"], Some(step));
        assert_eq!(manager.try_allocate(SHARED, &asks[0].1).await, None, "{step}");
        world.ended_at(step);
        manager.known.registered.lock().unwrap().clear();
        world.start_plugin(&["--shared", "2"], None);
        let names = manager.run("one", &asks).await.unwrap();
        assert!(world.cdi_file(&names[0]).exists(), "{step}");
        let tenants = world.tenants();
        assert_eq!((tenants.len(), &tenants[0]["sms"]), (1, &json!(66)), "{step}: {tenants:?}");
        manager.looked(1).await;
        manager.end("one");
        world.eventually("the tenant stays", || world.tenants().is_empty()).await;
        world.eventually("the journal keeps it", || world.journal("devices") == 0).await;
    }
}

/// The same for containers whose tenants are made when they start.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_is_killed_while_a_container_starts_goes_on() {
    let mut world = World::bare(1).await;
    let mut manager = Manager::of(&world);
    manager.start();
    world.start_plugin(&["--hami", "--memory", "gpumem-percentage"], None);
    let ids: Vec<String> = manager.list(GPU).await.into_iter().map(|device| device.id).collect();
    let percent = "nvidia.com/gpumem-percentage";
    assert_eq!(manager.list(percent).await.len(), 100);
    for (which, step) in
        ["start-asked", "journal-written", "cdi-tenant-made", "start-done"].into_iter().enumerate()
    {
        // Each with other sizes, which two could not have at once.
        let cores = 60 + which as u32;
        let asks = [(CORES, numbers(cores)), (GPU, vec![ids[which].clone()]), (percent, numbers(70))];
        world.kill_driver();
        manager.known.registered.lock().unwrap().clear();
        world.start_plugin(&["--hami", "--memory", "gpumem-percentage"], Some(step));
        assert!(manager.run("one", &asks).await.is_err(), "{step}");
        world.ended_at(step);
        manager.known.registered.lock().unwrap().clear();
        world.start_plugin(&["--hami", "--memory", "gpumem-percentage"], None);
        let names = manager.run("one", &asks).await.unwrap();
        assert!(world.cdi_file(&names[0]).exists(), "{step}");
        let tenants = world.tenants();
        let sms = u64::from(66 * cores / 100 * 2);
        assert_eq!((tenants.len(), &tenants[0]["sms"]), (1, &json!(sms)), "{step}: {tenants:?}");
        // The next one comes while the plugin has not seen yet that this pod is over.
        manager.end("one");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_vanishes_is_unhealthy_until_it_is_back() {
    let mut world = World::bare(1).await;
    let mut manager = Manager::of(&world);
    manager.start();
    world.start_plugin(&["--shared", "3"], None);
    let mut client = manager.client(SHARED).await.unwrap();
    let mut stream = client.list_and_watch(wire::Empty {}).await.unwrap().into_inner();
    let mut ids = Vec::new();
    for health in ["Healthy", "Unhealthy", "Healthy"] {
        let devices = stream.message().await.unwrap().unwrap().devices;
        assert_eq!(devices.len(), 3);
        assert!(devices.iter().all(|device| device.health == health), "{devices:?}");
        if health == "Unhealthy" {
            let said = manager.allocate(SHARED, &ids[..1]).await.unwrap_err();
            assert!(said.contains("cannot be used"), "{said}");
        }
        match health {
            "Unhealthy" => world.set_listable(true),
            _ if ids.is_empty() => world.set_listable(false),
            _ => {}
        }
        ids = devices.into_iter().map(|device| device.id).collect();
    }
    manager.allocate(SHARED, &ids[..1]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_offered_is_said_at_the_start() {
    let mut world = World::bare(2).await;
    for (words, reason) in [
        (vec!["--hami"], "2 GPUs"),
        (vec!["--shared", "100"], "at most 66"),
        (vec![], "--shared"),
        (vec!["--hami", "--shared", "2"], "cannot be used with"),
    ] {
        let out = world.plugin(&words, None).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains(reason), "{reason}: {said}");
    }
    // A node has one driver or plugin.
    world.start_driver();
    world.registered().await;
    let out = world.plugin(&["--shared", "2"], None).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(125) && said.contains("a node has one"), "{said}");
}
