//! `status.devices` of claims: written, kept as they should be, and left to others.

use serde_json::{Value, json};

use crate::world::{NODE, World};

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_says_what_its_device_became() {
    let mut world = World::start(1).await;
    let claim = world.share(1, "34", "10Gi");
    // Another driver's entry, of a later version of Kubernetes.
    let nic = json!({"driver": "net.example", "pool": NODE, "device": "nic", "later": {"field": 1}});
    world.store.lock().unwrap().edit_claim("default/claim-1", |claim| {
        let result = json!({"request": "net", "driver": "net.example", "pool": NODE, "device": "nic"});
        claim["status"]["allocation"]["devices"]["results"].as_array_mut().unwrap().push(result);
        claim["status"]["devices"] = json!([nic]);
    });
    // Somebody else writes at the same time.
    world.store.lock().unwrap().status_conflicts = 2;
    assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    world.eventually("no status is written", || world.status_of("claim-1").len() == 2).await;
    let devices = world.status_of("claim-1");
    assert_eq!(devices[0], nic);
    let own = &devices[1];
    assert_eq!((&own["driver"], &own["pool"]), (&json!("partita.dev"), &json!(NODE)));
    assert_eq!(own["device"], world.shared());
    assert!(own["shareID"].as_str().unwrap().starts_with("aaaaaaaa"));
    assert_eq!(own["conditions"][0]["type"], "Ready");
    assert_eq!(own["conditions"][0]["status"], "True");
    let row = &world.tenants()[0];
    assert_eq!(own["data"]["tenant"], row["name"]);
    assert_eq!(own["data"]["tpcs"], row["tpcs"]);
    assert_eq!(own["data"]["gpu"], row["gpu_uuid"]);
    assert_eq!(own["data"]["multiprocessors"], 34);
    assert_eq!(own["data"]["memoryBytes"], 10u64 << 30);
    // A resize is seen.
    world.store.lock().unwrap().annotate("default/claim-1", "multiprocessors=10,memory=5Gi");
    let data = |world: &World| world.status_of("claim-1")[1]["data"].clone();
    world.eventually("the status stays as it was", || data(&world)["multiprocessors"] == 10).await;
    assert_eq!(data(&world)["memoryBytes"], 5u64 << 30);
    assert_eq!(data(&world)["tpcs"], world.tenants()[0]["tpcs"]);
    // A GPU that cannot be used makes the device not ready; when it is back, it is ready again.
    let ready = |world: &World| world.status_of("claim-1")[1]["conditions"][0]["status"].clone();
    world.set_listable(false);
    world.eventually("the device stays ready", || ready(&world) == "False").await;
    world.set_listable(true);
    world.eventually("the device stays unusable", || ready(&world) == "True").await;
    // A driver that starts again finds it right, and one that was away while it was edited writes
    // it.
    world.kill_driver();
    let writes = world.store.lock().unwrap().status_writes;
    world.start_driver();
    world.registered().await;
    assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    world.kill_driver();
    world.store.lock().unwrap().edit_claim("default/claim-1", |claim| {
        claim["status"]["devices"] = json!([nic]);
    });
    world.start_driver();
    world.registered().await;
    world.eventually("the status stays edited", || world.status_of("claim-1").len() == 2).await;
    assert_eq!(world.store.lock().unwrap().status_writes, writes + 1);
    // The end of the tenant is the end of the entry, and of this driver's alone.
    world.kubelet.unprepare(&claim).await;
    world.eventually("the entry stays", || world.status_of("claim-1") == [nic.clone()]).await;
    assert_eq!(world.store.lock().unwrap().invalid, Vec::<String>::new());
    world.assert_nothing();
}

/// The claim works whether its status can be written or not, and the log says why it is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_is_refused_holds_nothing_up() {
    let world = World::start(1).await;
    let claim = world.share(1, "34", "10Gi");
    world.store.lock().unwrap().refuses_status = true;
    assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    world.eventually("the log does not say it", || world.log().contains("associated-node:patch")).await;
    world.kubelet.unprepare(&claim).await;
    // Not on this node alone: the API server has no way to know that the writer is the right one.
    world.store.lock().unwrap().refuses_status = false;
    let claim = world.share(2, "34", "10Gi");
    world.store.lock().unwrap().edit_claim("default/claim-2", |claim| {
        claim["status"]["allocation"]["nodeSelector"] = Value::Null;
    });
    assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    world.eventually("the log does not say it", || world.log().contains("arbitrary-node:patch")).await;
    world.kubelet.unprepare(&claim).await;
    // With the server away it is written once that is back.
    let claim = world.share(3, "34", "10Gi");
    assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    world.eventually("no status is written", || world.status_of("claim-3").len() == 1).await;
    world.store.lock().unwrap().is_down = true;
    world.kubelet.unprepare(&claim).await;
    world.store.lock().unwrap().is_down = false;
    world.eventually("the entry stays", || world.status_of("claim-3").is_empty()).await;
    world.assert_nothing();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_cannot_be_written_holds_up_no_other() {
    let world = World::start(1).await;
    world.store.lock().unwrap().stuck_status = Some("claim-1");
    // Those after it, and one before it.
    let claims = [1, 2, 3, 0].map(|which| world.share(which, "10", "2Gi"));
    for claim in &claims {
        assert_eq!(world.kubelet.prepare(claim).await.error, "");
    }
    for name in ["claim-2", "claim-3", "claim-0"] {
        world.eventually("no status is written", || world.status_of(name).len() == 1).await;
    }
    assert!(world.status_of("claim-1").is_empty());
    world.store.lock().unwrap().stuck_status = None;
    world.eventually("no status is written", || world.status_of("claim-1").len() == 1).await;
    for claim in &claims {
        world.kubelet.unprepare(claim).await;
    }
    world.assert_nothing();
}
