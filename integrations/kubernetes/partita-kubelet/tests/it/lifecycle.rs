//! Prepare, a program that holds its share, unprepare; and a driver that is killed at every step.
//!
//! `PARTITA_TEST_GPU=real` runs the tests with one GPU on the machine's first one.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use partita_kubelet::wire::dra::Claim;
use serde_json::{Value, json};

use crate::container;
use crate::world::{World, is_real};

pub fn is_long() -> bool {
    std::env::var_os("PARTITA_TEST_LONG").is_some_and(|value| value == "1")
}

/// The SMs that the census prints.
pub fn sms(text: &str) -> BTreeSet<u32> {
    text.split(|char: char| !char.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

/// The TPCs of a tenant, of which `ps` names ranges.
fn tpcs(tenant: &Value) -> BTreeSet<u32> {
    let ranges = tenant["tpcs"].as_str().unwrap().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse().unwrap()..=last.parse().unwrap()
    });
    ranges.flatten().collect()
}

/// What pods that compute at the same time get of an H200's rate: its 132 SMs take two blocks each,
/// so 8448 blocks of 200 µs take it 6.4 ms.
fn rates(files: &[PathBuf]) -> Vec<f64> {
    let pods: Vec<_> =
        files.iter().map(|file| container::command(file, &["rate"]).spawn().unwrap()).collect();
    let printed = pods.into_iter().map(|pod| pod.wait_with_output().unwrap());
    printed
        .map(|out| 6400.0 / String::from_utf8(out.stdout).unwrap().trim().parse::<f64>().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_holds_its_share_until_it_ends() {
    let world = World::with_a_gpu().await;
    let [one, two] = [world.share(1, "34", "40Gi"), world.share(2, "66", "20Gi")];
    let mut files = Vec::new();
    for claim in [&one, &two] {
        let answer = world.kubelet.prepare(claim).await;
        assert_eq!(answer.error, "");
        let [device] = &answer.devices[..] else { panic!("{answer:?}") };
        assert_eq!((device.pool_name.as_str(), device.device_name.clone()), ("node-a", world.shared()));
        assert_eq!(device.request_names, ["gpu"]);
        assert!(device.share_id.as_ref().unwrap().starts_with("aaaaaaaa"));
        // The simulated GPU comes with the tenant's device, a real one with NVIDIA's.
        let [gpus @ .., _, metadata] = &device.cdi_device_ids[..] else { panic!("{device:?}") };
        assert!(metadata.starts_with("partita.dev/metadata="), "{metadata}");
        assert_eq!(gpus.iter().filter(|id| id.starts_with("nvidia.com/gpu=GPU-")).count(), gpus.len());
        assert_eq!(gpus.len(), usize::from(is_real()));
        files.push(world.tenant_file(&device.cdi_device_ids));
        // The same again, and with the API server away.
        world.store.lock().unwrap().is_down = true;
        assert_eq!(world.kubelet.prepare(claim).await, answer);
        world.store.lock().unwrap().is_down = false;
    }
    let note = world.event("Pod", "pod-1", "TenantPrepared").await;
    assert!(note.contains("34 multiprocessors and 40960 MiB"), "{note}");
    world.event("ResourceClaim", "claim-1", "TenantPrepared").await;
    if container::can_mount() {
        let parts: Vec<BTreeSet<u32>> =
            files.iter().map(|file| sms(&container::prints(file, &["census"]))).collect();
        assert_eq!((parts[0].len(), parts[1].len()), (34, 66), "{parts:?}");
        for (share, claimed) in rates(&files).into_iter().zip([34.0, 66.0]) {
            eprintln!("{claimed} of 132 SMs were claimed: {share:.4} of the GPU's rate");
            assert!((share - claimed / 132.0).abs() < 0.01, "{share} of {claimed} SMs");
        }
        // To a client of MPS a GPU numbers the SMs that it has from 0.
        assert!(is_real() || parts[0].is_disjoint(&parts[1]));
        let tpcs: Vec<BTreeSet<u32>> = world.tenants().iter().map(tpcs).collect();
        assert_eq!((tpcs[0].len() + tpcs[1].len(), tpcs[0].is_disjoint(&tpcs[1])), (50, true), "{tpcs:?}");
        assert_eq!(container::prints(&files[0], &["total"]).trim(), format!("total {}", 40u64 << 30));
        let results =
            container::prints(&files[1], &["alloc", &(10u64 << 30).to_string(), &(11u64 << 30).to_string()]);
        let codes: Vec<&str> = results.split_whitespace().collect();
        assert_eq!(codes, ["alloc", "0", "alloc", "2"], "the second does not fit into 20 GiB");
        // Live, smaller and back; more than the claim is refused.
        world.store.lock().unwrap().annotate("default/claim-1", "multiprocessors=10,memory=5Gi");
        let note = world.event("Pod", "pod-1", "TenantResized").await;
        assert!(note.contains("10 multiprocessors"), "{note}");
        assert_eq!(sms(&container::prints(&files[0], &["census"])).len(), 10);
        assert_eq!(container::prints(&files[0], &["total"]).trim(), format!("total {}", 5u64 << 30));
        world.store.lock().unwrap().annotate("default/claim-1", "multiprocessors=36");
        let note = world.event("Pod", "pod-1", "TenantNotResized").await;
        assert!(note.contains("larger claim"), "{note}");
        assert_eq!(sms(&container::prints(&files[0], &["census"])).len(), 10);
    }
    world.kubelet.unprepare(&one).await;
    assert!(!files[0].exists() && files[1].exists());
    assert_eq!(world.tenants().len(), 1);
    // The claim may be gone when the kubelet unprepares.
    world.store.lock().unwrap().remove_claim("default/claim-2");
    for _ in 0..2 {
        world.kubelet.unprepare(&two).await;
        world.kubelet.unprepare(&one).await;
    }
    world.assert_nothing();
}

/// As the kubelet ends a container that does not end by itself. Work that never ends keeps its
/// claim from ending as long as another pod could lose its work by that.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_killed_with_work_in_flight_breaks_no_other() {
    let world = World::with_a_gpu().await;
    if !container::can_mount() {
        return;
    }
    let [one, two] = [world.share(1, "34", "4Gi"), world.share(2, "34", "4Gi")];
    let mut files = Vec::new();
    for claim in [&one, &two] {
        let answer = world.kubelet.prepare(claim).await;
        assert_eq!(answer.error, "");
        files.push(world.tenant_file(&answer.devices[0].cdi_device_ids));
    }
    let mut neighbour = container::command(&files[1], &["loop"]).spawn().unwrap();
    let mut lines = BufReader::new(neighbour.stdout.take().unwrap()).lines();
    let mut goes_on = |what: &str| {
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            let line = lines.next().unwrap().unwrap();
            assert!(line.starts_with("sms"), "{what}: {line}");
        }
    };
    for work in ["finite", "streams", "endless"] {
        goes_on(work);
        let mut dying = container::at_work(&files[0], work);
        dying.kill().unwrap();
        dying.wait().unwrap();
        goes_on(work);
        if work == "endless" {
            let refused = world.kubelet.try_unprepare(&one).await.unwrap();
            assert!(refused.contains("its work on the GPU has not ended"), "{refused}");
            goes_on("a refused end");
            continue;
        }
        world.kubelet.unprepare(&one).await;
        goes_on("the end of the claim");
        assert_eq!(world.kubelet.prepare(&one).await.error, "");
    }
    neighbour.kill().unwrap();
    neighbour.wait().unwrap();
    // The kubelet tries again.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !world.kubelet.try_unprepare(&one).await.unwrap().is_empty() {
        assert!(Instant::now() < deadline, "{:?}", world.tenants());
    }
    world.kubelet.unprepare(&two).await;
    let deadline = Instant::now() + Duration::from_secs(60);
    while world.has_zombies() {
        assert!(Instant::now() < deadline, "the driver waits for the holders that it started");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.assert_nothing();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_gpu_is_a_tenant_and_its_end_ends_programs() {
    let world = World::with_a_gpu().await;
    let device = world.shared().trim_end_matches("-shared").to_owned();
    let claim = world.claim(1, &device, Value::Null, Value::Null);
    let answer = world.kubelet.prepare(&claim).await;
    assert_eq!((answer.error.as_str(), answer.devices[0].share_id.as_ref()), ("", None));
    if container::can_mount() {
        let file = world.tenant_file(&answer.devices[0].cdi_device_ids);
        assert_eq!(sms(&container::prints(&file, &["census"])).len(), 132);
        let mut running = container::command(&file, &["loop"]).spawn().unwrap();
        world
            .eventually("the program never runs", || {
                world.tenants()[0]["processes"].as_array().is_some_and(|all| !all.is_empty())
            })
            .await;
        world.kubelet.unprepare(&claim).await;
        running.wait().unwrap();
    }
    world.kubelet.unprepare(&claim).await;
    world.assert_nothing();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_has_a_priority_or_a_share_of_time() {
    let world = World::in_memory().await;
    let consumed = |sms: &str| json!({"multiprocessors": sms, "memory": "10Gi", "clients": "1"});
    let claim = |which, sms, parameters| world.claim(which, &world.shared(), consumed(sms), parameters);
    let claims = [
        claim(1, "34", json!({"priority": "low", "isolation": "own"})),
        claim(2, "66", json!({"priority": "high", "time": "30%"})),
    ];
    let mut files = Vec::new();
    for claim in &claims {
        let answer = world.kubelet.prepare(claim).await;
        assert_eq!(answer.error, "");
        // Again, as after a restart of the kubelet.
        assert_eq!(world.kubelet.prepare(claim).await, answer);
        files.push(world.tenant_file(&answer.devices[0].cdi_device_ids));
    }
    let row = |claim: &Claim| {
        let mut rows = world.tenants().into_iter();
        rows.rfind(|row| row["name"].as_str().unwrap().contains(&claim.uid)).unwrap()
    };
    let [low, high] = [row(&claims[0]), row(&claims[1])];
    assert_eq!((&low["priority"], &low["time"]), (&"low".into(), &Value::Null));
    assert_eq!((&high["priority"], &high["time"]["share_percent"]), (&"high".into(), &30.0.into()));
    if container::can_mount() {
        for (file, sms_of) in files.iter().zip([34, 66]) {
            assert_eq!(sms(&container::prints(file, &["census"])).len(), sms_of);
        }
        // What a process has not charged yet at its end, nobody charges: a short program's kernels
        // may be all of it.
        let is_charged = || {
            assert_eq!(sms(&container::prints(&files[1], &["census"])).len(), 66);
            row(&claims[1])["time"]["used_s"].as_f64().unwrap() > 0.0
        };
        assert!((0..50).any(|_| is_charged()), "its kernels are charged");
    }
    for claim in &claims {
        world.kubelet.unprepare(claim).await;
    }
    world.assert_nothing();
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_come_twice_and_at_once() {
    let world = World::start(2).await;
    let claims: Vec<Claim> = (0..4).map(|which| world.share(which, "32", "10Gi")).collect();
    // One call with all, and each claim three times more at the same time.
    let mut calls: Vec<Vec<Claim>> = vec![claims.clone()];
    calls.extend((0..12).map(|at| vec![claims[at % 4].clone()]));
    let answers = futures::future::join_all(calls.iter().map(|call| world.kubelet.try_prepare(call))).await;
    for (call, answers) in calls.iter().zip(&answers) {
        for (claim, answer) in call.iter().zip(answers.as_ref().unwrap()) {
            assert_eq!(answer.error, "");
            assert!(answer.devices[0].cdi_device_ids.iter().any(|id| id.contains(&claim.uid)));
        }
    }
    assert_eq!(world.tenants().len(), 4);
    let all = claims.iter().chain(&claims);
    for error in futures::future::join_all(all.map(|claim| world.kubelet.try_unprepare(claim))).await {
        assert_eq!(error.as_deref(), Some(""));
    }
    world.assert_nothing();
}

/// SIGKILL after each of many pauses, which together cover the whole of a call.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_driver_goes_on() {
    let mut world = World::with_a_gpu().await;
    let kills = if is_long() { 250 } else { 12 };
    let mut lengths = [Duration::from_millis(400); 2];
    let mut interrupted = 0;
    for which in 0..kills {
        let claim = world.share(which, "66", "40Gi");
        for (is_end, length) in [false, true].into_iter().zip(&mut lengths) {
            let pause = length.mul_f64(f64::from(which) / f64::from(kills));
            let begin = Instant::now();
            let call = async {
                match is_end {
                    false => world.kubelet.try_prepare(std::slice::from_ref(&claim)).await.is_some(),
                    true => world.kubelet.try_unprepare(&claim).await.is_some(),
                }
            };
            let is_done = tokio::time::timeout(pause, call).await == Ok(true);
            if is_done {
                // The next pauses are inside of the call.
                *length = begin.elapsed();
            }
            interrupted += u32::from(!is_done);
            world.kill_driver();
            world.start_driver();
            world.registered().await;
            if is_end {
                world.kubelet.unprepare(&claim).await;
                world.assert_nothing();
            } else {
                let answer = world.kubelet.prepare(&claim).await;
                assert_eq!(answer.error, "");
                assert!(world.tenant_file(&answer.devices[0].cdi_device_ids).exists());
                let tenants = world.tenants();
                assert_eq!((tenants.len(), &tenants[0]["sms"]), (1, &json!(66)), "{tenants:?}");
            }
        }
    }
    assert!(interrupted > kills, "{interrupted} of {} kills came in a call", 2 * kills);
    println!("{interrupted} of {} kills came in a call", 2 * kills);
}

/// A child of a killed driver has its lock until it starts its program.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_waits_for_the_lock_of_a_killed_one() {
    let mut world = World::with_a_gpu().await;
    world.kill_driver();
    let lock = std::fs::File::open(world.dir().join("state/lock")).unwrap();
    lock.lock().unwrap();
    world.start_driver();
    world.eventually("the driver does not come to its lock", || world.waits_for_its_lock()).await;
    lock.unlock().unwrap();
    world.registered().await;
}

/// What a rolling upgrade does on a node: the kubelet ends the driver, and another takes its place.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_ends_no_tenant() {
    let mut world = World::with_a_gpu().await;
    let claim = world.share(1, "66", "40Gi");
    let answer = world.kubelet.prepare(&claim).await;
    assert_eq!(answer.error, "");
    let file = world.tenant_file(&answer.devices[0].cdi_device_ids);
    let running = container::can_mount().then(|| container::command(&file, &["loop"]).spawn().unwrap());
    let processes = |world: &World| world.tenants()[0]["processes"].as_array().unwrap().len();
    if running.is_some() {
        world.eventually("the program never runs", || processes(&world) == 1).await;
    }
    let slices = world.store.lock().unwrap().slices.clone();
    world.end_driver();
    assert_eq!(world.tenants()[0]["sms"], 66);
    assert!(world.kubelet.try_prepare(std::slice::from_ref(&claim)).await.is_none(), "nobody listens");
    world.start_driver();
    world.registered().await;
    assert_eq!(world.kubelet.prepare(&claim).await, answer);
    assert_eq!(world.store.lock().unwrap().slices, slices);
    if let Some(mut running) = running {
        assert_eq!((processes(&world), running.try_wait().unwrap()), (1, None));
        world.kubelet.unprepare(&claim).await;
        running.wait().unwrap();
    }
    world.kubelet.unprepare(&claim).await;
    world.assert_nothing();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_vanished_while_the_driver_was_away_leaves_nothing() {
    let mut world = World::with_a_gpu().await;
    let [gone, stays] = [world.share(1, "34", "10Gi"), world.share(2, "34", "10Gi")];
    for claim in [&gone, &stays] {
        assert_eq!(world.kubelet.prepare(claim).await.error, "");
    }
    world.kill_driver();
    world.store.lock().unwrap().remove_claim("default/claim-1");
    world.start_driver();
    world.registered().await;
    world.eventually("the tenant of a claim that is gone stays", || world.tenants().len() == 1).await;
    assert!(world.tenants()[0]["name"].as_str().unwrap().starts_with(&stays.uid));
    world.kubelet.unprepare(&stays).await;
    world.kubelet.unprepare(&gone).await;
    world.assert_nothing();
}

/// Prints how long a warm prepare takes; no judgement, for the machine may be busy.
#[tokio::test(flavor = "multi_thread")]
async fn how_long_a_prepare_takes() {
    let world = World::with_a_gpu().await;
    let rounds = if is_long() { 200 } else { 20 };
    let mut times = Vec::new();
    for which in 0..rounds {
        let claim = world.share(which, "66", "40Gi");
        let begin = Instant::now();
        assert_eq!(world.kubelet.prepare(&claim).await.error, "");
        times.push(begin.elapsed());
        world.kubelet.unprepare(&claim).await;
    }
    // The first starts the service.
    times.remove(0);
    times.sort();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)].as_secs_f64() * 1e3;
    println!("NodePrepare, warm, {} calls: p50 {:.0} ms, p99 {:.0} ms", times.len(), at(50), at(99));
    world.assert_nothing();
}
