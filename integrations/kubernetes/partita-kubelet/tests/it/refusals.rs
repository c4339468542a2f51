//! What is refused, with a clear error and an event, and with nothing half made.

use serde_json::{Value, json};

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn bad_claims_leave_nothing() {
    let world = World::start(1).await;
    let shared = world.shared();
    let half = || json!({"multiprocessors": "66", "memory": "40Gi", "clients": "1"});
    let sized = |sms: &str, memory: &str| json!({"multiprocessors": sms, "memory": memory, "clients": "1"});
    let cases = [
        (shared.as_str(), half(), json!({"prioritty": "high"}), "\"prioritty\""),
        (&shared, half(), json!({"place": "everywhere"}), "place"),
        // What cannot hold is refused by the host, not dropped: no GPU maps a page of this disk.
        (&shared, half(), json!({"priority": "high"}), "no tmpfs"),
        (&shared, half(), json!({"time": "30%"}), "no tmpfs"),
        (&shared, sized("33", "40Gi"), Value::Null, "steps of 2"),
        (&shared, sized("34", "1500000001"), Value::Null, "steps of 1048576"),
        (&shared, sized("34", "lots"), Value::Null, "\"lots\""),
        (&shared, json!({"cores": "50"}), Value::Null, "\"cores\""),
        ("gpu-gone-shared", half(), Value::Null, "not on this node any more"),
    ];
    for (which, (device, consumed, parameters, reason)) in (10..).zip(cases) {
        let claim = world.claim(which, device, consumed, parameters);
        for _ in 0..2 {
            let answer = world.kubelet.prepare(&claim).await;
            assert!(answer.error.contains(reason) && answer.devices.is_empty(), "{reason}: {answer:?}");
        }
        let note = world.event("Pod", &format!("pod-{which}"), "TenantNotPrepared").await;
        assert!(note.contains(reason), "{note}");
        world.kubelet.unprepare(&claim).await;
        world.assert_nothing();
    }
    // A claim that is not there, one that was made again, and names that are paths.
    let mut claim = world.share(1, "34", "10Gi");
    claim.name = "other".to_owned();
    assert!(world.kubelet.prepare(&claim).await.error.contains("no claim default/other"));
    claim.name = "claim-1".to_owned();
    claim.uid = "5c1d9a70-0000-4000-8000-999999999999".to_owned();
    assert!(world.kubelet.prepare(&claim).await.error.contains("made again"));
    // Two claims of one name: the pod of the first hears it.
    let note = world.event("ResourceClaim", "claim-1", "TenantNotPrepared").await;
    assert!(note.contains("made again") && note.contains("999999999999"), "{note}");
    claim.uid = "../../etc/passwd".to_owned();
    assert!(world.kubelet.prepare(&claim).await.error.contains("no UID"));
    world.store.lock().unwrap().is_down = true;
    let claim = world.share(2, "34", "10Gi");
    assert!(world.kubelet.prepare(&claim).await.error.contains("the API server"));
    world.store.lock().unwrap().is_down = false;
    world.assert_nothing();
}

/// Somebody uses the GPU beside the scheduler: an error, and room again when he has left.
#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_is_taken_by_others_is_refused_until_there_is_room() {
    let world = World::start(1).await;
    let dir = world.dir().join("other").display().to_string();
    let words = ["cdi", "prepare", "other", "--gpu", "sim:h200", "--sm", "90%", "--output", &dir];
    let made = world.partita(&words).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let claim = world.share(1, "66", "10Gi");
    let answer = world.kubelet.prepare(&claim).await;
    assert!(answer.error.contains("`other`"), "{answer:?}");
    assert_eq!(world.tenants().len(), 1);
    let removed = world.partita(&["cdi", "remove", "other", "--output", &dir]).output().unwrap();
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    world.kubelet.unprepare(&claim).await;
    world.assert_nothing();
}
