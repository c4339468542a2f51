//! Slices are as they should be, whatever kubelets, people and other writers do. So are sockets.

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn slices_come_back() {
    let mut world = World::start(2).await;
    assert_eq!(world.devices().len(), 4);
    // The kubelet restarts: it deletes all slices of its node and asks again.
    world.store.lock().unwrap().delete_slices();
    world.published().await;
    world.registered().await;
    // Somebody deletes one.
    let name = world.store.lock().unwrap().slices.keys().next().unwrap().clone();
    world.store.lock().unwrap().delete_slice(&name);
    world.published().await;
    // Somebody edits one, beside conflicts and a forgotten history.
    let store = world.store.clone();
    let name = store.lock().unwrap().slices.keys().last().unwrap().clone();
    {
        let mut store = store.lock().unwrap();
        store.conflicts = 2;
        store.compact();
        store.edit_slice(&name, |slice| slice["spec"]["pool"]["generation"] = 77.into());
    }
    world
        .eventually("the edited slice stays", || {
            let is_new = |slice: &serde_json::Value| slice["spec"]["pool"]["generation"] == 78;
            let all_new = store.lock().unwrap().slices.values().all(is_new);
            all_new && world.is_published()
        })
        .await;
    // The server is away for a while, and the slices with it.
    store.lock().unwrap().is_down = true;
    store.lock().unwrap().delete_slices();
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    store.lock().unwrap().is_down = false;
    world.published().await;
    // A killed driver finds its slices as they are: no write.
    let before = store.lock().unwrap().slices.clone();
    world.kill_driver();
    world.start_driver();
    world.registered().await;
    world.store.lock().unwrap().delete_slices();
    world.published().await;
    assert_eq!(store.lock().unwrap().slices.len(), before.len());
    for slice in store.lock().unwrap().slices.values() {
        assert_eq!(slice["metadata"]["ownerReferences"][0]["name"], "node-a");
        assert_eq!(slice["spec"]["nodeName"], "node-a");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_sockets_come_back() {
    let world = World::start(1).await;
    for path in ["plugins_registry/partita@partita.dev-reg.sock", "plugins/partita.dev/dra.sock"] {
        let path = world.dir().join("kubelet").join(path);
        std::fs::remove_file(&path).unwrap();
        world.eventually("the socket stays away", || path.exists()).await;
        world.registered().await;
    }
    let claim = world.share(1, "34", "10Gi");
    assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    world.kubelet.unprepare(&claim).await;
    world.assert_nothing();
}

/// Of each GPU is decided by itself: whether it is there, and what it can do.
#[tokio::test(flavor = "multi_thread")]
async fn gpus_of_several_kinds_are_offered_without_those_that_are_missing() {
    let world = World::offering("sim:h200,sim:h200:7,sim:a100").await.driven().await;
    let products: std::collections::BTreeSet<String> =
        world.devices().iter().map(|one| one["attributes"]["architecture"]["string"].to_string()).collect();
    assert_eq!((world.devices().len(), products.len()), (4, 2), "{products:?}");
    assert!(world.log().contains("there is no GPU sim:h200:7 here"), "{}", world.log());
    for (which, name) in (1..).zip(world.devices().iter().filter_map(|one| one["name"].as_str())) {
        if name.ends_with("-shared") {
            let consumed = serde_json::json!({"multiprocessors": "4", "memory": "4Gi", "clients": "1"});
            let claim = world.claim(which, name, consumed, serde_json::Value::Null);
            assert_eq!(world.kubelet.prepare(&claim).await.error, "");
            world.kubelet.unprepare(&claim).await;
        }
    }
    world.assert_nothing();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_driver_offers_nothing() {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        eprintln!("skipped: this machine has a driver");
        return;
    }
    let mut world = World::offering("all").await;
    world.start_driver();
    world.registered().await;
    let claim = world.claim(1, "gpu-a-shared", serde_json::Value::Null, serde_json::Value::Null);
    let said = world.kubelet.prepare(&claim).await.error;
    assert!(said.contains("offers no GPU now: the GPUs cannot be listed: the NVIDIA driver"), "{said}");
    assert_eq!(world.slices(), 0);
    world.assert_nothing();
}

/// While the GPUs cannot be listed, a driver that starts ends claims, and offers the GPUs later.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_starts_before_its_gpus_can_be_listed() {
    let mut world = World::start(1).await;
    let claim = world.share(1, "34", "10Gi");
    assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    world.kill_driver();
    world.set_working(false);
    world.start_driver();
    world.registered().await;
    world.eventually("the GPUs stay offered", || world.slices() == 0).await;
    let next = world.claim(2, "gpu-a-shared", serde_json::Value::Null, serde_json::Value::Null);
    let said = world.kubelet.prepare(&next).await.error;
    assert!(said.contains("the GPUs cannot be listed"), "{said}");
    world.kubelet.unprepare(&claim).await;
    world.assert_nothing();
    world.set_working(true);
    world.published().await;
    assert_eq!(world.devices().len(), 2);
    // A choice is no list of GPUs, whatever can be listed.
    world.kill_driver();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_partita-kubelet"));
    let dir = |name: &str| world.dir().join(name);
    command.args(["--node-name", "n", "--api-server", "http://127.0.0.1:1", "--gpu", "any", "--state-dir"]);
    let out = command.arg(dir("other")).arg("--partita").arg(dir("partita")).output().unwrap();
    assert_eq!(out.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&out.stderr).contains("--gpu any"), "{out:?}");
}
