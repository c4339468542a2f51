//! Several users of the stand-in for MPS: one after the other, or all at once.

use crate::mps_service;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use partita_mps::{ControlBinary, Service, ServiceDirs};
use partita_simcuda::shared::visible::{device_uuid, uuid_text};

use mps_service::{Client, Daemon, Dirs, PROGRAM, eventually};

#[test]
fn another_users_clients_wait_until_the_server_is_free() {
    const NOBODY: u32 = 65534;
    // SAFETY: takes no arguments.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can act for two users");
        return;
    }
    let daemon = Daemon::start();
    let dirs = &daemon.dirs;
    std::fs::set_permissions(dirs.temp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let queued = |client: &Client, user: u32| {
        let words = format!("NEW CLIENT {} from user {user}: ", client.pid());
        eventually("the client asks", || dirs.log("control.log").contains(&words));
    };
    let mut first = Client::start(dirs, &[]);
    first.outcome();
    let server = daemon.server();
    let mut other = Client::start_as(Some(NOBODY), dirs, &[]);
    queued(&other, NOBODY);
    let mut late = Client::start(dirs, &[]);
    queued(&late, 0);
    assert_eq!(daemon.ask(&format!("get_client_list {server}")), first.pid().to_string());

    drop(first);
    let outcome = other.outcome();
    let theirs = daemon.server();
    assert_ne!(theirs, server);
    assert_eq!(outcome, format!("{theirs} 1 100 0"));
    assert_eq!(std::fs::metadata(format!("/proc/{theirs}/cmdline")).unwrap().uid(), NOBODY);
    drop(other);
    let outcome = late.outcome();
    assert_eq!(outcome, format!("{} 1 100 0", daemon.server()));
    assert_ne!(daemon.server(), theirs);
}

#[test]
fn a_server_for_all_users_takes_them_at_the_same_time() {
    const NOBODY: u32 = 65534;
    // SAFETY: takes no arguments.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can act for two users");
        return;
    }
    let dirs = Dirs::new();
    let service_dirs = ServiceDirs::new(&dirs.temp.path().join("all")).unwrap();
    let uuid = uuid_text(device_uuid(&dirs.place()));
    let service = Service::new(ControlBinary::at(&PROGRAM).unwrap(), service_dirs, &uuid).for_all_users();
    std::fs::set_permissions(dirs.temp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    service.ensure().unwrap();
    let pipe = service.dirs().pipe();
    let pipe = [("CUDA_MPS_PIPE_DIRECTORY", pipe.to_str().unwrap())];
    let mut first = Client::start(&dirs, &pipe);
    let mut other = Client::start_as(Some(NOBODY), &dirs, &pipe);
    let (one, two) = (first.outcome(), other.outcome());
    assert_eq!(one.split(' ').next(), two.split(' ').next(), "one server: {one}, {two}");
    // Another user's Partita joins it, and can neither start nor stop one.
    let joined = |dir: &str| {
        let mut command = Command::new("/proc/self/exe");
        dirs.environment(&mut command);
        command
            .args(["--exact", "mps_users::joining_process", "--ignored", "--nocapture"])
            .env("TEST_SERVICE", dir)
            // That user can neither build nor look whether the programs are current.
            .env("PARTITA_TEST_LIB_DIR", partita_testing::build());
        let output = command.uid(NOBODY).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&said).into_owned()
    };
    let said = joined(service.dirs().root().to_str().unwrap());
    if said.contains("SKIPPED") {
        eprintln!("{said}");
        return;
    }
    assert!(said.contains("ENSURED false") && said.contains("belongs to another user"), "{said}");
    let none = dirs.temp.path().join("none");
    assert!(joined(none.to_str().unwrap()).contains("no MPS daemon runs"));
    drop((first, other));
    assert!(service.stop(false).unwrap());
}

#[test]
#[ignore = "run by another test in a process of another user"]
fn joining_process() {
    let Ok(binary) = ControlBinary::at(&PROGRAM) else {
        println!("SKIPPED: another user cannot run {}", PROGRAM.display());
        return;
    };
    let service_dirs = ServiceDirs::new(std::env::var_os("TEST_SERVICE").unwrap().as_ref()).unwrap();
    let service = Service::new(binary, service_dirs, "GPU-0").for_all_users();
    match service.ensure() {
        Ok(ensured) => println!("ENSURED {} {}", ensured.started, service.stop(true).unwrap_err()),
        Err(error) => println!("REFUSED {error}"),
    }
}
