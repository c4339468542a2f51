//! Chains whose components are on several GPUs of one machine: two simulated ones, with and without
//! access to each other's memory.

use crate::common;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::ops::Deref;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{PATIENCE, Tenant, World, is_real, tpcs};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::chain_frames::{advanced, eventually, finished, start, view_of as view};
use crate::multi_gpu::needs_two_gpus;

/// A component that does nothing.
const WAITS: &[&str] = &["sh", "-c", "exec sleep 1000"];

/// A machine with two GPUs, and what is to be stopped there.
struct TwoGpus(World);

impl Deref for TwoGpus {
    type Target = World;

    fn deref(&self) -> &World {
        &self.0
    }
}

impl Drop for TwoGpus {
    fn drop(&mut self) {
        let list = format!("{},{}", gpu(0), gpu(1));
        let _ = self.0.keeper(&format!("mps stop --force --gpu {list}")).output();
    }
}

/// `peers` says whether a GPU can have the other's memory.
fn two_gpus(peers: bool) -> TwoGpus {
    let peers = if peers { "1" } else { "0" };
    let machine = |_: &Path| vec![("PARTITA_SIM_GPUS", "2".into()), ("PARTITA_SIM_PEERS", peers.into())];
    TwoGpus(World::plan().on(machine))
}

/// `gpu` of a component on one of the machine's GPUs.
fn gpu(number: usize) -> String {
    if is_real() { number.to_string() } else { format!("sim:h200:{number}") }
}

/// A chain's definition, as a file: its keys except the name, and its components with their GPUs
/// and commands.
fn define(world: &World, name: &str, head: &str, components: &[(&str, usize, &[&str])]) -> String {
    let component = |(name, number, command): &(&str, usize, &[&str])| {
        let words: Vec<String> = command.iter().map(|word| format!("{word:?}")).collect();
        let (words, gpu) = (words.join(", "), gpu(*number));
        format!("[[component]]\nname = \"{name}\"\ngpu = \"{gpu}\"\ncommand = [{words}]\n")
    };
    let components: String = components.iter().map(component).collect();
    let path = world.dir().join(name).with_extension("toml");
    fs::write(&path, format!("name = \"{name}\"\n{head}\n{components}")).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Decoded on the first GPU, enhanced on the second, searched on the first: each frame changes the
/// GPU twice.
fn images(world: &World, head: &str, options: &[&str]) -> String {
    let command = |stage| [&["partita-stage", stage, "64x48", "--check"], options].concat();
    let [decode, enhance, detect] = ["decode", "enhance", "detect"].map(command);
    let components: [(&str, usize, &[&str]); 3] =
        [("decode", 0, &decode), ("enhance", 1, &enhance), ("detect", 0, &detect)];
    let head = format!("frames = 6\ncapacity = 3\nperiod_ms = 20\nrestarts = 50\n{head}");
    define(world, "images", &head, &components)
}

fn kill(pid: i64) {
    rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

fn pid(view: &Value, component: usize) -> Option<i64> {
    view["components"][component]["process"]["pid"].as_i64()
}

fn complaint(tenant: &mut Tenant) -> String {
    let mut text = String::new();
    tenant.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

/// The bytes that a tenant has on each GPU, in their order.
fn used(world: &World, name: &str) -> Vec<u64> {
    let rows = world.ps();
    let mut rows: Vec<&Value> = rows.iter().filter(|row| row["name"] == name).collect();
    rows.sort_by_key(|row| row["gpu"].as_str().map(str::to_owned));
    rows.iter().map(|row| row["memory_used_bytes"].as_u64().unwrap()).collect()
}

#[test]
fn every_frame_is_right_whether_gpus_reach_each_other_or_not() {
    if needs_two_gpus() {
        return;
    }
    for peers in [true, false] {
        let world = two_gpus(peers);
        let file = images(&world, "frame = \"64KiB\"", &["--frames", "20"]);
        let output = start(&world, &file).output().unwrap();
        let said = common::text(&output.stderr);
        assert!(output.status.success(), "{said}");
        let by_host = said.lines().filter(|line| line.contains("frames go through host memory")).count();
        if !is_real() {
            assert_eq!(by_host, if peers { 0 } else { 2 }, "{said}");
        }
    }
}

#[test]
fn the_way_of_frames_and_each_component_s_gpu_are_shown() {
    if needs_two_gpus() {
        return;
    }
    for (peers, way) in [(true, "peer"), (false, "host")] {
        let world = two_gpus(peers);
        let mut tenant = Tenant::start(&mut start(&world, &images(&world, "frame = \"64KiB\"", &[])));
        let now = advanced(&world, 0);
        let ways = [0, 1, 2].map(|role| now["roles"][role]["frames_by"].clone());
        if !is_real() {
            assert_eq!(ways, [Value::Null, way.into(), way.into()]);
            let gpus = [0, 1, 2].map(|at| now["components"][at]["gpu"].clone());
            assert_eq!(gpus, ["sim:h200", "sim:h200:1", "sim:h200"]);
            assert_eq!(now["gpu"], "sim:h200, sim:h200:1");
            let told = world.ok("chain watch images --once");
            let row = told.lines().find(|line| line.starts_with("enhance ")).unwrap();
            assert!(row.contains(" sim:h200:1 "), "{told}");
            assert!(world.ok("chain ps").contains("sim:h200, sim:h200:1"));
        }
        assert!(world.ok("chain stop images").starts_with("images: ended"));
        assert_eq!(tenant.exit_code(), 0, "{}", complaint(&mut tenant));
    }
}

#[test]
fn any_process_may_die_and_no_memory_is_lost() {
    if needs_two_gpus() {
        return;
    }
    // 6 frames, on each GPU.
    const SLAB: u64 = 6 * (8 << 20);
    for peers in [true, false] {
        let world = two_gpus(peers);
        let mut tenant = Tenant::start(&mut start(&world, &images(&world, "frame = \"8MiB\"", &[])));
        let mut now = advanced(&world, 0);
        for at in [1, 0, 2] {
            kill(pid(&now, at).expect("it runs"));
            advanced(&world, finished(&now));
            now = eventually(&world, "images", |now| (0..3).all(|at| pid(now, at).is_some()));
            assert_eq!(now["frames_lost"], 0, "{now:#}");
        }
        // Memory is charged where it lies, and only there: those that open it on the other GPU pay
        // nothing.
        let fits = |used: &[u64]| used.iter().all(|&used| (SLAB..2 * SLAB).contains(&used));
        let deadline = Instant::now() + PATIENCE;
        while !fits(&used(&world, "images")) || used(&world, "images").len() != 2 {
            assert!(Instant::now() < deadline, "{:?} of {SLAB}", used(&world, "images"));
            std::thread::sleep(Duration::from_millis(20));
        }
        // The keepers: all frames go, and the chain starts over.
        let keepers: BTreeSet<i64> = keepers(&world);
        assert_eq!(keepers.len(), 2);
        for keeper in keepers {
            let before = view(&world, "images").unwrap();
            kill(keeper);
            now = eventually(&world, "images", |now| {
                let is_new = |at| pid(now, at).is_some() && pid(now, at) != pid(&before, at);
                (0..3).all(is_new) && finished(now) >= finished(&before) + 3
            });
            assert_eq!(now["frames_lost"], 0, "{now:#}");
        }
        let deadline = Instant::now() + PATIENCE;
        while !fits(&used(&world, "images")) {
            assert!(Instant::now() < deadline, "{SLAB}: {:#?}", world.ps());
            std::thread::sleep(Duration::from_millis(20));
        }
        tenant.signal(Signal::TERM);
        tenant.exit_code();
        // The holder lets go of the last dead.
        let deadline = Instant::now() + PATIENCE;
        while !world.ps().is_empty() {
            assert!(Instant::now() < deadline, "{:#?}", world.ps());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn keepers(world: &World) -> BTreeSet<i64> {
    let processes = world.processes().into_iter();
    processes.filter(|(_, name)| name == "partitad").map(|(pid, _)| i64::from(pid)).collect()
}

#[test]
fn dropped_frames_leave_their_gpu_in_good_order() {
    if needs_two_gpus() {
        return;
    }
    for policy in ["drop-newest", "drop-oldest"] {
        let world = two_gpus(true);
        let head = format!("frame = \"64KiB\"\nalgorithm = \"none\"\npolicy = \"{policy}\"");
        let mut tenant = Tenant::start(&mut start(&world, &images(&world, &head, &[])));
        let mut now = advanced(&world, 0);
        for tpcs in ["66,1,66", "66,66,1"] {
            world.ok(&format!("chain steer images --tpcs {tpcs}"));
            now = advanced(&world, finished(&now));
        }
        // A wrong frame would have ended the last component.
        assert_eq!((&now["components"][2]["restarts"], &now["frames_lost"]), (&0.into(), &0.into()));
        tenant.signal(Signal::TERM);
        tenant.exit_code();
    }
}

#[test]
fn each_gpu_is_divided_among_its_own_components() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus(true);
    let head = "frame = \"64KiB\"\nsm = \"20tpc\"\nalgorithm = \"none\"\nperiod_ms = 20";
    let components = [("a", 0, WAITS), ("b", 0, WAITS), ("c", 1, WAITS), ("d", 1, WAITS)];
    let mut tenant = Tenant::start(&mut start(&world, &define(&world, "toy", head, &components)));
    let numbers = |now: &Value| serde_json::from_value::<Vec<u32>>(now["tpcs"].clone()).unwrap_or_default();
    let now = eventually(&world, "toy", |now| numbers(now) == [20; 4]);
    assert_eq!((&now["tpcs_of_chain"], &now["gpus"][1]["tpcs"]), (&40.into(), &20.into()));
    world.ok("chain steer toy --tpcs 5,15,12,8");
    let now = eventually(&world, "toy", |now| numbers(now) == [5, 15, 12, 8]);
    let sets = |now: &Value| [0, 1, 2, 3].map(|at| tpcs(now["roles"][at]["tpcs"].as_str().unwrap()));
    let before = sets(&now);
    // Each pair fills its GPU's part of the tenant.
    let rows = world.ps();
    for (number, pair) in [[0, 1], [2, 3]].into_iter().enumerate() {
        let label = now["gpus"][number]["gpu"].clone();
        let row = rows.iter().find(|row| row["name"] == "toy" && row["gpu"] == label).unwrap();
        let mut both = pair.map(|at| before[at].clone()).concat();
        both.sort_unstable();
        assert_eq!(both, tpcs(row["tpcs"].as_str().unwrap()), "{label}");
    }
    // The tenant shrinks on one GPU: only the components there have less.
    let second = if is_real() { "1".to_owned() } else { gpu(1) };
    world.ok(&format!("set toy --gpu {second} --sm 6tpc"));
    let now = eventually(&world, "toy", |now| numbers(now) == [5, 15, 6, 6]);
    let now = eventually(&world, "toy", |later| later["tpcs_of_chain"] == 26 && later["tpcs"] == now["tpcs"]);
    let after = sets(&now);
    assert_eq!(after[..2], before[..2]);
    assert!(after[2..].iter().all(|set| set.len() == 6));
    tenant.signal(Signal::TERM);
    tenant.exit_code();
}

#[test]
fn one_search_divides_both_gpus() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus(true);
    let head = "frame = \"64KiB\"\nframes = 12\ncapacity = 3\nsm = \"16tpc\"\nperiod_ms = 20\nalgorithm = \"published\"";
    let [small, large] = ["40:1", "80:2"].map(|size| ["partita-stage", "matrix", size]);
    let components: [(&str, usize, &[&str]); 4] =
        [("a", 0, &small), ("b", 0, &large), ("c", 1, &small), ("d", 1, &large)];
    let file = define(&world, "products", head, &components);
    let log = world.dir().join("log.jsonl");
    let mut command = start(&world, &file);
    command.args(["--log", log.to_str().unwrap()]);
    let mut tenant = Tenant::start(&mut command);
    let is_found = |now: &Value| now["events"].to_string().contains("searched for");
    let found = eventually(&world, "products", is_found);
    let tpcs: Vec<u64> = serde_json::from_value(found["tpcs"].clone()).unwrap();
    assert!(tpcs.len() == 4 && tpcs.iter().all(|tpcs| (1..=16).contains(tpcs)), "{tpcs:?}");
    tenant.signal(Signal::TERM);
    tenant.exit_code();
    // Each component was restricted in turn, on either GPU.
    let log = fs::read_to_string(&log).unwrap();
    let periods = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let tried: BTreeSet<Vec<u64>> =
        periods.filter_map(|period| serde_json::from_value(period["tpcs"].clone()).ok()).collect();
    for component in 0..4 {
        let is_alone = |tpcs: &Vec<u64>| {
            let others = (0..4).filter(|&other| other != component);
            tpcs[component] == 1 && others.into_iter().all(|other| tpcs[other] == 16)
        };
        assert!(tried.iter().any(is_alone), "component {component}: {tried:?}");
    }
}

#[test]
fn a_definition_with_gpus_that_cannot_be_is_refused() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus(true);
    let head = "frame = \"64KiB\"";
    let toy =
        |head: &str, second: usize| define(&world, "toy", head, &[("a", 0, WAITS), ("b", second, WAITS)]);
    let refused = |file: &str| common::refusal(&mut start(&world, file));
    let line = refused(&toy(head, 9));
    let named = if is_real() { "GPU 9" } else { "sim:h200:9" };
    assert!(line.contains(named) || line.contains('9') && line.contains("GPU"), "{line}");
    for (wrong, remedy) in [
        ("memory = \"first-component\"", "set `memory` = \"keeper\""),
        ("handles = \"fd\"", "set `handles` = \"ipc\""),
        ("steer = \"contexts\"", "set `steer` = \"masks\""),
    ] {
        let line = refused(&toy(&format!("{head}\n{wrong}"), 1));
        assert!(
            line.contains("chain toy") && line.contains("several GPUs") && line.contains(remedy),
            "{line}"
        );
    }
    let file = toy(head, 1);
    let text = fs::read_to_string(&file).unwrap().replace(&gpu(1), "half");
    fs::write(&file, text).unwrap();
    assert!(refused(&file).contains("`gpu` of component `b`"));
    assert_eq!(world.ps(), [Value::Null; 0], "nothing is left");
    // Two components on one GPU: nothing of this holds.
    let file = toy(&format!("{head}\nmemory = \"first-component\""), 0);
    let mut tenant = Tenant::start(&mut start(&world, &file));
    let now = eventually(&world, "toy", |now| pid(now, 1).is_some());
    assert_eq!(now["gpus"].as_array().map(Vec::len), Some(1));
    tenant.signal(Signal::TERM);
    tenant.exit_code();
}
