//! Jobs of a real Slurm on one machine, from `sbatch` through prolog, program and epilog.
//!
//! Skipped, with a message, if the distribution's packages of Slurm are not installed or the user
//! is not root.

use crate::batch_jobs;
use crate::common;
use crate::slurm_cluster;

use batch_jobs::{assert_clean, daemons, state_dir};
use common::{World, gpu_program};
use slurm_cluster::{Cluster, missing};

/// The test program's output about the SMs that it ran on.
fn census(output: &str) -> Vec<u32> {
    let line = output.lines().find(|line| line.starts_with("sms ")).unwrap_or_else(|| panic!("{output}"));
    common::sms(line)
}

/// Whether no cluster can run here; says why.
fn is_skipped() -> bool {
    if let Some(reason) = missing() {
        eprintln!("skipped: {reason}");
        return true;
    }
    common::needs_user_mode(common::OF_ROOT_FOR_USERS)
}

#[test]
fn jobs_of_a_real_slurm() {
    if is_skipped() {
        return;
    }
    let world = World::new();
    let cluster = Cluster::start(&world);
    let (program, kernels) = gpu_program();
    let gpu = |what: &str| format!("{} {} {what}", program.display(), kernels.display());

    a_job_that_asks_for_nothing(&cluster, &world);
    a_job_with_a_service(&cluster, &world, &gpu("census"));
    parts_of_one_gpu(&cluster, &world, &gpu("census"));
    a_job_that_cannot_be(&cluster, &world, &gpu("census"));
    a_job_that_leaves_a_program(&cluster, &world, &gpu("loop"));
    a_cancelled_job(&cluster, &world, &gpu("loop"));
    a_node_that_is_not_fit(&cluster, &world);
    drop(cluster);
    assert_clean(&world);
}

#[test]
fn the_option_partita_of_a_real_slurm() {
    if is_skipped() {
        return;
    }
    let world = World::new();
    let cluster = Cluster::with_plugin(&world);
    assert!(cluster.ask("srun", &["--help"]).contains("--partita=REQUEST"), "{}", cluster.logs());
    let (program, kernels) = gpu_program();
    let census_program = format!("{} {} census", program.display(), kernels.display());

    // A mistake is refused before there is a job.
    for (request, about) in [("sm=150%", "above 100%"), ("colour=red", "sm=SHARE"), ("", "not understood")] {
        let output = cluster.try_submit(&["--gres=gpu:1", &format!("--partita={request}")], "true");
        let said = common::text(&output.stderr);
        assert!(!output.status.success() && said.contains(about), "{request}: {said}");
    }
    // The script, its steps, and a step that asks again.
    let script = format!(
        "{census_program}\nsrun {census_program}\nsrun --partita=sm=10% true || echo refused\n\
         env | grep -c '^PARTITA_LEDGER='"
    );
    let job = cluster.submit(&["--gres=gpu:1", "--partita=sm=50%,mem=40GiB"], &script);
    assert_eq!(cluster.finish(&job), "COMPLETED", "{}\n{}", cluster.output(&job), cluster.logs());
    let output = cluster.output(&job);
    let seen: Vec<&str> = output.lines().filter(|line| line.starts_with("sms ")).collect();
    assert_eq!(seen.len(), 2, "{output}");
    assert!(seen.iter().all(|line| common::sms(line).len() == 66), "{output}");
    assert!(output.contains("refused") && output.contains(&format!("partita set slurm-{job}")), "{output}");
    assert_clean(&world);

    // Each task of an array is a job of its own.
    let array = cluster.submit(&["--gres=gpu:1", "--partita=sm=30%", "--array=0-1%1"], &census_program);
    cluster.wait("the array is over", |cluster| {
        cluster.ask("squeue", &["--noheader", "--job", &array]).trim().is_empty()
            && cluster.node_state() == "IDLE"
    });
    let logs = cluster.logs();
    let seen: Vec<&str> = logs.lines().filter(|line| line.starts_with("sms ")).collect();
    assert_eq!(seen.iter().filter(|line| common::sms(line).len() == 38).count(), 2, "{logs}");

    // A comment beside the option asks twice, and the task says so.
    let both = ["--gres=gpu:1", "--partita=sm=50%", "--comment=partita:sm=20%"];
    let job = cluster.submit(&both, &census_program);
    assert_eq!(cluster.finish(&job), "FAILED");
    assert!(cluster.logs().contains("asks more than once"), "{}", cluster.logs());
    drop(cluster);
    assert_clean(&world);
}

fn a_job_that_asks_for_nothing(cluster: &Cluster<'_>, world: &World) {
    let job = cluster.submit(&["--gres=gpu:1"], "echo pipe=$CUDA_MPS_PIPE_DIRECTORY");
    assert_eq!(cluster.finish(&job), "COMPLETED");
    assert_eq!(cluster.output(&job), "pipe=\n");
    assert!(!state_dir(world).exists());
}

fn a_job_with_a_service(cluster: &Cluster<'_>, world: &World, census_program: &str) {
    let script = format!(
        "{census_program}\necho pipe=$CUDA_MPS_PIPE_DIRECTORY gpu=$CUDA_VISIBLE_DEVICES\nsrun {census_program}"
    );
    for options in [["--gres=gpu:1", "--comment=partita:mps"], ["--gres=gpu:1", "--constraint=partita_mps"]] {
        let job = cluster.submit(&options, &script);
        assert_eq!(cluster.finish(&job), "COMPLETED", "{}", cluster.output(&job));
        let output = cluster.output(&job);
        assert_eq!(census(&output).len(), 132, "{output}");
        assert_eq!(output.lines().filter(|line| line.starts_with("sms ")).count(), 2, "{output}");
        assert!(output.contains("/.mps-0/pipe gpu=GPU-"), "{output}");
        assert_clean(world);
    }
}

/// Two jobs on one GPU at the same time, each with the part that Slurm gave it.
fn parts_of_one_gpu(cluster: &Cluster<'_>, world: &World, census_program: &str) {
    let meet = |own: &str, other: &str| {
        let dir = world.dir().display();
        // The census runs while both are present.
        format!(
            "touch {dir}/{own}; while [ ! -e {dir}/{other} ]; do sleep 0.02; done\n{census_program}\n\
             echo percent=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\ntouch {dir}/{own}.done; while [ ! -e {dir}/{other}.done ]; do sleep 0.02; done"
        )
    };
    let one = cluster.submit(&["--gres=mps:30"], &meet("one", "two"));
    let two = cluster.submit(&["--gres=mps:50", "--comment=partita:mem=40GiB"], &meet("two", "one"));
    assert_eq!(cluster.finish(&one), "COMPLETED", "{}", cluster.output(&one));
    assert_eq!(cluster.finish(&two), "COMPLETED", "{}", cluster.output(&two));
    let (of_one, of_two) = (census(&cluster.output(&one)), census(&cluster.output(&two)));
    // 19 and 33 of 66 TPCs.
    assert_eq!((of_one.len(), of_two.len()), (38, 66), "{of_one:?} {of_two:?}");
    assert!(of_one.iter().all(|sm| !of_two.contains(sm)), "{of_one:?} {of_two:?}");
    for job in [one, two] {
        assert!(cluster.output(&job).contains("percent=\n"), "{}", cluster.output(&job));
    }
    assert_clean(world);
}

fn a_job_that_cannot_be(cluster: &Cluster<'_>, world: &World, census_program: &str) {
    let job = cluster.submit(&["--gres=gpu:1", "--comment=partita:sm=130%"], census_program);
    assert_eq!(cluster.finish(&job), "FAILED");
    let output = cluster.output(&job);
    assert!(!output.contains("sms ") && output.contains("above 100%"), "{output}\n{}", cluster.logs());
    assert_clean(world);
}

/// Its last process is in a new session, where Slurm's own search does not find it.
fn a_job_that_leaves_a_program(cluster: &Cluster<'_>, world: &World, loop_program: &str) {
    let script = format!(
        "setsid --fork {loop_program} > {0}/left < /dev/null 2>&1\nwhile ! grep -q sms {0}/left; do sleep 0.02; done",
        world.dir().display()
    );
    let job = cluster.submit(&["--gres=gpu:1", "--comment=partita:sm=50%"], &script);
    assert_eq!(cluster.finish(&job), "COMPLETED", "{}", cluster.output(&job));
    assert_clean(world);
}

fn a_cancelled_job(cluster: &Cluster<'_>, world: &World, loop_program: &str) {
    let job = cluster.submit(&["--gres=gpu:1", "--comment=partita:mps"], &format!("exec {loop_program}"));
    cluster.wait("the program runs", |cluster| cluster.output(&job).contains("sms "));
    assert_eq!(daemons(world).len(), 2, "the daemon and its server");
    cluster.ask("scancel", &[&job]);
    assert_eq!(cluster.finish(&job), "CANCELLED");
    assert_clean(world);
}

/// The node goes out of service, and the job is queued again. After its repair the node accepts
/// jobs.
fn a_node_that_is_not_fit(cluster: &Cluster<'_>, world: &World) {
    std::fs::remove_dir_all(state_dir(world)).unwrap();
    std::fs::write(state_dir(world), "in the way").unwrap();
    let job = cluster.submit(&["--gres=gpu:1", "--comment=partita:mps", "--requeue"], "echo ran");
    cluster.wait("the node is drained", |cluster| cluster.node_state().contains("DRAIN"));
    assert!(cluster.node_reason().starts_with("Prolog error"), "{}", cluster.node_reason());
    assert!(!cluster.output(&job).contains("ran"));
    assert!(
        cluster.logs().contains("the directory of job records"),
        "slurmd's log says why: {}",
        cluster.logs()
    );
    // Slurm's own message; a script can give a better reason.
    let by_hand = batch_jobs::Job::new(world, 1, "partita:mps");
    let mut script = by_hand.script("prolog", "--drain scontrol");
    cluster.put_in_environment(&mut script);
    assert_eq!(script.output().unwrap().status.code(), Some(1));
    let reason = cluster.node_reason();
    assert!(reason.starts_with("partita: job slurm-") && reason.contains("job records"), "{reason}");
    std::fs::remove_file(state_dir(world)).unwrap();
    cluster.wait("the job is queued again", |cluster| cluster.job_state(&job) == "PENDING");
    // Slurm would start it again after two minutes.
    cluster.ask("scancel", &[&job]);
    cluster.resume();
    let job = cluster.submit(&["--gres=gpu:1", "--comment=partita:mps"], "echo ran");
    assert_eq!(cluster.finish(&job), "COMPLETED");
    assert_eq!(cluster.output(&job), "ran\n");
    assert_clean(world);
}
