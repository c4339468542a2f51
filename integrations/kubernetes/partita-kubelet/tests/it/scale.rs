//! What a large cluster costs the API server: requests by node and by claim, and bytes.
//!
//! The counts are those of the real driver on one node. Sizes and lists are those of 1,000 nodes
//! with 8 GPUs each, which the driver's own publisher writes to the fake API server.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use futures::StreamExt;
use k8s_openapi::api::resource::v1::ResourceSlice;
use partita::install::Install;
use partita_kubelet::claims;
use partita_kubelet::device::Board;
use partita_kubelet::journal::Journal;
use partita_kubelet::prepare::Tenants;
use partita_kubelet::publish::Publisher;
use partita_kubelet::status::{self, Outcome};
use partita_kubelet::translate::sizes;
use serde_json::{Value, json};

use crate::api;
use crate::lifecycle::is_long;
use crate::world::World;

type Request = (String, &'static str, u64);

/// What is asked about claims. The driver looks at its slices once more when its own writes come
/// back as events, which may be at any time.
fn of_claims(requests: Vec<Request>) -> Vec<Request> {
    requests.into_iter().filter(|one| one.0 != "resourceslices").collect()
}

/// Counts as a map, each divided by `by`, which must divide it.
fn each(requests: &[Request], by: u64) -> BTreeMap<String, u64> {
    let one = |(resource, verb, count): &(String, &str, u64)| {
        assert!(count.is_multiple_of(by), "{resource} {verb}: {count} requests for {by} claims");
        (format!("{verb} {resource}"), count / by)
    };
    requests.iter().map(one).collect()
}

fn counts(all: &[(&str, u64)]) -> BTreeMap<String, u64> {
    all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn how_often_the_api_server_is_asked() {
    const CLAIMS: u64 = 5;
    let mut world = World::start(1).await;
    let settled = |world: &World| {
        let store = world.store.lock().unwrap();
        let watches = store.answers.iter().filter(|(right, _)| right.2 == "watch");
        watches.map(|(_, (count, _))| *count).sum::<u64>()
    };
    let answered = |world: &World, name: &str, verb: &str| {
        let store = world.store.lock().unwrap();
        let mut all = store.answers.iter().filter(|(right, _)| right.1 == name && right.2 == verb);
        all.next().map_or(0, |(_, (count, _))| *count)
    };
    let read = |world: &World| answered(world, "resourceclaims", "get");
    // A write shows before it is counted.
    let written = |world: &World| answered(world, "resourceclaims/status", "patch");
    world.eventually("no watch of slices", || settled(&world) == 1).await;
    let start = world.requests();
    let node = each(&start.iter().filter(|one| one.1 != "list").cloned().collect::<Vec<_>>(), 1);
    assert_eq!(node, counts(&[("create resourceslices", 2), ("get nodes", 1), ("watch resourceslices", 1)]));
    // The publisher's, its watch's, and one or two more after the events of its own writes.
    let lists: u64 = start.iter().filter(|one| one.1 == "list").map(|one| one.2).sum();
    assert!((2..=4).contains(&lists), "{lists} lists");

    let claims: Vec<_> = (0..CLAIMS as u32).map(|which| world.share(which, "10", "2Gi")).collect();
    for claim in &claims {
        assert_eq!(world.kubelet.prepare(claim).await.error, "");
        world.event("Pod", &claim.name.replace("claim", "pod"), "TenantPrepared").await;
        world.event("ResourceClaim", &claim.name, "TenantPrepared").await;
        world.eventually("no status is written", || world.status_of(&claim.name).len() == 1).await;
    }
    world.eventually("not every claim is watched", || settled(&world) == CLAIMS).await;
    world.eventually("not every status is counted", || written(&world) >= CLAIMS).await;
    let prepare = each(&of_claims(world.requests()), CLAIMS);
    assert_eq!(
        prepare,
        counts(&[
            ("create events", 2),
            ("get resourceclaims", 1),
            ("list resourceclaims", 1),
            ("patch resourceclaims/status", 1),
            ("watch resourceclaims", 1),
        ])
    );

    // A restart of the driver: each claim is read and followed again, and nothing is written.
    world.kill_driver();
    world.requests();
    world.start_driver();
    world.registered().await;
    world.eventually("not everything is watched", || settled(&world) == CLAIMS + 1).await;
    world.eventually("not every claim is read", || read(&world) == CLAIMS).await;
    let restart = world.requests();
    assert_eq!(
        each(&of_claims(restart.clone()), CLAIMS),
        counts(&[("get resourceclaims", 1), ("list resourceclaims", 1), ("watch resourceclaims", 1)])
    );
    let is_written = |one: &Request| ["create", "patch", "update", "delete"].contains(&one.1);
    assert!(!restart.iter().any(is_written), "{restart:?}");

    // The end: the claim may be there still, or be gone.
    for claim in &claims[..3] {
        world.kubelet.unprepare(claim).await;
        world.eventually("the entry stays", || world.status_of(&claim.name).is_empty()).await;
    }
    world.eventually("not every status is counted", || written(&world) >= 3).await;
    assert_eq!(
        each(&of_claims(world.requests()), 3),
        counts(&[("get resourceclaims", 1), ("patch resourceclaims/status", 1)])
    );
    for claim in &claims[3..] {
        world.store.lock().unwrap().remove_claim(&format!("default/{}", claim.name));
        world.kubelet.unprepare(claim).await;
    }
    world.eventually("no claim is asked for", || read(&world) == CLAIMS - 3).await;
    assert_eq!(each(&of_claims(world.requests()), CLAIMS - 3), counts(&[("get resourceclaims", 1)]));
    println!("node: {node:?} and {lists} lists; claim: {prepare:?}; restart: {restart:?}");
    world.assert_nothing();
}

fn board(node: u32, which: u32) -> Board {
    Board {
        uuid: format!("GPU-{node:08x}-2233-4455-6677-8899aabb{which:04x}"),
        selector: which.to_string(),
        product: "NVIDIA H200".to_owned(),
        pci: Some(format!("0000:{:02x}:00.0", 24 + which)),
        driver: "580.159.04".to_owned(),
        cuda: 13000,
        compute_capability: (9, 0),
        sms_per_tpc: 2,
        tpcs: 66,
        gpcs: Some(8),
        memory_bytes: 150_123_456_789,
        clients: 48,
        is_simulated: false,
        fault: None,
        mig: None,
    }
}

fn bytes(value: &Value) -> u64 {
    serde_json::to_vec(value).unwrap().len() as u64
}

/// `PARTITA_TEST_LONG=1` has 1,000 nodes with 50 claims each; otherwise 50 with 4.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_large_cluster_holds() {
    const GPUS: u32 = 8;
    let (nodes, claims_of_node): (u32, u64) = if is_long() { (1000, 50) } else { (50, 4) };
    let claims = u64::from(nodes) * claims_of_node;
    let temp = tempfile::tempdir().unwrap();
    let (store, address) = api::start().await;
    let config = kube::Config::new(address.parse().unwrap());
    let client = kube::Client::try_from(config).unwrap();
    let journal = Journal::open(&temp.path().join("claims")).unwrap();
    let publisher = |node: u32, fault: Option<&str>| {
        let boards = (0..GPUS).map(|which| Board { fault: fault.map(str::to_owned), ..board(node, which) });
        let tenants = Tenants {
            install: Install::of(Path::new("/nonexistent").to_owned(), None),
            cdi: temp.path().to_owned(),
            journal: journal.clone(),
            metadata: None,
            instances: Mutex::default(),
            boards: RwLock::new(boards.collect()),
            left_out: RwLock::default(),
        };
        Publisher::new(client.clone(), &format!("node-{node:04}"), Arc::new(tenants))
    };
    let all_look = async |fault: Option<&str>| {
        let begin = Instant::now();
        let looks = futures::stream::iter((0..nodes).map(|node| {
            let publisher = publisher(node, fault);
            async move { publisher.look().await.unwrap() }
        }));
        let written: usize = looks.buffer_unordered(50).collect::<Vec<_>>().await.into_iter().sum();
        let answers = std::mem::take(&mut store.lock().unwrap().answers);
        let requests: u64 = answers.values().map(|(count, _)| count).sum();
        let answered: u64 = answers.values().map(|(_, bytes)| bytes).sum();
        println!(
            "{nodes} nodes look: {written} slices written, {requests} requests, {answered} bytes answered, {:?}",
            begin.elapsed()
        );
        (written, requests)
    };
    // The first start: a list, the node, two slices; a restart: a list; all GPUs ill at once.
    assert_eq!(all_look(None).await, (2 * nodes as usize, 4 * u64::from(nodes)));
    assert_eq!(all_look(None).await, (0, u64::from(nodes)));
    let (held, largest, typed) = {
        let store = store.lock().unwrap();
        assert_eq!(store.invalid, Vec::<String>::new());
        let sizes: Vec<u64> = store.slices.values().map(bytes).collect();
        let typed = store.slices.values().map(|slice| serde_json::from_value(slice.clone()).unwrap());
        (sizes.iter().sum::<u64>(), *sizes.iter().max().unwrap(), typed.collect::<Vec<ResourceSlice>>())
    };
    println!("slices: {} with {held} bytes in all, the largest {largest}", typed.len());
    // Far from etcd's limit of 1.5 MiB for an object.
    assert!(largest < 64 << 10, "{largest}");
    assert_eq!(all_look(Some("it fell off the bus")).await, (2 * nodes as usize, 4 * u64::from(nodes)));
    // What the webhook does for each pod that names sizes.
    let begin = Instant::now();
    assert_eq!(sizes(&typed).len(), 1);
    println!("the webhook reads {} GPUs in {:?}", nodes * GPUS, begin.elapsed());
    // The claims, each read once and its status written once, as when it is prepared.
    let begin = Instant::now();
    let put = |which: u64| {
        let (pool, device) = (format!("node-{:04}", which / claims_of_node), board(0, 0).shared_device());
        let share = format!("aaaaaaaa-0000-4000-8000-{which:012}");
        let field = json!({"key": "metadata.name", "operator": "In", "values": [pool]});
        let result = json!({"request": "gpu", "driver": "partita.dev", "pool": pool, "device": device, "shareID": share,
            "consumedCapacity": {"multiprocessors": "34", "memory": "20Gi", "clients": "1"}});
        store.lock().unwrap().put_claim(json!({
            "kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1",
            "metadata": {"namespace": "default", "name": format!("claim-{which}"),
                "uid": format!("5c1d9a70-0000-4000-8000-{which:012}")},
            "spec": {"devices": {}},
            "status": {
                "allocation": {"devices": {"results": [result], "config": []},
                    "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}},
                "reservedFor": [{"resource": "pods", "name": format!("pod-{which}"), "uid": "pod-uid"}],
            },
        }));
        let entry = json!({"driver": "partita.dev", "pool": pool, "device": device, "shareID": share,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Prepared",
                "message": format!("tenant 5c1d9a70-0000-4000-8000-{which:012}-0123456789abcdef"),
                "lastTransitionTime": "2026-11-27T00:00:00Z"}],
            "data": {"apiVersion": "partita.dev/v1", "kind": "TenantStatus",
                "tenant": format!("5c1d9a70-0000-4000-8000-{which:012}-0123456789abcdef"),
                "gpu": board(0, 0).uuid, "multiprocessors": 34, "tpcs": "0-16", "memoryBytes": 20u64 << 30}});
        (pool, entry)
    };
    let written = futures::stream::iter(0..claims).map(|which| {
        let (pool, entry) = put(which);
        let client = client.clone();
        async move {
            let claim = claims::get(&client, "default", &format!("claim-{which}")).await.unwrap().unwrap();
            let size = bytes(&entry);
            assert_eq!(status::put(&client, &claim.raw, &pool, vec![entry]).await, Outcome::Done);
            size
        }
    });
    let entries: u64 = written.buffer_unordered(50).collect::<Vec<_>>().await.into_iter().sum();
    let took = begin.elapsed();
    let (answers, writes, invalid) = {
        let mut store = store.lock().unwrap();
        // No watch reads the history.
        store.compact();
        (std::mem::take(&mut store.answers), store.status_writes, store.invalid.clone())
    };
    assert_eq!((u64::from(writes), invalid), (claims, Vec::<String>::new()));
    for ((_, resource, verb), (count, bytes)) in answers {
        println!("{verb} {resource}: {count} requests, {} bytes answered each", bytes / count);
    }
    println!(
        "{claims} claims read and written in {took:?}; {} bytes of status.devices each",
        entries / claims
    );
    // By the counts of the test above: read, list and watch of each claim; two lists and a watch of
    // each node.
    println!(
        "a restart of all drivers: {} requests; {} open watches, {} of them renewed each second",
        claims * 3 + u64::from(nodes) * 3,
        claims + u64::from(nodes),
        (claims + u64::from(nodes)) / 290
    );
}
