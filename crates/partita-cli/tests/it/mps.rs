//! `partita mps` with a running service: reports, settings, logs, and failures.
//!
//! `PARTITA_TEST_GPU=real` runs those that need no scripted failure on the machine's first GPU.

use crate::common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use common::{Tenant, World, needs_simulator, succeeds, text, through_shell};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn client(world: &World, name: &str) -> Tenant {
    let mut tenant = Tenant::start(&mut world.gpu(&format!("--name {name} --sm 10%"), "loop"));
    tenant.next_line();
    tenant
}

#[test]
fn status_clients_and_metrics_tell_of_the_same_service() {
    let world = World::new();
    let stopped = json(&world.ok("mps status --json"));
    assert_eq!((&stopped["state"], &stopped["daemon"]), (&Value::from("stopped"), &Value::Null));
    assert!(world.ok("mps status --metrics").contains("partita_mps_up{"));
    assert_eq!(json(&world.ok("mps clients --json")), Value::Array(Vec::new()));

    let _one = client(&world, "one");
    let status = json(&world.ok("mps status --json"));
    assert_eq!((&status["state"], &status["contexts_max"]), (&Value::from("running"), &Value::from(48)));
    let server = &status["servers"][0];
    assert_eq!(
        (&server["status"], &server["thread_percentage"]),
        (&Value::from("active"), &Value::from(100.0))
    );
    let clients = json(&world.ok("mps clients --json"));
    assert_eq!((&clients[0]["tenant"], &clients[0]["server"]), (&Value::from("one"), &server["pid"]));
    assert_eq!(clients[0]["pid"], server["clients"][0]["pid"]);
    let uuid = status["gpus"][0]["uuid"].as_str().unwrap();
    assert!(uuid.starts_with(clients[0]["device"].as_str().unwrap()));

    let table = world.ok("mps clients");
    assert!(table.lines().count() == 2 && table.contains("one"), "{table}");
    let text = world.ok("mps status");
    assert!(
        text.contains("ACTIVE") && text.contains("1 of 48 clients") && text.contains("tenant one"),
        "{text}"
    );
    let metrics = world.ok("mps status --metrics");
    for line in ["partita_mps_up{gpu=", "partita_mps_servers_started_total{", "state=\"active\"} 1"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let pid = clients[0]["pid"].to_string();
    let clients_line = format!("partita_mps_clients{{gpu=\"{uuid}\",server=\"{}\"}} 1", server["pid"]);
    assert!(metrics.lines().any(|line| line == clients_line), "{metrics}");
    assert!(world.refused("mps terminate 1").contains(&pid), "those that are there are named");
}

#[test]
fn a_terminated_client_gets_error_810_and_its_neighbour_nothing() {
    let world = World::new();
    let (mut one, mut other) = (client(&world, "one"), client(&world, "other"));
    let clients = json(&world.ok("mps clients --json"));
    let row = clients.as_array().unwrap().iter().find(|row| row["tenant"] == "one").unwrap();
    let said = world.ok(&format!("mps terminate {}", row["pid"]));
    assert!(said.contains("its process may be ended now"), "{said}");
    let last = std::iter::repeat_with(|| one.next_line()).find(|line| !line.starts_with("sms")).unwrap();
    assert!(last.ends_with("error 810"), "{last}");
    assert_eq!(one.exit_code(), 91);
    assert!(other.next_line().starts_with("sms"));
}

#[test]
fn a_server_starts_before_the_first_client() {
    if needs_simulator("a real service may serve others") {
        return;
    }
    let world = World::new();
    assert!(world.keeper_refused("mps start-server").contains("partita mps start"));
    world.keeper_ok("mps start");
    assert_eq!(json(&world.ok("mps status --json"))["servers"].as_array().unwrap().len(), 0);
    assert!(world.keeper_ok("mps start-server").contains("starts a server for user"));
    let servers = json(&world.ok("mps status --json"))["servers"].clone();
    assert_eq!(servers.as_array().unwrap().len(), 1, "{servers}");
    let again = world.keeper_refused("mps start-server");
    assert!(
        again.contains(&format!("server {}", servers[0]["pid"])) && again.contains("mps status"),
        "{again}"
    );
    world.keeper_ok("mps stop");
}

#[test]
fn the_status_names_the_services_of_other_sets_of_gpus() {
    if needs_simulator("a real service may serve others") {
        return;
    }
    let world = World::plan().on(|_| vec![("PARTITA_SIM_GPUS", "2".into())]);
    let of = |gpus: &str, verb: &str| format!("mps {verb} --gpu sim:h200:{gpus}");
    world.keeper_ok(&of("0,1", "start"));
    let shown = world.keeper_ok(&of("0", "status"));
    assert!(shown.starts_with("MPS of sim:h200: does not run\nalso runs: MPS of GPU-"), "{shown}");
    let both = world.keeper_ok(&of("0,1", "status"));
    assert!(both.starts_with("MPS of sim:h200, sim:h200:1: runs"), "{both}");
    let daemon = both.split("(daemon ").nth(1).unwrap().split(',').next().unwrap();
    assert!(shown.contains(&format!("(daemon {daemon})")) && !both.contains("also runs"), "{shown}{both}");
    world.keeper_ok(&of("0,1", "stop"));
    assert!(!world.keeper_ok(&of("0", "status")).contains("also runs"));
}

#[test]
fn limits_are_set_by_number_and_by_policy_and_refused_where_they_make_no_sense() {
    if needs_simulator("a real GPU's products decide over percentages") {
        return;
    }
    let world = World::new();
    assert!(world.keeper_refused("mps limits").contains("partita mps start"));
    world.keeper_ok("mps start");
    assert!(world.ok("mps limits").contains("100 % of the SMs"));
    let set = world.keeper_ok("mps limits --percent 50 --mem 900MiB --priority below");
    assert!(
        set.contains("50 % of the SMs") && set.contains("66 SMs each") && set.contains("below normal"),
        "{set}"
    );
    let limits = json(&world.ok("mps limits --json"));
    assert_eq!(
        (&limits["thread_percentage"], &limits["priority"]),
        (&Value::from(50.0), &Value::from("below_normal"))
    );
    let memory = limits["memory_bytes"].as_object().unwrap();
    assert_eq!(memory.values().collect::<Vec<_>>(), [&Value::from(900 << 20)]);
    // Partita's own tenants have masks and no percentages.
    let error = common::refusal(&mut world.gpu("--sm 10%", "census"));
    assert!(error.contains("thread percentage of 50"), "{error}");

    let half = json(&world.keeper_ok("mps limits --policy half --clients 4 --json"));
    assert_eq!(
        (&half["thread_percentage"], half["allotments"].as_array().unwrap().len()),
        (&Value::from(50.0), 4)
    );
    let proved = &half["products"][0];
    assert_eq!(
        (&proved["percent"], &proved["state"]),
        (&Value::from(50.0), &Value::from("unknown")),
        "{half}"
    );
    assert!(set.contains("products not proved: a simulated GPU"), "{set}");
    let weighted = world.keeper_ok("mps limits --policy weighted --loads 30,70 --dry-run");
    assert!(weighted.contains("client 1: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30 (38 SMs)"), "{weighted}");
    let exact = world.keeper_ok("mps limits --policy exact --sms 24,60 --dry-run");
    assert!(exact.contains("(24 SMs)") && exact.contains("(60 SMs)"), "{exact}");
    for (line, words) in [
        ("mps limits --percent 0", "above 0"),
        ("mps limits --percent 101", "at most 100"),
        ("mps limits --policy uniform", "--clients"),
        ("mps limits --policy weighted", "--loads"),
        ("mps limits --policy exact --sms 33", "the next possible number is 34"),
        ("mps limits --mem 1KiB", "whole MiB"),
    ] {
        let refused = world.keeper_refused(line);
        assert!(refused.contains(words), "{line}: {refused}");
    }
    world.keeper_ok("mps limits --percent 100");
    let error = common::refusal(&mut world.gpu("--sm 10% --mem 1GiB", "census"));
    assert!(error.contains("gives 900MiB to each client") && error.contains("--mem none"), "{error}");
    world.keeper_ok("mps limits --mem none");
    assert!(world.gpu("--sm 10% --mem 100GiB", "census").status().unwrap().success(), "and they run again");
}

/// A world whose control program is of CUDA 13.1, which has static partitions.
fn newer() -> World {
    World::plan().on(|_| vec![("PARTITA_SIM_MPS_VERSION", "13010".into())])
}

#[test]
fn static_partitions_are_refused_where_the_control_program_has_none() {
    if needs_simulator("a real control program may have them") {
        return;
    }
    let world = World::new();
    let error = world.keeper_refused("mps start --static-partitions");
    assert!(error.contains("is of CUDA 13.0, and they came with CUDA 13.1"), "{error}");
    assert!(error.ends_with("use masks: `partita run --sm`"), "{error}");
    assert!(world.ok("mps status").contains("does not run"), "nothing is left of the try");
    assert!(world.keeper_refused("mps partitions").contains("partita mps start"));
    world.keeper_ok("mps start");
    for line in ["mps partitions", "mps partitions add --chunks 2", "mps partitions remove GPU-1/a"] {
        let error = world.keeper_refused(line);
        assert!(
            error.contains("does not know them (`lspart`)") && error.contains("CUDA 13.1"),
            "{line}: {error}"
        );
    }
    let error = world.refused("run --mps-partition GPU-1/a -- true");
    assert!(error.contains("does not know them"), "{error}");
    assert!(world.ps().is_empty());
    // If the program knows them and the daemon was started without, that is the reason.
    let newer = newer();
    newer.keeper_ok("mps start");
    let error = newer.keeper_refused("mps partitions add --chunks 2");
    assert!(
        error.contains("not enabled") && error.contains("partita mps start --static-partitions"),
        "{error}"
    );
    assert!(newer.keeper_refused("mps start --static-partitions").contains("runs without them"));
}

#[test]
fn static_partitions_are_made_used_listed_and_removed() {
    if needs_simulator("the driver may be older") {
        return;
    }
    let world = newer();
    world.keeper_ok("mps start --static-partitions");
    world.keeper_ok("mps start --static-partitions");
    let error = world.refused("run --sm 10% -- true");
    assert!(error.contains("each client needs one") && error.contains("--mps-partition"), "{error}");
    let make = |chunks: u32| json(&world.keeper_ok(&format!("mps partitions add --chunks {chunks} --json")));
    let (first, second) = (make(12), make(4));
    assert_eq!(first["state"], "unknown", "a simulated GPU multiplies nothing");
    let name = |made: &Value| made["partition"].as_str().unwrap().to_owned();
    assert!(world.keeper_refused("mps partitions add --chunks 1").contains("1 chunks"));

    // The last one has the remaining four SMs.
    for (partition, expected) in [(name(&first), 0..96), (name(&second), 96..132)] {
        let output =
            world.gpu(&format!("--mps-partition {partition} --mem 1GiB"), "census").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let seen = common::sms(common::text(&output.stdout).lines().next().unwrap());
        assert_eq!(seen, expected.collect::<Vec<u32>>());
    }
    let options = format!("--name inside --mps-partition {}", name(&second));
    let mut tenant = Tenant::start(&mut world.gpu(&options, "loop"));
    tenant.next_line();
    let row = json(&world.ok("ps --json"))[0].clone();
    assert_eq!((&row["mps_partition"], &row["tpcs"]), (&Value::from(name(&second)), &Value::Null));
    assert!(world.ok("ps").contains(" mps "), "{}", world.ok("ps"));
    assert!(world.ok("ps inside").contains("Ab2/="), "{}", world.ok("ps inside"));
    let rows = json(&world.ok("mps partitions --json"));
    assert_eq!((&rows[2]["id"], &rows[2]["numbers"]), (&Value::from("Ab2/="), &json("[4, 36, 1]")));
    let id = name(&second);
    assert!(world.keeper_refused(&format!("mps partitions remove {id}")).contains("in use"));
    // A tenant beside it that takes turns has its mask, without a conflict.
    assert!(world.gpu("--isolation own --sm 50%", "census").status().unwrap().success());
    world.ok("kill inside");
    tenant.exit_code();

    // Restarted after a neighbour's fault, it is in its partition again.
    let options = format!("--name again --restart on-neighbour-fault --mps-partition {id}");
    let mut again = Tenant::start(&mut world.gpu(&options, "loop"));
    let before = again.next_line();
    let mut breaks = world.gpu(&format!("--name breaks --mps-partition {}", name(&first)), "fault");
    let mut breaks = Tenant::start(breaks.stdin(Stdio::piped()));
    breaks.next_line();
    breaks.child.stdin.take().unwrap().write_all(b"now\n").unwrap();
    assert_eq!(breaks.exit_code(), 91);
    let mut lines = std::iter::from_fn(|| again.line());
    let _error = lines.find(|line| !line.starts_with("sms")).unwrap();
    assert_eq!(lines.next(), Some(before), "{}", world.service_logs());
    world.ok("kill again");
    again.exit_code();
    assert!(world.keeper_ok(&format!("mps partitions remove {id}")).contains("removed"));
    assert_eq!(json(&world.ok("mps partitions --json")).as_array().unwrap().len(), 2);
    for (line, words) in [
        (format!("run --mps-partition {id} -- true"), "there is no such partition"),
        ("run --mps-partition GPU-1/a -- true".to_owned(), "is not one of"),
        ("run --mps-partition 7 -- true".to_owned(), "is not a partition"),
        ("mps partitions remove 7".to_owned(), "is not a partition"),
        ("mps partitions add --chunks 0".to_owned(), "0 chunks"),
    ] {
        let error = if line.starts_with("mps") { world.keeper_refused(&line) } else { world.refused(&line) };
        assert!(error.contains(words), "{line}: {error}");
    }
}

#[test]
fn logs_are_lines_or_objects_and_events_alone_on_request() {
    let world = World::new();
    let output = world.line("mps logs");
    assert!(output.status.success() && output.stdout.is_empty(), "no service, no logs: {output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("stopping it removes its logs") && said.lines().count() == 1, "{said}");
    let mut one = client(&world, "one");
    let events: Vec<Value> = world.ok("mps logs --json --events").lines().map(json).collect();
    let has = |event: &str| events.iter().any(|one| one["event"] == event);
    assert!(has("daemon_started") && has("server_ready") && has("client_connected"), "{events:?}");
    assert!(world.ok("mps logs").lines().count() > events.len(), "lines that are no events are lines too");

    let mut follower = Tenant::start(&mut world.partita(["mps", "logs", "--json", "--events", "--follow"]));
    for _ in &events {
        follower.next_line();
    }
    one.signal(rustix::process::Signal::TERM);
    one.exit_code();
    let left =
        std::iter::repeat_with(|| json(&follower.next_line())).find(|one| one["event"] == "client_left");
    assert!(left.is_some());
}

#[test]
fn a_daemon_is_kept_to_its_processors() {
    let world = World::new();
    assert!(world.keeper_refused("mps start --cpus 3-1").contains("list of processors"));
    let started = json(&world.keeper_ok("mps start --cpus 0 --json"));
    let status = fs::read_to_string(format!("/proc/{}/status", started["daemon"])).unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    assert_eq!(allowed.trim(), "0");
    assert!(world.keeper_refused("mps start --cpus 0").contains("runs already"));
}

#[test]
fn a_daemon_may_open_the_files_that_it_needs_or_reports_it() {
    let world = World::new();
    let start = world.keeper("mps start --json");
    let files = |daemon: &Value| {
        let limits = fs::read_to_string(format!("/proc/{daemon}/limits")).unwrap();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap().to_owned();
        line.split_whitespace().next().unwrap().to_owned()
    };
    let output = through_shell(&start, "ulimit -Hn 20000 && ulimit -Sn 1024; exec \"$@\"").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(files(&json(&common::text(&output.stdout))["daemon"]), "16384");
    world.keeper_ok("mps stop");
    let output = through_shell(&start, "ulimit -n 4096; exec \"$@\"").output().unwrap();
    let told = common::text(&output.stderr);
    assert!(output.status.success() && told.lines().count() == 1, "{output:?}");
    assert!(told.contains("4096 allowed") && told.contains("`ulimit -n 16384`"), "{told}");
    assert_eq!(files(&json(&common::text(&output.stdout))["daemon"]), "4096");
}

#[test]
fn exclusive_mode_is_set_on_request_alone_and_taken_back() {
    if needs_simulator("it changes the card's settings") {
        return;
    }
    let world = World::new();
    let bin = world.dir().join("bin");
    fs::create_dir(&bin).unwrap();
    let calls = world.dir().join("calls");
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {}\n[ -z \"$FAKE_REFUSES\" ] || {{ echo Insufficient Permissions; exit 4; }}\n",
        calls.display()
    );
    partita_testing::executable(&bin.join("nvidia-smi"), script.as_bytes());
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let run = |line: &str, refuses: &str| {
        let mut command = world.keeper(line);
        command.env("PATH", &path).env("FAKE_REFUSES", refuses).output().unwrap()
    };
    assert!(run("mps start", "").status.success() && run("mps stop", "").status.success());
    assert!(!calls.exists(), "never unasked");
    let refused = run("mps start --exclusive", "yes");
    assert!(common::text(&refused.stderr).contains("Insufficient Permissions"), "{refused:?}");
    assert!(world.ok("mps status").contains("does not run"), "what was started in vain is stopped");
    assert!(run("mps start --exclusive", "").status.success());
    assert!(run("mps stop", "").status.success());
    let calls = fs::read_to_string(calls).unwrap();
    let modes: Vec<&str> = calls.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(modes, ["EXCLUSIVE_PROCESS", "EXCLUSIVE_PROCESS", "DEFAULT"]);
}

#[test]
fn a_service_for_all_users_is_roots() {
    let world = World::new();
    if !rustix::process::geteuid().is_root() {
        assert!(world.keeper_refused("mps start --multi-user").contains("sudo"));
        return;
    }
    world.keeper_ok("mps start");
    // In system mode it is for all users anyway.
    if !common::is_system() {
        assert!(world.keeper_refused("mps start --multi-user").contains("stop it first"));
    }
    world.keeper_ok("mps stop");
    // Other users read the daemon's process number, also if root's umask is strict.
    let strict = r#"umask 077; exec "$@""#;
    succeeds(&mut through_shell(&world.keeper("mps start --multi-user"), strict));
    let status = world.ok("mps status");
    assert!(status.contains("for all users"), "{status}");
    let pipe = status.lines().find_map(|line| line.trim().strip_prefix("CUDA_MPS_PIPE_DIRECTORY=")).unwrap();
    let number = fs::metadata(Path::new(pipe).join("nvidia-cuda-mps-control.pid")).unwrap();
    assert_eq!(number.permissions().mode() & 0o444, 0o444);
    assert_eq!(json(&world.ok("mps status --json"))["all_users"], true);
    let _one = client(&world, "one");
    assert_eq!(json(&world.ok("mps clients --json"))[0]["tenant"], "one");
}

/// A world whose service follows a script.
fn scripted() -> World {
    World::plan().on(|dir| vec![("PARTITA_SIM_MPS_SCRIPT", dir.join("script").into())])
}

fn write_script(world: &World, script: &str) {
    fs::write(world.dir().join("script"), script).unwrap();
}

#[test]
fn a_service_that_breaks_is_reported_and_recovered() {
    if needs_simulator("the failures are scripted") {
        return;
    }
    let world = scripted();
    write_script(&world, "start say Failed to make room");
    assert!(world.keeper_refused("mps start").contains("Failed to make room"));
    write_script(&world, "");
    world.keeper_ok("mps start");
    write_script(&world, "get_server_list say 12 what");
    assert!(world.refused("mps status").contains("12 what"));
    write_script(&world, "get_default_active_thread_percentage half");
    assert!(world.refused("mps status").contains("breaks off after \"10\""));
    write_script(&world, "get_server_list death");
    assert!(!world.refused("mps status").is_empty());
    let stale = world.ok("mps status");
    assert!(stale.contains("does not run") && stale.contains("died"), "{stale}");
    write_script(&world, "");
    world.keeper_ok("mps start");
    assert!(world.ok("mps status").contains("runs"));
}

#[test]
fn a_server_that_never_gets_ready_is_waited_for_and_named() {
    if needs_simulator("the failures are scripted") {
        return;
    }
    let world = scripted();
    write_script(&world, "server silence");
    // It waits in cuInit, as on hardware.
    let mut first = Tenant::start(&mut world.gpu("--name first --sm 10%", "census"));
    let status = || json(&world.ok("mps status --json"));
    let deadline = std::time::Instant::now() + common::PATIENCE;
    while status()["servers"][0]["status"] != "initializing" {
        assert!(std::time::Instant::now() < deadline, "{}", status());
    }
    let error = world.refused("run --name late --sm 10% --mps-deadline 0 -- true");
    assert!(error.contains("still INITIALIZING after 0 s"), "{error}");
    first.signal(rustix::process::Signal::TERM);
    assert_eq!(first.exit_code(), 128 + 15, "the signal is not kept from it");
}

#[test]
fn a_server_that_cannot_work_reports_the_reason_and_the_remedy() {
    if needs_simulator("the failures are scripted") {
        return;
    }
    let world = scripted();
    write_script(&world, "");
    let mut one = Tenant::start(&mut world.gpu("--name one --sm 10%", "loop"));
    one.next_line();
    write_script(&world, "attach exhausted");
    let failing = || world.gpu("--name two --sm 10%", "census").output().unwrap();
    let output = failing();
    assert_eq!(output.status.code(), Some(91), "{output:?}");
    let told = common::text(&output.stderr);
    assert!(
        told.contains("tenant two: the MPS server says «MPS Server failed to create/open SHM segment.»"),
        "{told}"
    );
    assert!(told.contains("`ulimit -n 16384`"), "{told}");
    // A later failure of its own is not explained by the server.
    write_script(&world, "attach refuse 999");
    let output = failing();
    assert_eq!(output.status.code(), Some(91), "{output:?}");
    assert_eq!(common::text(&output.stderr), "");
    assert!(one.next_line().starts_with("sms"));
}

#[test]
fn the_49th_client_is_refused_before_its_program_starts() {
    if needs_simulator("the list of clients is scripted") {
        return;
    }
    let world = scripted();
    world.keeper_ok("mps start");
    let server = || {
        let mut one = client(&world, "one");
        let status = json(&world.ok("mps status --json"));
        one.signal(rustix::process::Signal::TERM);
        one.exit_code();
        status["servers"][0]["pid"].to_string()
    };
    let server = server();
    let list =
        |clients: usize| (0..clients).map(|at| (100_000 + at).to_string()).collect::<Vec<_>>().join("\\n");
    write_script(&world, &format!("get_server_list say {server}\nget_client_list say {}", list(48)));
    let mark = world.dir().join("started");
    let line = format!("run --sm 10% -- touch {}", mark.display());
    let error = world.refused(&line);
    assert!(error.contains("48 clients of the 48") && error.contains("--isolation own"), "{error}");
    assert!(!mark.exists(), "it was not started");
    // In system mode its holder lets go of the one that was ended once its kernels have.
    partita_testing::eventually("nothing is left of it", || world.ps().is_empty());
    write_script(&world, &format!("get_client_list say {}", list(47)));
    world.ok(&line);
    assert!(mark.exists());
}
