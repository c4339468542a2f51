//! The stream of the devices' health, as kubelets of several versions open it.

use partita_kubelet::health::SERVICES;
use partita_kubelet::wire::health::{HealthStatus, NodeWatchResourcesResponse};
use tonic::Streaming;

use crate::kubelet::PATIENCE;
use crate::world::{NODE, World};

async fn next(stream: &mut Streaming<NodeWatchResourcesResponse>) -> Option<NodeWatchResourcesResponse> {
    tokio::time::timeout(PATIENCE, stream.message()).await.expect("nothing comes").unwrap_or(None)
}

/// Reads until both devices have this health; the message of the last.
async fn until(stream: &mut Streaming<NodeWatchResourcesResponse>, wanted: HealthStatus) -> String {
    loop {
        let all = next(stream).await.expect("the stream ended").devices;
        assert_eq!(all.len(), 2);
        if all.iter().all(|one| one.health() == wanted) {
            return all[0].message.clone();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_hears_of_a_gpu_that_cannot_be_used() {
    let mut world = World::start(1).await;
    let mut streams = Vec::new();
    for service in SERVICES {
        streams.push(world.kubelet.watch_health(service).await);
    }
    let mut names: Vec<String> =
        world.devices().iter().map(|device| device["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    for stream in &mut streams {
        // The first comes at once, the next with each look, later or at the same second.
        let first = next(stream).await.unwrap().devices;
        let mut listed: Vec<String> =
            first.iter().map(|one| one.device.as_ref().unwrap().device_name.clone()).collect();
        listed.sort();
        assert_eq!(listed, names);
        assert!(first.iter().all(|one| one.device.as_ref().unwrap().pool_name == NODE));
        assert!(first.iter().all(|one| one.health() == HealthStatus::Healthy && one.message.is_empty()));
        let second = next(stream).await.unwrap().devices;
        assert!(second[0].last_updated_time >= first[0].last_updated_time && first[0].last_updated_time > 0);
    }
    world.set_listable(false);
    for stream in &mut streams {
        let message = until(stream, HealthStatus::Unhealthy).await;
        assert!(message.contains("cannot be listed: "), "{message}");
    }
    world
        .eventually("no device has a taint", || {
            world.devices().iter().all(|device| device["taints"][0]["key"] == "partita.dev/unusable")
        })
        .await;
    world.set_listable(true);
    for stream in &mut streams {
        until(stream, HealthStatus::Healthy).await;
    }
    // Open streams end with the driver, and do not hold it up.
    world.end_driver();
    for stream in &mut streams {
        while next(stream).await.is_some() {}
    }
    assert!(!world.log().contains("panicked"), "{}", world.log());
}
