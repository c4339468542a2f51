//! `partita run`: the program keeps its streams, signals and exit code.

use crate::common;

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;

use common::{Tenant, World, is_real, text};
use rustix::process::Signal;

#[test]
fn exit_codes_pass() {
    let world = World::new();
    for code in [0, 1, 7, 124, 126, 255] {
        let output = world
            .partita(["run", "--sm", "100%", "--", "sh", "-c", &format!("exit {code}")])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(text(&output.stderr), "");
    }
    for signal in [9, 15, 11] {
        let output =
            world.partita(["run", "--", "sh", "-c", &format!("kill -{signal} $$")]).output().unwrap();
        assert_eq!(output.status.code(), Some(128 + signal));
    }
    assert!(world.ps().is_empty());
}

#[test]
fn streams_pass_and_nothing_is_added() {
    let world = World::new();
    let mut child = world
        .partita(["run", "--sm", "100%", "--", "sh", "-c", "cat; echo err >&2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(text(&output.stdout), "one\ntwo\n");
    assert_eq!(text(&output.stderr), "err\n");
}

#[test]
fn arguments_pass_as_they_are() {
    let world = World::new();
    let mut command = world.partita(["run", "--sm", "10%", "--", "printf", "%s|"]);
    command.args(["--sm", "a b", "", "--", "-x"]);
    assert_eq!(text(&command.output().unwrap().stdout), "--sm|a b||--|-x|");
    // Without the two hyphens too, and with the program's name as typed.
    let output = world.partita(["run", "--sm", "10%", "sh", "-c", "echo $0 --gpu x"]).output().unwrap();
    assert_eq!(text(&output.stdout), "sh --gpu x\n");
}

#[test]
fn signals_pass() {
    let world = World::new();
    for (signal, name, code) in [
        (Signal::TERM, "TERM", 3),
        (Signal::INT, "INT", 4),
        (Signal::HUP, "HUP", 5),
        (Signal::USR1, "USR1", 6),
    ] {
        let script = format!("trap 'exit {code}' {name}; echo ready; while :; do sleep 0.01; done");
        let mut tenant = Tenant::start(&mut world.partita(["run", "--sm", "10%", "--", "sh", "-c", &script]));
        assert_eq!(tenant.next_line(), "ready");
        tenant.signal(signal);
        assert_eq!(tenant.exit_code(), code, "{name}");
    }
}

#[test]
fn what_the_caller_ignores_stays_ignored() {
    let world = World::new();
    // As under nohup.
    let run = world.partita(["run", "--sm", "10%", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    let mut command = world.through_shell(&run, "trap '' HUP; exec \"$@\"");
    let mut tenant = Tenant::start(&mut command);
    assert_eq!(tenant.next_line(), "ready");
    tenant.signal(Signal::HUP);
    // If the hang-up had ended it, its code would differ.
    tenant.signal(Signal::TERM);
    assert_eq!(tenant.exit_code(), 128 + 15);
}

#[test]
fn the_environment_holds_the_limits_and_no_others() {
    let world = World::new();
    let output = world
        .partita(["run", "--name", "env", "--sm", "10%", "--", "env"])
        .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50")
        .env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G")
        .env("CUDA_VISIBLE_DEVICES", "7")
        .env("LD_PRELOAD", "libc.so.6")
        .output()
        .unwrap();
    let environment = text(&output.stdout);
    let value = |key: &str| {
        environment.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned)
    };
    assert_eq!(value("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), None);
    assert_eq!(value("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), None);
    assert_eq!(value("PARTITA_GPU"), None);
    assert!(value("CUDA_VISIBLE_DEVICES").unwrap().starts_with("GPU-"));
    assert!(value("PARTITA_LEDGER").unwrap().ends_with("/env"));
    assert!(value("CUDA_MPS_PIPE_DIRECTORY").unwrap().ends_with("/pipe"));
    let preload = value("LD_PRELOAD").unwrap();
    assert!(preload.contains("libpartita.so:") && preload.ends_with(":libc.so.6"), "{preload}");

    let own = text(&world.partita(["run", "--isolation", "own", "--", "env"]).output().unwrap().stdout);
    assert!(own.lines().any(|line| line == "CUDA_MPS_PIPE_DIRECTORY=/dev/null/no-mps"), "{own}");
}

#[test]
fn a_killed_run_leaves_a_living_tenant_that_can_be_ended() {
    let world = World::new();
    let mut tenant = world.idle("--name orphan --sm 10%");
    tenant.signal(Signal::KILL);
    tenant.child.wait().unwrap();
    assert_eq!(world.row("orphan")["sms"], 12);
    assert!(world.refused("run --name orphan -- true").contains("in use"));
    assert!(world.ok("kill orphan").contains("ended"));
    assert!(world.ps().is_empty());
}

#[test]
fn the_dead_are_collected_by_the_next_command() {
    let world = World::new();
    let mut tenant = world.idle("--name ghost --sm 10%");
    let processes = world.processes();
    let dir = world.gpu_dir().join("ghost");
    tenant.signal(Signal::KILL);
    tenant.child.wait().unwrap();
    for (pid, name) in processes {
        if name == "sleep" {
            rustix::process::kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), Signal::KILL)
                .unwrap();
        }
    }
    // Its name and its compute units are free again.
    while dir.exists() {
        world.ps();
    }
    let _again = world.idle("--name ghost --sm 100%");
}

#[test]
fn nothing_of_ours_reaches_the_service() {
    let world = World::new();
    // A pipe that the service inherited would stay open after the program's end.
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = world.partita(["run", "--sm", "100%", "--", "true"]);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    assert!(command.status().unwrap().success());
    drop(command);
    let mut all = Vec::new();
    std::io::Read::read_to_end(&mut { reader }, &mut all).unwrap();
    assert_eq!(all, b"");
    assert!(world.ok("mps status").contains("runs"));
    // Nor does the end of the starter's session end it.
    let status = world.ok("mps status");
    let pid = status.split_once("(daemon ").and_then(|(_, rest)| rest.split_once(',')).map(|(pid, _)| pid);
    assert_ne!(session(pid.unwrap()), session("self"));
}

/// The session of a process, from proc(5). In a PID namespace whose first process
/// did not start a session this is 0, which rustix's `getsid` cannot express.
fn session(pid: &str) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The second field, the name in parentheses, may hold anything; the session is the sixth.
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_whitespace().nth(3).unwrap().parse().unwrap()
}

#[test]
fn the_service_inherits_no_descriptor_of_its_starter() {
    let world = World::new();
    let (reader, writer) = std::io::pipe().unwrap();
    // A descriptor that the starter's parent left open on purpose.
    let base = world.keeper("mps start");
    let mut command = common::through_shell(&base, "exec \"$@\" 9>&1 >/dev/null");
    assert!(command.stdout(writer).status().unwrap().success());
    drop(command);
    let mut all = Vec::new();
    std::io::Read::read_to_end(&mut { reader }, &mut all).unwrap();
    assert_eq!(all, b"", "the read ended, so no process holds the writer");
    assert!(world.ok("mps status").contains("runs"));
}

#[test]
fn a_program_on_its_partition_sees_its_limits() {
    let world = World::new();
    let total = text(&world.gpu("--mem 2GiB --sm 10%", "total").output().unwrap().stdout);
    assert_eq!(total, format!("total {}\n", 2u64 << 30));
    let output = world.gpu("--mem 1GiB --sm 10%", "alloc 1073741824 1").output().unwrap();
    // CUDA_SUCCESS, then CUDA_ERROR_OUT_OF_MEMORY, to the byte.
    assert_eq!(text(&output.stdout), "alloc 0\nalloc 2\n", "{output:?}");
    let output = world.gpu("--mem 1GiB --sm 10%", "alloc 1073741825 1073741824").output().unwrap();
    assert_eq!(text(&output.stdout), "alloc 2\nalloc 0\n", "{output:?}");
}

#[test]
fn blocks_stay_in_the_partition() {
    let world = World::new();
    for share in ["tpc:0", "tpc:3,17,40-45", "gpc:1", "20%", "12sm"] {
        let mut tenant =
            Tenant::start(&mut world.gpu(&format!("--name census --isolation own --sm {share}"), "loop"));
        let seen = common::sms(&tenant.next_line());
        let row = world.row("census");
        let expected: Vec<u32> = common::tpcs(row["tpcs"].as_str().unwrap())
            .into_iter()
            .flat_map(|tpc| [2 * tpc, 2 * tpc + 1])
            .collect();
        assert_eq!(seen, expected, "{share}");
        assert_eq!(row["sms"].as_u64().unwrap() as usize, seen.len());
        world.ok("kill census");
    }
}

#[test]
fn a_process_group_of_its_own_is_no_obstacle() {
    let world = World::new();
    let mut command = world.partita(["run", "--sm", "10%", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    let mut tenant = Tenant::start(command.process_group(0));
    assert_eq!(tenant.next_line(), "ready");
    tenant.signal(Signal::TERM);
    assert_eq!(tenant.exit_code(), 128 + 15);
}

#[test]
fn what_nvml_said_is_kept_of_real_gpus_alone() {
    let world = World::plan().on(|dir| vec![("PARTITA_CACHE_DIR", dir.join("cache").into())]);
    let cache = world.dir().join("cache");
    let run = || {
        world.ok("run --sm 100% -- true");
        let entries = fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path());
        let kept =
            entries.filter(|path| path.file_name().unwrap().as_encoded_bytes().starts_with(b"devices-"));
        kept.collect::<Vec<PathBuf>>()
    };
    let kept = run();
    // The kernel reports nothing of simulated GPUs, and in some containers of none.
    let told = fs::read_dir("/proc/driver/nvidia/gpus").is_ok_and(|mut gpus| gpus.next().is_some());
    if !is_real() || !told {
        assert_eq!((run(), kept), (vec![], vec![]));
        return;
    }
    let [path] = &kept[..] else { panic!("{kept:?}") };
    let said = fs::read_to_string(path).unwrap();
    assert_eq!((run(), fs::read_to_string(path).unwrap()), (kept.clone(), said.clone()), "it is taken");
    fs::write(path, said.replacen("partita-devices", "something", 1)).unwrap();
    assert_eq!(run(), kept);
    assert!(fs::read_to_string(path).unwrap().contains("partita-devices"), "NVML was asked");
}
