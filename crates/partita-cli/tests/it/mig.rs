//! MIG instances: listed like GPUs, refused where masks would be needed, limited by a memory quota
//! if the environment gives one, and planned, created, destroyed and given to programs by `partita
//! mig` and `partita run --mig`.

use crate::common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::container::{Container, MEMORY, program};
use common::{PATIENCE, World, needs_simulator, needs_user_mode, refusal, refusal_by, text};
use partita_testing::{ATTACKER, Users, VICTIM, is_long, succeed};
use serde_json::Value;

const CUT: &str = "3g.71gb,1g.18gb";

/// A simulated machine whose GPU is in MIG mode.
fn machine(_: &std::path::Path) -> common::Variables {
    vec![("PARTITA_SIM_MIG", CUT.into())]
}

fn partita(world: &World, line: &str) -> Command {
    world.partita(line.split_whitespace())
}

/// The GPU in the output of `devices`.
fn gpu(world: &World) -> Value {
    let told = succeed(&mut partita(world, "devices --gpu sim:h200 --json"));
    let rows: Value = serde_json::from_slice(&told.stdout).unwrap();
    rows[0].clone()
}

fn names(gpu: &Value) -> Vec<String> {
    let instances = gpu["mig_instances"].as_array().unwrap();
    instances.iter().map(|instance| instance["uuid"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn instances_are_listed_and_no_tenant_is_made_on_a_gpu_that_is_cut_up() {
    if needs_simulator("it cuts the GPU up") {
        return;
    }
    let world = World::plan().on(machine);
    let gpu = gpu(&world);
    assert_eq!(gpu["mig_enabled"], true);
    let [first, second] = &names(&gpu)[..] else { panic!("{gpu}") };
    assert!(first.starts_with("MIG-") && second.starts_with("MIG-") && first != second, "{gpu}");
    assert_eq!(gpu["mig_instances"][1]["name"], "NVIDIA H200 MIG 1g.18gb");
    assert_eq!(gpu["mig_instances"][1]["memory_total_bytes"], 16u64 << 30);
    let table = text(&succeed(&mut partita(&world, "devices --gpu sim:h200")).stdout);
    assert!(table.contains(first) && table.contains("  1g.18gb"), "{table}");
    assert!(table.contains("\n-: divided by MIG") && !table.contains("not measured yet"), "{table}");

    let refused = common::refusal(&mut partita(&world, "run --gpu sim:h200 --sm 25% -- true"));
    assert!(refused.contains("cut up by MIG") && refused.contains("CUDA_VISIBLE_DEVICES=MIG-"), "{refused}");
    // Not one instance in the place of the GPU.
    for command in ["topology", "prove"] {
        let refused = common::refusal(&mut partita(&world, &format!("{command} --gpu sim:h200")));
        assert!(refused.contains("cut up by MIG"), "{refused}");
    }
    let doctor = partita(&world, "doctor --gpu sim:h200").output().unwrap();
    let said = text(&doctor.stdout);
    assert!(!doctor.status.success(), "{said}");
    assert!(said.contains(&format!("{first} is 3g.71gb, {second} is 1g.18gb")), "{said}");
    assert!(
        said.contains("enforced in MIG instances: a memory quota") && !said.contains("enforced: "),
        "{said}"
    );
    let cut = |list: &str| refusal(partita(&world, "devices --gpu sim:h200").env("PARTITA_SIM_MIG", list));
    let said = cut("9g.71gb");
    assert!(
        said.contains("PARTITA_SIM_MIG") && said.contains("\"9g.71gb\" on this GPU; it has 1g."),
        "{said}"
    );
    assert!(cut("7g,7g").contains("do not fit on the GPU together"));
    // Without that, the GPU is whole.
    let whole = succeed(&mut partita(&World::new(), "devices --gpu sim:h200 --json"));
    let whole: Value = serde_json::from_slice(&whole.stdout).unwrap();
    assert_eq!((&whole[0]["mig_enabled"], names(&whole[0]).len()), (&Value::from(false), 0));
}

#[test]
fn a_quota_holds_in_an_instance_however_the_list_names_it() {
    if needs_simulator("it cuts the GPU up") {
        return;
    }
    let world = World::plan().own().on(machine);
    let gpu = gpu(&world);
    let [first, second] = &names(&gpu)[..] else { panic!("{gpu}") };
    let container = Container::new(&world, "cut").with("PARTITA_SIM_MIG", CUT).with(MEMORY, "64m");
    let visible = program(&world, "visible");
    let sees = |list: &str| {
        let mut command = container.command(&visible);
        command.env("CUDA_VISIBLE_DEVICES", list);
        text(&command.output().unwrap().stdout).trim_end().to_owned()
    };
    let uuid = gpu["uuid"].as_str().unwrap();
    for list in [
        first.clone(),
        second.clone(),
        second[..12].to_owned(),
        format!("MIG-{uuid}/1/0"),
        format!("MIG-{uuid}/2/0"),
        // The GPU's own names mean its first instance, and an instance is alone.
        "0".to_owned(),
        uuid.to_owned(),
        format!("{second},{first}"),
    ] {
        assert_eq!(sees(&list), "64", "{list}");
    }
    for list in ["1", "MIG-", &format!("MIG-{uuid}/3/0"), &format!("MIG-{uuid}"), "GPU-0/1/0"] {
        assert_eq!(sees(list), "code 100", "{list}");
    }
    // Each instance has its own account, by its own name.
    let at_once = |name: &str| {
        let mut command = container.command(&program(&world, "spill"));
        command.env("CUDA_VISIBLE_DEVICES", name);
        common::Answering::start(&mut command)
    };
    let (mut one, mut same, mut other) = (at_once(first), at_once(first), at_once(second));
    assert_eq!(one.line("a 48"), "0 16");
    assert_eq!(other.line("a 64"), "0 0");
    assert_eq!(same.line("a 17"), "2 16");
    assert_eq!(same.line("a 16"), "0 0");
    let rows = container.rows();
    let mut told: Vec<_> =
        rows.iter().map(|row| (row["gpu_uuid"].as_str(), &row["memory_used_bytes"])).collect();
    told.sort_by_key(|(uuid, _)| *uuid != Some(first));
    let full = Value::from(64 << 20);
    assert_eq!(told, [(Some(first.as_str()), &full), (Some(second.as_str()), &full)]);
    // The audit finds the processes in the instances, and no escaped one.
    let mut audit = partita(&world, "ps --audit --json");
    let output = audit
        .envs(common::container::driver(&world))
        .env("PARTITA_RUN_DIR", container.root())
        .output()
        .unwrap();
    let rows: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|wrong| panic!("{wrong}: {output:?}"));
    let ledgers: Vec<_> =
        rows.as_array().unwrap().iter().map(|row| row["ledger_bytes"].as_u64().unwrap() >> 20).collect();
    assert_eq!(
        (output.status.code(), ledgers.iter().sum::<u64>(), ledgers.len()),
        (Some(0), 128, 3),
        "{rows}"
    );
    drop((one, same, other));
    // The management library reports the quota for the instance too.
    let mut command = container.command(&program(&world, "nvml"));
    let mut asked = common::Answering::start(command.arg(first).env("CUDA_VISIBLE_DEVICES", first));
    assert!(asked.ask("i").is_empty() && asked.ask("a").is_empty());
    assert_eq!(asked.line("l"), "total 64 used 64 free 0 processes self:64");
}

/// The rules by which the simulated NVML fails.
const FAULT: &str = "PARTITA_SIM_MIG_FAULT";

/// Whether these tests apply: they change the instances of a simulated GPU, as its administrator.
fn is_elsewhere() -> bool {
    needs_simulator("it changes MIG instances")
        || needs_user_mode("only root changes MIG instances, and these tests are a user's there")
}

/// A world with a GPU in MIG mode that has these instances at first.
fn divided(list: &'static str) -> World {
    World::plan().on(move |_| vec![("PARTITA_SIM_MIG", list.into())])
}

/// The JSON of a command that must succeed, for its first GPU.
fn json(command: &mut Command) -> Value {
    let output = succeed(command.arg("--json"));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    rows[0].clone()
}

fn show(world: &World) -> Value {
    json(&mut partita(world, "mig show"))
}

/// The profiles and placements of the instances, in order of their places.
fn layout(report: &Value) -> Vec<(String, String)> {
    let field = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
    let rows = report["instances"].as_array().unwrap_or_else(|| panic!("{report}"));
    let mut layout: Vec<_> =
        rows.iter().map(|row| (field(row, "placement"), field(row, "profile"))).collect();
    layout.sort();
    // Each has the one compute instance that programs need, or none.
    assert!(rows.iter().all(|row| row["compute_instances"].as_array().unwrap().len() <= 1), "{report}");
    layout
}

fn is_whole(report: &Value) -> bool {
    let rows = report["instances"].as_array().unwrap();
    rows.iter().all(|row| row["compute_instances"].as_array().unwrap().len() == 1)
}

fn profiles(report: &Value) -> Vec<String> {
    let mut names: Vec<String> = layout(report).into_iter().map(|(_, profile)| profile).collect();
    names.sort();
    names
}

#[test]
fn instances_are_planned_created_once_and_destroyed() {
    if is_elsewhere() {
        return;
    }
    let world = divided("");
    let empty = show(&world);
    assert_eq!((&empty["mode"], layout(&empty)), (&Value::from("on"), vec![]));
    let known = empty["profiles"].as_array().unwrap();
    let three = known.iter().find(|profile| profile["name"] == "3g.71gb").unwrap();
    assert_eq!(three["placements"], serde_json::json!(["0:4", "4:4"]));
    assert_eq!((&three["sms"], &three["id"]), (&Value::from(60), &Value::from(9)));

    let plan = json(&mut partita(&world, "mig plan --want 3g,1g,1g+me"));
    assert_eq!((plan["steps"].as_array().unwrap().len(), &plan["is_applied"]), (6, &Value::from(false)));
    assert_eq!(show(&world), empty, "a plan changes nothing");
    let applied = json(&mut partita(&world, "mig apply --want 3g,1g,1g+me"));
    assert_eq!((&applied["steps"], &applied["is_applied"]), (&plan["steps"], &Value::from(true)));
    let made = show(&world);
    assert_eq!(profiles(&made), ["1g.18gb", "1g.18gb+me", "3g.71gb"]);
    assert!(is_whole(&made) && made["is_interrupted"] == false, "{made}");
    assert_eq!(names(&gpu(&world)).len(), 3, "programs see them");

    let again = json(&mut partita(&world, "mig apply --want 1g+me,3g,1g"));
    assert_eq!((again["steps"].as_array().unwrap().len(), again["kept"].as_array().unwrap().len()), (0, 3));
    assert_eq!(show(&world), made);
    // What is wanted further stays in place.
    let grown = json(&mut partita(&world, "mig apply --want 3g,2g,1g"));
    assert_eq!(grown["kept"].as_array().unwrap().len(), 2, "{grown}");
    assert!(text(&succeed(&mut partita(&world, "mig show")).stdout).contains("2g.35gb"));

    let first = show(&world)["instances"][0].clone();
    let uuid = first["compute_instances"][0]["uuid"].as_str().unwrap().to_owned();
    json(&mut partita(&world, &format!("mig destroy {uuid}")));
    assert_eq!(layout(&show(&world)).len(), 2);
    let table = text(&succeed(&mut partita(&world, "mig destroy --all")).stdout);
    assert!(table.contains("destroy GPU instance") && table.ends_with("done\n"), "{table}");
    assert_eq!(show(&world), empty);
}

#[test]
fn what_cannot_be_is_refused_and_nothing_changes() {
    if is_elsewhere() {
        return;
    }
    let world = divided(CUT);
    let before = show(&world);
    for (line, parts) in [
        ("mig apply --want 5g", &["no MIG profile \"5g\"", "1g.18gb+me"][..]),
        ("mig apply --want 1c.3g.71gb", &["no MIG profile \"1c.3g.71gb\""]),
        ("mig apply --want 3g,,1g", &["a profile is written 3g"]),
        ("mig apply --want 3g,3g,1g", &["do not fit", "3g.71gb,3g.71gb would fit"]),
        ("mig apply --want 1g+me,1g+me", &["do not fit", "1g.18gb+me would fit"]),
        ("mig plan --want 7g,7g", &["do not fit", "7g.141gb would fit"]),
        ("mig destroy 7", &["no GPU instance 7", "1 (3g.71gb at "]),
        ("mig apply --restore", &["no change was interrupted", "--want"]),
        ("mig apply", &["--want", "--help"]),
        ("mig plan --config-file x", &["--selected", "--help"]),
        ("run --mig 2g -- true", &["there is no such instance", "3g.71gb, 1g.18gb", "partita mig apply"]),
        ("run --mig 3g --mem 1GiB -- true", &["--mig with limits"]),
        ("run --mig 3g --name x -- true", &["--name", "--help"]),
    ] {
        let said = refusal(&mut partita(&world, line));
        assert!(parts.iter().all(|part| said.contains(part)), "{line}: {said}");
    }
    assert_eq!(show(&world), before);

    let world = World::new();
    let said = refusal(&mut partita(&world, "mig apply --gpu sim:l40s --want 1g"));
    assert!(said.contains("MIG is not supported"), "{said}");
    let plan = json(&mut partita(&world, "mig plan --want 1g"));
    let remedy = plan["remedy"].as_str().unwrap();
    assert!(
        plan["steps"].as_array().unwrap().len() == 2 && remedy.contains("nvidia-smi -i 0 -mig 1"),
        "{plan}"
    );
    for line in ["mig apply --want 1g", "mig destroy --all"] {
        let said = refusal(&mut partita(&world, line));
        assert!(said.contains("MIG is off") && said.contains("`nvidia-smi -i 0 -mig 1`"), "{line}: {said}");
    }
    let off = show(&world);
    assert_eq!(off["mode"], "off");
    assert!(off["remedy"].as_str().unwrap().contains("nvidia-smi -i 0 -mig 1"), "{off}");
    assert!(refusal(&mut partita(&world, "run --mig 1g -- true")).contains("MIG is not on"));
    // A malformed argument is the first reason.
    for (line, part) in [
        ("mig apply --want big", "a profile is written 3g"),
        ("mig destroy big", "an instance is a number or MIG-"),
    ] {
        let said = refusal(&mut partita(&world, line));
        assert!(said.contains(part) && !said.contains("MIG is off"), "{line}: {said}");
    }
}

#[test]
fn programs_keep_their_instances() {
    if is_elsewhere() {
        return;
    }
    let world = divided("3g.71gb,1g.18gb,1g.18gb");
    let spill = program(&world, "spill").display().to_string();
    let start = |profile: &str| {
        let mut running =
            common::Answering::start(&mut partita(&world, &format!("run --mig {profile} -- {spill}")));
        running.line("a 48");
        running
    };
    let one = start("1g");
    let pid = one.tenant.child.id();
    let users = |world: &World| -> Vec<Vec<u64>> {
        let report = show(world);
        let rows = report["instances"].as_array().unwrap();
        let pids = |row: &Value| {
            let pids = row["compute_instances"][0]["processes"].as_array().unwrap();
            pids.iter().map(|pid| pid.as_u64().unwrap()).collect()
        };
        rows.iter().map(pids).collect()
    };
    assert_eq!(users(&world), [vec![], vec![u64::from(pid)], vec![]]);
    let two = start("1g.18gb");
    let both = [u64::from(pid), u64::from(two.tenant.child.id())];
    assert_eq!(users(&world), [vec![], vec![both[0]], vec![both[1]]]);
    let said = refusal(&mut partita(&world, "run --mig 1g -- true"));
    assert!(said.contains("no 1g.18gb is free") && said.matches("is taken").count() == 2, "{said}");

    for line in ["mig destroy 2", "mig destroy --all", "mig apply --want 7g"] {
        let said = refusal(&mut partita(&world, line));
        assert!(
            said.contains("2 (1g.18gb at ") && said.contains(&format!("process {pid} spill")),
            "{line}: {said}"
        );
    }
    // A plan that leaves them alone is carried out beside them.
    let changed = json(&mut partita(&world, "mig apply --want 1g,1g,2g"));
    assert_eq!(changed["kept"].as_array().unwrap().len(), 2, "{changed}");
    assert_eq!(profiles(&show(&world)), ["1g.18gb", "1g.18gb", "2g.35gb"]);
    drop(one);
    // The instance is free again, and a program that has not begun to use the GPU keeps it, too.
    let script = format!(
        "{} mig destroy 2; {} mig destroy 3",
        common::program().display(),
        common::program().display()
    );
    let mut command = world.partita(["run", "--mig", "1g", "--", "sh", "-c", &script]);
    let said = text(&command.output().unwrap().stderr);
    assert!(said.contains("has not begun to use it") && said.contains("spill"), "{said}");
    drop(two);
    json(&mut partita(&world, "mig destroy --all"));
    let code = partita(&world, "run --mig 3g -- sh -c true").output().unwrap().status.code();
    assert_eq!(code, Some(125));
}

#[test]
fn a_program_is_started_in_the_instance_and_ends_as_itself() {
    if is_elsewhere() {
        return;
    }
    let world = divided(CUT);
    let uuid = show(&world)["instances"][1]["compute_instances"][0]["uuid"].as_str().unwrap().to_owned();
    let script = "echo $CUDA_VISIBLE_DEVICES; exit 7";
    let output = world.partita(["run", "--mig", "1g", "--", "sh", "-c", script]).output().unwrap();
    assert_eq!((text(&output.stdout).trim_end(), output.status.code()), (uuid.as_str(), Some(7)));
    let said = refusal_by(127, &mut partita(&world, "run --mig 1g -- ./missing"));
    assert!(said.contains("./missing: no such program"), "{said}");
}

#[test]
fn every_user_can_use_instances_and_only_the_administrator_changes_them() {
    if is_elsewhere() {
        return;
    }
    let world = divided(CUT);
    let Some(users) = Users::new(world.dir(), &world.run_dir(), common::program()) else { return };
    // Root makes the run directory, and the directory of boards.
    world.ok("ps");
    let boards = world.dir().join("boards");
    std::fs::create_dir(&boards).unwrap();
    std::fs::set_permissions(&boards, std::fs::Permissions::from_mode(0o755)).unwrap();
    let as_root = |line: &str| {
        let mut command = partita(&world, line);
        command.env("PARTITA_SIM_DIR", &boards);
        command
    };
    let as_user = |user: u32, line: &str| {
        let mut command = as_root(line);
        users.enter(user, &mut command);
        command.env("PARTITA_SIM_DIR", &boards);
        command
    };
    let seen = json(&mut as_user(VICTIM, "mig show"));
    assert_eq!((&seen["mode"], &seen["instances"]), (&Value::from("on"), &Value::Null));
    assert_eq!(seen["profiles"].as_array().unwrap().len(), 7);
    for line in ["mig plan --want 1g", "mig apply --want 1g", "mig destroy --all"] {
        let said = refusal(&mut as_user(VICTIM, line));
        assert!(said.ends_with("run the command as root"), "{line}: {said}");
    }
    let mut command = as_user(VICTIM, "run --mig 1g -- sh -c");
    let mut holder = common::Answering::start(command.arg("echo ready; read line"));
    assert_eq!(holder.tenant.next_line(), "ready");
    let said = refusal(&mut as_user(ATTACKER, "run --mig 1g -- true"));
    assert!(said.contains("is taken by another `partita run --mig`"), "{said}");
    let said = refusal(&mut as_root("mig destroy --all"));
    assert!(said.contains("has not begun to use it"), "{said}");
    drop(holder);
    succeed(&mut as_user(ATTACKER, "run --mig 1g -- true"));
    json(&mut as_root("mig destroy --all"));
}

/// Two commands at the same time exclude each other, and each does all of its work.
#[test]
fn changes_at_the_same_time_follow_each_other() {
    if is_elsewhere() {
        return;
    }
    let world = divided(CUT);
    let wants = ["2g,2g,1g", "4g,1g,1g"];
    let start = |want: &&str| {
        let mut command = partita(&world, &format!("mig apply --want {want}"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let both: Vec<_> = wants.iter().map(start).collect();
    for child in both {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let result = show(&world);
    let expected = [["1g.18gb", "2g.35gb", "2g.35gb"], ["1g.18gb", "1g.18gb", "4g.71gb"]];
    assert!(expected.iter().any(|names| profiles(&result) == *names) && is_whole(&result), "{result}");
}

/// The change of the tests below.
const WANT: &str = "mig apply --want 2g,2g,1g+me";
const WANTED: [&str; 3] = ["1g.18gb+me", "2g.35gb", "2g.35gb"];

/// A machine of its own in the world, so that each case begins with the same instances.
fn on_machine(world: &World, number: usize, line: &str) -> Command {
    let mut command = partita(world, line);
    command.env("PARTITA_SIM_DIR", world.dir().join(format!("machine-{number}")));
    command
}

fn steps(world: &World) -> usize {
    let plan = json(&mut on_machine(world, 0, &WANT.replace("apply", "plan")));
    plan["steps"].as_array().unwrap().len()
}

#[test]
fn a_change_that_is_killed_at_any_step_is_continued_or_restored() {
    if is_elsewhere() {
        return;
    }
    let world = divided(CUT);
    let before = layout(&json(&mut on_machine(&world, 0, "mig show")));
    let steps = steps(&world);
    assert!(steps >= 10, "{steps}");
    // A death after a step is one before the next.
    let deaths = (1..=steps).map(|step| format!("{step}=kill-before")).chain([format!("{steps}=kill-after")]);
    for (number, rule) in deaths.enumerate() {
        // Both ways from everywhere in a long run; otherwise they take turns.
        for is_continued in [true, false] {
            if !is_long() && is_continued != (number % 2 == 0) {
                continue;
            }
            let machine = 1 + 2 * number + usize::from(is_continued);
            let said = refusal(on_machine(&world, machine, WANT).env(FAULT, &rule));
            assert!(said.contains("signal 9") && said.contains("--restore"), "{rule}: {said}");
            let left = json(&mut on_machine(&world, machine, "mig show"));
            assert_eq!(left["is_interrupted"], true, "{rule}: {left}");
            let next = if is_continued { WANT } else { "mig apply --restore" };
            let done = json(&mut on_machine(&world, machine, next));
            assert_eq!(done["is_continued"], true, "{rule}: {done}");
            let now = json(&mut on_machine(&world, machine, "mig show"));
            if is_continued {
                assert_eq!(profiles(&now), WANTED, "{rule}");
            } else {
                assert_eq!(layout(&now), before, "{rule}");
            }
            assert!(is_whole(&now) && now["is_interrupted"] == false, "{rule}: {now}");
        }
    }
}

#[test]
fn a_change_with_a_step_that_fails_is_rolled_back() {
    if is_elsewhere() {
        return;
    }
    let world = divided(CUT);
    let before = layout(&json(&mut on_machine(&world, 0, "mig show")));
    for step in 1..=steps(&world) {
        let (fault, words) = [("fail", "insufficient resources"), ("busy", "in use")][step % 2];
        let rule = format!("{step}={fault}");
        let said = refusal(on_machine(&world, step, WANT).env(FAULT, &rule));
        assert!(said.contains(words) && said.ends_with("those from before again"), "{rule}: {said}");
        let now = json(&mut on_machine(&world, step, "mig show"));
        assert_eq!(layout(&now), before, "{rule}");
        assert!(is_whole(&now) && now["is_interrupted"] == false, "{rule}: {now}");
    }
    // If the way back fails as well, it can be repeated; also if it is killed.
    for rule in ["6=fail,7=fail", "6=fail,8=kill-after"] {
        let said = refusal(on_machine(&world, 99, WANT).env(FAULT, rule));
        assert!(said.contains("--restore"), "{rule}: {said}");
        assert_eq!(json(&mut on_machine(&world, 99, "mig show"))["is_interrupted"], true, "{rule}");
        json(&mut on_machine(&world, 99, "mig apply --restore"));
        assert_eq!(layout(&json(&mut on_machine(&world, 99, "mig show"))), before, "{rule}");
    }
}

/// The child of a process that is stopped.
fn stopped_child(parent: u32) -> Option<u32> {
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        (fields.next() == Some("T") && fields.next() == Some(&parent.to_string())).then_some(pid)
    })
}

#[test]
fn a_killed_command_leaves_no_process_and_the_next_one_continues() {
    if is_elsewhere() {
        return;
    }
    let world = divided(CUT);
    let mut command = partita(&world, WANT);
    command.env(FAULT, "5=stop").stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = command.spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let child = loop {
        match stopped_child(running.id()) {
            Some(child) => break child,
            None => assert!(Instant::now() < deadline, "no process has stopped at the fifth step"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    running.kill().unwrap();
    running.wait().unwrap();
    while common::lives(child.into()) {
        assert!(Instant::now() < deadline, "the process that calls NVML outlives its command");
        std::thread::sleep(Duration::from_millis(5));
    }
    let done = json(&mut partita(&world, WANT));
    assert_eq!(done["is_continued"], true, "{done}");
    assert_eq!(profiles(&show(&world)), WANTED);
}

/// A file of mig-parted in the world's directory.
fn config(world: &World, content: &str) -> String {
    let path = world.dir().join("config.yaml");
    std::fs::write(&path, content).unwrap();
    path.display().to_string()
}

const CONFIG: &str = "\
version: v1
mig-configs:
  balanced:
    - devices: [0]
      mig-enabled: true
      mig-devices:
        1g.18gb: 2
        3g.71gb: 1
  off:
    - devices: all
      mig-enabled: false
  none:
    - devices: all
      mig-enabled: true
      mig-devices: {}
  filtered:
    - device-filter: [\"0x20B210DE\", \"0x233010DE\"]
      devices: all
      mig-enabled: true
      mig-devices: {7g.80gb: 1}
    - device-filter: \"0x233510de\"
      devices: all
      mig-enabled: true
      mig-devices: {1g.18gb: 2, 3g.71gb: 1}
  another:
    - device-filter: \"0x233010DE\"
      devices: all
      mig-enabled: true
      mig-devices: {7g.80gb: 1}
  misfiltered:
    - device-filter: H200
      devices: all
      mig-enabled: true
      mig-devices: {}
  elsewhere:
    - devices: [0, 3]
      mig-enabled: true
      mig-devices: {7g.141gb: 1}
  twice:
    - devices: all
      mig-enabled: true
      mig-devices: {7g.141gb: 1}
    - devices: [0]
      mig-enabled: true
      mig-devices: {}
";

#[test]
fn files_of_mig_parted_are_carried_out() {
    if is_elsewhere() {
        return;
    }
    let world = divided("");
    let file = config(&world, CONFIG);
    let line = |verb: &str, name: &str| format!("mig {verb} --config-file {file} --selected {name}");
    assert_eq!(json(&mut partita(&world, &line("plan", "balanced")))["steps"].as_array().unwrap().len(), 6);
    json(&mut partita(&world, &line("apply", "balanced")));
    assert_eq!(profiles(&show(&world)), ["1g.18gb", "1g.18gb", "3g.71gb"]);
    assert_eq!(json(&mut partita(&world, &line("apply", "balanced")))["steps"].as_array().unwrap().len(), 0);
    // The filter chooses the entry for an H200, which is in place.
    assert_eq!(json(&mut partita(&world, &line("plan", "filtered")))["kept"].as_array().unwrap().len(), 3);
    for (name, parts) in [
        ("off", &["wants it off", "`nvidia-smi -i 0 -mig 0`"][..]),
        ("another", &["no entry of another is for sim:h200"]),
        ("misfiltered", &["device-filter: \"H200\" is no PCI id", "0x233510DE"]),
        ("elsewhere", &["devices: there is no GPU 3"]),
        ("twice", &["two entries of twice are for sim:h200"]),
        ("missing", &["--selected missing", "it has another, balanced, elsewhere, filtered"]),
    ] {
        let said = refusal(&mut partita(&world, &line("apply", name)));
        assert!(parts.iter().all(|part| said.contains(part)), "{name}: {said}");
    }
    assert_eq!(layout(&show(&world)).len(), 3);
    json(&mut partita(&world, &line("apply", "none")));
    assert_eq!(layout(&show(&world)), []);
    // Several GPUs: every one is planned before the first is changed.
    let gpus = |line: &str| {
        let mut command = partita(&world, line);
        command.env("PARTITA_SIM_GPUS", "2").env("PARTITA_GPU", "sim:h200:all");
        command
    };
    let output = succeed(gpus("mig apply --want 3g,3g").arg("--json"));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 2, "{rows}");
    succeed(&mut gpus(&line("apply", "none")));
}

#[test]
fn mistakes_in_files_are_named_with_line_and_key() {
    if is_elsewhere() {
        return;
    }
    let world = divided("");
    for (from, to, parts) in [
        ("mig-enabled: true", "mig-enable: true", &["mig-enable", "line 5"][..]),
        ("devices: [0]", "devices: [zero]", &["line 4", "devices: [zero]"]),
        ("1g.18gb: 2", "1g.18gb: two", &["line 7", "`1g.18gb: two`"]),
        ("1g.18gb: 2", "1g.18gb: 900", &["1g.18gb: 900 instances"]),
        ("1g.18gb: 2", "9g.18gb: 2", &["no MIG profile \"9g.18gb\""]),
        ("version: v1", "version: v3", &["version is \"v3\"; v1 is understood"]),
        ("mig-configs:", "mig-configs: [", &["line"]),
    ] {
        let file = config(&world, &CONFIG.replacen(from, to, 1));
        let line = format!("mig apply --config-file {file} --selected balanced");
        let said = refusal(&mut partita(&world, &line));
        assert!(parts.iter().all(|part| said.contains(part)), "{to}: {said}");
    }
    let missing = world.dir().join("none.yaml");
    for path in [missing.as_path(), Path::new("/dev/null"), world.dir()] {
        let line = format!("mig plan --config-file {} --selected x", path.display());
        assert!(refusal(&mut partita(&world, &line)).contains(&path.display().to_string()));
    }
    assert_eq!(layout(&show(&world)), []);
}
