//! MIG instances are devices of their own, given whole.

use serde_json::{Value, json};

use crate::container;
use crate::world::World;

/// The name of the device with this profile.
fn device(world: &World, profile: &str) -> String {
    let devices = world.devices();
    let is_it = |device: &&Value| device["attributes"]["profile"]["string"] == profile;
    devices.iter().find(is_it).unwrap()["name"].as_str().unwrap().to_owned()
}

/// The state of an instance in `partita mig show`.
fn is_taken(world: &World, profile: &str) -> bool {
    let out = world.partita(&["mig", "show", "--gpu", "sim:h200:0", "--json"]).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let report = report.get(0).unwrap_or(&report).clone();
    let instances = report["instances"].as_array().unwrap();
    let instance = instances.iter().find(|one| one["profile"] == profile).unwrap();
    instance["compute_instances"][0]["is_taken"].as_bool().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_has_an_instance_until_it_ends() {
    let mut world = World::with_instances("3g.71gb,1g.18gb").await;
    let devices = world.devices();
    assert_eq!(devices.len(), 2, "neither the whole GPU nor a share of it: {devices:?}");
    let large = devices.iter().find(|one| one["attributes"]["profile"]["string"] == "3g.71gb").unwrap();
    assert_eq!(large["attributes"]["type"]["string"], "mig");
    assert_eq!(large["capacity"]["multiprocessors"]["value"], "60");
    // A claim's parameters make tenants, which an instance is not.
    let name = device(&world, "1g.18gb");
    let wrong = world.claim(9, &name, Value::Null, json!({"place": "spread"}));
    let said = world.kubelet.prepare(&wrong).await.error;
    assert!(said.contains("place") && said.contains("no tenant"), "{said}");

    let claim = world.claim(1, &name, Value::Null, Value::Null);
    let answer = world.kubelet.prepare(&claim).await;
    assert_eq!(answer.error, "");
    assert_eq!(world.kubelet.prepare(&claim).await, answer);
    assert_eq!(world.tenants(), Vec::<Value>::new());
    assert!(is_taken(&world, "1g.18gb") && !is_taken(&world, "3g.71gb"));
    let note = world.event("Pod", "pod-1", "InstancePrepared").await;
    assert!(note.contains("MIG-"), "{note}");
    world.eventually("the claim has no status", || world.status_of("claim-1").len() == 1).await;
    let data = world.status_of("claim-1")[0]["data"].clone();
    assert_eq!((&data["profile"], &data["multiprocessors"]), (&json!("1g.18gb"), &json!(16)));

    // A run on the node gets the other one, and a change of instances leaves this one alone.
    let run = |profile: &str| {
        let words =
            ["run", "--gpu", "sim:h200:0", "--mig", profile, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"];
        world.partita(&words).output().unwrap()
    };
    let refused = run("1g");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is taken"), "{refused:?}");
    let other = String::from_utf8(run("3g").stdout).unwrap();
    assert!(other.starts_with("MIG-") && !name.eq_ignore_ascii_case(other.trim()), "{other}");
    if container::can_mount() {
        let file = world.cdi_file(&answer.devices[0].cdi_device_ids[0]);
        let total = container::prints(&file, &["total"]);
        let total: u64 = total.trim().strip_prefix("total ").unwrap().parse().unwrap();
        assert!((15 << 30..16 << 30).contains(&total), "an instance of 16 GiB has {total}");
    }

    // Another claim waits until this one has ended, and its end takes nothing away.
    let next = world.claim(2, &name, Value::Null, Value::Null);
    let said = world.kubelet.prepare(&next).await.error;
    assert!(said.contains(&format!("still that of the claim {}", claim.uid)), "{said}");
    world.kubelet.unprepare(&next).await;
    assert!(is_taken(&world, "1g.18gb"));

    // Another driver takes it again before the kubelet asks.
    world.kill_driver();
    world.start_driver();
    world.registered().await;
    assert!(is_taken(&world, "1g.18gb"));
    assert_eq!(world.kubelet.prepare(&claim).await, answer);
    for _ in 0..2 {
        world.kubelet.unprepare(&claim).await;
    }
    assert!(!is_taken(&world, "1g.18gb"));
    world.assert_nothing();
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_that_come_and_go_are_published() {
    let world = World::with_instances("3g.71gb,1g.18gb").await;
    let claim = world.claim(1, &device(&world, "1g.18gb"), Value::Null, Value::Null);
    assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    let change = |wanted: &str| {
        world.partita(&["mig", "apply", "--gpu", "sim:h200:0", "--want", wanted]).output().unwrap()
    };
    let refused = change("3g.71gb");
    assert!(!refused.status.success(), "the claim's instance was destroyed");
    let done = change("1g.18gb,2g.35gb");
    assert!(done.status.success(), "{done:?}");
    let profiles = || {
        let mut all: Vec<String> = world
            .devices()
            .iter()
            .map(|one| one["attributes"]["profile"]["string"].as_str().unwrap().to_owned())
            .collect();
        all.sort();
        all
    };
    world.eventually("the new instance is not there", || profiles() == ["1g.18gb", "2g.35gb"]).await;
    world.published().await;
    world.kubelet.unprepare(&claim).await;
    assert!(change("7g.141gb").status.success());
    world.eventually("the new instance is not there", || profiles() == ["7g.141gb"]).await;
    world.assert_nothing();
}
