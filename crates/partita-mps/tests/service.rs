//! The service's life, with a control program that behaves as the driver's but needs no GPU: its
//! daemon is a sleeping process with the same pid file, and its commands give the same answers.

use std::fs;
use std::path::Path;
use std::thread;

use partita_mps::{ControlBinary, MpsError, Service, ServiceDirs, State};
use partita_testing::executable;

const CONTROL: &str = r#"#!/bin/sh
dir=$CUDA_MPS_PIPE_DIRECTORY
pid_file=$dir/nvidia-cuda-mps-control.pid
alive() { [ -f "$pid_file" ] && kill -0 "$(cat "$pid_file")" 2>/dev/null; }
case "$1" in
-v) printf 'CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000\nCopyright (C) 2003 - 2025 NVIDIA Corporation.\n'; exit 0 ;;
-d)
    if alive; then echo "An instance of this daemon is already running"; exit 1; fi
    if [ -n "$FAKE_START_FAILS" ]; then echo "Failed to bind the socket" >&2; exit 1; fi
    echo x >> "$dir/../starts"
    env > "$dir/../environment"
    setsid sh -c 'echo $$ > "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"; exec sleep 1000' \
        </dev/null >/dev/null 2>&1 &
    exit 0 ;;
esac
read -r command first second
if ! alive; then echo "Cannot find MPS control daemon process"; exit 1; fi
if [ "$command" = "$FAKE_UNSENT" ]; then
    echo x >> "$dir/../unsent"
    if [ "$(wc -l < "$dir/../unsent")" -le "$FAKE_UNSENT_TIMES" ]; then
        [ -n "$FAKE_SILENT" ] || echo "Cannot send command to MPS control daemon process"
        exit 1
    fi
fi
if [ -n "$FAKE_ALONE" ]; then
    mkdir "$dir/alone" || echo x >> "$dir/../collided"
    sleep 0.01
    rmdir "$dir/alone"
fi
case "$command" in
get_server_list) echo 4000 ;;
get_client_list) if [ "$first" = 4000 ]; then printf '%s' "$FAKE_CLIENTS"; else echo "Server $first not found"; fi ;;
terminate_client)
    if [ "$first" != 4000 ]; then printf 'Server %s not found\nServer %s not found!\n1\n' "$first" "$first"
    elif [ "$second" = 43 ]; then echo 201
    elif [ "$second" != 41 ]; then echo 999
    else echo 0; fi ;;
get_active_thread_percentage) echo "${FAKE_SERVER_PERCENT:-100.0}" ;;
get_default_active_thread_percentage) echo "${FAKE_PERCENT:-100.0}" ;;
hang) exec sleep 1000 ;;
babble) echo words ;;
protocol) echo "${CUDA_MPS_PROTOCOL_VERSION-any}" ;;
quit) if [ -z "$FAKE_STUBBORN" ]; then kill "$(cat "$pid_file")"; rm "$pid_file"; fi ;;
*) echo "Unknown command \"$command\"" ;;
esac
"#;

/// A service in its own directory, stopped with the test.
struct Fixture {
    service: Service,
    temp: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(env: &[(&str, &str)]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let program = temp.path().join("nvidia-cuda-mps-control");
        executable(&program, CONTROL.as_bytes());
        let binary = ControlBinary::find(Some(temp.path().as_os_str())).unwrap();
        let dirs = ServiceDirs::new(&temp.path().join("mps")).unwrap();
        let service = env
            .iter()
            .fold(Service::new(binary, dirs, "GPU-1"), |service, (key, value)| service.with_env(key, value));
        Self { service, temp }
    }

    fn starts(&self) -> usize {
        fs::read_to_string(self.temp.path().join("mps/starts")).map_or(0, |text| text.lines().count())
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.service.stop(true).expect("the service stops");
    }
}

fn exists(pid: u32) -> bool {
    // A zombie, which the init of a container may leave for a while, has no links.
    fs::read_link(Path::new("/proc").join(pid.to_string()).join("exe")).is_ok()
}

#[test]
fn starts_once_answers_and_stops() {
    let fixture = Fixture::with(&[("FAKE_CLIENTS", "41\n42\n")]);
    let service = &fixture.service;
    assert_eq!(service.state().unwrap(), State::Stopped);
    assert!(matches!(service.clients().unwrap_err(), MpsError::NotRunning { .. }));

    let first = service.ensure().unwrap();
    assert!(first.started && exists(first.pid));
    let second = service.ensure().unwrap();
    assert_eq!((second.pid, second.started), (first.pid, false));
    assert_eq!(service.state().unwrap(), State::Running { pid: first.pid });

    assert_eq!(service.clients().unwrap(), [(4000, 41), (4000, 42)]);
    let control = service.control();
    control.terminate_client(4000, 41).unwrap();
    let error = control.terminate_client(4000, 43).unwrap_err();
    assert!(matches!(error, MpsError::NoSuchClient { server: 4000, client: 43 }), "{error}");
    let error = control.terminate_client(4000, 44).unwrap_err();
    assert!(matches!(&error, MpsError::Refused { message, .. } if message == "999"), "{error}");
    for error in [control.terminate_client(1, 41).unwrap_err(), control.client_list(1).unwrap_err()] {
        assert!(matches!(error, MpsError::NoSuchServer { server: 1 }), "{error}");
    }
    let error = control.command("lspart").unwrap_err();
    assert!(matches!(&error, MpsError::UnknownCommand { command } if command == "lspart"), "{error}");

    assert!(!service.stop_if_unused().unwrap(), "it has clients");
    assert!(service.stop(false).unwrap());
    assert!(!exists(first.pid));
    assert!(!service.stop(false).unwrap(), "nothing to stop");
    assert_eq!(fixture.starts(), 1);
}

#[test]
fn the_daemon_sees_its_gpu_and_no_limits_of_its_starter() {
    let fixture = Fixture::new();
    fixture.service.ensure().unwrap();
    let environment = fs::read_to_string(fixture.temp.path().join("mps/environment")).unwrap();
    assert!(environment.lines().any(|line| line == "CUDA_VISIBLE_DEVICES=GPU-1"), "{environment}");
    for line in environment.lines() {
        let key = line.split('=').next().unwrap();
        let is_own = key.ends_with("_DIRECTORY") || line == "CUDA_MPS_PROTOCOL_VERSION=2";
        assert!(!key.starts_with("CUDA_MPS_") || is_own, "{line} reached the daemon");
        assert!(!key.starts_with("CARGO"), "{line} reached the daemon");
    }
}

#[test]
fn daemon_and_commands_speak_the_classic_language_whatever_a_newer_program_prefers() {
    let fixture = Fixture::new();
    fixture.service.ensure().unwrap();
    let environment = fs::read_to_string(fixture.temp.path().join("mps/environment")).unwrap();
    assert!(environment.lines().any(|line| line == "CUDA_MPS_PROTOCOL_VERSION=2"), "{environment}");
    assert_eq!(fixture.service.control().command("protocol").unwrap().trim(), "2");
}

#[test]
fn of_many_starters_one_starts() {
    let fixture = Fixture::new();
    let ensured: Vec<_> = thread::scope(|scope| {
        let starters: Vec<_> = (0..8).map(|_| scope.spawn(|| fixture.service.ensure().unwrap())).collect();
        starters.into_iter().map(|starter| starter.join().unwrap()).collect()
    });
    assert_eq!(ensured.iter().filter(|ensured| ensured.started).count(), 1);
    assert!(ensured.iter().all(|one| one.pid == ensured[0].pid));
    assert_eq!(fixture.starts(), 1);
    assert!(fixture.service.stop_if_unused().unwrap());
}

#[test]
fn a_dead_daemons_leavings_are_recovered() {
    let fixture = Fixture::new();
    let service = &fixture.service;
    service.dirs().create().unwrap();
    let pipe = service.dirs().pipe();
    // A living process that is not a daemon of this directory: a reused pid.
    let pid = std::process::id();
    fs::write(pipe.join("nvidia-cuda-mps-control.pid"), format!("{pid}\n")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(pipe.join("control")).unwrap());
    assert_eq!(service.state().unwrap(), State::Stale { pid });
    let ensured = service.ensure().unwrap();
    assert!(ensured.started && ensured.pid != pid);
    assert!(!pipe.join("control").exists(), "the dead socket is gone");
}

#[test]
fn a_reduced_thread_percentage_is_refused_and_ended() {
    for variable in ["FAKE_PERCENT", "FAKE_SERVER_PERCENT"] {
        let fixture = Fixture::with(&[(variable, "50.0")]);
        let error = fixture.service.ensure().unwrap_err();
        assert!(matches!(error, MpsError::ThreadPercentage { found, .. } if found == 50.0), "{error}");
        assert_eq!(fixture.service.state().unwrap(), State::Stale { pid: recorded(&fixture) });
        assert!(!exists(recorded(&fixture)));
    }
}

#[test]
fn a_failed_start_says_the_daemons_words() {
    let fixture = Fixture::with(&[("FAKE_START_FAILS", "1")]);
    let error = fixture.service.ensure().unwrap_err().to_string();
    assert!(error.contains("Failed to bind the socket"), "{error}");
}

#[test]
fn strange_answers_are_errors() {
    let fixture = Fixture::with(&[("FAKE_CLIENTS", "41 what"), ("FAKE_PERCENT", "many")]);
    let service = &fixture.service;
    let error = service.ensure().unwrap_err();
    assert!(matches!(error, MpsError::Reply { .. }), "{error}");
    let fixture = Fixture::with(&[("FAKE_CLIENTS", "41 what")]);
    fixture.service.ensure().unwrap();
    assert!(matches!(fixture.service.clients().unwrap_err(), MpsError::Reply { .. }));
    let hanging = fixture.service.control().with_limit(std::time::Duration::from_millis(50)).command("hang");
    assert!(matches!(hanging.unwrap_err(), MpsError::Timeout { .. }));
}

#[test]
fn what_the_daemon_has_not_heard_is_sent_again() {
    for (key, value) in [("FAKE_SILENT", "1"), ("FAKE_WORDS", "1")] {
        let fixture =
            Fixture::with(&[("FAKE_UNSENT", "get_server_list"), ("FAKE_UNSENT_TIMES", "3"), (key, value)]);
        fixture.service.ensure().unwrap();
        assert_eq!(fixture.service.control().server_list().unwrap(), [4000]);
    }
    let fixture = Fixture::with(&[("FAKE_UNSENT", "babble"), ("FAKE_UNSENT_TIMES", "100000")]);
    fixture.service.ensure().unwrap();
    let never = fixture.service.control().with_limit(std::time::Duration::from_millis(200)).command("babble");
    assert!(matches!(never.unwrap_err(), MpsError::Timeout { .. }));
}

#[test]
fn one_at_a_time_commands_the_daemon() {
    let fixture = Fixture::with(&[("FAKE_ALONE", "1")]);
    fixture.service.ensure().unwrap();
    let ask = || (0..5).for_each(|_| assert_eq!(fixture.service.control().server_list().unwrap(), [4000]));
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(ask))));
    assert!(!fixture.temp.path().join("mps/collided").exists());
}

#[test]
fn force_ends_a_daemon_that_does_not_obey() {
    let fixture = Fixture::with(&[("FAKE_STUBBORN", "1")]);
    let pid = fixture.service.ensure().unwrap().pid;
    fixture.service.stop(true).unwrap();
    assert!(!exists(pid));
}

fn recorded(fixture: &Fixture) -> u32 {
    let file = fixture.service.dirs().pipe().join("nvidia-cuda-mps-control.pid");
    fs::read_to_string(file).unwrap().trim().parse().unwrap()
}
