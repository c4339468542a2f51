//! A node whose wall clock jumps by years at every reading: nothing is decided by it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::world::World;

fn jumping() -> PathBuf {
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("jump-{}.so", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/jump.c");
    let built = Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    assert!(built.unwrap().success(), "the library does not build");
    library
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_that_jumps_decides_nothing() {
    let library = jumping();
    let mut world = World::bare(1).await;
    world.start_driver_with(&library);
    world.registered().await;
    world.published().await;
    let slices = world.store.lock().unwrap().slices.clone();
    let claims: Vec<_> = (1..=4).map(|which| world.share(which, "32", "10Gi")).collect();
    for claim in &claims {
        let answer = world.kubelet.prepare(claim).await;
        assert_eq!(answer.error, "");
        assert_eq!(world.kubelet.prepare(claim).await, answer);
        world.eventually("no status is written", || world.status_of(&claim.name).len() == 1).await;
    }
    world.store.lock().unwrap().annotate("default/claim-1", "multiprocessors=10");
    world.event("Pod", "pod-1", "TenantResized").await;
    world
        .eventually("the status is of before", || {
            world.status_of("claim-1")[0]["data"]["multiprocessors"] == 10
        })
        .await;
    // What is right is not written again: not the status, nor the slices.
    let writes = world.store.lock().unwrap().status_writes;
    assert_eq!(writes, 5);
    world.kill_driver();
    world.store.lock().unwrap().remove_claim("default/claim-2");
    world.start_driver_with(&library);
    world.registered().await;
    world.eventually("the tenant of a claim that is gone stays", || world.tenants().len() == 3).await;
    let sms: BTreeSet<u64> = world.tenants().iter().map(|row| row["sms"].as_u64().unwrap()).collect();
    assert_eq!(sms, BTreeSet::from([10, 32]));
    for claim in [&claims[0], &claims[2], &claims[3]] {
        assert_eq!(world.kubelet.prepare(claim).await.error, "");
        assert_eq!(world.status_of(&claim.name)[0]["conditions"][0]["status"], json!("True"));
    }
    assert_eq!(world.store.lock().unwrap().status_writes, writes);
    assert_eq!(world.store.lock().unwrap().slices, slices);
    for claim in &claims {
        world.kubelet.unprepare(claim).await;
    }
    world.assert_nothing();
    // The clock did jump: the driver's log has lines of many years.
    let log = world.log();
    let years: BTreeSet<&str> = log.lines().filter_map(|line| line.split_once('-')).map(|at| at.0).collect();
    assert!(years.len() > 3, "{years:?}");
    std::fs::remove_file(library).unwrap();
}
