//! What a container's programs can read about the claim.

use serde_json::{Value, json};

use crate::container;
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_container_reads_what_its_claim_was_given() {
    let mut world = World::start(1).await;
    // Of a template, with an alternative; by name.
    let of_template = world.share(1, "34", "10Gi");
    world.store.lock().unwrap().edit_claim("default/claim-1", |claim| {
        claim["metadata"]["annotations"] = json!({"resource.kubernetes.io/pod-claim-name": "mine"});
        claim["status"]["allocation"]["devices"]["results"][0]["request"] = "gpu/small".into();
    });
    let by_name = world.share(2, "66", "20Gi");
    let dir = "/var/run/kubernetes.io/dra-device-attributes";
    for (claim, path, request, sms) in [
        (&of_template, format!("{dir}/resourceclaimtemplates/mine/gpu"), "gpu/small", 34),
        (&by_name, format!("{dir}/resourceclaims/claim-2/gpu"), "gpu", 66),
    ] {
        let path = format!("{path}/partita.dev-metadata.json");
        let answer = world.kubelet.prepare(claim).await;
        assert_eq!(answer.error, "");
        assert_eq!(answer.devices[0].request_names, ["gpu"], "as the container names it");
        let files: Vec<_> = answer.devices[0].cdi_device_ids.iter().map(|id| world.cdi_file(id)).collect();
        let files: Vec<_> = files.iter().map(std::path::PathBuf::as_path).collect();
        let text = match container::can_mount() {
            true => {
                let out = container::shell(&files, &format!("cat {path}; ! echo x >> {path}"));
                assert!(out.status.success(), "the file is there, and read-only: {out:?}");
                String::from_utf8(out.stdout).unwrap()
            }
            false => {
                let spec: Value = serde_json::from_slice(&std::fs::read(files[1]).unwrap()).unwrap();
                let mount = &spec["devices"][0]["containerEdits"]["mounts"][0];
                assert_eq!(mount["containerPath"], path);
                std::fs::read_to_string(mount["hostPath"].as_str().unwrap()).unwrap()
            }
        };
        let objects = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        let objects: Vec<Value> = objects.map(Result::unwrap).collect();
        assert_eq!(objects.len(), 2, "{text}");
        for object in objects {
            assert_eq!(object["metadata"]["uid"], claim.uid);
            assert_eq!(object["requests"][0]["name"], request);
            let device = &object["requests"][0]["devices"][0];
            assert_eq!(device["name"], world.shared());
            assert_eq!(device["attributes"]["multiprocessors"], json!({"int": sms}));
            let tenant = device["attributes"]["tenant"]["string"].as_str().unwrap();
            assert!(tenant.starts_with(&claim.uid), "{tenant}");
        }
        // Another driver leaves it as it is: it is mounted in containers.
        world.kill_driver();
        world.start_driver();
        world.registered().await;
        assert_eq!(world.kubelet.prepare(claim).await, answer);
        world.kubelet.unprepare(claim).await;
    }
    world.assert_nothing();
}
