//! `/metrics`: what pods may use and use, and the kubelet's calls.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::Path;

use partita_kubelet::metrics::pod_resources_socket;
use partita_kubelet::wire::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use partita_kubelet::wire::podresources::{
    CdiDevice, ClaimResource, ContainerResources, DynamicResource, ListPodResourcesRequest,
    ListPodResourcesResponse, PodResources,
};
use serde_json::Value;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::container;
use crate::world::World;

struct Pods(ListPodResourcesResponse);

#[tonic::async_trait]
impl PodResourcesLister for Pods {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        Ok(Response::new(self.0.clone()))
    }
}

/// The kubelet lists one pod, whose container has these CDI devices.
fn list_pod(world: &World, pod: &str, devices: &[String]) {
    let list = ListPodResourcesResponse {
        pod_resources: vec![PodResources {
            name: pod.to_owned(),
            namespace: "default".to_owned(),
            containers: vec![ContainerResources {
                devices: Vec::new(),
                name: "serve".to_owned(),
                dynamic_resources: vec![DynamicResource {
                    claim_name: "claim-1".to_owned(),
                    claim_namespace: "default".to_owned(),
                    claim_resources: vec![ClaimResource {
                        driver_name: "partita.dev".to_owned(),
                        cdi_devices: devices.iter().map(|name| CdiDevice { name: name.clone() }).collect(),
                        ..ClaimResource::default()
                    }],
                }],
            }],
        }],
    };
    let socket = pod_resources_socket(&world.dir().join("kubelet"));
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    let server = tonic::transport::Server::builder().add_service(PodResourcesListerServer::new(Pods(list)));
    tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
}

pub fn page(world: &World) -> String {
    let mut stream = std::net::TcpStream::connect(world.metrics_address()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("application/openmetrics-text"), "{head}");
    page.to_owned()
}

/// The value of the only sample of this name with these labels.
pub fn sample(page: &str, name: &str, labels: &[&str]) -> f64 {
    let is_it = |line: &&str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    };
    let [line] = page.lines().filter(is_it).collect::<Vec<_>>()[..] else {
        panic!("not one {name} with {labels:?} in {page}")
    };
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// The metrics that a board for Grafana shows.
fn shown(board: &Value) -> BTreeSet<String> {
    let panels = board["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let expressions = targets.map(|target| target["expr"].as_str().unwrap());
    let variables = board["templating"]["list"].as_array().unwrap().iter();
    let all = expressions.chain(variables.filter_map(|variable| variable["definition"].as_str()));
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    all.flat_map(|text| text.split(move |letter| !is_part(letter)))
        .filter(|name| name.starts_with("partita"))
        .map(str::to_owned)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_by_pod() {
    let world = World::start(1).await;
    let claim = world.share(1, "34", "10Gi");
    // Before the kubelet has a list: the claim names the tenant.
    let answer = world.kubelet.prepare(&claim).await;
    assert_eq!(answer.error, "");
    let before = page(&world);
    assert_eq!(sample(&before, "partita_pod_sms", &["pod=\"\"", "claim=\"claim-1\""]), 34.0);
    assert_eq!(sample(&before, "partita_kubelet_readable", &["what=\"pods\""]), 0.0);
    let devices = answer.devices[0].cdi_device_ids.clone();
    list_pod(&world, "pod-1", &devices);
    let mut running = container::can_mount()
        .then(|| container::command(&world.cdi_file(&devices[0]), &["loop"]).spawn().unwrap());
    let labels = ["namespace=\"default\"", "pod=\"pod-1\"", "container=\"serve\"", "claim=\"claim-1\""];
    if running.is_some() {
        world
            .eventually("the program launches nothing", || {
                page(&world)
                    .lines()
                    .any(|line| line.starts_with("partita_pod_launches{") && !line.ends_with(" 0.0"))
            })
            .await;
    }
    let all = page(&world);
    for (name, value) in [
        ("sms", 34.0),
        ("gpu_sms", 132.0),
        ("memory_limit_bytes", (10u64 << 30) as f64),
        ("processes", if running.is_some() { 1.0 } else { 0.0 }),
        ("refused_allocations", 0.0),
        ("widened_launches", 0.0),
        ("memory_spilled_bytes", 0.0),
        ("problem", 0.0),
        ("container", 1.0),
    ] {
        assert_eq!(sample(&all, &format!("partita_pod_{name}"), &labels), value, "{name} in {all}");
    }
    if running.is_some() {
        // What the driver takes for a context counts.
        let used = sample(&all, "partita_pod_memory_used_bytes", &labels);
        assert!(used > 0.0 && used <= sample(&all, "partita_pod_memory_peak_bytes", &labels), "{all}");
    }
    for (what, value) in [("pods", 1.0), ("tenants", 1.0)] {
        assert_eq!(sample(&all, "partita_kubelet_readable", &[&format!("what=\"{what}\"")]), value);
    }
    assert_eq!(sample(&all, "partita_kubelet_gpus", &["state=\"usable\""]), 1.0);
    // One call that fails, and the end.
    let bad = world.claim(2, "gpu-gone-shared", serde_json::json!({}), Value::Null);
    assert!(!world.kubelet.prepare(&bad).await.error.is_empty());
    world.kubelet.unprepare(&claim).await;
    if let Some(running) = &mut running {
        running.wait().unwrap();
    }
    let end = page(&world);
    for (call, result, count) in [
        ("NodePrepare", "success", 1.0),
        ("NodePrepare", "error", 1.0),
        ("NodeUnprepare", "success", 1.0),
        ("NodeUnprepare", "error", 0.0),
    ] {
        let labels = [format!("call=\"{call}\""), format!("result=\"{result}\"")];
        let labels = [labels[0].as_str(), &labels[1]];
        assert_eq!(sample(&end, "partita_kubelet_calls_total", &labels), count, "{call} {result}");
    }
    assert_eq!(sample(&end, "partita_kubelet_call_duration_seconds_count", &["call=\"NodePrepare\""]), 2.0);
    assert!(!end.contains("partita_pod_sms{"), "{end}");
    // The board shows what there is.
    let board = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging/grafana/kubernetes.json");
    let board: Value = serde_json::from_slice(&std::fs::read(board).unwrap()).unwrap();
    let shown = shown(&board);
    assert!(shown.len() > 8, "{shown:?}");
    for name in shown {
        let family = name.trim_end_matches("_total").trim_end_matches("_bucket");
        assert!(all.contains(&format!("# TYPE {family} ")), "{name} is not in {all}");
    }
    world.assert_nothing();
}
