//! `programs = "limit"`: programs that were started without Partita become tenants.
//!
//! `LD_PRELOAD` stands for the line in `/etc/ld.so.preload`, but in the last test, which has an
//! `/etc` of its own. Each program leads a process group, as a job of a shell does.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use partita_testing::{ATTACKER, VICTIM, build, eventually};
use serde_json::Value;

use super::common::{self, Answering, Tenant, World, refusal_by, text};
use super::{idle, machine, nothing, rows};

/// A machine whose policy is this.
fn limiting(policy: &str) -> Option<World> {
    limiting_with(policy, "on")
}

/// `holder` is `off` where tenants are to have none.
fn limiting_with(policy: &str, holder: &str) -> Option<World> {
    machine()?;
    Some(World::plan().in_memory().on(|dir| {
        let file = dir.join("policy.toml");
        fs::write(&file, policy).unwrap();
        vec![("PARTITA_POLICY", file.into()), ("PARTITA_HOLDER", holder.into())]
    }))
}

const LIMIT: &str = "[outside]\nprograms = \"limit\"\n";

/// The GPU program without Partita, which has loaded the library as every program has.
fn bare(world: &World, user: u32, what: &str) -> Command {
    let (program, kernels) = common::gpu_program();
    bare_program(world, user, program, kernels, what)
}

fn bare_program(world: &World, user: u32, program: &Path, kernels: &Path, what: &str) -> Command {
    let mut command = world.bare(program);
    command.arg(kernels).args(what.split(' '));
    if user != 0 {
        common::with_env_of(&mut command, &world.as_user(user, nothing()));
    }
    command.uid(user).gid(user).process_group(0);
    command.env("LD_PRELOAD", build().join("libpartita.so"));
    command
}

/// The same, answering commands.
fn answering(world: &World, user: u32) -> Answering {
    let mut started = Answering::start(&mut bare(world, user, "serve"));
    // After this the GPU is in use.
    assert_eq!(started.line("alloc 1048576"), "0");
    started
}

/// The rows that root sees.
fn all(world: &World) -> Vec<Value> {
    rows(&mut world.as_root(nothing()))
}

fn names(world: &World) -> Vec<String> {
    all(world).iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
}

/// Waits until the tenants are these.
fn are(world: &World, expected: &[String]) {
    eventually(&format!("the tenants are {expected:?}"), || names(world) == expected);
}

/// A job whose programs read a pipe: they begin when it is open, and end with it.
fn job(world: &World, script: &str, program: &Path, kernels: &Path) -> (Tenant, fs::File) {
    let pipe = world.dir().join("pipe");
    common::succeeds(Command::new("mkfifo").arg(&pipe));
    fs::set_permissions(&pipe, fs::Permissions::from_mode(0o666)).unwrap();
    let mut command = world.bare(Path::new("sh"));
    command.args(["-c", script, "sh"]).arg(program).arg(kernels).arg(&pipe);
    command.process_group(0).env("LD_PRELOAD", build().join("libpartita.so"));
    let mut job = Tenant::start(&mut command);
    assert_eq!(job.next_line(), "ready");
    (job, fs::OpenOptions::new().write(true).open(&pipe).unwrap())
}

#[test]
fn a_program_that_dies_in_its_work_breaks_no_other() {
    let Some(world) = limiting(LIMIT) else { return };
    let mut neighbour = Tenant::start(&mut bare(&world, VICTIM, "loop"));
    let program = common::compile(&world, "deaths");
    let workloads = world.dir().join("workloads.ptx");
    fs::write(&workloads, partita_abi::workloads::WORKLOADS_MODULE.to_bytes()).unwrap();
    let stays = [format!("gpu-{}", neighbour.child.id())];
    for work in ["finite", "sudden-finite", "endless"] {
        let mut dying = bare_program(&world, ATTACKER, &program, &workloads, &format!("{work} kill"));
        let mut dying = Tenant::start(dying.stdin(Stdio::piped()));
        assert_eq!(dying.next_line(), "ready");
        dying.child.stdin.take().unwrap().write_all(b"die\n").unwrap();
        assert!(!dying.child.wait().unwrap().success());
        let problem = || {
            let rows = all(&world);
            let dead = rows.iter().find(|row| row["name"] != *stays[0]);
            dead.map(|dead| dead["problem"].as_str().unwrap_or_default().to_owned())
        };
        eventually(work, || {
            let line = neighbour.next_line();
            assert!(line.starts_with("sms"), "{work}: {line}; {}", world.service_logs());
            match work {
                "endless" => problem().unwrap().contains("has not ended"),
                _ => problem().is_none(),
            }
        });
    }
    drop(neighbour);
    are(&world, &[]);
}

#[test]
fn programs_become_tenants_with_what_the_policy_gives_them() {
    let Some(world) = limiting(&format!("{LIMIT}sm = \"25%\"\nmem = \"1GiB\"\n")) else { return };
    let mut first = answering(&world, VICTIM);
    let second = answering(&world, ATTACKER);
    let mut expected = [&first, &second].map(|program| format!("gpu-{}", program.tenant.child.id()));
    expected.sort();
    assert_eq!(names(&world), expected);
    for row in all(&world) {
        assert_eq!((&row["origin"], &row["sms"]), (&"policy".into(), &32.into()), "{row}");
        assert_eq!(row["memory_quota_bytes"], 1_u64 << 30, "{row}");
        assert_eq!((&row["via"], &row["isolation"]), (&"mask".into(), &"shared".into()), "{row}");
        assert_eq!(row["processes"].as_array().unwrap().len(), 1, "{row}");
        assert!(row["command"][0].as_str().unwrap().ends_with("gpu"), "{row}");
    }
    assert_eq!(first.line("alloc 536870912"), "0");
    assert_eq!(first.line("alloc 1073741824"), "2", "beyond the quota");
    let name = format!("gpu-{}", first.tenant.child.id());
    let shown = text(&world.as_user(VICTIM, ["ps", &name]).output().unwrap().stdout);
    assert!(shown.contains("origin     policy: its program was started without `partita run`"), "{shown}");
    let shown = text(&world.as_root(["ps"]).output().unwrap().stdout);
    assert!(shown.contains("(by policy) "), "{shown}");
    let shown = text(&world.as_root(["top", "--once", "--json"]).output().unwrap().stdout);
    assert_eq!(shown.matches("\"origin\":\"policy\"").count(), 2, "{shown}");
    // They are clients of root's service, and audits find nothing to report.
    let clients = text(&world.as_root(["mps", "clients", "--json"]).output().unwrap().stdout);
    assert_eq!(clients.matches("\"pid\"").count(), 2, "{clients}");
    let audit = world.as_root(["ps", "--audit"]).output().unwrap();
    assert!(audit.status.success() && audit.stderr.is_empty(), "{audit:?}");

    // Its user changes and ends it as any other.
    common::succeeds(&mut world.as_user(VICTIM, ["set", &name, "--sm", "10tpc"]));
    assert!(all(&world).iter().any(|row| row["name"] == *name && row["sms"] == 20));
    let said = common::refusal(&mut world.as_user(ATTACKER, ["kill", &name]));
    assert!(said.contains(&name), "{said}");
    let said = second.complaints();
    let parts = ["by the policy of this site", "32 of 132 SMs and 1.0GiB of sim:h200", "`partita run`"];
    assert!(parts.iter().all(|part| said.contains(part)) && said.lines().count() == 1, "{said}");
    are(&world, std::slice::from_ref(&name));
    assert!(world.as_user(VICTIM, ["kill", &name]).output().unwrap().status.success());
    assert!(!first.tenant.child.wait().unwrap().success());
    are(&world, &[]);
}

#[test]
fn processes_of_one_job_and_children_of_a_tenant_share_its_tenant() {
    let Some(world) = limiting(LIMIT) else { return };
    let (program, kernels) = common::gpu_program();
    // A launcher that does not use the GPU, with workers that all begin when there is input; one of
    // them in a session of its own.
    let script = "for worker in 1 2 3 4 5 6; do \"$1\" \"$2\" serve < \"$3\" & done; \
                  setsid \"$1\" \"$2\" serve < \"$3\" & \
                  echo ready; wait";
    let (mut job, input) = job(&world, script, program, kernels);
    let group = job.child.id();
    // The name is of the job. The worker that has left it is a program of its own.
    eventually("six workers are one tenant, and the seventh another", || {
        let mut rows = all(&world);
        rows.sort_by_key(|row| row["processes"].as_array().unwrap().len());
        let sizes: Vec<usize> = rows.iter().map(|row| row["processes"].as_array().unwrap().len()).collect();
        sizes == [1, 6] && rows[1]["name"] == format!("gpu-{group}")
    });
    drop(input);
    job.exit_code();
    are(&world, &[]);

    // A child of a tenant's program, without its environment and its group.
    let script = "echo ready; env -i LD_PRELOAD=\"$3\" LD_LIBRARY_PATH=\"$LD_LIBRARY_PATH\" \
                  PARTITA_RUN_DIR=\"$PARTITA_RUN_DIR\" PARTITA_SIM_DIR=\"$PARTITA_SIM_DIR\" \
                  PARTITA_SIM_DEVICE=\"$PARTITA_SIM_DEVICE\" PARTITA_SIMGPU=\"$PARTITA_SIMGPU\" \
                  setsid --wait \"$1\" \"$2\" serve";
    let mut command = world.as_user(VICTIM, "run --name parent --sm 10tpc -- sh -c".split(' '));
    command.arg(script).arg("sh").arg(program).arg(kernels).arg(build().join("libpartita.so"));
    let mut parent = Answering::start(&mut command);
    assert_eq!(parent.tenant.next_line(), "ready");
    assert_eq!(parent.line("alloc 1048576"), "0");
    let now = all(&world);
    assert_eq!((now.len(), &now[0]["name"], &now[0]["origin"]), (1, &"parent".into(), &"request".into()));
    assert_eq!(now[0]["processes"].as_array().unwrap().len(), 1);
    drop(parent.input);
    assert_eq!(parent.tenant.exit_code(), 0);
}

#[test]
fn processes_that_fork_exec_and_start_at_once_have_one_quota() {
    // A holder has the memory of a dead process for a moment longer.
    let policy = format!("{LIMIT}sm = \"25%\"\nmem = \"1GiB\"\n");
    let Some(world) = limiting_with(&policy, "off") else { return };
    for (name, arguments, expected) in [
        // Totals never differ, so there is one tenant, and any of them may have made it.
        ("crowd", &["4"][..], "done 1024\n"),
        ("shared", &[], "every share ok\n"),
        (
            "follow",
            &[],
            "parent 10\nchild 30\nparent beside child 30\nafter exec 40\nparent after child 10\n\
             parent after a fork in use 10\n",
        ),
    ] {
        let program = common::compile(&world, name);
        let mut command = world.bare(&program);
        command.args(arguments).process_group(0).env("LD_PRELOAD", build().join("libpartita.so"));
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(text(&output.stdout), expected, "{name}: {said}");
        assert_eq!(said.lines().count(), 1, "{name}: {said}");
        are(&world, &[]);
    }
}

#[test]
fn partita_run_in_such_a_program_makes_its_own_tenant_and_partitas_programs_are_none() {
    let Some(world) = limiting(LIMIT) else { return };
    let (program, kernels) = common::gpu_program();
    let script = "\"$1\" \"$2\" total; \"$3\" run --name own --sm 10tpc -- \"$1\" \"$2\" serve";
    let mut command = world.bare(Path::new("sh"));
    command.args(["-c", script, "sh"]).arg(program).arg(kernels).arg(common::program());
    command.process_group(0).env("LD_PRELOAD", build().join("libpartita.so"));
    let mut job = Answering::start(&mut command);
    assert!(job.tenant.next_line().starts_with("total "));
    assert_eq!(job.line("alloc 1048576"), "0");
    are(&world, &["own".to_owned()]);
    assert_eq!(all(&world)[0]["origin"], "request");
    drop(job.input);
    assert_eq!(job.tenant.exit_code(), 0);

    // A program of Partita's that uses the GPU: it sees every SM, and no tenant is made.
    let other = idle(&world, ATTACKER, "--name other --sm 50%");
    let mut census = world.bare(common::program());
    census.args(["sim", "census"]).process_group(0).env("LD_PRELOAD", build().join("libpartita.so"));
    let census = census.output().unwrap();
    assert!(census.status.success() && census.stderr.is_empty(), "{census:?}");
    are(&world, &["other".to_owned()]);
    drop(other);
}

#[test]
fn without_room_a_program_is_refused_with_what_to_type() {
    let Some(world) = limiting(LIMIT) else { return };
    let _whole = idle(&world, ATTACKER, "--name whole --sm 100%");
    let output = bare(&world, VICTIM, "total").output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(91), "cuInit: error 101\n"));
    let said = text(&output.stderr);
    let parts = ["partita: the policy of this site limits programs", "whole of ", "partita run"];
    assert!(parts.iter().all(|part| said.contains(part)) && said.lines().count() == 1, "{said}");
    are(&world, &["whole".to_owned()]);
}

#[test]
fn programs_that_the_policy_does_not_limit_run_as_without_partita() {
    let Some(mut world) = limiting("") else { return };
    let policy = |text: &str| fs::write(world.dir().join("policy.toml"), text).unwrap();
    let free = |user| {
        let output = bare(&world, user, "census").output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert_eq!(common::sms(text(&output.stdout).trim()).len(), 132);
    };
    free(VICTIM);
    policy(&format!("{LIMIT}users = [\"{}\"]\n", world.owner()));
    free(VICTIM);
    policy(LIMIT);
    let output = bare(&world, VICTIM, "total").output().unwrap();
    assert!(text(&output.stderr).contains("by the policy of this site"), "{output:?}");
    // Root's services are never limited.
    free(0);

    // A program that hides the GPUs from itself gets none by this.
    let mut hidden = bare(&world, VICTIM, "total");
    hidden.env("CUDA_VISIBLE_DEVICES", "");
    assert_eq!(text(&hidden.output().unwrap().stdout), "cuInit: error 100\n");

    // Without partitad the user learns why there are no limits.
    world.system().kill();
    let output = bare(&world, VICTIM, "census").output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("so this program runs without limits"), "{output:?}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let run_dir = world.run_dir();
    world.system().start_again(&run_dir);
    are(&world, &[]);
}

#[test]
fn a_partitad_that_does_not_answer_delays_no_program_for_long() {
    let Some(mut world) = limiting(LIMIT) else { return };
    world.system().kill();
    let run_dir = world.run_dir();
    let socket = run_dir.join(".system.sock");
    fs::remove_file(&socket).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    for (answer, why) in [
        (Some(""), "partitad closed the connection without an answer"),
        (Some("{\"refused\":{\"reason\":\"of an older one\"}}"), "partitad is of another version"),
        (None, "partitad did not answer within 30 s"),
    ] {
        let mut command = bare(&world, VICTIM, "total");
        let program = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut connection, _) = listener.accept().unwrap();
        let mut request = String::new();
        connection.read_to_string(&mut request).unwrap();
        assert_eq!(request, "{\"do\":\"enter\",\"visible\":null,\"order\":null}");
        let silent = match answer {
            Some(answer) => {
                connection.write_all(answer.as_bytes()).unwrap();
                drop(connection);
                None
            }
            None => Some(connection),
        };
        let output = program.wait_with_output().unwrap();
        drop(silent);
        assert!(output.status.success() && text(&output.stdout).starts_with("total "), "{why}: {output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(why) && said.contains("runs without limits"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    drop(listener);
    fs::remove_file(&socket).unwrap();
    world.system().start_again(&run_dir);
}

#[test]
fn a_program_on_several_gpus_has_limits_on_each_and_keeps_none_of_them_from_others() {
    if machine().is_none() {
        return;
    }
    let world = World::plan().in_memory().on(|dir| {
        let file = dir.join("policy.toml");
        fs::write(&file, format!("{LIMIT}mem = \"1GiB\"\n")).unwrap();
        vec![("PARTITA_POLICY", file.into()), ("PARTITA_SIM_GPUS", "2".into())]
    });
    let both = answering(&world, VICTIM);
    let mut on_second = bare(&world, ATTACKER, "serve");
    let mut on_second = Answering::start(on_second.env("CUDA_VISIBLE_DEVICES", "1"));
    assert_eq!(on_second.line("alloc 1048576"), "0");
    // One who shares a GPU of the first beside it.
    let _other = idle(&world, ATTACKER, "--name other --sm 10tpc --gpu sim:h200");
    let of = |program: &Answering| {
        let name = format!("gpu-{}", program.tenant.child.id());
        let mut found: Vec<(String, String)> = all(&world)
            .iter()
            .filter(|row| row["name"] == *name)
            .map(|row| {
                (row["gpu"].as_str().unwrap().to_owned(), row["isolation"].as_str().unwrap().to_owned())
            })
            .collect();
        found.sort();
        found
    };
    let pair = |gpu: &str, isolation: &str| (gpu.to_owned(), isolation.to_owned());
    assert_eq!(of(&both), [pair("sim:h200", "own"), pair("sim:h200:1", "own")]);
    assert_eq!(of(&on_second), [pair("sim:h200:1", "shared")]);
    drop((both, on_second));
    eventually("both have ended", || names(&world) == ["other"]);

    // Two programs of one job, each on its own GPU, and a third on the second one's.
    let (program, kernels) = common::gpu_program();
    let script = "for gpu in 0 1 1; do CUDA_VISIBLE_DEVICES=$gpu \"$1\" \"$2\" serve < \"$3\" & done; \
                  echo ready; wait";
    let (mut job, input) = job(&world, script, program, kernels);
    let of_job = || {
        let of = |gpu: &str| {
            let rows = all(&world);
            let on = rows.iter().filter(|row| row["gpu"] == gpu && row["origin"] == "policy");
            on.map(|row| row["processes"].as_array().unwrap().len()).collect::<Vec<_>>()
        };
        (of("sim:h200"), of("sim:h200:1"))
    };
    eventually("each GPU has a tenant with its programs", || of_job() == (vec![1], vec![2]));
    drop(input);
    job.exit_code();
    eventually("the job has ended", || names(&world) == ["other"]);
    // The world stops the first GPU's.
    common::succeeds(&mut world.as_root(["mps", "stop", "--gpu", "sim:h200:1"]));
}

/// Runs a shell script with an `/etc` of its own, so that what concerns all programs concerns its
/// own alone.
fn with_own_etc(world: &World, script: &str) -> Command {
    let etc = world.dir().join("etc");
    let mount = format!(
        "cp -a /etc '{0}' && mount --bind '{0}' /etc && rm -f /etc/ld.so.preload && {script}",
        etc.display()
    );
    let mut command = world.as_user(VICTIM, nothing());
    let mut inner = Command::new("unshare");
    inner.args(["--mount", "--propagation", "private", "sh", "-euc", &mount, "sh"]);
    common::with_env_of(&mut inner, &command);
    command = inner;
    command.stdin(Stdio::null());
    command
}

#[test]
fn the_line_in_ld_so_preload_comes_goes_and_takes_programs() {
    let Some(world) = limiting(LIMIT) else { return };
    let can = Command::new("unshare").args(["--mount", "--propagation", "private", "true"]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: needs a mount namespace, for an /etc of its own");
        return;
    }
    // An installation for all users.
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let library = place.path().join("libpartita.so");
    fs::copy(build().join("libpartita.so"), &library).unwrap();
    fs::set_permissions(&library, fs::Permissions::from_mode(0o644)).unwrap();
    let (program, kernels) = common::gpu_program();
    // One that runs as its owner, and takes no tenant's name from the user who starts it.
    let set_uid = place.path().join("gpu");
    let flags = rustix::fs::statvfs(place.path()).unwrap().f_flag;
    let can_set_uid = !flags.contains(rustix::fs::StatVfsMountFlags::NOSUID);
    let script = format!(
        "partita=$1 user=$2 place=$3\n\
         export PARTITA_LIB_DIR=$place\n\
         echo '# kept' > /etc/ld.so.preload\n\
         $partita preload enable > /dev/null\n\
         $partita preload enable | grep -q already\n\
         $partita preload status --json\n\
         cat /etc/ld.so.preload\n\
         as() {{ setpriv --reuid $user --regid $user --clear-groups \"$@\"; }}\n\
         eval \"$(PARTITA_LIB_DIR={build} as $partita sim env)\"\n\
         as setsid --wait {program} {kernels} total\n\
         echo \"${{LD_LIBRARY_PATH%%:*}}\" > /etc/ld.so.conf.d/simulated.conf\n\
         ldconfig\n\
         cp {program} {set_uid}; chown $user:$user {set_uid}; chmod 4755 {set_uid}\n\
         if {can_set_uid}; then\n\
         user={ATTACKER} as env PARTITA_LEDGER=/nowhere setsid --wait {set_uid} {kernels} total\n\
         fi\n\
         $partita preload disable > /dev/null\n\
         $partita preload disable | grep -q 'does not name'\n\
         cat /etc/ld.so.preload\n\
         as setsid --wait {program} {kernels} total\n\
         chmod g+w $place/libpartita.so\n\
         ! $partita preload enable\n\
         ! as $partita preload enable",
        build = build().display(),
        program = program.display(),
        kernels = kernels.display(),
        set_uid = set_uid.display(),
    );
    let mut command = with_own_etc(&world, &script);
    command.arg(common::program()).arg(VICTIM.to_string()).arg(place.path());
    let output = command.output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    let mut lines = stdout.lines();
    let json: Value = serde_json::Deserializer::from_str(&stdout).into_iter().next().unwrap().unwrap();
    assert_eq!((&json["enabled"], &json["programs"]), (&true.into(), &"limit".into()));
    assert_eq!(json["library"], library.to_str().unwrap());
    assert_eq!(lines.find(|line| line.starts_with('#')), Some("# kept"));
    assert_eq!(lines.next(), library.to_str());
    assert!(lines.next().unwrap().starts_with("total "), "{stdout}");
    if can_set_uid {
        assert!(lines.next().unwrap().starts_with("total "), "{stdout}");
    }
    assert_eq!(lines.next(), Some("# kept"));
    assert!(lines.next().unwrap().starts_with("total ") && lines.next().is_none(), "{stdout}");
    // Of these programs the first alone was a tenant.
    assert_eq!(stderr.matches("by the policy of this site").count(), 1, "{stderr}");
    assert!(stderr.contains("libpartita.so: others than root can write it"), "{stderr}");
    assert!(stderr.contains("only root changes it"), "{stderr}");
    assert!(!stderr.contains("cannot be preloaded"), "{stderr}");
    assert!(
        refusal_by(
            125,
            world.as_user(VICTIM, ["preload", "disable"]).arg("--file").arg(world.dir().join("x"))
        )
        .contains("sudo")
    );
}
