//! The commands of the stand-in for `nvidia-cuda-mps-control` as `partita-mps` sends them, and how
//! it handles failures.

use crate::mps_service;

use std::time::Duration;

use partita_mps::{
    ClientPriority, ControlBinary, DeviceName, MemoryLimit, MpsError, ServerStatus, Service, ServiceDirs,
};
use partita_simcuda::shared::visible::{device_uuid, uuid_text};

use mps_service::{Client, Daemon, Dirs, PROGRAM, eventually, exists, play_board};

#[test]
fn failures_come_as_scripted_and_are_distinguished() {
    let dirs = Dirs::new();
    let script = dirs.temp.path().join("script");
    let write = |text: &str| std::fs::write(&script, text).unwrap();
    let service = |dirs: &Dirs| {
        let service_dirs = ServiceDirs::new(dirs.temp.path()).unwrap();
        let uuid = uuid_text(device_uuid(&dirs.place()));
        Service::new(ControlBinary::at(&PROGRAM).unwrap(), service_dirs, &uuid)
            .with_env("PARTITA_SIM_MPS_SCRIPT", &script)
    };
    let service = service(&dirs);
    write("start say No room for the socket");
    let error = service.ensure().unwrap_err();
    assert!(matches!(&error, MpsError::StartFailed { reason } if reason.contains("No room")), "{error}");
    write("");
    let daemon = Daemon { dirs, pid: service.ensure().unwrap().pid };
    let control = service.control().with_limit(Duration::from_millis(200));

    write("get_server_list silence");
    assert!(matches!(control.server_list().unwrap_err(), MpsError::Timeout { .. }));
    write("1*get_default_active_thread_percentage half");
    let error = control.default_active_thread_percentage().unwrap_err();
    assert!(matches!(&error, MpsError::Cut { reply, .. } if reply == "10"), "{error}");
    assert_eq!(control.default_active_thread_percentage().unwrap(), 100.0, "once");
    write("ps say PID ID\\nnothing");
    assert!(matches!(control.ps(None).unwrap_err(), MpsError::Reply { .. }));

    write("2*attach refuse 807\n1*attach exhausted");
    for expected in ["error 807", "error 807", "error 2"] {
        assert_eq!(Client::start(&daemon.dirs, &[]).outcome(), expected);
    }
    write("1*server death");
    let mut client = Client::start(&daemon.dirs, &[]);
    let outcome = client.outcome();
    assert!(outcome.ends_with(" 1 100 0"), "a second server takes it: {outcome}");
    assert!(daemon.dirs.log("control.log").contains("exited with status 137"));
    drop(client);

    write("get_server_list death");
    assert!(control.server_list().is_err());
    eventually("the daemon is gone", || !exists(daemon.pid));
    assert!(matches!(service.state().unwrap(), partita_mps::State::Stale { .. }));
    write("");
    let ensured = service.ensure().unwrap();
    assert!(ensured.started, "its leftover files do not prevent a start");
    service.stop(true).unwrap();
}

#[test]
fn newer_commands_are_found_by_trying() {
    let dirs = Dirs::new();
    let script = dirs.temp.path().join("script");
    let service_dirs = ServiceDirs::new(dirs.temp.path()).unwrap();
    let uuid = uuid_text(device_uuid(&dirs.place()));
    let service = Service::new(ControlBinary::at(&PROGRAM).unwrap(), service_dirs, &uuid)
        .with_env("PARTITA_SIM_MPS_SCRIPT", &script);
    let daemon = Daemon { dirs, pid: service.ensure().unwrap().pid };
    let control = service.control();
    assert!(!control.offers_partitions().unwrap(), "binary 13000");

    let write = |text: &str| std::fs::write(&script, text).unwrap();
    write(
        "lspart say GPU Partition Free-SM Used-SM Clients\\nGPU-1a Ab/1= 112 16 1\nsm_partition say Partition Ab/1= created",
    );
    assert!(control.offers_partitions().unwrap());
    let partition = control.add_sm_partition("GPU-1a", 2).unwrap();
    assert_eq!(partition.to_string(), "GPU-1a/Ab/1=");
    assert_eq!(control.sm_partitions().unwrap()[0].numbers, [112, 16, 1]);
    control.remove_sm_partition(&partition).unwrap();
    let log = daemon.dirs.log("control.log");
    assert!(
        log.contains("Cmd:sm_partition add GPU-1a 2") && log.contains("Cmd:sm_partition rm GPU-1a Ab/1="),
        "{log}"
    );
    write("sm_partition say Failed to fulfill the requested SM partition of 99 chunks");
    assert!(matches!(control.add_sm_partition("GPU-1a", 99).unwrap_err(), MpsError::Refused { .. }));
    drop(daemon);
}

#[test]
fn every_classic_command_is_understood_by_both_sides() {
    let dirs = Dirs::new();
    let uuid = uuid_text(device_uuid(&dirs.place()));
    let service_dirs = ServiceDirs::new(dirs.temp.path()).unwrap();
    let service = Service::new(ControlBinary::at(&PROGRAM).unwrap(), service_dirs, &uuid);
    let daemon = Daemon { dirs, pid: service.ensure().unwrap().pid };
    let control = service.control();
    // SAFETY: takes no arguments.
    let user = unsafe { libc::geteuid() };
    control.start_server(user).unwrap();
    assert!(matches!(control.start_server(user).unwrap_err(), MpsError::Refused { .. }));
    let server = control.server_list().unwrap()[0];
    eventually("the server is ready", || control.server_status(server).unwrap() == ServerStatus::Active);
    let mut client = Client::start(&daemon.dirs, &[]);
    client.outcome();
    let rows = control.ps(Some(server)).unwrap();
    assert_eq!((rows[0].pid, rows[0].server), (client.pid(), server));
    assert!(rows[0].is_on(&uuid));
    assert_eq!(control.ps(None).unwrap(), rows);
    let on = control.device_client_list(Some(server)).unwrap();
    assert_eq!((on[0].device.to_string(), &on[0].clients), (uuid.clone(), &vec![client.pid()]));

    control.set_active_thread_percentage(server, 50.0).unwrap();
    assert_eq!(control.active_thread_percentage(server).unwrap(), 50.0);
    assert_eq!(control.default_active_thread_percentage().unwrap(), 100.0);
    for device in [DeviceName::Ordinal(0), DeviceName::Uuid(uuid)] {
        assert_eq!(control.default_device_memory_limit(&device).unwrap(), None);
        let limit = MemoryLimit::from_bytes(900 << 20).unwrap();
        control.set_default_device_memory_limit(&device, limit).unwrap();
        assert_eq!(control.default_device_memory_limit(&device).unwrap(), Some(limit.bytes()));
        let more = MemoryLimit::from_bytes(2 << 30).unwrap();
        control.set_device_memory_limit(server, &device, more).unwrap();
        assert_eq!(control.device_memory_limit(server, &device).unwrap(), Some(more.bytes()));
    }
    assert_eq!(control.default_client_priority().unwrap(), ClientPriority::Normal);
    control.set_default_client_priority(ClientPriority::BelowNormal).unwrap();
    assert_eq!(control.default_client_priority().unwrap(), ClientPriority::BelowNormal);
    assert!(matches!(control.server_status(1).unwrap_err(), MpsError::NoSuchServer { server: 1 }));
    drop(client);
    control.shutdown_server(server, false).unwrap();
    eventually("the server ends", || control.server_list().unwrap().is_empty());
    control.quit_within(0).unwrap();
    eventually("the daemon ends", || !exists(daemon.pid));
}

#[test]
fn partitas_own_control_of_the_service_works_with_it() {
    let dirs = Dirs::new();
    let place = dirs.place();
    let uuid = uuid_text(device_uuid(&place));
    let service_dirs = ServiceDirs::new(dirs.temp.path()).unwrap();
    let service = Service::new(ControlBinary::at(&PROGRAM).unwrap(), service_dirs, &uuid);
    let ensured = service.ensure().unwrap();
    // Ends the daemon even if the test fails.
    let daemon = Daemon { dirs, pid: ensured.pid };
    let dirs = &daemon.dirs;
    assert!(ensured.started);
    assert!(!service.ensure().unwrap().started);
    let mut client = Client::start(dirs, &[]);
    client.outcome();
    let control = service.control();
    let servers = control.server_list().unwrap();
    assert_eq!(service.clients().unwrap(), [(servers[0], client.pid())]);
    let _board = play_board(&place);
    control.terminate_client(servers[0], client.pid()).unwrap();
    let refusal = control.terminate_client(servers[0], 1).unwrap_err();
    assert!(matches!(refusal, MpsError::NoSuchClient { client: 1, .. }), "{refusal}");
    let refusal = control.client_list(1).unwrap_err();
    assert!(matches!(refusal, MpsError::NoSuchServer { server: 1 }), "{refusal}");
    let refusal = control.command("lspart").unwrap_err();
    assert!(matches!(refusal, MpsError::UnknownCommand { .. }), "{refusal}");
    control.set_default_active_thread_percentage(100.0).unwrap();
    drop(client);
    eventually("the client leaves", || service.clients().unwrap().is_empty());
    assert!(service.stop(false).unwrap());
    assert!(!exists(ensured.pid));
}
