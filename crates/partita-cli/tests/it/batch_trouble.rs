//! Jobs of a batch system on a faulty node: killed scripts, a control daemon that does not answer,
//! full disks, wrong requests. In each case the epilog leaves a clean node, or reports that it does
//! not.

use crate::batch_jobs;
use crate::common;

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use batch_jobs::{Ended, Job, assert_clean, daemons, state_dir, state_files};
use common::{Tenant, World, text};
use rustix::process::{Pid, Signal};

fn signal(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

#[test]
fn a_mistake_of_the_job_is_reported_to_the_job_and_drains_no_node() {
    let world = World::plan().own().start();
    let first = Job::new(&world, 1, "partita:sm=80%");
    first.prolog().ok();
    for (id, comment, words) in [
        (2, "partita:sm=130%", "above 100%"),
        (3, "partita:sm=50%", "free"),
        (4, "partita:mem=1000GiB", "1000GiB"),
        (5, "partita:colour=red", "colour=red"),
    ] {
        let job = Job::new(&world, id, comment);
        let ended = job.prolog().has("job_refused");
        assert_eq!((ended.code, &ended.report["drain"]), (0, &false.into()), "{ended:?}");
        assert!(ended.said.contains(words) && ended.said.contains(&job.name()), "{ended:?}");
        // Slurm ends a task whose TaskProlog fails, and shows its output.
        let output = job.task_prolog();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        let shown = text(&output.stdout);
        assert!(shown.starts_with("print partita: ") && shown.contains(words), "{output:?}");
        job.epilog().ok().has("nothing_to_undo");
    }
    // One that fits, behind a program of the user that waits for room.
    let eager = "run --wait --name eager --sm 50% -- sleep 1000";
    let mut eager = Tenant::start(world.partita(eager.split(' ')).stderr(Stdio::null()));
    partita_testing::eventually("it waits", || world.ok("ps --waiting").contains("eager"));
    let job = Job::new(&world, 7, "partita:sm=10%");
    let ended = job.prolog().has("job_refused");
    assert_eq!((ended.code, &ended.report["drain"]), (0, &false.into()), "{ended:?}");
    assert!(ended.said.contains("eager of ") && ended.said.contains("comes first"), "{ended:?}");
    assert!(!ended.said.contains("--wait"), "a job has no such option: {ended:?}");
    job.epilog().ok().has("nothing_to_undo");
    eager.signal(Signal::TERM);
    assert_ne!(eager.exit_code(), 0);
    let mut without_gpu = Job::new(&world, 6, "partita:mps").script("prolog", "");
    without_gpu.env_remove("SLURM_JOB_GPUS").env_remove("PARTITA_GPU");
    let ended = Ended::of(&without_gpu.output().unwrap());
    assert!(ended.code == 0 && ended.said.contains("has no GPU on this node"), "{ended:?}");
    Job::new(&world, 6, "").epilog().ok();
    // The first keeps its memory and units.
    assert_eq!(first.gpu("census").output().unwrap().status.code(), Some(0));
    first.epilog().ok().has("service_stopped");
    assert_clean(&world);
}

#[test]
fn an_epilog_cleans_up_after_a_prolog_killed_at_any_moment() {
    let world = World::plan().own().start();
    // The calibration is not part of this test.
    Job::new(&world, 1, "partita:sm=10%").prolog().ok();
    Job::new(&world, 1, "partita:sm=10%").epilog().ok();
    for (id, comment) in [(2, "partita:mps"), (3, "partita:sm=50%")] {
        for step in 0..9 {
            let job = Job::new(&world, id, comment);
            let mut child =
                job.script("prolog", "").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(6 * step));
            child.kill().unwrap();
            let status = child.wait().unwrap();
            assert!(status.success() || status.signal() == Some(9), "{status}");
            // The job may start again before its end.
            if step % 2 == 1 {
                job.prolog().ok().has("service_up");
                assert!(job.gpu("total").output().unwrap().status.success());
            }
            let ended = job.epilog();
            assert_eq!((ended.code, ended.said.as_str()), (0, ""), "after {} ms: {ended:?}", 6 * step);
            // The killed one's children may still be starting; the epilog has waited for them or
            // ended them.
            assert_clean(&world);
        }
    }
}

#[test]
fn a_killed_epilog_is_done_again() {
    let world = World::plan().own().start();
    for step in 0..6 {
        let job = Job::new(&world, 1, "partita:sm=50%");
        job.prolog().ok();
        let mut program = Tenant::start(&mut job.gpu("loop"));
        program.next_line();
        let mut child = job.script("epilog", "").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(9 * step));
        child.kill().unwrap();
        child.wait().unwrap();
        job.epilog().ok();
        program.child.wait().unwrap();
        assert_clean(&world);
    }
}

#[test]
fn a_daemon_that_does_not_answer_hangs_no_script() {
    let world = World::plan().own().start();
    let (job, next) = (Job::new(&world, 1, "partita:mps"), Job::new(&world, 2, "partita:mps"));
    job.prolog().ok();
    let mut program = Tenant::start(&mut job.gpu("loop"));
    program.next_line();
    daemons(&world).into_iter().for_each(|pid| signal(pid, Signal::STOP));
    let started = Instant::now();
    let ended = next.run("prolog", "--limit 3");
    assert_eq!((ended.code, &ended.report["drain"]), (1, &true.into()), "{ended:?}");
    assert!(ended.said.contains("control.log") && started.elapsed() < Duration::from_secs(60), "{ended:?}");
    // A second prolog of a running job does not undo the first.
    assert_eq!(job.run("prolog", "--limit 2").code, 1);
    assert!(program.child.try_wait().unwrap().is_none() && job.record().exists());
    // Its own epilog still comes, and leaves the service to the other job.
    assert_eq!(next.run("epilog", "--limit 8").code, 0);
    assert_eq!(daemons(&world).len(), 2, "the daemon and its server");
    // The last one's ends the daemon by force, and its program by signals.
    let last = job.run("epilog", "--limit 8");
    assert_eq!(last.code, 0, "{last:?}");
    assert!(last.said.contains("could not be ended through MPS first"), "{last:?}");
    assert!(last.step("service_stopped").is_some() && last.step("processes_ended").is_some(), "{last:?}");
    program.child.wait().unwrap();
    assert_clean(&world);
    // The record of an earlier job without processes is no reason to refuse the next job.
    job.prolog().ok();
    daemons(&world).into_iter().for_each(|pid| signal(pid, Signal::STOP));
    std::fs::remove_file(job.record()).unwrap();
    next.prolog().ok().has("service_up");
    next.epilog().ok().has("service_stopped");
    job.epilog().ok();
    assert_clean(&world);
}

#[test]
fn a_daemon_that_died_is_started_again() {
    let world = World::plan().own().start();
    let (job, next) = (Job::new(&world, 1, "partita:mps"), Job::new(&world, 2, "partita:mps"));
    job.prolog().ok();
    let dead = daemons(&world);
    assert!(job.task_prolog().status.success());
    dead.iter().for_each(|pid| signal(*pid, Signal::KILL));
    let up = next.prolog().ok();
    assert_eq!(up.step("service_up").unwrap()["started"], true);
    job.epilog().ok().has("service_kept");
    assert!(next.gpu("total").output().unwrap().status.success());
    next.epilog().ok().has("service_stopped");
    // One that died without a successor leaves files alone.
    job.prolog().ok();
    // A program that finds no socket would run outside MPS without a message.
    let pipe = world.gpu_dir().join(format!(".mps-{}/pipe", job.user));
    std::fs::rename(pipe.join("control"), pipe.join("hidden")).unwrap();
    let output = job.task_prolog();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(text(&output.stdout).contains("pipe/control, which job"), "{output:?}");
    std::fs::rename(pipe.join("hidden"), pipe.join("control")).unwrap();
    daemons(&world).iter().for_each(|pid| signal(*pid, Signal::KILL));
    job.epilog().ok();
    assert_clean(&world);
}

/// A directory of libraries as the real one, with this control program instead.
fn with_control(world: &World, script: &str) -> PathBuf {
    let dir = world.dir().join("lib");
    std::fs::create_dir_all(&dir).unwrap();
    for name in ["libpartita.so", "libpartita_simcuda.so", "partita-simgpu"] {
        let link = dir.join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(partita_testing::build().join(name), link).unwrap();
        }
    }
    partita_testing::executable(&dir.join("partita-sim-mps-control"), script.as_bytes());
    dir
}

#[test]
fn a_control_program_that_hangs_or_fails_takes_the_node_away_and_leaves_nothing() {
    if common::needs_simulator("a control program of its own") {
        return;
    }
    let world = World::plan().own().start();
    for (script, words) in [
        ("#!/bin/sh\nsleep 1000\n", "took longer than"),
        ("#!/bin/sh\necho 'cannot open /dev/nvidiactl' >&2\nexit 1\n", "cannot open /dev/nvidiactl"),
        ("#!/bin/sh\nexit 0\n", ""),
    ] {
        let lib = with_control(&world, script);
        let job = Job::new(&world, 1, "partita:sm=50%");
        let mut command = job.script("prolog", "--limit 3");
        let ended = Ended::of(&command.env("PARTITA_LIB_DIR", &lib).output().unwrap());
        assert_eq!((ended.code, &ended.report["drain"]), (1, &true.into()), "{ended:?}");
        assert!(ended.said.contains(words), "{script}: {ended:?}");
        let mut command = job.script("epilog", "");
        let ended = Ended::of(&command.env("PARTITA_LIB_DIR", &lib).output().unwrap());
        assert_eq!(ended.code, 0, "{ended:?}");
        assert_clean(&world);
    }
}

#[test]
fn a_directory_that_cannot_be_written_takes_the_node_away_before_anything_is_done() {
    let world = World::plan().own().start();
    let job = Job::new(&world, 1, "partita:mps");
    std::fs::write(state_dir(&world), "a file").unwrap();
    for dir in [state_dir(&world), PathBuf::from("/proc/partita"), PathBuf::from("/proc/self/x/y/z")] {
        let ended = job.run("prolog", &format!("--state-dir {}", dir.display()));
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(ended.said.contains("--state-dir") && ended.said.contains("record"), "{ended:?}");
        assert!(daemons(&world).is_empty());
        // It did nothing, so there is nothing to undo.
        job.run("epilog", &format!("--state-dir {}", dir.display())).ok().has("nothing_to_undo");
    }
    std::fs::remove_file(state_dir(&world)).unwrap();
    // A full disk: no file may grow.
    let base = job.script("prolog", "");
    let full = |base: &std::process::Command| {
        Ended::of(&world.through_shell(base, "trap '' XFSZ; ulimit -f 0; exec \"$@\"").output().unwrap())
    };
    let ended = full(&base);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.said.contains("make room"), "{ended:?}");
    assert!(daemons(&world).is_empty());
    job.epilog().ok().has("nothing_to_undo");
    // An epilog needs no room.
    job.prolog().ok();
    let ended = full(&job.script("epilog", ""));
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_clean(&world);
}

#[test]
fn after_a_restart_of_the_node_there_is_nothing_to_undo() {
    let world = World::plan().own().start();
    let job = Job::new(&world, 1, "partita:mps");
    job.prolog().ok();
    // The state after a restart: the record, and no process.
    let record = std::fs::read_to_string(job.record()).unwrap();
    job.epilog().ok();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let earlier = record.replace(boot.trim(), "00000000-0000-0000-0000-000000000000");
    assert_ne!(record, earlier);
    std::fs::write(job.record(), &earlier).unwrap();
    // It does not keep another job's service.
    let other = Job::new(&world, 2, "partita:mps");
    other.prolog().ok();
    other.epilog().ok().has("service_stopped");
    job.epilog().ok().has("nothing_to_undo");
    job.epilog().ok().has("nothing_to_undo");
    // Nor the same job, if it is queued again.
    std::fs::write(job.record(), &earlier).unwrap();
    job.prolog().ok().has("service_up");
    job.epilog().ok().has("service_stopped");
    assert_clean(&world);
}

#[test]
fn a_damaged_record_is_set_aside_and_the_job_undone_all_the_same() {
    let world = World::plan().own().start();
    let (job, other) = (Job::new(&world, 1, "partita:sm=50%"), Job::new(&world, 2, "partita:mps"));
    job.prolog().ok();
    other.prolog().ok();
    std::fs::write(job.record(), "{\"version\":").unwrap();
    // Its owner is unknown, so the service stays.
    let kept = other.epilog().ok().has("service_kept");
    assert_eq!(kept.step("service_kept").unwrap()["jobs"].as_array().unwrap().len(), 0);
    let ended = job.epilog();
    assert!(ended.code == 0 && ended.said.contains(".damaged now"), "{ended:?}");
    assert!(ended.step("tenant_ended").is_some() && ended.step("service_stopped").is_some(), "{ended:?}");
    world.assert_clean();
    let aside = job.record().with_extension("damaged");
    assert_eq!(state_files(&world), [aside]);
}

#[test]
fn a_job_queued_again_with_another_request_starts_afresh() {
    let world = World::plan().own().start();
    Job::new(&world, 1, "partita:sm=50%").prolog().ok();
    // Its epilog never came.
    let again = Job::new(&world, 1, "partita:sm=8tpc");
    again.prolog().ok().has("tenant_ended").has("tenant_up");
    assert_eq!(world.row(&again.name())["sms"], 16);
    again.epilog().ok().has("service_stopped");
    assert_clean(&world);
}

#[test]
fn wrong_calls_say_what_is_missing() {
    let world = World::plan().own().start();
    for (line, words) in [
        ("batch prolog", "SLURM_JOB_ID is not set"),
        ("batch epilog --system pbs", "id and user"),
        (
            "batch prolog --system pbs 1.head nobody-of-that-name group job partita=mps",
            "no user of that name",
        ),
    ] {
        let output = world.line(line);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{line}: {output:?}");
        assert!(text(&output.stderr).contains(words), "{line}: {output:?}");
    }
    // Several actions fail for the same reason. The script prints it once.
    let mut job = Job::new(&world, 1, "partita:mps");
    job.variables.push(("SLURM_JOB_GPUS".to_owned(), "9".to_owned()));
    let ended = job.prolog();
    assert!(ended.code == 1 && ended.said.lines().count() == 1, "{ended:?}");
    job.epilog();
    assert!(world.refused("batch task-prolog").contains("PBS_JOBID"));
    assert!(world.refused("batch prolog --limit 0").contains("--limit"));
}
