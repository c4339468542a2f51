//! Jobs of batch systems in system mode: root's scripts, the tenants of the jobs' users, one MPS
//! service for all of them.

use std::path::PathBuf;
use std::time::Duration;

use partita_testing::{ATTACKER, VICTIM};
use rustix::process::Signal;

use crate::batch_jobs::{self, Ended, Job};
use crate::common::{self, Tenant, World, text};
use crate::slurm_cluster::{Cluster, missing};
use crate::{dir_of, idle, machine};

/// A job of another user than the commands of the world.
fn job_of<'a>(world: &'a World, user: u32, id: u32, comment: &str) -> Job<'a> {
    Job { user, ..Job::new(world, id, comment) }
}

/// Asserts that no record of a job is left, and no tenant.
fn assert_no_job(world: &World) {
    let files = batch_jobs::state_files(world);
    assert!(files.is_empty(), "left behind: {files:?}");
    assert!(world.ps_of_root().is_empty(), "{:?}", world.ps_of_root());
}

#[test]
fn a_job_is_its_users_tenant_beside_those_of_others() {
    let Some(world) = machine() else { return };
    let job = Job::new(&world, 1, "partita:sm=50%,mem=64MiB");
    let up = job.prolog().ok().has("tenant_up");
    assert!(up.step("service_up").unwrap()["daemon"].is_u64(), "{up:?}");
    // Slurm may call it again.
    job.prolog().ok().has("tenant_up");
    let row = world.row(&job.name());
    assert_eq!((&row["sms"], &row["memory_quota_bytes"]), (&66.into(), &(64 << 20).into()));
    let census = job.gpu("census").output().unwrap();
    assert_eq!(common::sms(text(&census.stdout).trim()).len(), 66, "{census:?}");
    let limits = dir_of(&world, VICTIM, &job.name()).join("limits");
    assert!(!crate::can_open(VICTIM, &limits, ">"), "the limits are root's");

    // Another user's tenant and job run at the same time.
    let mut program = Tenant::start(&mut job.gpu("loop"));
    program.next_line();
    let mut other = world.as_user(ATTACKER, "run --name other --sm 25% --".split(' '));
    let (gpu, kernels) = common::gpu_program();
    let mut other = Tenant::start(other.arg(gpu).arg(kernels).arg("loop"));
    other.next_line();
    let theirs = job_of(&world, ATTACKER, 2, "partita:sm=10%");
    theirs.prolog().ok().has("tenant_up");
    assert!(theirs.prolog().ok().step("tenant_up").is_some());

    // The user changes the job's tenant, and nobody else does.
    world.ok(&format!("set {} --sm 20%", job.name()));
    assert_eq!(world.row(&job.name())["sms"], 26);
    let said = common::refusal(&mut world.as_user(ATTACKER, ["kill", &job.name()]));
    assert!(said.contains("belongs to "), "{said}");

    let down = job.epilog().ok().has("tenant_ended").has("service_of_machine");
    let terminated = down.step("clients_terminated").unwrap()["pids"].as_array().unwrap();
    assert_eq!(terminated, &[serde_json::Value::from(program.child.id())], "{down:?}");
    program.child.wait().unwrap();
    for _ in 0..10 {
        other.next_line();
    }
    drop(other);
    theirs.epilog().ok().has("tenant_ended");
    job.epilog().ok().has("nothing_to_undo");
    assert_no_job(&world);
}

#[test]
fn jobs_of_two_users_have_one_service() {
    let Some(world) = machine() else { return };
    let (job, other) = (Job::new(&world, 1, "partita:mps"), Job::new(&world, 2, "partita:mps"));
    let daemon = |ended: &Ended| ended.step("service_up").unwrap()["daemon"].clone();
    let up = job.prolog().ok();
    assert_eq!(up.step("service_up").unwrap()["started"], true);
    let theirs = job_of(&world, ATTACKER, 3, "partita:mps").prolog().ok();
    assert_eq!(daemon(&theirs), daemon(&up));
    other.prolog().ok();

    let mut programs = [&job, &other].map(|job| Tenant::start(&mut job.gpu("loop")));
    programs.iter_mut().for_each(|program| drop(program.next_line()));
    // A part of the job that the user makes.
    let (gpu, kernels) = common::gpu_program();
    let mut inside = job.task(common::program());
    inside.args(["run", "--name", "part", "--sm", "50%", "--"]).arg(gpu).arg(kernels).arg("census");
    let output = inside.env("PARTITA_CACHE_DIR", world.cache()).output().unwrap();
    assert_eq!(common::sms(text(&output.stdout).trim()).len(), 66, "{output:?}");

    // An epilog ends the work of its own job alone, also of one that does not react.
    programs[0].signal(Signal::STOP);
    let down = job.epilog().ok().has("service_of_machine");
    let terminated = down.step("clients_terminated").unwrap()["pids"].as_array().unwrap();
    assert_eq!(terminated, &[serde_json::Value::from(programs[0].child.id())], "{down:?}");
    programs[0].child.wait().unwrap();
    for _ in 0..10 {
        programs[1].next_line();
    }
    other.epilog().ok();
    programs[1].child.wait().unwrap();
    job_of(&world, ATTACKER, 3, "partita:mps").epilog().ok();
    assert!(world.ok("mps status").contains(": runs (daemon "), "the service is the machine's");
    assert_no_job(&world);
}

#[test]
fn a_task_ends_its_work_through_the_service_of_the_machine() {
    let Some(world) = machine() else { return };
    let job = Job::new(&world, 1, "partita:sm=50%");
    job.prolog().ok();
    let task =
        |rank: &str| Tenant::start(job.gpu("loop").env("SLURM_STEP_ID", "0").env("SLURM_PROCID", rank));
    let mut tasks = [task("0"), task("1")];
    tasks.iter_mut().for_each(|task| drop(task.next_line()));
    let mut command = world.partita(["batch", "task-epilog"]);
    command.env("PARTITA_BATCH_DIR", batch_jobs::state_dir(&world)).env("SLURM_JOB_ID", &job.id);
    let output = command.env("SLURM_STEP_ID", "0").env("SLURM_PROCID", "0").output().unwrap();
    let said =
        format!("partita: ended work that the job had left on the GPU (processes {})\n", tasks[0].child.id());
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), said), "{output:?}");
    // Its next call fails, and it ends.
    while tasks[0].line().is_some() {}
    for _ in 0..10 {
        tasks[1].next_line();
    }
    job.epilog().ok().has("tenant_ended");
    assert_no_job(&world);
}

#[test]
fn a_name_that_another_user_has_refuses_the_job_and_ends_nothing() {
    let Some(world) = machine() else { return };
    let job = Job::new(&world, 1, "partita:sm=50%");
    let squatter = idle(&world, ATTACKER, &format!("--name {} --sm 10%", job.name()));
    let refused = job.prolog().has("job_refused");
    // The node is sound: Slurm must not drain it.
    assert_eq!((refused.code, &refused.report["drain"]), (0, &false.into()), "{refused:?}");
    assert!(refused.said.contains("--name"), "{refused:?}");
    assert!(text(&job.task_prolog().stdout).contains(&job.name()));
    job.epilog().ok().has("nothing_to_undo");
    assert_eq!(world.ps_of_root().len(), 1);
    drop(squatter);
    job.prolog().ok().has("tenant_up");
    job.epilog().ok().has("tenant_ended");
    assert_no_job(&world);
}

#[test]
fn what_the_machine_has_no_room_for_is_the_jobs_mistake() {
    let Some(world) = machine() else { return };
    let _other = idle(&world, ATTACKER, "--name other --sm 60%");
    for (comment, words) in [("partita:sm=50%", "other"), ("partita:mem=1000GiB", "1000GiB")] {
        let job = Job::new(&world, 1, comment);
        let refused = job.prolog().has("job_refused");
        assert_eq!((refused.code, &refused.report["drain"]), (0, &false.into()), "{refused:?}");
        assert!(refused.said.contains(words), "{refused:?}");
        job.epilog().ok().has("nothing_to_undo");
    }
    assert_eq!(world.ps_of_root().len(), 1);
}

#[test]
fn without_partitad_no_tenant_begins_and_each_ends() {
    let Some(mut world) = machine() else { return };
    let run_dir = world.run_dir();
    let (name, id) = {
        let job = Job::new(&world, 1, "partita:sm=50%");
        job.prolog().ok();
        (job.name(), job.id.clone())
    };
    world.system().kill();
    let next = Job::new(&world, 2, "partita:sm=25%");
    let ended = next.prolog();
    assert_eq!((ended.code, &ended.report["drain"]), (1, &true.into()), "{ended:?}");
    assert!(ended.said.contains("partitad --system"), "{ended:?}");
    next.epilog().ok().has("nothing_to_undo");
    let job = Job { id, ..Job::new(&world, 1, "partita:sm=50%") };
    let down = job.epilog().ok();
    assert_eq!(down.step("tenant_ended").unwrap()["tenant"], name.as_str());
    world.system().start_again(&run_dir);
    assert_no_job(&world);
}

/// The epilog cleans up behind a prolog that was killed after any time, whatever it had begun.
#[test]
fn a_killed_prolog_leaves_nothing_after_the_epilog() {
    let Some(world) = machine() else { return };
    let _other = idle(&world, ATTACKER, "--name other --sm 25%");
    for step in 0..12 {
        let comment = if step % 3 == 0 { "partita:mps" } else { "partita:sm=50%" };
        let job = Job::new(&world, 1 + step, comment);
        let mut prolog = job.script("prolog", "");
        let mut child = prolog.stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(u64::from(15 * step)));
        child.kill().unwrap();
        child.wait().unwrap();
        job.epilog().ok();
        assert!(batch_jobs::state_files(&world).is_empty());
        // Of the killed prolog's tenant nothing comes later, either.
        let names: Vec<_> = world.ps_of_root().iter().map(|row| row["name"].clone()).collect();
        assert_eq!(names, ["other"], "after {} ms", 15 * step);
    }
}

/// A job that began in user mode is undone there, although the machine is in system mode by now.
#[test]
fn a_job_ends_in_the_mode_in_which_it_began() {
    let Some(world) = machine() else { return };
    let old = PathBuf::from(format!("/dev/shm/partita-test-{}", batch_jobs::number_of(&world)));
    let job = Job::new(&world, 1, "partita:sm=50%");
    let output = job.script("prolog", "").env("PARTITA_RUN_DIR", &old).output().unwrap();
    assert_eq!(Ended::of(&output).ok().step("service_up").unwrap()["started"], true);
    let other = idle(&world, ATTACKER, "--name other --sm 25%");
    let down = job.epilog().ok().has("service_stopped");
    assert_eq!(down.step("tenant_ended").unwrap()["tenant"], job.name().as_str());
    assert!(world.ok("mps status").contains(": runs (daemon "), "the machine's service runs on");
    drop(other);
    std::fs::remove_dir_all(&old).unwrap();
    assert_no_job(&world);
}

/// Two users' jobs of a real Slurm on one GPU, at the same time, each with the part that Slurm gave
/// it.
#[test]
fn jobs_of_two_users_of_a_real_slurm_run_at_the_same_time() {
    let Some(world) = machine() else { return };
    // Slurm needs users with a name.
    let known = std::process::Command::new("id").args(["-un", &ATTACKER.to_string()]).output().unwrap();
    let reason =
        missing().or_else(|| (!known.status.success()).then(|| format!("user {ATTACKER} has no name")));
    if let Some(reason) = reason {
        eprintln!("skipped: {reason}");
        return;
    }
    let cluster = Cluster::start(&world);
    let place = world.root().join(ATTACKER.to_string());
    let (program, kernels) = common::gpu_program();
    let script = |own: &str, other: &str| {
        let (program, kernels, at) = (program.display(), kernels.display(), place.display());
        // The census runs while both are there.
        format!(
            "umask 0; touch {at}/{own}; while [ ! -e {at}/{other} ]; do sleep 0.02; done\n\
             {program} {kernels} census\n\
             touch {at}/{own}.done; while [ ! -e {at}/{other}.done ]; do sleep 0.02; done"
        )
    };
    let at = |name: &str| format!("--output={}/{name}.out", place.display());
    let submit = |own: &str, other: &str, share: &str, uid: &str| {
        let chdir = format!("--chdir={}", place.display());
        let options = [share, &at(own), &format!("--error={}/{own}.err", place.display()), &chdir, uid];
        cluster.submit(&options, &script(own, other))
    };
    let first = submit("first", "second", "--gres=mps:50", "--uid=0");
    let second = submit("second", "first", "--gres=mps:25", &format!("--uid={ATTACKER}"));
    for job in [&first, &second] {
        assert_eq!(cluster.finish(job), "COMPLETED", "{}", cluster.logs());
    }
    for (own, sms) in [("first", 66), ("second", 32)] {
        let output = std::fs::read_to_string(place.join(format!("{own}.out"))).unwrap();
        assert_eq!(common::sms(output.trim()).len(), sms, "{own}: {output}");
    }
    drop(cluster);
    assert_no_job(&world);
}
