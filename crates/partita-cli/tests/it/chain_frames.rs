//! Chains whose components pass frames: the example chains on a GPU, to their end and through
//! deaths.

use crate::common;

use std::fs;
use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{PATIENCE, Tenant, World, lives};
use rustix::process::{Pid, Signal};
use serde_json::Value;

const STAGES: [&str; 3] = ["decode", "enhance", "detect"];
/// A component that multiplies small matrices.
const PRODUCT: &[&str] = &["partita-stage", "matrix", "40:1"];

/// A chain's definition, as a file: its keys except the name, and its components with their
/// commands.
fn write(world: &World, name: &str, head: &str, components: &[(&str, &[&str])]) -> String {
    let component = |(name, command): &(&str, &[&str])| {
        let words: Vec<String> = command.iter().map(|word| format!("{word:?}")).collect();
        format!("[[component]]\nname = \"{name}\"\ncommand = [{}]\n", words.join(", "))
    };
    let components: String = components.iter().map(component).collect();
    let path = world.dir().join(name).with_extension("toml");
    fs::write(&path, format!("name = \"{name}\"\n{head}\n{components}")).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A chain of small images, as a file; `options` are for its components.
fn define(world: &World, memory: &str, options: &[&str]) -> String {
    define_with(world, memory, "ring", options)
}

/// The same, whose frames travel in this way.
fn define_with(world: &World, memory: &str, transport: &str, options: &[&str]) -> String {
    let commands = STAGES.map(|stage| [&["partita-stage", stage, "64x48"], options].concat());
    let components: Vec<_> = STAGES.into_iter().zip(commands.iter().map(Vec::as_slice)).collect();
    let head = format!(
        "frame = \"64KiB\"\nframes = 6\ncapacity = 3\nperiod_ms = 20\nrestarts = 50\nmemory = \"{memory}\"\n\
         transport = \"{transport}\""
    );
    write(world, "images", &head, &components)
}

/// The command that starts a chain of the stages beside the built programs.
pub fn start(world: &World, file: &str) -> Command {
    let mut command = world.partita(["chain", "start", file]);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", partita_testing::build().display()));
    if world.system.is_some() {
        // A user has not what root has measured.
        command.env("PARTITA_CACHE_DIR", world.make_dir("no-cache"));
    }
    command
}

fn view(world: &World) -> Option<Value> {
    view_of(world, "images")
}

/// The state of a chain, if it runs.
pub fn view_of(world: &World, name: &str) -> Option<Value> {
    let output = world.partita(["chain", "watch", name, "--once", "--json"]).output().unwrap();
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

/// The chain's state when some more frames than before are finished.
pub fn advanced(world: &World, before: u64) -> Value {
    advanced_of(world, "images", before)
}

fn advanced_of(world: &World, name: &str, before: u64) -> Value {
    eventually(world, name, |view| finished(view) >= before + 3)
}

/// The chain's state once the condition holds.
pub fn eventually(world: &World, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + 2 * PATIENCE;
    loop {
        let view = view_of(world, name);
        if let Some(view) = view.as_ref().filter(|view| is_so(view)) {
            return view.clone();
        }
        assert!(Instant::now() < deadline, "{name}: {view:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn finished(view: &Value) -> u64 {
    view["frames_finished"].as_u64().unwrap()
}

#[test]
fn every_frame_is_what_it_should_be_and_the_chain_ends_with_the_last() {
    for memory in ["keeper", "keeper\"\nhandles = \"fd", "first-component"] {
        let world = World::new();
        let file = define(&world, memory, &["--frames", "12", "--check"]);
        let output = start(&world, &file).output().unwrap();
        assert!(output.status.success(), "{memory}: {output:?}");
    }
}

#[test]
fn a_busy_chain_is_stopped_without_a_complaint() {
    let world = World::new();
    let components = ["a", "b", "c", "d", "e"].map(|name| (name, PRODUCT));
    let head = "frame = \"64KiB\"\nframes = 24\ncapacity = 4\nalgorithm = \"none\"\nrestarts = 0";
    for (memory, transport) in
        [("keeper", "ring"), ("first-component", "ring"), ("first-component", "udp-handle")]
    {
        let head = format!("{head}\nmemory = \"{memory}\"\ntransport = \"{transport}\"");
        let file = write(&world, "products", &head, &components);
        // Each time at another point of its work.
        for slow in 0..5 {
            let mut tenant = Tenant::start(&mut start(&world, &file));
            let now = advanced_of(&world, "products", 0);
            let tpcs: Vec<&str> = (0..5).map(|at| if at == slow { "1" } else { "8" }).collect();
            world.ok(&format!("chain steer products --tpcs {}", tpcs.join(",")));
            advanced_of(&world, "products", finished(&now));
            // By force only if it hangs.
            let told = world.ok(&format!("chain stop products --grace {}", PATIENCE.as_secs()));
            assert!(told.starts_with("products: ended"), "{told}");
            let code = tenant.exit_code();
            let mut complaint = String::new();
            tenant.child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
            assert_eq!((code, complaint.as_str()), (0, ""), "{memory}, {transport}, component {slow} slow");
        }
    }
}

#[test]
fn a_definition_chooses_how_components_apply_a_division() {
    let world = World::in_memory();
    let components: &[(&str, &[&str])] = &[("first", PRODUCT), ("last", PRODUCT)];
    for method in ["masks", "green", "contexts"] {
        let head = format!(
            "frame = \"64KiB\"\nframes = 6\nperiod_ms = 20\nalgorithm = \"none\"\nsteer = \"{method}\""
        );
        let file = write(&world, method, &head, components);
        let mut tenant = Tenant::start(&mut start(&world, &file));
        advanced_of(&world, method, 0);
        assert!(world.partita(["chain", "steer", method, "--tpcs", "20,20"]).status().unwrap().success());
        let applied = || {
            let view = view_of(&world, method).unwrap();
            let roles = view["roles"].as_array().unwrap();
            roles.iter().all(|role| role["obeys"] == true && role["steer"] == method)
        };
        let deadline = Instant::now() + PATIENCE;
        while !applied() {
            assert!(Instant::now() < deadline, "{method}: {:#}", view_of(&world, method).unwrap());
            std::thread::sleep(Duration::from_millis(20));
        }
        // With contexts the frames go on, too: they run in a context of the pool.
        let view = advanced_of(
            &world,
            method,
            view_of(&world, method).unwrap()["frames_finished"].as_u64().unwrap(),
        );
        assert_eq!(view["roles"][1]["incarnation"], 1, "{view}");
        assert!(world.partita(["chain", "stop", method]).status().unwrap().success());
        assert_eq!(tenant.exit_code(), 0, "{method}");
    }
    let file = write(&world, "both", "frame = \"64KiB\"\nsm = \"50%\"\nsteer = \"contexts\"", components);
    let output = world.partita(["chain", "define", &file]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("remove `sm`") && said.contains("the driver chooses the SMs"), "{said}");
    let file = write(&world, "odd", "frame = \"64KiB\"\nsteer = \"odd\"", components);
    let output = world.partita(["chain", "define", &file]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("masks"), "{output:?}");
}

#[test]
fn the_chain_continues_and_loses_no_memory_after_any_kill() {
    let world = World::new();
    let file = define(&world, "keeper", &["--check"]);
    let mut tenant = Tenant::start(&mut start(&world, &file));
    let mut now = advanced(&world, 0);
    for at in [1, 0, 2, 1] {
        let pid = now["components"][at]["process"]["pid"].as_i64().unwrap();
        rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        now = advanced(&world, finished(&now));
        assert_eq!(now["frames_lost"], 0, "{now:#}");
    }
    // The memory in use was the keeper's.
    let keeper = world.processes().into_iter().find(|(_, name)| name == "partitad").expect("a keeper").0;
    rustix::process::kill_process(Pid::from_raw(keeper as i32).unwrap(), Signal::KILL).unwrap();
    // It is reported as its own death, or as the fault that it was to the others; frames in flight
    // may still finish until it is noticed.
    let deadline = Instant::now() + PATIENCE;
    loop {
        now = advanced(&world, finished(&now));
        assert_eq!(now["frames_lost"], 0, "{now:#}");
        let events = now["events"].to_string();
        if events.contains("keeper") || events.contains("a fault of") && !lives(keeper.into()) {
            break;
        }
        assert!(Instant::now() < deadline, "{events}");
    }
    // At the end the chain holds only its frames; nothing, if it restarts just now.
    let most = 1 << 30;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let held = world.row("images")["memory_used_bytes"].as_u64().unwrap();
        assert!(held < most, "{held}");
        if held > 0 {
            break;
        }
        assert!(Instant::now() < deadline, "it never has memory again");
        now = advanced(&world, finished(&now));
    }
    tenant.signal(Signal::TERM);
    tenant.exit_code();
}

#[test]
fn a_component_whose_parent_is_killed_makes_room_for_the_next() {
    let world = World::new();
    let head = "frame = \"64KiB\"\nalgorithm = \"none\"\nrestarts = 1";
    let wrapped: &[&str] = &["sh", "-c", "partita-stage matrix 40:1; exit $?"];
    let file = write(&world, "products", head, &[("a", PRODUCT), ("b", wrapped)]);
    let mut tenant = Tenant::start(&mut start(&world, &file));
    let now = advanced_of(&world, "products", 0);
    let pid = now["components"][1]["process"]["pid"].as_i64().unwrap();
    rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while view_of(&world, "products").is_none_or(|now| now["roles"][1]["incarnation"] != 2) {
        assert!(Instant::now() < deadline, "its place is never free");
        std::thread::sleep(Duration::from_millis(20));
    }
    let now = advanced_of(&world, "products", finished(&view_of(&world, "products").unwrap()));
    assert_eq!((&now["components"][1]["restarts"], &now["frames_lost"]), (&1.into(), &0.into()));
    tenant.signal(Signal::TERM);
    tenant.exit_code();
}

#[test]
fn frames_that_no_memory_holds_are_refused_by_their_allocator() {
    let world = World::new();
    for memory in ["keeper", "first-component"] {
        // Almost all of the GPU, where the components have their contexts, too.
        let head = format!("frame = \"143000MiB\"\nframes = 1\nrestarts = 0\nmemory = \"{memory}\"");
        let file = write(&world, "products", &head, &[("a", PRODUCT), ("b", PRODUCT)]);
        let output = start(&world, &file).output().unwrap();
        let told = common::text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{told}");
        assert!(told.contains("it has failed 1 time (it exited with code 1; 0 frames dropped)"), "{told}");
    }
}

#[test]
fn a_chain_ends_without_a_component_that_never_took_its_frames() {
    const DEAF: &[&str] = &["sh", "-c", "trap '' TERM; while :; do sleep 1; done"];
    let world = World::new();
    let first = [PRODUCT, &["--frames", "3"]].concat();
    let file = write(&world, "products", "frame = \"64KiB\"", &[("a", &first), ("b", DEAF)]);
    let mut tenant = Tenant::start(&mut start(&world, &file));
    assert_eq!(tenant.exit_code(), 0);
}

#[test]
fn frames_continue_without_the_process_that_runs_the_chain_until_it_restarts() {
    let world = World::new();
    let file = define(&world, "keeper", &["--check"]);
    let mut tenant = Tenant::start(&mut start(&world, &file));
    let before = advanced(&world, 0);
    let pid = before["supervisor"]["pid"].as_i64().unwrap();
    rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    tenant.exit_code();
    let alone = advanced(&world, finished(&view(&world).unwrap()));
    assert_eq!((&alone["supervised"], &alone["frames_lost"]), (&false.into(), &0.into()));

    let mut tenant = Tenant::start(&mut start(&world, &file));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now =
            view(&world).filter(|now| now["supervised"] == true && now["supervisor"] != before["supervisor"]);
        if now.is_some_and(|now| finished(&now) > 3) {
            break;
        }
        assert!(Instant::now() < deadline, "it does not restart");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Of the old one nothing is left, not even its keeper.
    for component in before["components"].as_array().unwrap() {
        assert!(!lives(component["process"]["pid"].as_u64().unwrap()));
    }
    let keepers = world.processes().into_iter().filter(|(_, name)| name == "partitad").count();
    assert_eq!(keepers, 1);
    tenant.signal(Signal::TERM);
    tenant.exit_code();
}

#[test]
fn without_a_keeper_the_first_component_has_the_memory_and_its_death_restarts_all_frames() {
    let world = World::new();
    let file = define(&world, "first-component", &["--check"]);
    let mut tenant = Tenant::start(&mut start(&world, &file));
    let mut now = advanced(&world, 0);
    for at in [0, 2, 0] {
        let pid = now["components"][at]["process"]["pid"].as_i64().unwrap();
        rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        now = advanced(&world, finished(&now) + 6);
        assert_eq!(now["frames_lost"], 0, "{now:#}");
    }
    tenant.signal(Signal::TERM);
    tenant.exit_code();
}

#[test]
fn a_definition_chooses_how_frames_travel() {
    let world = World::new();
    for transport in ["udp-handle", "unix-handle", "udp-copy"] {
        let file = define_with(&world, "first-component", transport, &["--check"]);
        let mut tenant = Tenant::start(&mut start(&world, &file));
        let now = advanced(&world, 20);
        assert_eq!(now["roles"][1]["incarnation"], 1, "{transport}: {now:#}");
        // A restarted component has other sockets, and its neighbours find them.
        let pid = now["components"][1]["process"]["pid"].as_i64().unwrap();
        rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        let now = advanced(&world, finished(&now) + 20);
        assert_eq!(now["frames_lost"], 0, "{transport}: {now:#}");
        assert!(world.partita(["chain", "stop", "images"]).status().unwrap().success());
        tenant.exit_code();
    }
    let file = define_with(&world, "keeper", "udp-handle", &[]);
    let output = start(&world, &file).output().unwrap();
    let told = common::text(&output.stderr);
    assert!(told.contains("`memory` = \"first-component\""), "{told}");
}

#[test]
fn compute_units_are_searched_for_while_frames_go_on() {
    let world = World::new();
    let head = "sm = \"16tpc\"\nframe = \"64KiB\"\nperiod_ms = 20\nalgorithm = \"published\"";
    let [decode, enhance] = ["decode", "enhance"].map(|stage| ["partita-stage", stage, "32x32"]);
    let file = write(&world, "images", head, &[("decode", &decode), ("enhance", &enhance)]);
    // Partita's own programs need not be in PATH.
    let mut tenant = Tenant::start(start(&world, &file).env("PATH", "/usr/bin:/bin"));
    let deadline = Instant::now() + 3 * PATIENCE;
    let found = loop {
        let view = advanced(&world, 0);
        if view["events"].to_string().contains("searched for") {
            break view;
        }
        assert!(Instant::now() < deadline, "{view:#}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let tpcs: Vec<u64> =
        found["tpcs"].as_array().unwrap().iter().map(|tpcs| tpcs.as_u64().unwrap()).collect();
    assert!(tpcs.len() == 2 && tpcs.iter().all(|tpcs| (1..=16).contains(tpcs)), "{tpcs:?}");
    // The paper's algorithm leaves the bottleneck everything.
    assert!(tpcs.contains(&16), "{tpcs:?}");
    let mut now = found;
    while !now["roles"].as_array().unwrap().iter().all(|role| role["obeys"] == true) {
        assert!(Instant::now() < deadline, "{now:#}");
        now = advanced(&world, finished(&now));
    }
    tenant.signal(Signal::TERM);
    tenant.exit_code();
}
