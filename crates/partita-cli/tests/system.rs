//! System mode: `partitad` as root makes and changes the tenants of every user.
//!
//! The tests of other files run here once more, as a user whose commands call `partitad`. Needs
//! root, which can become any user, and a simulated GPU.

#[path = "it/batch_jobs/mod.rs"]
mod batch_jobs;
#[path = "it/common/mod.rs"]
mod common;
#[path = "system/jobs.rs"]
mod jobs;
#[path = "it/live.rs"]
mod live;
#[path = "system/outside.rs"]
mod outside;
#[path = "it/policy.rs"]
mod policy;
#[path = "it/queue.rs"]
mod queue;
#[path = "it/slurm_cluster/mod.rs"]
mod slurm_cluster;

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use batch_jobs::Job;
use common::{Answering, Tenant, World, refusal, text};
use partita_testing::{ATTACKER, VICTIM, eventually};
use serde_json::Value;

/// A machine in system mode. `None`, with the reason in a line, if the tests cannot be two users.
fn machine() -> Option<World> {
    common::is_system().then(World::in_memory)
}

/// A tenant of a user whose program answers commands.
fn answering(world: &World, user: u32, options: &str) -> Answering {
    let (program, kernels) = common::gpu_program();
    let mut command = world.as_user(user, ["run"].into_iter().chain(options.split_whitespace()));
    Answering::start(command.arg("--").arg(program).arg(kernels).arg("serve"))
}

/// A tenant of a user that does nothing.
fn idle(world: &World, user: u32, options: &str) -> Tenant {
    let mut command = world.as_user(user, ["run"].into_iter().chain(options.split_whitespace()));
    let mut tenant = Tenant::start(command.args(["--", "sh", "-c", "echo ready; exec sleep 1000"]));
    assert_eq!(tenant.next_line(), "ready");
    tenant
}

fn rows(command: &mut Command) -> Vec<Value> {
    let output = command.args(["ps", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn nothing() -> [&'static str; 0] {
    []
}

/// The directory of a user's tenant on the only GPU.
fn dir_of(world: &World, user: u32, name: &str) -> PathBuf {
    let home = world.run_dir().join(format!("user-{user}"));
    let gpus: Vec<PathBuf> = fs::read_dir(home).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(gpus.len(), 1, "{gpus:?}");
    gpus[0].join(name)
}

/// Whether a user can open a file in this way.
fn can_open(user: u32, path: &Path, how: &str) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec 3{how}\"$1\""), "sh"]).arg(path).uid(user).gid(user);
    command.output().unwrap().status.success()
}

#[test]
fn two_users_without_a_share_have_even_parts() {
    let Some(world) = machine() else { return };
    let first = answering(&world, VICTIM, "--name first");
    let second = idle(&world, ATTACKER, "--name second");
    let sms = || {
        let rows = rows(&mut world.as_root(nothing()));
        rows.iter().map(|row| row["sms"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(sms(), [66, 66]);
    let third = idle(&world, ATTACKER, "--name third --sm 20tpc");
    assert_eq!(sms(), [46, 46, 40]);
    // No user may change the tenant of another, but a start and an end divide what is left.
    drop((second, third));
    // The commands have ended without waiting for that.
    let deadline = std::time::Instant::now() + common::PATIENCE;
    while sms() != [132] {
        assert!(std::time::Instant::now() < deadline, "{:?}", sms());
    }
    drop(first);
}

#[test]
fn two_users_share_a_gpu_and_neither_takes_what_the_other_was_promised() {
    let Some(world) = machine() else { return };
    let _first = idle(&world, VICTIM, "--name first --sm 60% --mem 1GiB");
    let said = refusal(&mut world.as_user(ATTACKER, "run --name second --sm 50% -- true".split(' ')));
    assert!(said.contains("first of "), "{said}");
    let _second = idle(&world, ATTACKER, "--name second --sm 40% --mem 1GiB");
    let said = refusal(&mut world.as_user(ATTACKER, "set second --mem 1000GiB".split(' ')));
    assert!(said.contains("--mem 1000GiB"), "{said}");
    let both = rows(&mut world.as_user(ATTACKER, nothing()));
    let show = |row: &Value| (row["name"].clone(), row["sms"].clone(), row["memory_used_bytes"].is_null());
    assert_eq!(
        both.iter().map(show).collect::<Vec<_>>(),
        [("first".into(), 78.into(), true), ("second".into(), 52.into(), false)]
    );
    // Root and that user see the sizes of each.
    let both = world.ps_of_root();
    assert!(both.iter().all(|row| !row["memory_used_bytes"].is_null()));
    // The first one had all task slots.
    let slots: Vec<&Value> = both.iter().map(|row| &row["task_slot_share"]).collect();
    assert_eq!(slots, [71, 48], "60% and 40% of 128 without the reserve");
}

#[test]
fn a_gpu_of_a_group_is_refused_to_other_users() {
    if !common::is_system() {
        return;
    }
    // The users of the tests are in no group.
    let world = World::plan().on(|_| vec![("PARTITAD_GPU_GROUPS", "sim:h200=root".into())]);
    let said = refusal(&mut world.as_user(VICTIM, "run --gpu sim:h200 --sm 10% -- true".split(' ')));
    assert!(said.contains("only members of root") && said.contains("PARTITAD_GPU_GROUPS"), "{said}");
    assert!(rows(&mut world.as_user(VICTIM, nothing())).is_empty());
    let said =
        refusal(&mut world.as_user(VICTIM, "run --dry-run --gpu sim:h200 --sm 10% -- true".split(' ')));
    assert!(said.contains("only members of root"), "{said}");
    // A job is refused, and the node stays in service.
    let job = Job::new(&world, 1, "partita:sm=10%");
    let refused = job.prolog().has("job_refused");
    assert_eq!((refused.code, &refused.report["drain"]), (0, &false.into()), "{refused:?}");
    assert!(refused.said.contains("only members of root"), "{refused:?}");
    let _other = idle(&world, VICTIM, "--gpu sim:a100 --sm 10% --isolation own");
    let mut daemon = Command::new(common::program().with_file_name("partitad"));
    let output = daemon.args(["--system", "--gpu-groups", "0=no-such-group"]).output().unwrap();
    assert!(text(&output.stderr).contains("groupadd no-such-group"), "{output:?}");
}

#[test]
fn any_gpu_is_none_of_another_group() {
    if !common::is_system() {
        return;
    }
    let groups = ("PARTITAD_GPU_GROUPS", "sim:h200:0=root".into());
    let world = World::plan().on(|_| vec![groups, ("PARTITA_SIM_GPUS", "2".into())]);
    let mut held = idle(&world, VICTIM, "--name held --gpu sim:h200:1 --sm 20%");
    let any = |options: &str| {
        let line = format!("run --gpu sim:h200:any {options} -- true");
        world.as_user(VICTIM, line.split_whitespace())
    };
    let said = refusal(&mut any("--sm 90%"));
    assert!(said.contains("sim:h200:1") && !said.contains("only members"), "{said}");
    let output = any("--sm 10% --dry-run --json").output().unwrap();
    assert!(text(&output.stdout).contains("\"sim:h200:1\""), "{output:?}");
    // It waits for the other GPU.
    let output = any("--sm 90% --wait=1s").output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("no room within that time") && !said.contains("only members"), "{said}");
    held.signal(rustix::process::Signal::TERM);
    held.child.wait().unwrap();
    let output = any("--sm 90% --wait=60s").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // The world stops the service of the first GPU alone.
    world.keeper_ok("mps stop --force --gpu sim:h200:1");
}

#[test]
fn any_gpu_is_chosen_beside_the_tenants_of_all_users() {
    if !common::is_system() {
        return;
    }
    let mut policy = std::path::PathBuf::new();
    let world = World::plan().on(|dir| {
        policy = dir.join("policy.toml");
        fs::write(&policy, "[default]\nmem = \"1GiB\"\n").unwrap();
        vec![("PARTITA_POLICY", policy.clone().into()), ("PARTITA_SIM_GPUS", "2".into())]
    });
    let _big = idle(&world, VICTIM, "--name big --gpu sim:h200:0 --sm 70%");
    // A mistake in the file is no matter of users: the policy before it holds.
    fs::write(&policy, "oops = 1\n").unwrap();
    let shown = common::succeeds(&mut world.as_user(ATTACKER, ["policy", "show"]));
    let source = format!("{}, as partitad holds it\n", policy.display());
    assert!(shown.starts_with(&source) && shown.contains("without --mem: 1GiB\n"), "{shown}");
    let any = |options: &str| {
        let line = format!("run --gpu sim:h200:any --sm 10% {options} -- true");
        let output = world.as_user(ATTACKER, line.split_whitespace()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output.stderr)
    };
    let planned = any("--dry-run");
    assert!(planned.contains("sim:h200:1 of 2 GPUs: it would have up to 66 TPCs there"), "{planned}");
    assert_eq!(any(""), planned);
    let said = refusal(&mut world.as_user(VICTIM, "set big --gpu sim:h200:any --sm 5%".split(' ')));
    assert!(said.contains("only `partita run` chooses a GPU"), "{said}");
    // A dry run is on the GPU of the environment, whatever options the program has.
    let line = "run --dry-run --sm 5% true --gpu 3";
    let mut command = world.as_user(ATTACKER, line.split(' '));
    let planned = common::succeeds(command.env("PARTITA_GPU", "sim:h200:1"));
    assert!(planned.contains("sim:h200:1"), "{planned}");
    // The world stops the service of the first GPU alone.
    world.keeper_ok("mps stop --force --gpu sim:h200:1");
}

#[test]
fn a_file_with_the_name_of_another_users_tenant_is_refused_whole() {
    let Some(world) = machine() else { return };
    let _taken = idle(&world, ATTACKER, "--name two --sm 10%");
    let file = world.make_dir("tenants").join("tenants.toml");
    let tenant = |name: &str| {
        format!("[[tenant]]\nname = \"{name}\"\nsm = \"10%\"\ncommand = [\"sleep\", \"1000\"]\n")
    };
    fs::write(&file, tenant("one") + &tenant("two")).unwrap();
    world.give(&file);
    for options in [&["--dry-run"][..], &[]] {
        let said = refusal(world.as_user(VICTIM, ["apply"]).arg(&file).args(options));
        assert!(said.contains("tenant two: another user's tenant has this name"), "{said}");
        assert_eq!(rows(&mut world.as_root(nothing())).len(), 1);
    }
}

#[test]
fn no_user_writes_limits_or_reaches_into_another_users_tenant() {
    let Some(world) = machine() else { return };
    let first = idle(&world, VICTIM, "--name first --sm 25% --mem 64MiB");
    let dir = dir_of(&world, VICTIM, "first");
    let limits = dir.join("limits");
    let before = fs::read(&limits).unwrap();
    assert!(can_open(VICTIM, &limits, "<"), "its processes map them");
    for (file, how) in
        [("limits", "<>"), ("limits", ">"), ("meta.json", ">"), ("new", ">"), ("limits.lock", "<")]
    {
        assert!(!can_open(VICTIM, &dir.join(file), how), "{file} {how}");
    }
    for file in ["limits", "usage", "owner", "meta.json"] {
        assert!(!can_open(ATTACKER, &dir.join(file), "<"), "{file}");
    }
    for (from, to) in [("limits", "limits.old"), ("usage", "usage.old"), ("", "../other")] {
        let mut command = Command::new("mv");
        command.arg(dir.join(from)).arg(dir.join(to)).uid(VICTIM).gid(VICTIM);
        assert!(!command.output().unwrap().status.success(), "{from}");
    }
    for line in [
        "set first --mem 1GiB",
        "kill first",
        "set first --sm 100%",
        "exec first true",
        "explain first",
        "logs first",
        "attach first",
        "wait first",
    ] {
        let said = refusal(&mut world.as_user(ATTACKER, line.split(' ')));
        assert!(said.contains("belongs to "), "{line}: {said}");
        let is_of_change = ["set", "kill"].iter().any(|word| line.starts_with(word));
        assert_eq!(said.contains("change it"), is_of_change, "{line}: {said}");
    }
    assert_eq!(fs::read(&limits).unwrap(), before);
    // Its own user changes it and ends it.
    world.ok("set first --mem 128MiB");
    assert_eq!(world.row("first")["memory_quota_bytes"], 128 << 20);
    assert_eq!(world.ok("kill first"), "first: ended (1 process)\n");
    drop(first);
}

#[test]
fn time_is_promised_once_to_the_tenants_of_all_users() {
    let Some(world) = machine() else { return };
    let _first = idle(&world, VICTIM, "--name first --time 60% --mem 100GiB");
    let said = refusal(&mut world.as_user(ATTACKER, "run --time 5% --mem 60GiB -- true".split(' ')));
    assert!(said.contains("`first of user 65533` was promised 100GiB"), "{said}");
    let said = refusal(&mut world.as_user(ATTACKER, "run --name second --time 60% -- true".split(' ')));
    assert!(said.contains("was promised 60%") && said.contains("ask the owner of a tenant"), "{said}");
    assert!(!said.contains("partita set"), "{said}");
    // Half of what is left, as beside a tenant of the same user.
    let _second = idle(&world, ATTACKER, "--name second");
    let rows = rows(&mut world.as_root(nothing()));
    assert_eq!(rows[1]["time"]["share_percent"], 20.0, "{rows:?}");
    // Both hold all compute units, and a refusal says so.
    let said = refusal(&mut world.as_user(ATTACKER, "run --sm 10% -- true".split(' ')));
    assert!(said.matches("66 TPCs").count() == 3, "{said}");
}

/// Each user's tenants have a gate of their own.
#[test]
fn turns_by_priority_of_one_user_do_not_matter_to_another() {
    let Some(world) = machine() else { return };
    let _first = idle(&world, VICTIM, "--name first --priority high");
    let _joins = idle(&world, ATTACKER, "--name joins");
    let rows = rows(&mut world.as_root(nothing()));
    assert_eq!((&rows[1]["name"], &rows[1]["priority"]), (&"joins".into(), &"low".into()), "{rows:?}");
    let other = World::in_memory();
    let _first = idle(&other, VICTIM, "--name first --time 50%");
    let _second = idle(&other, ATTACKER, "--name second --priority low");
    let said = refusal(&mut other.as_user(ATTACKER, "run --time 10% -- true".split(' ')));
    assert!(said.contains("`second` takes turns"), "{said}");
}

/// A world with an empty policy, and the policy's file.
fn with_policy() -> (World, PathBuf) {
    let mut file = PathBuf::new();
    let world = World::plan().in_memory().on(|dir| {
        file = dir.join("policy.toml");
        fs::write(&file, "").unwrap();
        vec![("PARTITA_POLICY", file.clone().into())]
    });
    (world, file)
}

/// What a refusal advises beside rules of priorities is allowed by them, and works as it is typed.
#[test]
fn what_is_advised_beside_rules_of_priorities_is_not_refused() {
    if !common::is_system() {
        return;
    }
    let (world, file) = with_policy();
    let first = idle(&world, VICTIM, "--name first --priority high");
    let run = |options: &str| {
        let line = format!("run {options} -- true");
        world.as_user(ATTACKER, line.split_whitespace()).output().unwrap()
    };
    for (rule, options, advice) in [
        ("\"normal\"", "", "--time 50%"),
        ("\"normal\"", "--priority high", "--time 50%"),
        ("\"normal\", \"high\"", "", "--priority high"),
        ("\"normal\"", "--sm 10%", "--time 50%"),
        ("\"high\"", "--sm 10% --priority high", "--priority high"),
    ] {
        fs::write(&file, format!("[[rule]]\npriorities = [{rule}]\n")).unwrap();
        let output = run(options);
        assert!(!output.status.success(), "{rule} {options}: {output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(advice), "{rule} {options}: {said}");
        let output = run(advice);
        assert!(output.status.success(), "{rule} {advice}: {output:?}");
    }
    drop(first);
    // A target has compute units instead of turns.
    for (rule, options, advice) in [
        ("\"normal\", \"low\"", "--slo p99=2ms --via time", "--via mask --priority normal"),
        ("\"normal\"", "--slo p99=2ms --via time --priority normal", "--via mask --priority normal"),
        ("\"low\"", "--slo p99=2ms --via time", "--via mask --priority low"),
        ("\"normal\"", "--goal throughput --via time", "--via mask --priority normal"),
    ] {
        fs::write(&file, format!("[[rule]]\npriorities = [{rule}]\n")).unwrap();
        let output = run(options);
        assert!(text(&output.stderr).contains(advice), "{rule} {options}: {output:?}");
        let steered = options.split(" --via").next().unwrap();
        let output = run(&format!("{steered} {advice}"));
        assert!(output.status.success(), "{rule} {advice}: {output:?}");
    }
}

#[test]
fn a_policy_holds_for_ceilings_chains_and_turns() {
    let Some(owner) = machine().map(|world| world.owner()) else { return };
    let users = format!("users = [\"{owner}\"]");
    let policy = format!("[[rule]]\n{users}\nsm_max = \"19tpc\"\n[[reservation]]\n{users}\nsm = \"20tpc\"\n");
    let world = World::plan().in_memory().on(|dir| {
        let file = dir.join("policy.toml");
        fs::write(&file, &policy).unwrap();
        vec![("PARTITA_POLICY", file.into())]
    });
    let said = world.refused("run --sm 10tpc..100% -- true");
    assert!(said.contains("--sm ..100%") && said.contains("borrow up to 19tpc or less"), "{said}");
    let chain = world.dir().join("chain.toml");
    let component = |name: &str| format!("[[component]]\nname = \"{name}\"\ncommand = [\"true\"]\n");
    let text =
        format!("name = \"large\"\nframe = \"4KiB\"\nsm = \"80%\"\n{}{}", component("a"), component("b"));
    fs::write(&chain, text).unwrap();
    let said = world.refused(&format!("chain start {}", chain.display()));
    assert!(said.contains("policy (line 1) allows"), "{said}");
    // What takes turns keeps its compute units, so it leaves those that are reserved.
    let _first = idle(&world, ATTACKER, "--name first --time 40%");
    let _second = idle(&world, ATTACKER, "--name second --time 40%");
    for row in rows(&mut world.as_root(nothing())) {
        assert_eq!(row["sms"], 92, "{row}");
    }
    let _own = idle(&world, VICTIM, "--name own --sm 19tpc");
    let said = world.refused("run --sm 19tpc -- true");
    assert!(!said.contains("turns"), "no advice that the policy refuses: {said}");
}

#[test]
fn a_soft_share_borrows_no_time_while_another_user_has_a_tenant() {
    let _preferred = common::prefer_this_test();
    let Some(world) = machine() else { return };
    let program = common::compile(&world, "time");
    let (_, kernels) = common::gpu_program();
    let mut command = world.as_user(ATTACKER, "run --name soft --time 30% --time-policy soft --".split(' '));
    let mut soft = Answering::start(command.arg(program).arg(kernels));
    assert_eq!(soft.tenant.next_line(), "ready");
    let mut has = |shares: RangeInclusive<i64>| {
        // On a busy machine some tries are disturbed.
        let tries = (0..10).map(|_| {
            let answer = soft.line("share kernel 1000000 300 500");
            answer.split_once(' ').and_then(|(share, _)| share.parse().ok()).unwrap_or(-1)
        });
        let mut seen = Vec::new();
        let held = tries.inspect(|share| seen.push(*share)).any(|share| shares.contains(&share));
        assert!(held, "{seen:?} ‰ instead of {shares:?}");
    };
    has(951..=1000);
    let why = || text(&world.as_user(ATTACKER, ["explain", "soft"]).output().unwrap().stdout);
    assert!(why().contains("30% of the GPU's time, and what others leave idle"), "{}", why());
    let other = idle(&world, VICTIM, "--name other --time 20%");
    has(280..=320);
    assert!(why().contains("it does not see when"), "{}", why());
    drop(other);
    has(951..=1000);
}

/// The end of a user's tenant divides again, and not as the user who prepared them.
#[test]
fn tenants_of_containers_stay_out_of_sight_of_each_other() {
    let Some(world) = machine() else { return };
    let dir = world.dir().join("cdi");
    for name in ["one", "two"] {
        let words = ["cdi", "prepare", name, "--time", "30%", "--time-policy", "soft", "--output"];
        common::succeeds(world.as_root(words).arg(&dir));
    }
    let why = || text(&world.as_root(["explain", "one"]).output().unwrap().stdout);
    assert!(why().contains("it does not see when"), "{}", why());
    common::succeeds(&mut world.as_user(ATTACKER, "run --time 10% -- true".split(' ')));
    assert!(why().contains("it does not see when"), "{}", why());
    common::succeeds(world.as_root(["cdi", "remove", "two", "--output"]).arg(&dir));
    assert!(why().contains("and what others leave idle"), "{}", why());
    common::succeeds(world.as_root(["cdi", "remove", "one", "--output"]).arg(&dir));
}

#[test]
fn the_audit_of_a_user_accuses_no_tenant_of_another() {
    let Some(world) = machine() else { return };
    let (program, kernels) = common::gpu_program();
    let mut other = world.as_user(ATTACKER, "run --name other --time 30% --".split(' '));
    let mut other = Tenant::start(other.arg(program).arg(kernels).arg("loop"));
    other.next_line();
    let audit = world.line("ps --audit");
    assert!(audit.status.success(), "{audit:?}");
}

#[test]
fn services_are_roots_and_every_user_sees_them() {
    let Some(world) = machine() else { return };
    // Also one that root has started, as it believes, for itself.
    world.keeper_ok("mps start");
    let _first = idle(&world, VICTIM, "--name first --sm 25%");
    let mut second = world.as_user(ATTACKER, "run --name second --sm 25% --".split(' '));
    let (program, kernels) = common::gpu_program();
    let mut second = Tenant::start(second.arg(program).arg(kernels).arg("loop"));
    second.next_line();
    let clients: Value = serde_json::from_str(&world.ok("mps clients --json")).unwrap();
    let client = &clients.as_array().unwrap()[0];
    assert_eq!(client["tenant"], Value::Null, "the environment of another user's process is not read");
    for line in ["mps status", "mps logs", "mps limits", "mps limits --percent 50 --unproved --dry-run"] {
        assert!(!world.ok(line).is_empty(), "{line}");
    }
    for line in [
        "mps start",
        "mps stop",
        "mps stop --force",
        "mps limits --percent 50 --unproved",
        "mps partitions add --chunks 2",
        "mps partitions remove GPU-1/a",
    ] {
        let said = world.refused(line);
        assert!(
            said.contains("the MPS services belong to root") && said.contains("PARTITA_RUN_DIR"),
            "{said}"
        );
    }
    let said = world.refused(&format!("mps terminate {}", client["pid"]));
    assert!(said.contains("and root end it"), "{said}");
    assert!(second.next_line().starts_with("sms"), "and it goes on");
    // Their own client is ended through partitad: the driver refuses that of root's service.
    let mut own = world.partita("run --name own --sm 25% --".split_whitespace());
    let mut own = Tenant::start(own.arg(program).arg(kernels).arg("loop"));
    own.next_line();
    let of_own = |world: &World| -> Option<Value> {
        let clients: Value = serde_json::from_str(&world.ok("mps clients --json")).unwrap();
        clients.as_array().unwrap().iter().find(|client| client["tenant"] == "own").cloned()
    };
    let client = of_own(&world).expect("a client of the user's");
    assert!(world.ok(&format!("mps terminate {}", client["pid"])).contains("its work on the GPU is ended"));
    while own.line().is_some() {}
    assert!(second.next_line().starts_with("sms"), "and it goes on");
    assert!(world.ok("mps status").contains(": runs (daemon "));
}

#[test]
fn what_partitad_does_for_no_user_is_refused_and_works_in_a_directory_of_their_own() {
    let Some(world) = machine() else { return };
    let start = ["mps", "start"];
    let mut prolog = world.partita(["batch", "prolog"]);
    prolog
        .env("SLURM_JOB_ID", "4711")
        .env("SLURM_JOB_UID", VICTIM.to_string())
        .env("SLURM_JOB_GPUS", "0")
        .env("SLURM_JOB_COMMENT", "partita:mps")
        .env("PARTITA_BATCH_DIR", world.dir().join("batch"));
    let said = refusal(&mut world.partita(start));
    assert!(
        said.contains("the MPS services belong to root") && said.contains("set PARTITA_RUN_DIR"),
        "{said}"
    );
    // The scripts of a batch system are root's.
    let output = prolog.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        said.contains("the MPS services belong to root") && said.contains("set PARTITA_RUN_DIR"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(world.ps().is_empty(), "nothing is left of it");
    let own = world.dir().join("own");
    let output = world.partita(start).env("PARTITA_RUN_DIR", &own).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // The world knows no other directory's service.
    let stopped = world.partita(["mps", "stop", "--force"]).env("PARTITA_RUN_DIR", own).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
}

/// The names of the directories of users' chains in shared memory.
fn chain_dirs(user: u32) -> Vec<PathBuf> {
    let prefix = format!("/dev/shm/partita-chain-{user}-");
    let entries = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_str().is_some_and(|path| path.starts_with(&prefix))).collect()
}

#[test]
fn a_chain_is_its_users_alone_also_where_another_user_has_taken_its_name() {
    let Some(world) = machine() else { return };
    let file = world.dir().join("toy.toml");
    let component =
        |name: &str| format!("[[component]]\nname = \"{name}\"\ncommand = [\"sleep\", \"1000\"]\n");
    fs::write(
        &file,
        format!("name = \"toy\"\nsm = \"50%\"\nframe = \"4KiB\"\n{}{}", component("a"), component("b")),
    )
    .unwrap();
    // The names have inode numbers, which another user can guess. 4,000 directories take 4,000 of
    // them.
    drop(idle(&world, VICTIM, "--name first --sm 10%"));
    let first = fs::metadata(dir_of(&world, VICTIM, "first").parent().unwrap()).unwrap();
    let script = "import os, sys\nfor ino in range(4000, 8000):\n\
                  \x20   os.mkdir(sys.argv[2] + f'{int(sys.argv[1]) + ino}-0')";
    let prefix = format!("/dev/shm/partita-chain-{VICTIM}-{}-", first.dev());
    let mut taker = Command::new("python3");
    taker.args(["-c", script, &first.ino().to_string(), &prefix]).uid(ATTACKER).gid(ATTACKER);
    assert!(taker.output().unwrap().status.success());
    let is_of = |user: u32| move |path: &&PathBuf| fs::metadata(path).is_ok_and(|meta| meta.uid() == user);
    let taken: Vec<PathBuf> = chain_dirs(VICTIM).iter().filter(is_of(ATTACKER)).cloned().collect();

    let mut chain = Tenant::start(&mut world.partita(["chain", "start", file.to_str().unwrap()]));
    let watch = ["chain", "watch", "toy", "--once", "--json"];
    eventually("the chain shows itself", || world.partita(watch).output().unwrap().status.success());
    let dirs: Vec<PathBuf> = chain_dirs(VICTIM).iter().filter(is_of(VICTIM)).cloned().collect();
    for dir in &taken {
        fs::remove_dir(dir).unwrap();
    }
    let [dir] = dirs.as_slice() else { panic!("{dirs:?}") };
    assert!(dir.to_str().unwrap().ends_with("-1"), "one name was taken: {dir:?}");
    assert!(!can_open(ATTACKER, &dir.join("chain.state.json"), "<"));
    for words in [&watch[..], &["chain", "stop", "toy"], &["chain", "steer", "toy", "--tpcs", "1,1"]] {
        let said = refusal(&mut world.as_user(ATTACKER, words));
        assert!(said.contains("tenant toy belongs to user 65533"), "{said}");
    }
    let said = refusal(&mut world.as_root(watch));
    assert!(
        said.contains("it belongs to user 65533") && said.contains("`partita kill toy` ends it"),
        "{said}"
    );
    let mut other = idle(&world, VICTIM, "--name other --sm 10%");
    let said = refusal(&mut world.as_root(["chain", "stop", "other"]));
    assert!(said.contains("is not a chain"), "{said}");
    let output = world.as_root(["chain", "stop", "toy"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    chain.exit_code();
    assert!(!dir.exists() && chain_dirs(VICTIM).is_empty());
    other.signal(rustix::process::Signal::TERM);
    other.exit_code();
}

#[test]
fn a_partitad_without_system_is_refused_and_says_what_to_type() {
    let Some(world) = machine() else { return };
    let partitad = |user: Option<u32>| {
        let mut command = Command::new(partita_testing::build().join("partitad"));
        let like = world.as_root(nothing());
        command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        user.into_iter().for_each(|user| world.enter(user, &mut command));
        let output = command.output().unwrap();
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let socket = world.run_dir().join(".partitad-0.sock");
    let said = partitad(Some(VICTIM));
    assert!(said.contains(socket.to_str().unwrap()) && said.contains("set PARTITA_RUN_DIR"), "{said}");
    let said = partitad(None);
    assert!(said.contains("add --system"), "{said}");
}

#[test]
fn partitad_runs_no_other_command_and_acts_for_no_other_user() {
    let Some(world) = machine() else { return };
    let socket = world.run_dir().join(".system.sock");
    let ask = |request: &str| {
        let script = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                      s.sendall(sys.argv[2].encode())\ns.shutdown(socket.SHUT_WR)\n\
                      a = b''\nwhile d := s.recv(65536): a += d\nprint(a.decode())";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(&socket).arg(request).uid(ATTACKER).gid(ATTACKER);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    };
    for arguments in [
        r#"["run", "--", "true"]"#,
        r#"["mps", "stop", "--force"]"#,
        r#"["mps", "recover", "--force"]"#,
        r#"["internal-hold"]"#,
        r#"["internal-system"]"#,
        r#"["generate", "/"]"#,
        r#"["doctor"]"#,
    ] {
        let answer: Value =
            serde_json::from_str(&ask(&format!(r#"{{"do":"command","arguments":{arguments}}}"#))).unwrap();
        let said: Vec<u8> = serde_json::from_value(answer["printed"]["stderr"].clone()).unwrap();
        assert_eq!(
            text(&said),
            "partita: partitad runs only ps, set, kill, explain, top --once --json, run --dry-run, mps \
             recover and mps terminate for users\n"
        );
    }
    // A client that sends nothing gets no answer and costs no process.
    assert_eq!(ask("").trim(), "");
    for request in ["{}", "null", r#"{"do":"make"}"#, r#"{"do":"command","arguments":7}"#, "[", "\u{1}"] {
        assert!(ask(request).contains("is not understood"), "{request}");
    }
    // A name that leads out of the directory of tenants.
    let make = r#"{"do":"make","name":"../../x","gpus":"sim:h200","request":{}}"#;
    assert!(ask(make).contains("refused"));
    let _tenant = idle(&world, VICTIM, "--name first --sm 25%");
    for request in [
        r#"{"do":"end_processes","name":"first"}"#.to_owned(),
        format!(
            r#"{{"do":"note_child","name":"first","child":{{"pid":{},"start_ticks":1}}}}"#,
            std::process::id()
        ),
    ] {
        ask(&request);
    }
    assert_eq!(world.row("first")["name"], "first");
}

#[test]
fn without_partitad_tenants_run_on_and_commands_say_so() {
    let Some(mut world) = machine() else { return };
    let mut tenant = answering(&world, VICTIM, "--name first --sm 25% --mem 64MiB");
    assert_eq!(tenant.line("alloc 33554432"), "0");
    world.system().kill();
    // Its limits still hold, and its processes can start others.
    assert_eq!(tenant.line("alloc 67108864"), "2");
    let said = refusal(&mut world.partita("set first --mem 1GiB".split(' ')));
    assert!(said.contains("partitad --system") && said.contains("tenants keep running"), "{said}");
    refusal(&mut world.partita("run --sm 25% -- true".split(' ')));
    let file = world.dir().join("toy.toml");
    let component = |name: &str| format!("[[component]]\nname = \"{name}\"\ncommand = [\"true\"]\n");
    fs::write(&file, format!("name = \"toy\"\nframe = \"4KiB\"\n{}{}", component("a"), component("b")))
        .unwrap();
    // Not stored where the daemon would hide it later.
    let said = refusal(&mut world.partita(["chain", "define", file.to_str().unwrap()]));
    assert!(said.contains("systemctl restart partitad"), "{said}");
    let output = world.line("chain ps --json");
    assert!(output.status.success() && text(&output.stdout).trim() == "[]", "{output:?}");
    let output = world.line("ps --json");
    assert!(text(&output.stderr).contains("only your own tenants are shown"), "{output:?}");
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows[0]["memory_used_bytes"], 32 << 20);
    let run_dir = world.run_dir();
    world.system().start_again(&run_dir);
    assert_eq!(world.row("first")["memory_used_bytes"], 32 << 20);
    world.ok("set first --mem 1GiB");
    assert_eq!(tenant.line("alloc 67108864"), "0");
}

/// 500 with `PARTITA_TEST_KILLS=500`.
#[test]
fn kills_of_partitad_end_no_tenant_and_lose_no_limit() {
    const TENANTS: u32 = 20;
    let kills = std::env::var("PARTITA_TEST_KILLS").map_or(4, |kills| kills.parse().unwrap());
    let Some(mut world) = machine() else { return };
    let mut tenants: Vec<Answering> = (0..TENANTS)
        .map(|at| {
            let user = if at % 2 == 0 { VICTIM } else { ATTACKER };
            let mut tenant =
                answering(&world, user, &format!("--name t{at} --sm 3tpc --mem 64MiB --isolation own"));
            assert_eq!(tenant.line(&format!("alloc {}", (at + 1) << 20)), "0");
            tenant
        })
        .collect();
    let state = |world: &World| {
        let mut state: Vec<_> = world
            .ps_of_root()
            .iter()
            .map(|row| {
                ["name", "user", "tpcs", "memory_quota_bytes", "memory_used_bytes"]
                    .map(|field| row[field].to_string())
            })
            .collect();
        state.sort();
        state
    };
    let before = state(&world);
    assert_eq!(before.len(), TENANTS as usize);
    let run_dir = world.run_dir();
    for kill in 0..kills {
        let ending = AtomicBool::new(false);
        let mut system = world.system.take();
        std::thread::scope(|scope| {
            // Commands are running when it is killed; each has succeeded or failed, and reports
            // which.
            for user in [VICTIM, ATTACKER] {
                let (world, ending) = (&world, &ending);
                scope.spawn(move || {
                    let own = if user == VICTIM { "t0" } else { "t1" };
                    while !ending.load(Ordering::Relaxed) {
                        let _ = world.as_user(user, ["set", own, "--mem", "64MiB"]).output().unwrap();
                        let _ =
                            world.as_user(user, "run --sm 1tpc --isolation own -- true".split(' ')).output();
                    }
                });
            }
            let system = system.as_mut().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(kill * 7 % 50));
            system.kill();
            let started =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| system.start_again(&run_dir)));
            ending.store(true, Ordering::Relaxed);
            started.unwrap();
        });
        world.system = system;
        assert_eq!(state(&world), before, "after kill {kill}");
    }
    for (tenant, at) in tenants.iter_mut().zip(1..) {
        let left = 64 - at;
        assert_eq!(tenant.line(&format!("alloc {}", left << 20)), "0", "what was left is there");
        assert_eq!(tenant.line("alloc 1048576"), "2", "and no more");
    }
    assert!(tenants.iter_mut().all(|tenant| tenant.tenant.child.try_wait().unwrap().is_none()));
}

#[test]
fn the_directories_are_roots_and_each_user_enters_one() {
    let Some(world) = machine() else { return };
    let _first = idle(&world, VICTIM, "--name first --sm 25%");
    let meta = |path: &Path| path.metadata().map(|meta| (meta.uid(), meta.mode() & 0o777)).unwrap();
    assert_eq!(meta(&world.run_dir()), (0, 0o755));
    // The group's bits are the mask of the access control list.
    assert_eq!(meta(&world.run_dir().join(format!("user-{VICTIM}"))), (0, 0o750));
    let dir = dir_of(&world, VICTIM, "first");
    let files = [
        ("", 0, 0o755),
        ("limits", 0, 0o644),
        ("meta.json", 0, 0o644),
        ("usage", VICTIM, 0o600),
        ("owner", VICTIM, 0o600),
    ];
    for (file, user, mode) in files {
        assert_eq!(meta(&dir.join(file)), (user, mode), "{file}");
    }
    let refused = OpenOptions::new().write(true).open(dir.join("limits"));
    assert!(refused.is_ok(), "root is not kept out");
}

#[test]
fn users_wait_in_one_queue_which_outlives_partitad() {
    let Some(mut world) = machine() else { return };
    let mut held = idle(&world, VICTIM, "--name held --sm 60%");
    let start = |world: &World, user, options: &str| {
        let mut command =
            world.as_user(user, ["run", "--wait"].into_iter().chain(options.split_whitespace()));
        Tenant::start(command.args(["--", "sh", "-c", "echo ready; exec sleep 1000"]))
    };
    let queue = |world: &World, user| {
        let output = world.as_user(user, ["ps", "--waiting", "--json"]).output().unwrap();
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let name = |row: &Value| row["name"].as_str().unwrap().to_owned();
        rows.iter().map(name).collect::<Vec<_>>()
    };
    let mut first = start(&world, VICTIM, "--name first --sm 80%");
    partita_testing::eventually("the first one waits", || queue(&world, VICTIM) == ["first"]);
    // Of another user, and there would be room for it.
    let mut second = start(&world, ATTACKER, "--name second --sm 10%");
    partita_testing::eventually("the second one waits", || queue(&world, ATTACKER) == ["first", "second"]);
    // Another user's place cannot be taken or changed, nor can its name.
    let said = refusal(&mut world.as_user(ATTACKER, "run --name first --sm 1tpc -- true".split(' ')));
    assert!(said.contains("user 65533 that waits for room has this name"), "{said}");
    let places = world.run_dir().join(".queue");
    for entry in fs::read_dir(&places).unwrap() {
        assert!(!can_open(ATTACKER, &entry.unwrap().path(), "<>"));
    }
    let run_dir = world.run_dir();
    world.system().kill();
    held.signal(rustix::process::Signal::TERM);
    held.child.wait().unwrap();
    assert_eq!(queue(&world, VICTIM), ["first", "second"]);
    world.system().start_again(&run_dir);
    assert_eq!((first.next_line(), second.next_line()), ("ready".to_owned(), "ready".to_owned()));
    assert!(queue(&world, VICTIM).is_empty());
}

/// The events of audits, as root's clients of `partitad` get them.
fn events(world: &World) -> Vec<Value> {
    let socket = world.run_dir().join(".partitad-0.sock");
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET /v1/events HTTP/1.1\r\nhost: partitad\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(body).unwrap()
}

/// Waits for an event, and returns what it says.
fn told(world: &World, kind: &str, change: &str) -> String {
    let is_it = |event: &Value| event["kind"] == kind && event["change"] == change;
    let find = || events(world).into_iter().find(is_it);
    eventually(&format!("{kind} {change}"), || find().is_some());
    find().unwrap()["detail"].as_str().unwrap().to_owned()
}

#[test]
fn programs_outside_of_tenants_are_reported_and_ended_if_the_site_wants_that() {
    if machine().is_none() {
        return;
    }
    let (world, file) = with_policy();
    let owner = world.owner();
    let outside = format!("[outside]\nprograms = \"end\"\nusers = [\"{owner}\"]\n");
    fs::write(&file, &outside).unwrap();
    let _tenant = idle(&world, VICTIM, "--name tenant --sm 30% --mem 1GiB");
    // Of an exempt user: reported, and left alone.
    let program = common::compile(&world, "hold");
    let mut stranger = Answering::start(&mut world.bare(&program));
    assert_eq!(stranger.line("take 64"), "0");
    let pid = stranger.tenant.child.id();
    let said = told(&world, "outside", "began");
    let parts =
        [format!("process {pid} of {owner}"), "belongs to no tenant".to_owned(), format!("`kill {pid}`")];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    assert_eq!(stranger.line("take 64"), "0");

    // A mistake is reported, and the old policy holds.
    fs::write(&file, "[outside]\nprograms = \"stop\"\n").unwrap();
    let said = told(&world, "policy", "began");
    assert!(said.contains("line 2: programs: use \"report\"") && said.contains("policy check"), "{said}");
    assert_eq!(stranger.line("take 64"), "0");

    // Without the exemption it is ended, and the tenant is not.
    fs::write(&file, "[outside]\nprograms = \"end\"\n").unwrap();
    let status = stranger.tenant.child.wait().unwrap();
    assert_eq!(status.signal(), Some(15), "{status}");
    told(&world, "policy", "ended");
    told(&world, "outside", "ended");
    assert_eq!(rows(&mut world.as_root(nothing())).len(), 1);
}
