//! The annotation that resizes a running pod, whatever happens to the driver, the node and the
//! room.

use std::time::Duration;

use serde_json::Value;

use crate::world::World;

const CLAIM: &str = "default/claim-1";

async fn has_sms(world: &World, sms: u32) {
    let has_them = || world.tenants().iter().any(|one| one["sms"] == sms && one["name"] != "other");
    world.eventually(&format!("the tenant never has {sms} SMs"), has_them).await;
}

async fn restart(world: &mut World) {
    world.start_driver();
    world.registered().await;
}

fn succeeds(world: &World, words: &[&str]) {
    let output = world.partita(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// How many events of this reason are on the claim.
fn events(world: &World, reason: &str) -> usize {
    let store = world.store.lock().unwrap();
    let is_it = |event: &&Value| event["reason"] == reason && event["regarding"]["kind"] == "ResourceClaim";
    store.events.iter().filter(is_it).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_size_holds_over_restarts_of_driver_and_node() {
    let mut world = World::start(1).await;
    let claim = world.share(1, "34", "10Gi");
    assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    world.store.lock().unwrap().annotate(CLAIM, "multiprocessors=10");
    has_sms(&world, 10).await;
    world.eventually("no event says it", || events(&world, "TenantResized") == 1).await;
    // The node restarts: tenants are gone, and the journal is not. The driver sees the annotation
    // before the kubelet asks for the tenant.
    world.kill_driver();
    let name = world.tenants()[0]["name"].as_str().unwrap().to_owned();
    let cdi = world.dir().join("cdi").display().to_string();
    succeeds(&world, &["cdi", "remove", "--force", &name, "--output", &cdi]);
    world.requests();
    restart(&mut world).await;
    let is_watched = || world.requests().iter().any(|one| (&*one.0, one.1) == ("resourceclaims", "watch"));
    world.eventually("the claim is not watched", is_watched).await;
    assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    has_sms(&world, 10).await;
    world.eventually("no event says it", || events(&world, "TenantResized") == 2).await;
    assert_eq!(events(&world, "TenantNotResized"), 0);
    // A driver that starts leaves the size as it is, and undoes what was undone meanwhile.
    world.kill_driver();
    restart(&mut world).await;
    assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    world.kill_driver();
    assert_eq!(world.tenants()[0]["sms"], 10);
    world.store.lock().unwrap().remove_annotations(CLAIM);
    restart(&mut world).await;
    has_sms(&world, 34).await;
    world.kubelet.unprepare(&claim).await;
    world.assert_nothing();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_passes_is_tried_again_and_told_once() {
    let world = World::start(1).await;
    let claim = world.share(1, "66", "10Gi");
    assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    world.store.lock().unwrap().annotate(CLAIM, "multiprocessors=10");
    has_sms(&world, 10).await;
    let dir = world.dir().join("other").display().to_string();
    let words = ["cdi", "prepare", "other", "--gpu", "sim:h200", "--sm", "90%", "--output", &dir];
    succeeds(&world, &words);
    world.store.lock().unwrap().remove_annotations(CLAIM);
    let note = world.event("ResourceClaim", "claim-1", "TenantNotResized").await;
    assert!(note.contains("other"), "{note}");
    // Several attempts.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(events(&world, "TenantNotResized"), 1);
    succeeds(&world, &["cdi", "remove", "other", "--output", &dir]);
    has_sms(&world, 66).await;
    world.kubelet.unprepare(&claim).await;
    world.assert_nothing();
}

/// With the kubelet's own credentials claims cannot be watched: the log says so, once.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_may_not_watch_says_so() {
    let world = World::start(1).await;
    world.store.lock().unwrap().refuses_claim_lists = true;
    let claim = world.share(1, "34", "10Gi");
    assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    let mut lists = 0;
    let mut is_tried_again = || {
        let requests = world.requests();
        lists += requests.iter().filter(|one| (&*one.0, one.1) == ("resourceclaims", "list")).count();
        lists > 1
    };
    world.eventually("the claim is not listed again", &mut is_tried_again).await;
    let words = "needs the rights to list and watch resourceclaims";
    world.eventually("the log does not say it", || world.log().contains(words)).await;
    assert_eq!(world.log().matches(words).count(), 1);
    world.store.lock().unwrap().refuses_claim_lists = false;
    world.store.lock().unwrap().annotate(CLAIM, "multiprocessors=10");
    has_sms(&world, 10).await;
    world.kubelet.unprepare(&claim).await;
    world.assert_nothing();
}
