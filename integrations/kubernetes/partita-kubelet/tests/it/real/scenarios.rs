//! What pods, people and failures do in a cluster, one after the other.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::node::{self, Node};
use crate::chart::NAMESPACE;
use crate::world::NODE;

/// Prints the SMs that it runs on, again and again.
const LOOP: [&str; 3] = ["/gpu", "/kernels.ptx", "loop"];

fn share(sms: &str, memory: &str) -> Value {
    json!({"multiprocessors": sms, "memory": memory})
}

pub async fn all(dir: &Path, programs: &Path) {
    step("a node starts");
    let mut node = Node::start(dir, programs).await;
    step("the chart is installed, and the driver publishes its devices");
    node.install("it", &json!({})).await;
    let slices = node.published().await;
    let devices = slices.iter().filter_map(|slice| slice["spec"]["devices"].as_array()).flatten();
    assert_eq!(devices.count(), 2);
    pods_share_a_gpu(&mut node).await;
    a_pod_reads_its_claim(&mut node).await;
    nothing_is_written_when_nothing_happens(&node).await;
    a_running_pod_is_resized(&mut node).await;
    what_does_not_fit_waits(&mut node).await;
    restarts_disturb_no_pod(&mut node).await;
    an_upgrade_disturbs_no_pod(&mut node).await;
    a_claim_of_two_pods_is_one_tenant(&mut node).await;
    mistakes_are_events(&mut node).await;
    a_driver_writes_its_own_slices_alone(&mut node).await;
    a_gpu_that_cannot_be_used_has_a_taint(&mut node).await;
    an_extended_resource_is_a_whole_gpu(&mut node).await;
    the_webhook_makes_claims(&mut node).await;
    a_device_plugin_takes_the_drivers_place(&mut node).await;
    a_device_plugin_has_hamis_names(&mut node).await;
}

fn step(what: &str) {
    eprintln!("{what}");
}

async fn pods_share_a_gpu(node: &mut Node) {
    step("two pods share a GPU");
    node.start_pod("one", "partita-share", share("33", "40Gi"), Value::Null, &LOOP).await;
    node.start_pod("two", "partita-share", share("66", "20Gi"), Value::Null, &LOOP).await;
    let [one, two] = [node.runs_on("one", 34).await, node.runs_on("two", 66).await];
    assert!(one.is_disjoint(&two), "{one:?} {two:?}");
    for (name, text) in
        [("one", "34 multiprocessors and 40960 MiB"), ("two", "66 multiprocessors and 20480 MiB")]
    {
        let note = node.event("Pod", name, "TenantPrepared").await;
        assert!(note.contains(text), "{note}");
    }
}

/// The versions of all slices and claims.
async fn versions(node: &Node) -> Vec<Value> {
    let mut all = Vec::new();
    for collection in ["resourceslices", "namespaces/default/resourceclaims"] {
        let list = node.cluster.get(&format!("/apis/resource.k8s.io/v1/{collection}")).await.unwrap();
        let items = list["items"].as_array().unwrap();
        all.extend(items.iter().map(|object| object["metadata"]["resourceVersion"].clone()));
    }
    all
}

async fn nothing_is_written_when_nothing_happens(node: &Node) {
    step("nothing is written when nothing happens");
    // Longer than the settling of events and a look at the GPUs.
    let before = versions(node).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(versions(node).await, before);
}

async fn a_pod_reads_its_claim(node: &mut Node) {
    step("the claim has a status, and the container a file");
    let path = node.claim_path("one").await;
    let is_ready = |claim: &Value| {
        let device = &claim["status"]["devices"][0];
        device["conditions"][0]["type"] == "Ready" && device["conditions"][0]["status"] == "True"
    };
    let claim = node.cluster.eventually("the claim has no status", &path, is_ready).await;
    let device = &claim["status"]["devices"][0];
    assert_eq!(
        (&device["data"]["multiprocessors"], &device["data"]["memoryBytes"]),
        (&json!(34), &json!(40u64 << 30))
    );
    let script =
        "cat /var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpu/gpu/*; sleep 1000000";
    node.start_pod("reads", "partita-share", share("2", "1Gi"), Value::Null, &["sh", "-c", script]).await;
    let text = node.cluster.prints("reads", "its claim", |text| text.contains("v1alpha1")).await;
    let object = serde_json::Deserializer::from_str(&text).into_iter::<Value>().next().unwrap().unwrap();
    let attributes = &object["requests"][0]["devices"][0]["attributes"];
    assert_eq!(attributes["multiprocessors"], json!({"int": 2}), "{text}");
    node.delete_pod("reads").await;
    node.eventually_tenants(2).await;
}

async fn a_running_pod_is_resized(node: &mut Node) {
    step("a running pod is resized");
    let path = node.claim_path("one").await;
    let before = node.container("one").await;
    node.cluster.annotate(&path, "multiprocessors=10,memory=5Gi").await;
    node.runs_on("one", 10).await;
    let note = node.event("Pod", "one", "TenantResized").await;
    assert!(note.contains("10 multiprocessors"), "{note}");
    node.cluster.annotate(&path, "multiprocessors=36").await;
    let note = node.event("Pod", "one", "TenantNotResized").await;
    assert!(note.contains("larger claim"), "{note}");
    let is_small = |claim: &Value| claim["status"]["devices"][0]["data"]["multiprocessors"] == 10;
    node.cluster.eventually("the status does not follow", &path, is_small).await;
    node.cluster.annotate(&path, "multiprocessors=34,memory=40Gi").await;
    node.runs_on("one", 34).await;
    assert_eq!(node.container("one").await, before, "the container was started again");
}

async fn what_does_not_fit_waits(node: &mut Node) {
    step("what does not fit waits");
    node.start_pod("large", "partita-share", share("99", "20Gi"), Value::Null, &LOOP).await;
    node.start_pod("whole", "partita-gpu", Value::Null, Value::Null, &LOOP).await;
    for name in ["large", "whole"] {
        node.pod(name, "the scheduler says nothing", |pod| {
            pod["status"]["conditions"][0]["reason"] == "Unschedulable"
        })
        .await;
    }
    node.delete_pod("whole").await;
    node.delete_pod("two").await;
    // 34 SMs are taken, and 98 left: one pair fewer than it wants.
    node.pod("large", "it no longer waits", |pod| pod["status"]["phase"] == "Pending").await;
    node.delete_pod("one").await;
    node.runs_on("large", 100).await;
    node.start_pod("whole", "partita-gpu", Value::Null, Value::Null, &LOOP).await;
    node.delete_pod("large").await;
    node.runs_on("whole", 132).await;
    // What the scheduler has allocated fits at the first call.
    let events = node.cluster.get("/apis/events.k8s.io/v1/namespaces/default/events").await.unwrap();
    let mut events = events["items"].as_array().unwrap().iter();
    let refused = events.find(|event| event["reason"] == "TenantNotPrepared");
    assert_eq!(refused, None);
    node.delete_pod("whole").await;
    node.eventually_tenants(0).await;
}

/// Kubelet, API server, scheduler, and the driver itself.
async fn restarts_disturb_no_pod(node: &mut Node) {
    node.start_pod("stays", "partita-share", share("34", "10Gi"), Value::Null, &LOOP).await;
    node.runs_on("stays", 34).await;
    let before = node.container("stays").await;
    let path = node.claim_path("stays").await;

    step("the kubelet is killed");
    let names = |slices: &[Value]| -> Vec<Value> {
        slices.iter().map(|slice| slice["metadata"]["uid"].clone()).collect()
    };
    let slices = names(&node.published().await);
    node.cluster.kill("kubelet");
    node.cluster.start_kubelet();
    // A kubelet deletes the slices of its node when it starts.
    let list = "/apis/resource.k8s.io/v1/resourceslices";
    let all_new = |list: &Value| {
        let all = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        !all.is_empty() && names(all).iter().all(|uid| !slices.contains(uid))
    };
    node.cluster.eventually("the old slices stay", list, all_new).await;
    node.published().await;
    node.cluster.annotate(&path, "multiprocessors=20").await;
    node.runs_on("stays", 20).await;

    step("the API server is killed");
    node.cluster.kill("kube-apiserver");
    node.cluster.start_api_server().await;
    node.cluster.annotate(&path, "multiprocessors=16").await;
    node.runs_on("stays", 16).await;
    node.start_pod("next", "partita-share", share("66", "10Gi"), Value::Null, &LOOP).await;
    node.runs_on("next", 66).await;
    node.delete_pod("next").await;

    step("the driver is killed");
    let driver = node.driver().await;
    node.kill_driver();
    let path_of_pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let restarted = |list: &Value| list["items"][0]["status"]["containerStatuses"][0]["restartCount"] == 1;
    node.cluster.eventually("the driver does not start again", &path_of_pods, restarted).await;
    assert_eq!(node.driver().await, driver, "its pod is another");
    node.cluster.annotate(&path, "multiprocessors=12").await;
    node.runs_on("stays", 12).await;
    assert_eq!(node.container("stays").await, before, "the container was started again");
}

async fn an_upgrade_disturbs_no_pod(node: &mut Node) {
    step("the chart is upgraded");
    let before = node.container("stays").await;
    let driver = node.driver().await;
    node.cluster.import(&node::driver_image("next"));
    node.install("next", &json!({})).await;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let is_next = |list: &Value| {
        let pods = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        matches!(pods, [pod] if pod["metadata"]["uid"] != *driver.as_str()
            && pod["status"]["containerStatuses"][0]["ready"] == true)
    };
    node.cluster.eventually("the new driver does not run", &path, is_next).await;
    let claim = node.claim_path("stays").await;
    node.cluster.annotate(&claim, "multiprocessors=34").await;
    node.runs_on("stays", 34).await;
    assert_eq!(node.container("stays").await, before, "the container was started again");
    node.delete_pod("stays").await;
    node.eventually_tenants(0).await;
}

async fn a_claim_of_two_pods_is_one_tenant(node: &mut Node) {
    step("two pods have one claim");
    let devices = json!({"requests": [{"name": "gpu", "exactly":
        {"deviceClassName": "partita-share", "capacity": {"requests": share("34", "10Gi")}}}]});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "shared"}, "spec": {"devices": devices}});
    node.cluster.apply(&claim).await;
    for name in ["left", "right"] {
        node.cluster.apply(&node::pod(name, json!({"resourceClaimName": "shared"}), &LOOP)).await;
    }
    let [left, right] = [node.runs_on("left", 34).await, node.runs_on("right", 34).await];
    assert_eq!(left, right);
    assert_eq!(node.tenants().len(), 1);
    node.delete_pod("left").await;
    node.runs_on("right", 34).await;
    assert_eq!(node.tenants().len(), 1);
    node.delete_pod("right").await;
    node.cluster.delete("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/shared").await;
    node.eventually_tenants(0).await;
}

async fn mistakes_are_events(node: &mut Node) {
    step("mistakes are events of the pod");
    for (name, parameters, reason) in
        [("unknown", json!({"plaice": "spread"}), "plaice"), ("refused", json!({"time": "50%"}), "time")]
    {
        node.start_pod(name, "partita-share", share("34", "10Gi"), parameters, &LOOP).await;
        let note = node.event("Pod", name, "TenantNotPrepared").await;
        assert!(note.contains(reason), "{note}");
        node.delete_pod(name).await;
    }
    node.eventually_tenants(0).await;
}

async fn a_driver_writes_its_own_slices_alone(node: &mut Node) {
    step("a stolen token of the driver writes no slices");
    let account = format!("system:serviceaccount:{NAMESPACE}:partita-kubelet");
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "stolen"},
        "spec": {"driver": "partita.dev", "nodeName": NODE, "devices": [],
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1}},
    });
    let of_another_node = json!(["node-b"]);
    for (of_node, message) in [(None, "names no node"), (Some(&of_another_node), "its own node alone")] {
        let refusal = node.cluster.create_as(&account, of_node, &slice).await.unwrap_err();
        assert!(refusal.contains(message), "{refusal}");
    }
    // The server would take it of a driver on the node.
    node.cluster.create_as(&account, Some(&json!([NODE])), &slice).await.unwrap();
    node.published_anew().await;
}

async fn a_gpu_that_cannot_be_used_has_a_taint(node: &mut Node) {
    step("a GPU that cannot be used has a taint");
    node.start_pod("unharmed", "partita-share", share("34", "10Gi"), Value::Null, &LOOP).await;
    node.runs_on("unharmed", 34).await;
    let [here, away] = ["state/parts/next/partita", "state/parts/next/away"].map(|name| node.path(name));
    fs::rename(&here, &away).unwrap();
    let list = "/apis/resource.k8s.io/v1/resourceslices";
    let tainted = |list: &Value, count: usize| {
        let slices = list["items"].as_array().into_iter().flatten();
        let devices = slices.filter_map(|slice| slice["spec"]["devices"].as_array()).flatten();
        let taints = devices.filter(|device| device["taints"][0]["key"] == "partita.dev/unusable");
        taints.count() == count
    };
    node.cluster.eventually("no device has a taint", list, |list| tainted(list, 2)).await;
    let claim = node.claim_path("unharmed").await;
    let is_unusable = |claim: &Value| claim["status"]["devices"][0]["conditions"][0]["reason"] == "Unusable";
    node.cluster.eventually("the claim does not say so", &claim, is_unusable).await;
    let is_unhealthy = |pod: &Value| {
        let resources = &pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"];
        resources[0]["resources"][0]["health"] == "Unhealthy"
    };
    node.pod("unharmed", "its status does not say so", is_unhealthy).await;
    nothing_is_written_when_nothing_happens(node).await;
    node.start_pod("waits", "partita-share", share("34", "10Gi"), Value::Null, &LOOP).await;
    node.pod("waits", "it is scheduled", |pod| pod["status"]["conditions"][0]["reason"] == "Unschedulable")
        .await;
    fs::rename(&away, &here).unwrap();
    node.cluster.eventually("the taint stays", list, |list| tainted(list, 0)).await;
    node.runs_on("waits", 34).await;
    node.runs_on("unharmed", 34).await;
    for name in ["waits", "unharmed"] {
        node.delete_pod(name).await;
    }
    node.eventually_tenants(0).await;
}

async fn an_extended_resource_is_a_whole_gpu(node: &mut Node) {
    step("an extended resource is a whole GPU");
    node.install("next", &json!({"deviceClasses": {"extendedResourceName": "nvidia.com/gpu"}})).await;
    node.cluster.apply(&node::plain_pod("extended", &json!({"nvidia.com/gpu": 1}), &LOOP)).await;
    node.runs_on("extended", 132).await;
    node.delete_pod("extended").await;
    node.eventually_tenants(0).await;
}

async fn the_webhook_makes_claims(node: &mut Node) {
    step("the webhook makes claims of HAMi's names");
    node.install_webhook("next").await;
    let resources = json!({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 25, "nvidia.com/gpumem": 20000});
    node.cluster.apply(&node::plain_pod("hami", &resources, &LOOP)).await;
    // A quarter of 66 TPCs, rounded down.
    node.runs_on("hami", 32).await;
    assert_eq!(node.tenants()[0]["memory_quota_bytes"], json!(20_000u64 << 20));
    let whole = node::plain_pod("all", &json!({"nvidia.com/gpu": 1}), &LOOP);
    node.delete_pod("hami").await;
    node.cluster.apply(&whole).await;
    node.runs_on("all", 132).await;
    node.delete_pod("all").await;
    let refused =
        node::plain_pod("refused", &json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 20000}), &LOOP);
    let refusal = node.cluster.create(&refused).await.unwrap_err();
    assert!(refusal.contains("gpucores"), "{refusal}");
    // Without sizes of ours the server does not ask it.
    node.cluster.create(&node::plain_pod("plain", &json!({}), &["sh", "-c", "exit 0"])).await.unwrap();
    node.pod("plain", "it does not end", |pod| pod["status"]["phase"] == "Succeeded").await;
    node.delete_pod("plain").await;
    node.eventually_tenants(0).await;
    node.remove_webhook().await;
}

async fn a_device_plugin_takes_the_drivers_place(node: &mut Node) {
    step("a device plugin takes the driver's place");
    node.install_plugin("--shared=4").await;
    let offers = |name: &'static str, count: &'static str| {
        move |node: &Value| node["status"]["allocatable"][name] == count
    };
    let path = format!("/api/v1/nodes/{NODE}");
    node.cluster.eventually("no share is offered", &path, offers("nvidia.com/gpu.shared", "4")).await;
    let resources = json!({"nvidia.com/gpu.shared": 1});
    for name in ["a", "b", "c", "d", "e"] {
        node.cluster.apply(&node::plain_pod(name, &resources, &LOOP)).await;
    }
    let mut seen = std::collections::BTreeSet::new();
    for name in ["a", "b", "c", "d"] {
        let own = node.runs_on(name, 32).await;
        assert!(seen.is_disjoint(&own), "{name}");
        seen.extend(own);
    }
    node.pod("e", "it does not wait", |pod| pod["status"]["conditions"][0]["reason"] == "Unschedulable")
        .await;

    step("the kubelet is killed beside a device plugin");
    let before = node.container("b").await;
    node.cluster.kill("kubelet");
    node.cluster.start_kubelet();
    node.delete_pod("a").await;
    // A kubelet that has just started refuses a pod until it knows the plugin's devices.
    let is_decided = |pod: &Value| pod["status"]["phase"] != "Pending";
    while node.pod("e", "it is not admitted", is_decided).await["status"]["reason"]
        == "UnexpectedAdmissionError"
    {
        node.delete_pod("e").await;
        node.cluster.apply(&node::plain_pod("e", &resources, &LOOP)).await;
    }
    node.runs_on("e", 32).await;
    node.runs_on("b", 32).await;
    assert_eq!(node.container("b").await, before, "the container was started again");
    // The plugin ends the tenants of pods that it has seen in the kubelet's list.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for name in ["b", "c", "d", "e"] {
        node.delete_pod(name).await;
    }
    node.eventually_tenants(0).await;
}

async fn a_device_plugin_has_hamis_names(node: &mut Node) {
    step("a device plugin has HAMi's names");
    node.install_plugin("--hami").await;
    let offers = |node: &Value| {
        let allocatable = &node["status"]["allocatable"];
        allocatable["nvidia.com/gpucores"] == "100" && allocatable["nvidia.com/gpu.shared"] != "4"
    };
    node.cluster.eventually("HAMi's names are not offered", &format!("/api/v1/nodes/{NODE}"), offers).await;
    let of = |cores: u32, mib: u32| {
        json!({
            "nvidia.com/gpu": 1, "nvidia.com/gpucores": cores, "nvidia.com/gpumem": mib,
        })
    };
    node.cluster.apply(&node::plain_pod("quarter", &of(25, 20000), &LOOP)).await;
    node.cluster.apply(&node::plain_pod("half", &of(50, 40000), &LOOP)).await;
    let [quarter, half] = [node.runs_on("quarter", 32).await, node.runs_on("half", 66).await];
    assert!(quarter.is_disjoint(&half), "{quarter:?} {half:?}");
    let mut quotas: Vec<u64> =
        node.tenants().iter().map(|row| row["memory_quota_bytes"].as_u64().unwrap()).collect();
    quotas.sort_unstable();
    assert_eq!(quotas, [20_000 << 20, 40_000 << 20]);
    for name in ["quarter", "half"] {
        node.delete_pod(name).await;
    }
    node.eventually_tenants(0).await;
}
