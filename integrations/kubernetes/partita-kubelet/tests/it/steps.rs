//! A driver that is killed at every step of its work, and disks that are full.

use std::path::Path;

use partita_kubelet::wire::dra::Claim;
use serde_json::{Value, json};

use crate::container;
use crate::world::World;

/// The steps of a prepare, in order.
const PREPARE: [&str; 13] = [
    "prepare-asked",
    "claim-read",
    "journal-half-written",
    "journal-written",
    "cdi-tenant-made",
    "cdi-service-ready",
    "cdi-preload-half-written",
    "cdi-preload-written",
    "cdi-device-half-written",
    "cdi-written",
    "metadata-half-written",
    "metadata-written",
    "prepare-done",
];

/// The steps of an unprepare, in order.
const UNPREPARE: [&str; 8] = [
    "unprepare-asked",
    "cdi-processes-ended",
    "cdi-device-removed",
    "cdi-tenant-removed",
    "tenant-ended",
    "metadata-removed",
    "journal-removed",
    "unprepare-done",
];

async fn restart(world: &mut World) {
    world.start_driver();
    world.registered().await;
}

/// Kills the driver at one step, and lets the kubelet go on with another driver.
async fn kill_at(world: &mut World, which: u32, step: &str, is_deleted: bool) {
    let claim: Claim = world.share(which, "66", "40Gi");
    let is_prepare = PREPARE.contains(&step);
    if !is_prepare {
        assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    }
    world.kill_driver();
    world.start_driver_until(step);
    world.registered().await;
    match is_prepare {
        true => assert!(world.kubelet.try_prepare(std::slice::from_ref(&claim)).await.is_none(), "{step}"),
        false => assert!(world.kubelet.try_unprepare(&claim).await.is_none(), "{step}"),
    }
    world.ended_at(step);
    restart(world).await;
    // The pod may have been deleted meanwhile; then the kubelet only unprepares.
    if is_prepare && !is_deleted {
        let answer = world.kubelet.prepare(&claim).await;
        assert_eq!(answer.error, "", "{step}");
        for id in &answer.devices[0].cdi_device_ids {
            assert!(world.cdi_file(id).exists(), "{step}: {id}");
        }
        let tenants = world.tenants();
        assert_eq!((tenants.len(), &tenants[0]["sms"]), (1, &json!(66)), "{step}: {tenants:?}");
    }
    world.kubelet.unprepare(&claim).await;
    world.assert_nothing();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_is_killed_at_each_step_goes_on() {
    let mut world = World::start(1).await;
    let kills = if crate::lifecycle::is_long() { 500 } else { 30 };
    let steps: Vec<&str> = PREPARE.into_iter().chain(UNPREPARE).collect();
    // Each in turn, then in any order: a fixed seed, so that a failure comes again.
    let mut random: u64 = 0x9e37_79b9_7f4a_7c15;
    for which in 0..kills {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let any = (random >> 33) as usize;
        let step = steps.get(which as usize).copied().unwrap_or(steps[any % steps.len()]);
        kill_at(&mut world, which, step, any.is_multiple_of(3)).await;
    }
}

/// Writes until there is no room left.
fn fill(path: &Path) {
    let full = std::fs::write(path, vec![0; 1 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_leaves_nothing_half_made() {
    if !container::can_mount() {
        return;
    }
    let mut world = World::start(1).await;
    for (which, dir) in [(1, "state"), (2, "cdi")] {
        world.kill_driver();
        let small = world.start_driver_with_small(dir, 64);
        world.registered().await;
        fill(&small.join("filler"));
        let claim = world.share(which, "34", "10Gi");
        for _ in 0..2 {
            let answer = world.kubelet.prepare(&claim).await;
            assert!(answer.error.contains("No space left"), "{dir}: {answer:?}");
            assert!(answer.devices.is_empty());
        }
        let note = world.event("Pod", &format!("pod-{which}"), "TenantNotPrepared").await;
        assert!(note.contains("No space left") && note.contains(dir), "{note}");
        assert_eq!(world.tenants(), Vec::<Value>::new());
        let left = |at: &Path| -> Vec<String> {
            let files = std::fs::read_dir(at).unwrap();
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
        };
        match dir {
            "state" => assert_eq!(left(&small.join("claims")), Vec::<String>::new()),
            _ => assert_eq!(left(&small), ["filler"]),
        }
        std::fs::remove_file(small.join("filler")).unwrap();
        assert_eq!(world.kubelet.prepare(&claim).await.error, "", "{dir}");
        // An end needs no room.
        fill(&small.join("filler"));
        world.kubelet.unprepare(&claim).await;
        world.assert_nothing();
    }
}
