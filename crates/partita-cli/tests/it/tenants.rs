//! Several tenants: planned, listed, changed and ended.

use crate::common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use common::{Tenant, World, tpcs};
use rustix::process::Signal;

#[test]
fn ps_tells_what_runs() {
    let world = World::new();
    assert_eq!(world.ok("ps").lines().count(), 2, "only the head and the mode");
    let _serve = world.idle("--name serve --sm 50% --mem 40GiB");
    let _train = world.idle("--name train --sm 33tpc --isolation own");
    let table = world.ok("ps");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(
        lines[1].starts_with("serve ") && lines[1].contains("66/132") && lines[1].contains("40GiB"),
        "{table}"
    );
    assert!(lines[2].starts_with("train ") && lines[2].contains(" own "), "{table}");
    let mode = if world.system.is_some() {
        "system mode: partitad plans in "
    } else {
        "user mode (PARTITA_RUN_DIR is "
    };
    assert!(lines[3].starts_with(mode), "{table}");
    let row = world.row("serve");
    assert_eq!(row["sms"], 66);
    assert_eq!(row["memory_quota_bytes"], 40u64 << 30);
    assert_eq!(row["memory_used_bytes"], 0);
    assert_eq!(row["command"][0], "sh");
    assert_eq!(row["problem"], serde_json::Value::Null);
    assert_eq!(world.row("train")["memory_quota_bytes"], serde_json::Value::Null);
}

#[test]
fn ps_counts_launches_and_bytes() {
    let world = World::new();
    let mut tenant = Tenant::start(&mut world.gpu("--name busy --sm 10% --mem 1GiB", "loop"));
    tenant.next_line();
    let row = world.row("busy");
    assert!(row["launches"].as_u64().unwrap() >= 4, "{row}");
    // Four records of 32 bytes an SM.
    assert_eq!(row["memory_used_bytes"], 132 * 4 * 32);
    assert_eq!(row["processes"].as_array().unwrap().len(), 1, "{row}");
    assert_eq!(row["processes"][0]["mask_verified"], true, "{row}");
    world.ok("kill busy");
}

#[test]
fn set_holds_from_the_next_launch() {
    let world = World::new();
    let mut tenant = Tenant::start(&mut world.gpu("--name grows --sm 10tpc --isolation own", "loop"));
    let sms_of = |name: &str| -> Vec<u32> {
        tpcs(world.row(name)["tpcs"].as_str().unwrap())
            .into_iter()
            .flat_map(|tpc| [2 * tpc, 2 * tpc + 1])
            .collect()
    };
    assert_eq!(common::sms(&tenant.next_line()), sms_of("grows"));
    for share in ["4tpc", "30tpc", "tpc:60-65", "100%"] {
        let said = world.ok(&format!("set grows --sm {share}"));
        assert!(said.starts_with("grows: "), "{said}");
        let expected = sms_of("grows");
        // Rounds that had started may still come; then only the new set.
        let mut lines = 0;
        while common::sms(&tenant.next_line()) != expected {
            lines += 1;
            assert!(lines < 10_000, "--sm {share} never takes hold");
        }
        for _ in 0..3 {
            assert_eq!(common::sms(&tenant.next_line()), expected, "{share}");
        }
    }
    world.ok("kill grows");
}

#[test]
fn set_keeps_the_promises_to_others() {
    let world = World::new();
    let _one = world.idle("--name one --sm 50% --mem 60GiB");
    let _two = world.idle("--name two --sm 20% --mem 60GiB");
    let error = world.refused("set two --sm 60%");
    assert!(error.contains("60%") && error.contains("one"), "{error}");
    let error = world.refused("set two --mem 100GiB");
    assert!(error.contains("one") && error.contains("promised"), "{error}");
    assert_eq!(world.row("two")["memory_quota_bytes"], 60u64 << 30);
    world.ok("set two --sm 50% --mem 70GiB");
    let (one, two) = (world.row("one"), world.row("two"));
    let sets =
        [&one, &two].map(|row| tpcs(row["tpcs"].as_str().unwrap()).into_iter().collect::<BTreeSet<u32>>());
    assert!(sets[0].is_disjoint(&sets[1]));
    assert_eq!(two["memory_quota_bytes"], 70u64 << 30);
}

#[test]
fn concurrent_runs_never_overlap() {
    let world = World::new();
    // 6 of 66 TPCs each. All at once, so that they race for the registry, the
    // calibration, the MPS service and the simulated board.
    let mut tenants: Vec<Tenant> = (0..10)
        .map(|number| {
            let name = format!("racer{number}");
            let mut command = world.partita(["run", "--name", &name, "--sm", "10%", "--", "sh", "-c"]);
            Tenant::start(command.arg("echo ready; exec sleep 1000"))
        })
        .collect();
    for tenant in &mut tenants {
        assert_eq!(tenant.next_line(), "ready");
    }
    let mut taken = BTreeSet::new();
    for row in world.ps() {
        for tpc in tpcs(row["tpcs"].as_str().unwrap()) {
            assert!(taken.insert(tpc), "TPC {tpc} belongs to two tenants");
        }
    }
    assert_eq!(taken.len(), 60);
    assert_eq!(world.ps().len(), 10);
    assert!(world.refused("run --sm 20% -- true").contains("6 of 66 TPCs are free"));
    let daemons = world.processes().iter().filter(|(_, name)| name.starts_with("nvidia-cuda-mps")).count();
    assert!(daemons <= 2, "one control daemon and at most one server");
    drop(tenants);
    assert!(world.ps().is_empty());
}

#[test]
fn every_tpc_can_be_a_tenant_s_of_its_own_all_at_once() {
    let world = World::new();
    let (program, kernels) = common::gpu_program();
    let script = format!("{} {} census && exec sleep 1000", program.display(), kernels.display());
    // All at once, the first ones on this machine: they race for the calibration as well.
    let start = |number: u32| {
        let options = format!("run --name one{number} --isolation own --sm 1tpc --mem 1GiB -- sh -c");
        let mut command = world.partita(options.split_whitespace());
        Tenant::start(command.arg(&script).env("PARTITA_CACHE_DIR", world.dir().join("cache")))
    };
    let mut tenants: Vec<Tenant> = (0..66).map(start).collect();
    let seen: Vec<Vec<u32>> = tenants.iter_mut().map(|tenant| common::sms(&tenant.next_line())).collect();
    let mut taken = BTreeSet::new();
    for (number, seen) in seen.iter().enumerate() {
        let row = world.row(&format!("one{number}"));
        let [tpc] = tpcs(row["tpcs"].as_str().unwrap())[..] else { panic!("more than a TPC: {row}") };
        assert_eq!(*seen, [2 * tpc, 2 * tpc + 1], "{row}");
        assert!(taken.insert(tpc), "TPC {tpc} belongs to two tenants");
    }
    assert_eq!(taken.len(), 66);
    assert!(world.refused("run --sm 1tpc -- true").contains("none of 66 TPCs is free"));
}

#[test]
fn without_a_share_a_tenant_gets_what_is_free() {
    let world = World::new();
    let _first = world.idle("--name first --sm 40tpc");
    let _second = world.idle("--name second");
    assert_eq!(world.row("second")["sms"], 52);
}

#[test]
fn kill_ends_every_process_of_the_tenant() {
    let world = World::new();
    // A program that ignores SIGTERM and has descendants that left its group.
    let script = "trap '' TERM; setsid sleep 1000 & sleep 1000 & echo ready; wait";
    let mut command = world.partita(["run", "--name", "stubborn", "--sm", "10%", "--", "sh", "-c", script]);
    let mut tenant = Tenant::start(&mut command);
    assert_eq!(tenant.next_line(), "ready");
    let said = world.ok("kill stubborn --grace 0");
    assert!(said.contains("3 processes"), "{said}");
    assert_eq!(tenant.exit_code(), 128 + 9);
    assert!(world.ps().is_empty());
    assert!(!world.processes().iter().any(|(_, name)| name == "sleep"));
}

/// Its work is ended first, and a quick program exits because of that before the signal comes.
#[test]
fn a_program_that_a_signal_ends_has_its_exit_code() {
    let world = World::new();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::TERM, Signal::INT, Signal::HUP] {
        let mut tenant = Tenant::start(&mut world.gpu("--sm 10%", "loop"));
        tenant.next_line();
        tenant.signal(signal);
        assert_eq!(tenant.exit_code(), 128 + signal.as_raw());
    }
}

#[test]
fn kill_hurts_no_neighbour() {
    let world = World::new();
    let mut neighbour = Tenant::start(&mut world.gpu("--name neighbour --sm 40%", "loop"));
    let mut victim = Tenant::start(&mut world.gpu("--name victim --sm 40%", "loop"));
    neighbour.next_line();
    victim.next_line();
    world.ok("kill victim");
    let code = victim.exit_code();
    // By the signal, or by the CUDA error after its work was ended.
    assert!(code == 128 + 15 || code == 91, "{code}");
    for _ in 0..20 {
        assert_eq!(common::sms(&neighbour.next_line()).len(), 52);
    }
    world.ok("kill neighbour");
}

#[test]
fn kill_takes_several_names() {
    let world = World::new();
    let _tenants = ["a", "b"].map(|name| world.idle(&format!("--name {name} --sm 10%")));
    let output = world.line("kill a nobody b");
    assert_eq!(output.status.code(), Some(125));
    assert!(common::text(&output.stderr).contains("no tenant nobody"));
    assert!(world.ps().is_empty());
}

#[test]
fn mps_starts_stops_and_knows_its_clients() {
    let world = World::new();
    assert!(world.ok("mps status").contains("does not run"));
    assert!(world.keeper_ok("mps start").contains("started"));
    assert!(world.keeper_ok("mps start").contains("runs already"));
    let mut client = Tenant::start(&mut world.gpu("--name client --sm 10%", "loop"));
    client.next_line();
    assert!(world.ok("mps status").contains("client "));
    let error = world.keeper_refused("mps stop");
    assert!(error.contains("has clients") && error.contains("--force"), "{error}");
    world.ok("kill client");
    assert!(world.keeper_ok("mps stop").contains("stopped"));
    assert!(world.keeper_ok("mps stop").contains("did not run"));
    world.assert_clean();
}

#[test]
fn another_users_tenant_is_seen_and_not_touched() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be two users");
        return;
    }
    let world = World::new();
    // A user who may enter the test's directories.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(world.dir(), PermissionsExt::from_mode(0o777)).unwrap();
    let mut tenant = world.idle("--name roots --sm 10%");
    let as_nobody = |line: &str| -> std::process::Output {
        let base = world.partita(line.split_whitespace());
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(base.get_program());
        command.args(base.get_args());
        common::with_env_of(&mut command, &base);
        command.stdin(Stdio::null()).output().unwrap()
    };
    let listed = as_nobody("ps --json");
    if !listed.status.success() {
        eprintln!("skipped: nobody cannot run {}: {listed:?}", common::program().display());
        return;
    }
    assert!(common::text(&listed.stdout).contains("\"roots\""), "{listed:?}");
    for line in ["kill roots", "set roots --sm 5%"] {
        let output = as_nobody(line);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(
            common::text(&output.stderr).contains(&format!("belongs to {}", world.owner())),
            "{output:?}"
        );
    }
    assert_eq!(world.row("roots")["sms"], 12);
    tenant.signal(Signal::TERM);
    tenant.exit_code();
}

/// A dry run, a change and an end report what they would do or did, as text and as JSON.
#[test]
fn answers_repeat_what_was_asked_for() {
    let world = World::in_memory();
    let line = "run --dry-run --mem 4GiB --time 30% --priority low --spill host --name zz";
    let said = world.ok(line);
    for part in ["time 30%", "mem 4GiB", "priority low", "spill host"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("task-slots"), "{said}");
    let planned: serde_json::Value = serde_json::from_str(&world.ok(&format!("{line} --json"))).unwrap();
    assert_eq!((&planned["priority"], &planned["spill"]), (&"low".into(), &"host".into()));
    assert_eq!(planned["memory_quota_bytes"], 4u64 << 30);
    assert!(world.refused("run --dry-run --name a/b").contains("a/b"));
    let _low = world.idle("--name low --sm 10% --mem 4GiB --priority low");
    let said = world.ok("set low --priority high --spill host");
    assert!(said.contains("priority high") && said.contains("spill host"), "{said}");
    let now: serde_json::Value = serde_json::from_str(&world.ok("set low --mem 5GiB --json")).unwrap();
    assert_eq!((&now[0]["name"], &now[0]["memory_quota_bytes"]), (&"low".into(), &(5u64 << 30).into()));
    let ended: serde_json::Value = serde_json::from_str(&world.ok("kill low --json")).unwrap();
    assert_eq!(ended[0]["name"], "low");
}

/// Its limits go on, and what else can be done about it is the user's to decide.
#[test]
fn a_directory_that_is_removed_while_its_tenant_runs_is_reported() {
    let world = World::new();
    let mut command = world.partita("run --name gone --sm 10% -- sh -c".split(' '));
    // A message that never comes ends the test with the program.
    command.arg("echo ready; exec sleep 60");
    let mut tenant = Tenant::start(&mut command);
    assert_eq!(tenant.next_line(), "ready");
    let dir = world.gpu_dir().join("gone");
    std::fs::remove_dir_all(&dir).unwrap();
    let lines = BufReader::new(tenant.child.stderr.take().unwrap()).lines();
    let said: Vec<String> =
        lines.map_while(Result::ok).take_while(|line| !line.contains("removed")).collect();
    assert!(tenant.child.try_wait().unwrap().is_none(), "{said:?}");
}

#[test]
fn how_far_a_tenant_borrows_is_shown() {
    let world = World::in_memory();
    let planned: serde_json::Value =
        serde_json::from_str(&world.ok("run --dry-run --json --sm 10%..60%")).unwrap();
    assert_eq!((&planned["sm"], &planned["time"]), (&"10%..60%".into(), &serde_json::Value::Null));
    let _tenant = world.idle("--name wide --sm 10%..60%");
    assert_eq!(world.row("wide")["sm"], "10%..39tpc");
    assert!(world.ok("ps wide").contains("12/132, borrows up to 39tpc\n"), "{}", world.ok("ps wide"));
    let said = world.ok("set wide --sm 20%..50%");
    assert!(said.contains("26 SMs") && said.contains("), borrows up to 33tpc, "), "{said}");
    let said: serde_json::Value = serde_json::from_str(&world.ok("set wide --sm 20%..40% --json")).unwrap();
    assert_eq!(said[0]["sm"], "20%..26tpc");
    let said = world.ok("set wide --sm 20%");
    assert!(!said.contains("borrows"), "{said}");
    assert_eq!(world.row("wide")["sm"], "20%");
}

/// What a refusal proposes, the user can type, and then the program fits.
#[test]
fn the_command_that_makes_room_makes_enough() {
    let world = World::new();
    let proposed = |said: &str| {
        let (_, command) = said.rsplit_once("`partita ").unwrap();
        command.split_once('`').unwrap().0.to_owned()
    };
    let _wide = world.idle("--name wide --sm 10% --mem 138GiB");
    let said = world.refused("run --sm 10% --mem 20GiB -- true");
    let command = proposed(&said);
    assert!(command.starts_with("set wide --mem ") && !command.ends_with("KiB"), "{said}");
    world.ok(&command);
    world.ok("run --sm 10% --mem 20GiB -- true");
}
