//! Jobs of a batch system on a node: prolog and epilog of single jobs and of jobs that share.

use crate::batch_jobs;
use crate::common;

use std::process::{Command, Stdio};

use batch_jobs::{Ended, Job, assert_clean, daemons, state_dir, state_files};
use common::{Tenant, World, text};

#[test]
fn a_job_that_asks_for_nothing_costs_nothing() {
    let world = World::plan().own().start();
    let job = Job::new(&world, 1, "a comment");
    job.prolog().ok().has("nothing_asked");
    job.epilog().ok().has("nothing_to_undo");
    assert!(!state_dir(&world).exists());
    let output = job.task_prolog();
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    // Unless the node has a default request.
    job.run("prolog", "--default mps").ok().has("service_up");
    Job::new(&world, 2, "partita:off").run("prolog", "--default mps").ok().has("nothing_asked");
    job.epilog().ok().has("service_stopped");
    assert_clean(&world);
}

#[test]
fn a_jobs_programs_are_clients_of_its_service() {
    let world = World::plan().own().start();
    let job = Job::new(&world, 1, "partita:mps");
    let up = job.prolog().ok();
    assert_eq!(up.step("service_up").unwrap()["started"], true);
    // Slurm may call it again.
    let again = job.prolog().ok();
    let (first, second) = (up.step("service_up").unwrap(), again.step("service_up").unwrap());
    assert_eq!((&second["daemon"], &second["started"]), (&first["daemon"], &false.into()));

    let mut program = Tenant::start(&mut job.gpu("loop"));
    assert_eq!(common::sms(&program.next_line()).len(), 132);
    assert!(world.ok("mps status").contains(&format!("client {} ", program.child.id())));
    // The same for programs that it runs in its own partitions.
    let (gpu, kernels) = common::gpu_program();
    let mut inside = job.task(common::program());
    inside.args(["run", "--name", "part", "--sm", "50%", "--"]).arg(gpu).arg(kernels).arg("census");
    let output = inside.env("PARTITA_CACHE_DIR", world.cache()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(common::sms(text(&output.stdout).trim()).len(), 66, "{output:?}");
    drop(program);

    let down = job.epilog().ok();
    assert_eq!(down.step("service_stopped").unwrap()["ran"], true);
    job.epilog().ok().has("nothing_to_undo");
    assert_clean(&world);
}

#[test]
fn a_whole_job_can_be_a_tenant() {
    let world = World::plan().own().start();
    let job = Job::new(&world, 7, "partita:sm=50%,mem=40GiB");
    job.prolog().ok().has("service_up").has("tenant_up");
    job.prolog().ok().has("tenant_up");
    let row = world.row(&job.name());
    assert_eq!((&row["sms"], &row["memory_quota_bytes"]), (&66.into(), &(40u64 << 30).into()));
    let census = job.gpu("census").output().unwrap();
    assert_eq!(common::sms(text(&census.stdout).trim()).len(), 66, "{census:?}");
    let total = job.gpu("total").output().unwrap();
    assert_eq!(text(&total.stdout), format!("total {}\n", 40u64 << 30));
    // Slurm's own share of the GPU is removed: it changes the SM count that libraries see.
    let mut beside = Job::new(&world, 8, "");
    beside.variables.push(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(), "30".to_owned()));
    beside.prolog().ok().has("tenant_up");
    assert_eq!(world.row(&beside.name())["sms"], 38, "19 of 66 TPCs");
    let mut task_prolog = world.partita(["batch", "task-prolog"]);
    task_prolog.env("SLURM_JOB_ID", &beside.id).env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30");
    let output = task_prolog.env("PARTITA_BATCH_DIR", state_dir(&world)).output().unwrap();
    assert!(text(&output.stdout).contains("unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\n"), "{output:?}");

    let down = job.epilog().ok();
    assert_eq!(down.step("tenant_ended").unwrap()["tenant"], job.name().as_str());
    assert_eq!(down.step("service_kept").unwrap()["jobs"][0]["id"], beside.id.as_str());
    beside.epilog().ok().has("service_stopped");
    assert_clean(&world);
}

#[test]
fn a_tenant_of_its_own_needs_no_service() {
    let world = World::plan().own().start();
    let job = Job::new(&world, 1, "partita:sm=8tpc,isolation=own");
    let up = job.prolog().ok().has("tenant_up");
    assert!(up.step("service_up").is_none() && daemons(&world).is_empty());
    let census = job.gpu("census").output().unwrap();
    assert_eq!(common::sms(text(&census.stdout).trim()).len(), 16, "{census:?}");
    job.epilog().ok().has("tenant_ended");
    assert_clean(&world);
}

#[test]
fn what_a_job_leaves_is_ended_and_neighbours_are_not_hurt() {
    let world = World::plan().own().start();
    let (job, neighbour) = (Job::new(&world, 1, "partita:mps"), Job::new(&world, 2, "partita:mps"));
    job.prolog().ok();
    neighbour.prolog().ok();
    let mut theirs = Tenant::start(&mut neighbour.gpu("loop"));
    theirs.next_line();
    // One that hides in a new session, and one that does not react.
    let mut hidden = Tenant::start(&mut world.through_shell(&job.gpu("loop"), "exec setsid -w \"$@\""));
    let mut stopped = Tenant::start(&mut job.gpu("loop"));
    for tenant in [&mut hidden, &mut stopped] {
        tenant.next_line();
    }
    stopped.signal(rustix::process::Signal::STOP);
    let down = job.epilog().ok().has("service_kept");
    let terminated = down.step("clients_terminated").unwrap()["pids"].as_array().unwrap();
    assert!(terminated.contains(&stopped.child.id().into()), "{down:?}");
    assert_eq!(terminated.len(), 2, "{down:?}");
    for tenant in [&mut hidden, &mut stopped] {
        tenant.child.wait().unwrap();
    }
    for _ in 0..20 {
        assert_eq!(common::sms(&theirs.next_line()).len(), 132);
    }
    drop(theirs);
    neighbour.epilog().ok().has("service_stopped");
    assert_clean(&world);
}

#[test]
fn what_a_task_leaves_on_the_gpu_is_ended_before_it_is_killed() {
    let world = World::plan().own().start();
    let (job, neighbour) = (Job::new(&world, 1, "partita:sm=50%"), Job::new(&world, 2, "partita:mps"));
    job.prolog().ok();
    neighbour.prolog().ok();
    let mut theirs = Tenant::start(&mut neighbour.gpu("loop"));
    let task =
        |rank: &str| Tenant::start(job.gpu("loop").env("SLURM_STEP_ID", "0").env("SLURM_PROCID", rank));
    let mut tasks = [task("0"), task("1")];
    for tenant in tasks.iter_mut().chain([&mut theirs]) {
        tenant.next_line();
    }
    let task_epilog = |rank: &str| {
        let mut command = world.partita(["batch", "task-epilog"]);
        command.env("PARTITA_BATCH_DIR", state_dir(&world)).env("SLURM_JOB_ID", &job.id);
        command.env("SLURM_STEP_ID", "0").env("SLURM_PROCID", rank).output().unwrap()
    };
    let [first, second] = &mut tasks;
    let output = task_epilog("0");
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains(&first.child.id().to_string()), "{output:?}");
    assert!(!said.contains(&second.child.id().to_string()), "{said}");
    // An error of CUDA ended it, not a signal.
    assert_eq!(first.exit_code(), 91);
    for tenant in [second, &mut theirs] {
        for _ in 0..10 {
            tenant.next_line();
        }
    }
    drop(tasks);
    let output = task_epilog("0");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    drop(theirs);
    job.epilog().ok().has("tenant_ended");
    neighbour.epilog().ok().has("service_stopped");
    assert_clean(&world);
}

#[test]
fn jobs_that_come_and_go_at_once_share_one_daemon() {
    let world = World::plan().own().start();
    let daemons_seen = std::sync::Mutex::new(std::collections::BTreeSet::new());
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for id in 1..=8 {
            let (world, daemons_seen, barrier) = (&world, &daemons_seen, &barrier);
            scope.spawn(move || {
                let asked = if id % 2 == 0 { "partita:mps" } else { "partita:sm=10%" };
                let job = Job::new(world, id, asked);
                barrier.wait();
                let up = job.prolog().ok();
                let daemon = up.step("service_up").unwrap()["daemon"].as_u64().unwrap();
                daemons_seen.lock().unwrap().insert(daemon);
                // All are present before the first leaves.
                barrier.wait();
                assert!(job.gpu("total").output().unwrap().status.success());
                job.epilog().ok();
            });
        }
    });
    assert_eq!(daemons_seen.into_inner().unwrap().len(), 1);
    assert_clean(&world);
    // Now without waiting for each other: starts and stops coincide.
    std::thread::scope(|scope| {
        for id in 1..=6 {
            let world = &world;
            scope.spawn(move || {
                for round in 0..3 {
                    let job = Job::new(world, id * 10 + round, "partita:mps");
                    job.prolog().ok().has("service_up");
                    assert!(job.gpu("total").output().unwrap().status.success());
                    job.epilog().ok();
                }
            });
        }
    });
    assert_clean(&world);
}

#[test]
fn a_dry_run_changes_nothing() {
    let world = World::plan().own().start();
    let job = Job::new(&world, 1, "partita:sm=50%");
    let would = job.run("prolog", "--dry-run").ok().has("service_up").has("tenant_up");
    assert_eq!((&would.report["dry_run"], &would.report["exit_code"]), (&true.into(), &0.into()));
    assert!(!state_dir(&world).exists() && daemons(&world).is_empty());
    // It says what the real run would say.
    let much = Job::new(&world, 2, "partita:mem=1000GiB").run("prolog", "--dry-run").has("job_refused");
    assert!(much.code == 0 && much.said.contains("1000GiB"), "{much:?}");
    let mut missing = Job::new(&world, 3, "partita:mps");
    missing.variables.push(("SLURM_JOB_GPUS".to_owned(), "9".to_owned()));
    let missing = missing.run("prolog", "--dry-run");
    assert!(missing.code == 1 && missing.said.contains("there is no GPU"), "{missing:?}");
    job.prolog().ok();
    let files = state_files(&world);
    job.run("epilog", "--dry-run").ok().has("tenant_ended").has("service_stopped");
    assert_eq!(state_files(&world), files);
    assert_eq!(world.row(&job.name())["sms"], 66);
    job.epilog().ok();
    assert_clean(&world);
}

#[test]
fn torque_tells_its_jobs_in_arguments() {
    if common::needs_user_mode("Torque knows users by their names, and the user here has none") {
        return;
    }
    let world = World::plan().own().start();
    let user = user_name();
    let dir = world.dir();
    let number = batch_jobs::number_of(&world).to_string();
    partita_testing::executable(
        &dir.join("pbsnodes"),
        format!("#!/bin/sh\nprintf '%s|' \"$@\" >> {}/pbsnodes.log\n", dir.display()).as_bytes(),
    );
    let script = |script: &str, arguments: &str| {
        let arguments = arguments.replace("USER", &user).replace("JOB", &number);
        let mut command = world.partita(["batch", script, "--json", "--grace", "1", "--system", "pbs", "--"]);
        command.args(arguments.split('|')).env("PARTITA_BATCH_DIR", state_dir(&world));
        let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
        Ended::of(&command.env("PATH", path).output().unwrap())
    };
    // As in NVIDIA's guide.
    script("prolog", "JOB12.head|USER|users|job|nodes=1:gpus=1|batch|MPS=true").ok().has("service_up");
    let (program, kernels) = common::gpu_program();
    let environment = state_dir(&world).join(format!("env/pbs-{number}12.head.sh"));
    let line =
        format!(". {} && exec {} {} census", environment.display(), program.display(), kernels.display());
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert_eq!(common::sms(text(&output.stdout).trim()).len(), 132, "{output:?}");
    let mut task_prolog = world.partita(["batch", "task-prolog", "--format", "sh"]);
    task_prolog.env("PBS_JOBID", format!("{number}12.head")).env("PARTITA_BATCH_DIR", state_dir(&world));
    assert!(text(&task_prolog.output().unwrap().stdout).contains("export CUDA_VISIBLE_DEVICES='GPU-"));
    let epilogue = "JOB12.head|USER|users|job|999|nodes=1:gpus=1|cput=1|batch|MPS=true";
    script("epilog", epilogue).ok().has("service_stopped");
    script("epilog", epilogue).ok().has("nothing_to_undo");
    // A mistake of the job aborts it; one of the node queues it again and drains the node.
    let wrong = script("prolog", "JOB13.head|USER|users|job|nodes=1,partita=sm=0%|batch|");
    assert_eq!(wrong.code, 1, "{wrong:?}");
    assert!(!dir.join("pbsnodes.log").exists());
    script("epilog", "JOB13.head|USER|users|job|999|nodes=1,partita=sm=0%|cput=1|batch|").ok();
    std::fs::remove_dir_all(state_dir(&world)).unwrap();
    std::fs::write(state_dir(&world), "").unwrap();
    let broken = script("prolog", "JOB14.head|USER|users|job|nodes=1|batch|MPS=true");
    assert_eq!(broken.code, 2, "{broken:?}");
    assert!(broken.step("node_drained").is_some(), "{broken:?}");
    let log = std::fs::read_to_string(dir.join("pbsnodes.log")).unwrap();
    assert!(
        log.starts_with(&format!("-o|-N|partita: job pbs-{number}14.head: the directory of job records")),
        "{log}"
    );
    std::fs::remove_file(state_dir(&world)).unwrap();
    assert_clean(&world);
}

fn user_name() -> String {
    let output = Command::new("id").arg("-un").output().unwrap();
    text(&output.stdout).trim().to_owned()
}

#[test]
fn root_starts_the_service_of_the_jobs_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be two users");
        return;
    }
    if common::is_real() {
        eprintln!("skipped: a real GPU's calibration is kept in a directory of the caller's");
        return;
    }
    if common::needs_user_mode(common::OF_ROOT_FOR_USERS) {
        return;
    }
    const NOBODY: u32 = 65534;
    let world = World::plan().own().start();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(world.dir(), PermissionsExt::from_mode(0o777)).unwrap();
    let reachable = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(common::program())
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    if !reachable.success() {
        eprintln!("skipped: nobody cannot run {}", common::program().display());
        return;
    }
    let mut job = Job::new(&world, 1, "partita:mps");
    job.user = NOBODY;
    // Each user's simulated board is in a directory of its own.
    let script = |script: &str| {
        let mut command = job.script(script, "");
        command.env("TMPDIR", world.dir()).env_remove("PARTITA_SIM_DIR").env_remove("PARTITA_CACHE_DIR");
        Ended::of(&command.output().unwrap())
    };
    let up = script("prolog").ok();
    let daemon = up.step("service_up").unwrap()["daemon"].as_u64().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{daemon}/status")).unwrap();
    let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_owned();
    assert_eq!(of("Uid:").split_whitespace().collect::<Vec<_>>(), ["65534"; 4]);
    assert_eq!(of("Groups:"), "");
    script("epilog").ok().has("service_stopped");
    assert_clean(&world);
}
