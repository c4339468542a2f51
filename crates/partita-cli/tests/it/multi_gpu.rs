//! A tenant on several GPUs: a partition on each, made together, changed one by one, enforced on
//! every one.
//!
//! On the simulator's machine with two GPUs; with `PARTITA_TEST_GPU=real` on the machine's first
//! two.

use crate::common;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::Command;
use std::sync::OnceLock;

use common::{Answering, Tenant, World, compile, gpu_program, is_real, refusal, sms_of, text, tpcs};
use serde_json::Value;

/// The number of blocks of each kernel: two for each SM of an H200, which holds no more.
const BLOCKS: &str = "264";

const ROUTES: [&str; 10] = [
    "added",
    "captured",
    "context",
    "context-stream",
    "default",
    "ex",
    "foreign",
    "per-thread",
    "stream",
    "thread",
];

/// Prints a notice and returns true on a machine with one GPU.
pub fn needs_two_gpus() -> bool {
    static FEW: OnceLock<bool> = OnceLock::new();
    let few = *FEW.get_or_init(|| {
        let count = || {
            // Without the variable that names one of them.
            let listed = World::new()
                .partita(["devices", "--json"])
                .env_remove("PARTITA_GPU")
                .output()
                .expect("partita runs");
            let rows: Vec<Value> =
                serde_json::from_slice(&listed.stdout).unwrap_or_else(|wrong| panic!("{wrong}: {listed:?}"));
            rows.len()
        };
        is_real() && count() < 2
    });
    if few {
        eprintln!("skipped: this machine has fewer than two GPUs");
    }
    few
}

/// `--gpu` for these GPUs of the machine.
fn gpus(list: &str) -> String {
    if is_real() { list.to_owned() } else { format!("sim:h200:{list}") }
}

/// A world on a machine with two GPUs.
fn two_gpus() -> World {
    World::plan().on(|_| vec![("PARTITA_SIM_GPUS", "2".into())])
}

fn partita(world: &World, line: &str) -> Command {
    world.partita(line.split_whitespace())
}

fn refused(world: &World, line: &str) -> String {
    refusal(&mut partita(world, line))
}

fn ok(world: &World, line: &str) -> String {
    let output = partita(world, line).output().expect("partita runs");
    assert!(output.status.success(), "partita {line}: {output:?}");
    assert_eq!(text(&output.stderr), "", "partita {line}");
    text(&output.stdout)
}

/// A tenant that does nothing, on these GPUs.
fn idle(world: &World, name: &str, list: &str, options: &str) -> Tenant {
    let mut command = partita(world, &format!("run --name {name} --gpu {} {options} -- sh -c", gpus(list)));
    command.arg("echo ready; exec sleep 1000");
    let mut tenant = Tenant::start(&mut command);
    assert_eq!(tenant.next_line(), "ready");
    tenant
}

/// `tests/hook/gpus.c` as a tenant.
struct Program {
    asked: Answering,
    /// Of the GPUs that it sees, in its order.
    uuids: Vec<String>,
}

/// `partita run` of it, with the words of `through` before it.
fn command(world: &World, list: &str, options: &str, through: &[String]) -> Command {
    let mut command = partita(world, &format!("run --name both --gpu {} {options} --", gpus(list)));
    command.args(through).arg(compile(world, "gpus")).arg(&gpu_program().1).arg(BLOCKS);
    command
}

impl Program {
    fn start(world: &World, list: &str, options: &str) -> Self {
        Self::of(&mut command(world, list, &format!("--isolation own {options}"), &[]))
    }

    fn of(command: &mut Command) -> Self {
        let mut asked = Answering::start(command);
        let mut uuids = Vec::new();
        loop {
            match asked.tenant.next_line() {
                ready if ready == "ready" => break,
                line => uuids.push(line.strip_prefix("uuid ").expect("a UUID").to_owned()),
            }
        }
        Self { asked, uuids }
    }

    /// Runs every route on every GPU: all blocks ran, on exactly the SMs of these sets.
    fn assert_on(&mut self, what: &str, sets: &[&str]) {
        let mut routes: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for line in self.asked.ask(what) {
            let mut words = line.splitn(3, ' ');
            let (Some(gpu), Some(route), Some(rest)) = (words.next(), words.next(), words.next()) else {
                panic!("{line}");
            };
            let gpu: usize = gpu.parse().expect("a number");
            routes.entry(gpu).or_default().push(route.to_owned());
            if is_real() && route == "foreign" && rest.starts_with("error ") {
                // The driver may refuse a function of a context that is not current.
                continue;
            }
            assert_eq!(rest, format!("sms {} blocks {BLOCKS}", sms_of(sets[gpu])), "{line}");
        }
        assert_eq!(routes.len(), sets.len());
        for mut found in routes.into_values() {
            found.sort();
            assert_eq!(found, ROUTES);
        }
    }
}

/// The rows of a tenant by the GPUs' UUIDs.
fn rows(world: &World, name: &str) -> BTreeMap<String, Value> {
    let uuid = |row: &Value| row["gpu_uuid"].as_str().expect("a UUID").to_owned();
    world.ps().into_iter().filter(|row| row["name"] == name).map(|row| (uuid(&row), row)).collect()
}

#[test]
fn every_route_obeys_each_gpu_s_limits() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus();
    let mut program = Program::start(&world, "0,1", "--sm tpc:0-7");
    program.assert_on("round", &["0-7", "0-7"]);
    // Of one, then of the other, while both run.
    let said = ok(&world, "set both --gpu 1 --sm tpc:8-15");
    assert!(said.starts_with("both on ") && said.contains(": 16 SMs (tpc:8-15)"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    program.assert_on("round", &["0-7", "8-15"]);
    ok(&world, "set both --gpu 0 --sm tpc:60-65");
    program.assert_on("round", &["60-65", "8-15"]);
    // New contexts and streams, in the other order.
    program.assert_on("again", &["60-65", "8-15"]);
    // Of both.
    let said = ok(&world, "set both --sm tpc:1,9,17,25");
    assert_eq!(said.lines().count(), 2, "{said}");
    program.assert_on("round", &["1,9,17,25", "1,9,17,25"]);
    let uuids = program.uuids.clone();
    let rows = rows(&world, "both");
    assert_eq!(rows.len(), 2);
    let of_program = |uuid: &String| {
        let row = &rows[uuid];
        (
            row["tpcs"].clone(),
            row["processes"].as_array().map(Vec::len),
            row["launches"].as_u64().unwrap_or(0),
        )
    };
    for (set, processes, launches) in uuids.iter().map(of_program) {
        assert_eq!((set, processes), ("1,9,17,25".into(), Some(1)));
        assert!(launches > 20, "{launches}");
    }
}

#[test]
fn limits_of_one_gpu_change_under_load_and_the_other_s_stay() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus();
    let mut program = Program::start(&world, "0,1", "--sm tpc:0-15");
    for set in ["16-31", "3", "64-65", "0-65", "0-15"] {
        ok(&world, &format!("set both --gpu 1 --sm tpc:{set}"));
        program.assert_on("round", &["0-15", set]);
    }
}

#[test]
fn the_program_sees_the_gpus_in_the_order_asked() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus();
    let forwards = Program::start(&world, "0,1", "--sm tpc:0").uuids.clone();
    assert_eq!(forwards.len(), 2);
    let mut program = Program::start(&world, "1,0", "--sm tpc:0-3");
    assert_eq!(program.uuids, forwards.iter().rev().cloned().collect::<Vec<_>>());
    // `--gpu 0` is the machine's first, which the program sees second.
    ok(&world, "set both --gpu 0 --sm tpc:4-7");
    program.assert_on("round", &["0-3", "4-7"]);
    // By UUIDs too, where they are the machine's own.
    ok(&world, &format!("set both --gpu {} --sm tpc:8", forwards[1]));
    program.assert_on("round", &["8", "4-7"]);
    if is_real() {
        drop(program);
        let list = format!("{},{}", forwards[1], forwards[0]);
        let program = Program::start(&world, &list, "--sm tpc:0");
        assert_eq!(program.uuids, [forwards[1].clone(), forwards[0].clone()]);
    }
}

#[test]
fn a_process_is_enough_to_name_it_and_all_is_enough_for_every_gpu() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus();
    let program = Program::start(&world, "all", "--sm 10tpc");
    let rows = rows(&world, "both");
    assert_eq!(rows.len(), program.uuids.len());
    let pid = rows.values().next().expect("a row")["processes"][0]["pid"].as_u64().expect("a process");
    ok(&world, &format!("set --pid {pid} --gpu 1 --sm tpc:3,11"));
    let told: Value = serde_json::from_str(&ok(&world, &format!("ps --pid {pid} --json"))).expect("JSON");
    let told = told.as_array().expect("an entry for each GPU");
    // In the program's order.
    assert_eq!(told.iter().map(|row| row["gpu_uuid"].as_str().unwrap()).collect::<Vec<_>>(), program.uuids);
    assert_ne!(told[0]["tpcs"], "3,11");
    assert_eq!(told[1]["tpcs"], "3,11");
    let told = ok(&world, &format!("ps --pid {pid}"));
    assert_eq!(
        told.lines().filter(|line| line.starts_with("tenant both of ")).count(),
        program.uuids.len(),
        "{told}"
    );
    let line = refused(&world, "set both --gpu 31 --sm 10%");
    assert!(line.contains("tenant both has no partition on GPU 31: it has "), "{line}");
}

#[test]
fn each_gpu_is_planned_beside_the_tenants_that_are_there() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus();
    let _one = idle(&world, "one", "1", "--sm 50% --isolation own");
    let dry = ok(&world, &format!("run --gpu {} --sm 50% --isolation own --dry-run --json", gpus("0,1")));
    let dry: Value = serde_json::from_str(&dry).expect("JSON");
    assert_eq!(dry.as_array().map(Vec::len), Some(2), "{dry}");
    let both = idle(&world, "both", "0,1", "--sm 50% --isolation own");
    let set = |name: &str, gpu: &str| -> Vec<u32> {
        let rows = world.ps();
        let row = rows.iter().find(|row| row["name"] == name && row["gpu_uuid"] == gpu);
        tpcs(row.expect("a row")["tpcs"].as_str().expect("a set"))
    };
    let uuids: Vec<String> =
        dry.as_array().unwrap().iter().map(|row| row["gpu_uuid"].as_str().unwrap().to_owned()).collect();
    let (first, second, one) = (set("both", &uuids[0]), set("both", &uuids[1]), set("one", &uuids[1]));
    assert_eq!(second.len(), 33);
    assert!(second.iter().all(|tpc| !one.contains(tpc)), "{second:?} beside {one:?}");
    assert_eq!(tpcs(dry[0]["tpcs"].as_str().unwrap()), first);
    assert_eq!(tpcs(dry[1]["tpcs"].as_str().unwrap()), second);
    // One GPU is full: refused for it, and nothing is left on the other.
    let line =
        refused(&world, &format!("run --name third --gpu {} --sm 4tpc --isolation own -- true", gpus("0,1")));
    assert!(line.contains(if is_real() { "GPU 1 (" } else { "sim:h200:1" }), "{line}");
    assert!(rows(&world, "third").is_empty());
    // All or nothing for changes too: a share that fits the first does not fit the second.
    let line = refused(&world, "set both --sm 60%");
    assert!(line.contains("one"), "{line}");
    assert_eq!(set("both", &uuids[0]), first);
    drop(both);
    // A name belongs to one tenant on all GPUs.
    let line = refused(&world, &format!("run --name one --gpu {} -- true", gpus("0")));
    assert!(line.contains("name one is in use"), "{line}");
}

#[test]
fn one_without_a_share_takes_the_least_turn_of_its_gpus() {
    if needs_two_gpus() {
        return;
    }
    let world = World::plan().in_memory().on(|_| vec![("PARTITA_SIM_GPUS", "2".into())]);
    let _one = idle(&world, "one", "0", "--time 20% --isolation own");
    let _two = idle(&world, "two", "1", "--time 90% --isolation own");
    let line = format!("run --name both --gpu {} --isolation own -- true", gpus("0,1"));
    let output = partita(&world, &line).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("`--time 5%`"), "{said}");
}

#[test]
fn others_make_room_on_the_gpu_that_needs_it() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus();
    let _one = idle(&world, "one", "1", "--sm 4tpc --isolation own");
    let gpc = world.row("one")["gpcs"][0]["gpc"].as_u64().expect("a GPC");
    let options = format!("--gpu {} --sm gpc:{gpc} --isolation own", gpus("0,1"));
    let line = refused(&world, &format!("run --name both {options} -- true"));
    assert!(
        line.contains(if is_real() { "GPU 1 (" } else { "sim:h200:1" }) && line.contains("one"),
        "{line}"
    );
    let dry = ok(&world, &format!("run {options} --compact --dry-run --json"));
    let dry: Value = serde_json::from_str(&dry).expect("JSON");
    assert_eq!(
        (dry[0]["moves"].as_array().map(Vec::len), &dry[1]["moves"][0]["tenant"]),
        (Some(0), &"one".into())
    );
    let _both = idle(&world, "both", "0,1", &format!("--sm gpc:{gpc} --isolation own --compact"));
    assert_ne!(world.row("one")["gpcs"][0]["gpc"].as_u64(), Some(gpc));
    assert!(rows(&world, "both").values().all(|row| row["gpcs"][0]["gpc"].as_u64() == Some(gpc)));
}

#[test]
fn memory_is_charged_on_the_gpu_that_it_lies_on() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus();
    let mut program = Program::start(&world, "0,1", "--sm tpc:0-7 --mem 1GiB");
    const HALF: u64 = 512 << 20;
    assert_eq!(program.asked.line(&format!("alloc 0 {}", HALF + (1 << 20))), "alloc 0");
    assert_eq!(program.asked.line(&format!("create 0 {HALF}")), "create 2", "out of memory on the first");
    assert_eq!(program.asked.line(&format!("create 1 {HALF}")), "create 0");
    assert_eq!(program.asked.line(&format!("async 0 {HALF}")), "async 2");
    assert_eq!(program.asked.line(&format!("async 1 {HALF}")), "async 0");
    let used = |gpu: usize, uuids: &[String]| rows(&world, "both")[&uuids[gpu]]["memory_used_bytes"].as_u64();
    let uuids = program.uuids.clone();
    let records = 2 * 264 * 32;
    assert_eq!(used(0, &uuids), Some(HALF + (1 << 20) + records));
    assert_eq!(used(1, &uuids), Some(HALF + records));
    // More for one of them alone.
    ok(&world, "set both --gpu 1 --mem 2GiB");
    for (gpu, quota) in [(0, 1u64 << 30), (1, 2 << 30)] {
        let line = program.asked.line(&format!("info {gpu}"));
        let words: Vec<u64> = line.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
        assert_eq!(words[1..], [quota, quota], "{line}");
        assert_eq!(words[0], quota - used(gpu, &uuids).unwrap(), "{line}");
    }
    // Freed while the other's context is current.
    assert_eq!(program.asked.line("free 0"), "free 0");
    assert_eq!(used(0, &uuids), Some(records));
    assert_eq!(program.asked.line(&format!("create 0 {HALF}")), "create 0");
}

#[test]
fn what_cannot_fit_is_judged_by_the_gpu_that_it_is_for() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus();
    let mut program = Program::start(&world, "0,1", "--sm tpc:0-7");
    ok(&world, "set both --gpu 1 --sm tpc:0-3");
    // An SM holds two blocks of 1024 threads.
    assert_eq!(program.asked.line("cooperative 0 32"), "cooperative 0");
    assert_eq!(program.asked.line("cooperative 0 33"), "cooperative 720");
    assert_eq!(program.asked.line("cooperative 1 16"), "cooperative 0");
    assert_eq!(program.asked.line("cooperative 1 17"), "cooperative 720");
    // A graph over both has no one mask.
    assert_eq!(program.asked.line("mixed"), "mixed 1");
    program.assert_on("round", &["0-7", "0-3"]);
}

#[test]
fn a_gpu_that_is_not_the_tenant_s_is_out_of_reach() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus();
    let uuids = Program::start(&world, "0,1", "--sm tpc:0").uuids.clone();
    // The program names another GPU itself.
    let through = |list: &str| ["env".to_owned(), format!("CUDA_VISIBLE_DEVICES={list}")];
    for list in [&uuids[1], &format!("{},{}", uuids[0], uuids[1])] {
        let output =
            command(&world, "0", "--isolation own --sm tpc:0-3", &through(list)).output().expect("runs");
        assert!(!output.status.success(), "{output:?}");
        let said = text(&output.stderr);
        assert!(said.contains("not its tenant's") && said.contains("CUDA_VISIBLE_DEVICES"), "{said}");
    }
    // One of the tenant's own, as workers of one GPU each do.
    let options = "--isolation own --sm tpc:0-3";
    let mut program = Program::of(&mut command(&world, "0,1", options, &through(&uuids[1])));
    assert_eq!(program.uuids, uuids[1..]);
    ok(&world, "set both --gpu 1 --sm tpc:4-7");
    program.assert_on("round", &["4-7"]);
    let rows = rows(&world, "both");
    assert_eq!(rows.len(), 2, "the tenant keeps its partition on the GPU that is unused now");
    assert_eq!(rows[&uuids[0]]["processes"], Value::Array(Vec::new()));
}

/// Whatever the program sets the variable to, each GPU that it sees has that GPU's quota.
#[test]
fn quotas_go_with_the_gpus_in_every_form_of_the_list() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus();
    let uuids = Program::start(&world, "0,1", "--sm tpc:0").uuids.clone();
    let program = compile(&world, "visible");
    let script = r#"echo ready; read quotas; while IFS= read -r list; do
        if [ "$list" = unset ]; then env -u CUDA_VISIBLE_DEVICES "$0"; else CUDA_VISIBLE_DEVICES="$list" "$0"; fi
        echo done; done"#;
    let mut command = partita(
        &world,
        &format!("run --name both --gpu {} --isolation own --sm tpc:0-3 --mem 1GiB --", gpus("0,1")),
    );
    let mut asked = Answering::start(command.args(["sh", "-c", script]).arg(&program));
    assert_eq!(asked.tenant.next_line(), "ready");
    ok(&world, &format!("set both --gpu {} --mem 2GiB", uuids[1]));
    writeln!(asked.input, "set").unwrap();
    let prefix = |uuid: &str| uuid[..16].to_owned();
    let (first, second) = (&uuids[0], &uuids[1]);
    for (list, expected) in [
        ("unset".to_owned(), "1024 2048"),
        ("0,1".to_owned(), "1024 2048"),
        ("1,0".to_owned(), "2048 1024"),
        ("1".to_owned(), "2048"),
        (format!("{second},{first}"), "2048 1024"),
        (second.clone(), "2048"),
        (format!("{},{}", prefix(second), prefix(first)), "2048 1024"),
        (prefix(first), "1024"),
        // The list ends at an invalid entry.
        ("0,-1,1".to_owned(), "1024"),
        ("1,9,0".to_owned(), "2048"),
        (format!("0,MIG-{},1", &first[4..]), "1024"),
        ("-1".to_owned(), "code 100"),
        ("none".to_owned(), "code 100"),
        (format!("MIG-{}", &first[4..]), "code 100"),
        (String::new(), "code 100"),
    ] {
        assert_eq!(asked.ask(&list), [expected], "{list:?}");
    }
}

#[test]
fn whatever_ends_it_leaves_nothing_on_any_gpu() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus();
    // `partita run` dies first: the tenant lives on with its program, then goes with it.
    let mut program = Program::start(&world, "0,1", "--sm tpc:0-7 --mem 1GiB");
    assert_eq!(program.asked.line("alloc 1 1048576"), "alloc 0");
    let pid = rows(&world, "both").values().next().unwrap()["processes"][0]["pid"].as_i64().unwrap();
    program.asked.tenant.signal(rustix::process::Signal::KILL);
    let _ = program.asked.tenant.child.wait();
    assert_eq!(rows(&world, "both").len(), 2, "its program lives");
    let process = rustix::process::Pid::from_raw(pid as i32).expect("a number");
    rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("it lives");
    let deadline = std::time::Instant::now() + common::PATIENCE;
    while !rows(&world, "both").is_empty() {
        assert!(std::time::Instant::now() < deadline, "it is never gone");
    }
    world.assert_clean();
    // The name and the TPCs are free again, and `kill` ends it on both.
    let mut program = Program::start(&world, "0,1", "--sm 100%");
    let said = ok(&world, "kill both");
    assert!(said.starts_with("both: ended"), "{said}");
    assert_ne!(program.asked.tenant.exit_code(), 0);
    world.assert_clean();
}

#[test]
fn lists_that_cannot_be_are_refused() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus();
    let try_run =
        |list: &str| refused(&world, &format!("run --gpu {list} --isolation own --sm tpc:0 -- true"));
    let line = try_run(&gpus("0,0"));
    assert!(line.contains("is named twice; name each GPU once"), "{line}");
    let line = try_run(&gpus("0,31"));
    assert!(line.contains("there is no GPU") && line.contains("31"), "{line}");
    let line = try_run("0,");
    assert!(line.contains("is not understood"), "{line}");
    let line = try_run(&format!("{},sim:a100", gpus("0")));
    assert!(
        line.contains(if is_real() { "all real or all simulated" } else { "GPUs of one kind" }),
        "{line}"
    );
    let line = refused(&world, &format!("topology --gpu {}", gpus("0,1")));
    assert!(line.contains("works on one GPU"), "{line}");
    world.assert_clean();
}

#[test]
fn tenants_of_the_same_gpus_run_at_the_same_time() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus();
    let mut program = Program::of(&mut command(&world, "0,1", "--sm tpc:0-7", &[]));
    program.assert_on("round", &["0-7", "0-7"]);
    // In any order.
    let other = idle(&world, "other", "1,0", "--sm 10tpc");
    let status = ok(&world, &format!("mps status --gpu {}", gpus("0,1")));
    assert!(status.contains(": runs (daemon ") && status.contains("client "), "{status}");
    // Another service would have its clients take turns with these.
    let line = refused(&world, &format!("run --gpu {} --sm 10tpc -- true", gpus("0")));
    assert!(line.contains("tenant both shares ") && line.contains("--isolation own"), "{line}");
    let _turns = idle(&world, "turns", "0", "--sm 10tpc --isolation own");
    drop(other);
    assert!(ok(&world, "kill both").starts_with("both: ended"), "its work is ended through its service");
    world.keeper_ok(&format!("mps stop --gpu {} --force", gpus("0,1")));
    // The GPU is free now.
    let single = idle(&world, "single", "0", "--sm 10tpc");
    let line = refused(&world, &format!("run --gpu {} --sm 10tpc -- true", gpus("0,1")));
    assert!(line.contains("tenant single shares "), "{line}");
    drop(single);
    world.keeper_ok(&format!("mps stop --gpu {} --force", gpus("0")));
}

#[test]
fn any_gpu_is_the_one_on_which_the_program_fits_best() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus();
    let any = if is_real() { "any" } else { "sim:h200:any" };
    let gpu_of = |index: u32| if is_real() { format!("GPU {index} (") } else { gpus(&index.to_string()) };
    let is_on = |label: &str, index: u32| match is_real() {
        true => label.starts_with(&gpu_of(index)),
        false => label == gpu_of(index) || (index == 0 && label == "sim:h200"),
    };
    let _one = idle(&world, "one", "0", "--sm 60%");
    // Only the second GPU has room for this.
    let line = format!("run --name two --gpu {any} --sm 50% --slo p99=5ms -- sh -c");
    let mut command = partita(&world, &line);
    command.arg("echo ready; exec sleep 1000");
    let mut two = Tenant::start(&mut command);
    assert_eq!(two.next_line(), "ready");
    let row = world.row("two");
    assert!(is_on(row["gpu"].as_str().unwrap(), 1), "{row}");
    let told = world.ok("explain two");
    assert!(
        told.contains("`--gpu any` chose") && told.contains("of 2 GPUs: the next one cannot hold it"),
        "{told}"
    );
    // Both have room for this one, and the second more.
    let dry_run = |share: &str| {
        let mut command = partita(&world, &format!("run --dry-run --json --gpu {any} --sm {share} -- true"));
        let output = command.output().expect("partita runs");
        assert!(output.status.success(), "{output:?}");
        let rows: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let row = rows.as_array().map_or(rows.clone(), |rows| rows[0].clone());
        (row["gpu"].as_str().unwrap().to_owned(), text(&output.stderr))
    };
    let said = refusal(&mut partita(&world, &format!("run --dry-run --gpu {any} --sm 100% -- true")));
    assert_eq!(said.matches("100% (").count(), 2, "the reason of each GPU: {said}");
    let (gpu, said) = dry_run("20tpc");
    assert!(is_on(&gpu, 1) && said.lines().count() == 1 && said.contains("--gpu any: "), "{gpu}: {said}");
    assert!(
        said.contains("it would have up to 33 TPCs there, and 27 on the next one") || is_real(),
        "{said}"
    );
    let three = idle(&world, "three", "1", "--sm 10tpc");
    let (gpu, said) = dry_run("20tpc");
    assert!(is_on(&gpu, 0), "{gpu}: {said}");
    let error = refused(&world, &format!("run --gpu {any} --sm 90% -- true"));
    assert!(error.contains("does not fit"), "{error}");
    let error = refused(&world, &format!("devices --gpu {any}"));
    assert!(error.contains("only `partita run` chooses a GPU"), "{error}");
    drop((two, three));
    // The world stops the service of the first GPU alone.
    world.keeper_ok(&format!("mps stop --force --gpu {}", gpus("1")));
}

/// What NVML reports of the memory of a GPU with one tenant shows what limits that tenant.
#[test]
fn any_gpu_is_not_one_whose_memory_is_as_busy_as_the_program_makes_it() {
    if needs_two_gpus() {
        return;
    }
    let world = two_gpus();
    let any = if is_real() { "any" } else { "sim:h200:any" };
    let (program, kernels) = gpu_program();
    let workloads = world.dir().join("workloads.ptx");
    std::fs::write(&workloads, partita_abi::workloads::WORKLOADS_MODULE.to_bytes()).unwrap();
    let words = if is_real() { (kernels, "copy") } else { (&workloads, "write") };
    let mut command = partita(&world, &format!("run --name first --gpu {} --sm 50% --", gpus("0")));
    let mut first = Tenant::start(command.arg(program).arg(words.0).arg(words.1));
    assert_eq!(first.next_line(), "traffic");
    let _wide = idle(&world, "wide", "1", "--sm 60%");
    let told = |last: &str| {
        let mut command = partita(&world, &format!("run --dry-run --gpu {any} --sm 10% --"));
        let output = command.arg(program).arg(words.0).arg(last).output().expect("partita runs");
        assert!(output.status.success(), "{output:?}");
        text(&output.stderr)
    };
    // The first GPU has more room: that counts for a program of which nothing is known.
    let other = told("other");
    assert!(other.contains("it would have up to 33 TPCs there"), "{other}");
    // The same program again goes to the second.
    let mut tries = 0;
    loop {
        let same = told(words.1);
        if same.contains("something else than compute units limits") {
            break;
        }
        tries += 1;
        assert!(tries < 600, "{same}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    drop(first);
    world.keeper_ok(&format!("mps stop --force --gpu {}", gpus("1")));
}
