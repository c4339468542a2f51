//! The stand-in for `nvidia-cuda-mps-control`, as a program: its daemon, its clients, and all ways
//! in which they end.

use crate::mps_service;

use std::process::{Command, Stdio};

use partita_simcuda::shared::protocol::Request;
use partita_simcuda::shared::visible::{device_uuid, uuid_text};

use mps_service::{Client, Daemon, Dirs, PROGRAM, eventually, exists, kill, play_board};

#[test]
fn the_version_has_the_real_form() {
    let output = Dirs::new().control(&["-v"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().next().unwrap(), "CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000");
}

#[test]
fn a_daemon_starts_once_answers_and_leaves_nothing_running() {
    let dirs = Dirs::new();
    let output = dirs.control(&["get_server_list"]);
    assert!(!output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "Cannot find MPS control daemon process");

    let daemon = Daemon::start();
    let again = daemon.dirs.control(&["-d"]);
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("An instance of this daemon is already running"));
    assert_eq!(daemon.dirs.pid(), daemon.pid, "the rival changed nothing");

    assert_eq!(daemon.ask("get_server_list"), "");
    assert_eq!(daemon.ask("get_default_active_thread_percentage"), "100.0");
    assert_eq!(daemon.ask("set_default_active_thread_percentage 50"), "50.0");
    assert_eq!(daemon.ask("get_default_active_thread_percentage"), "50.0");
    assert_eq!(daemon.ask("get_client_list 1"), "Server 1 not found");
    assert_eq!(daemon.ask("lspart"), "Unknown command \"lspart\"");
    assert_eq!(daemon.ask("set_default_device_pinned_mem_limit 0 2G"), "");
    assert_eq!(daemon.ask("get_default_device_pinned_mem_limit 0"), "2G");
    let log = daemon.dirs.log("control.log");
    let pid = daemon.pid;
    for words in [
        "Starting control daemon using socket ",
        "CUDA MPS Control binary version: 13000",
        "NEW UI",
        "Cmd:lspart",
        "UI closed",
    ] {
        assert!(log.contains(&format!(" Control {pid:>5}] {words}")), "{words} in\n{log}");
    }

    // An unused server ends with the daemon.
    assert!(daemon.ask("start_server -uid 4294967295").contains("Failed"));
    // SAFETY: takes no arguments.
    let user = unsafe { libc::geteuid() };
    assert_eq!(daemon.ask(&format!("start_server -uid {user}")), "");
    let server = daemon.server();
    assert!(exists(server));
    assert_eq!(daemon.ask("quit"), "");
    eventually("the daemon ends", || !exists(daemon.pid));
    assert!(!exists(server));
    let left: Vec<_> =
        std::fs::read_dir(daemon.dirs.pipe()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["control_lock"]);
}

#[test]
fn commands_come_by_lines_too() {
    let daemon = Daemon::start();
    let mut command = Command::new(&*PROGRAM);
    daemon.dirs.environment(&mut command);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines =
        "get_default_active_thread_percentage\n\n  get_client_list 7\nget_default_active_thread_percentage";
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "100.0\nServer 7 not found\n100.0\n");
}

#[test]
fn clients_are_admitted_listed_limited_and_leave() {
    let daemon = Daemon::start_with(&[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=3G")]);
    let dirs = &daemon.dirs;
    let mut first = Client::start(dirs, &[]);
    let outcome = first.outcome();
    let server = daemon.server();
    assert_eq!(outcome, format!("{server} 1 100 {}", 3u64 << 30));
    assert_ne!(server, daemon.pid);
    let name = std::fs::read(format!("/proc/{server}/cmdline")).unwrap();
    assert!(name.starts_with(b"nvidia-cuda-mps-server\0"));
    assert_eq!(daemon.ask(&format!("get_server_status {server}")), "ACTIVE");

    assert_eq!(daemon.ask(&format!("set_active_thread_percentage {server} 50")), "50.0");
    daemon.ask(&format!("set_device_pinned_mem_limit {server} 0 512M"));
    let mut second = Client::start(dirs, &[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "80")]);
    assert_eq!(second.outcome(), format!("{server} 2 50 {}", 512 << 20));
    let mut third = Client::start(dirs, &[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25")]);
    assert_eq!(third.outcome(), format!("{server} 3 25 {}", 512 << 20));

    let list = format!("get_client_list {server}");
    let pids =
        |clients: &[&Client]| clients.iter().map(|c| c.pid().to_string()).collect::<Vec<_>>().join("\n");
    assert_eq!(daemon.ask(&list), pids(&[&first, &second, &third]));
    let uuid = uuid_text(device_uuid(&dirs.place()));
    let listed = daemon.ask("get_device_client_list");
    assert_eq!(listed, format!("{uuid}: {}", pids(&[&first, &second, &third]).replace('\n', " ")));
    let ps = daemon.ask(&format!("ps -p {server}"));
    let row: Vec<&str> = ps.lines().nth(2).unwrap().split_whitespace().collect();
    assert_eq!(row[..3], [second.pid().to_string(), "2".to_owned(), server.to_string()]);
    assert!(uuid.starts_with(row[3]) && row[3].len() == "GPU-01234567-0123".len(), "{ps}");

    // However a client ends, the list drops it, and the server stays.
    kill(second.pid(), libc::SIGKILL);
    eventually("the killed client leaves", || daemon.ask(&list) == pids(&[&first, &third]));
    let pid = first.pid();
    drop(first);
    drop(third);
    eventually("the others leave", || daemon.ask(&list).is_empty());
    assert_eq!(daemon.server(), server);
    let log = dirs.log("server.log");
    for words in [
        format!("Client {{PID: {pid}, Context ID: 0}} connected"),
        format!("Client {{PID: {pid}, Context ID: 1}} connected"),
        format!("Status of client {{PID: {pid}, Context ID: 1}} is ACTIVE"),
        format!("Client {{PID: {pid}, Context ID: 1}} exiting. Number of active client contexts is "),
        format!("Client process {pid} disconnected"),
    ] {
        assert!(log.contains(&format!(" Server {server:>5}] {words}")), "{words} in\n{log}");
    }
}

#[test]
fn a_client_limits_itself_in_every_spelling() {
    const PER_CONTEXT: &str = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING";
    let daemon = Daemon::start_with(&[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=3G")]);
    let dirs = &daemon.dirs;
    let uuid = uuid_text(device_uuid(&dirs.place()));
    let limits = |variables: &[(&str, &str)]| {
        let outcome = Client::start(dirs, variables).outcome();
        outcome.splitn(3, ' ').nth(2).unwrap().to_owned()
    };
    let memory = |list: &str| limits(&[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", list)]);
    assert_eq!(memory("0=1G"), format!("100 {}", 1u64 << 30));
    assert_eq!(memory(&format!("{uuid}=512M")), format!("100 {}", 512 << 20));
    assert_eq!(memory("0=4g"), format!("100 {}", 3u64 << 30), "it can only lower the server's");
    assert_eq!(memory(&format!("0=1G,{uuid}=2G")), format!("100 {}", 2u64 << 30), "the last one counts");
    assert_eq!(memory("0=much"), format!("100 {}", 3u64 << 30));
    assert_eq!(memory("GPU-1=1G"), "100 0", "a list with an unknown device drops every limit");

    let low = format!("100 {} low", 3u64 << 30);
    assert_eq!(limits(&[("CUDA_MPS_CLIENT_PRIORITY", "1")]), low);
    daemon.ask("set_default_client_priority 1");
    daemon.ask(&format!("shutdown_server {}", daemon.server()));
    assert_eq!(limits(&[]), low, "the daemon's level holds for clients without one");
    assert_eq!(limits(&[("CUDA_MPS_CLIENT_PRIORITY", "0")]), format!("100 {}", 3u64 << 30));

    // Contexts with percentages of their own: the process has none.
    let both =
        [(PER_CONTEXT, "1"), ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"), ("CUDA_MPS_CLIENT_PRIORITY", "0")];
    assert_eq!(limits(&both), format!("100 {}", 3u64 << 30));
}

#[test]
fn before_volta_sixteen_clients_share_a_context_and_have_no_limits() {
    let daemon = Daemon::start_with(&[
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=3G"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50"),
    ]);
    let start = || Client::start(&daemon.dirs, &[("PARTITA_SIM_DEVICE", "p100")]);
    let _clients: Vec<Client> = (1..=16)
        .map(|number| {
            let mut client = start();
            assert_eq!(client.outcome(), format!("{} {number} 100 0", daemon.server()));
            client
        })
        .collect();
    assert_eq!(start().outcome(), "error 808");
}

#[test]
fn the_server_program_reports_its_version() {
    let dirs = Dirs::new();
    let server = dirs.temp.path().join("nvidia-cuda-mps-server");
    std::os::unix::fs::symlink(&*PROGRAM, &server).unwrap();
    let run = |arguments: &[&str]| std::process::Command::new(&server).args(arguments).output().unwrap();
    let said = String::from_utf8(run(&["-v"]).stdout).unwrap();
    assert!(said.contains("Server") && said.contains("Binary version: 13000"), "{said}");
    assert!(!run(&[]).status.success(), "only the daemon starts a server");
}

#[test]
fn clients_need_static_partitions_if_there_are_any() {
    const NEWER: (&str, &str) = ("PARTITA_SIM_MPS_VERSION", "13010");
    let old = Daemon::start();
    assert_eq!(old.ask("lspart"), "Unknown command \"lspart\"");
    assert!(!old.dirs.control(&["-d", "-S"]).status.success(), "an option that it does not know");
    let plain = Daemon::start_with(&[NEWER]);
    assert!(plain.ask("lspart").starts_with("Failed: static SM partitioning is not enabled"));

    let daemon = Daemon::start_as(&["-d", "-S"], &[NEWER]);
    let dirs = &daemon.dirs;
    let uuid = uuid_text(device_uuid(&dirs.place()));
    let made = daemon.ask(&format!("sm_partition add {uuid} 4"));
    assert_eq!(made, format!("Partition Ab1/= created on {uuid}"));
    assert_eq!(Client::start(dirs, &[]).outcome(), "error 915", "none is named");
    assert_eq!(Client::start(dirs, &[("CUDA_MPS_SM_PARTITION", "GPU-1/Ab1/=")]).outcome(), "error 915");
    let name = format!("{uuid}/Ab1/=");
    let mut client =
        Client::start(dirs, &[("CUDA_MPS_SM_PARTITION", &name), ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50")]);
    assert_eq!(client.outcome(), format!("{} 1 100 0", daemon.server()), "no percentage of a partition");
    assert!(daemon.ask(&format!("sm_partition rm {uuid} Ab1/=")).contains("in use"));
    assert!(daemon.ask(&format!("sm_partition add {uuid} 4")).contains("has clients"));
    drop(client);
    let server = daemon.server();
    eventually("the client leaves", || daemon.ask(&format!("get_client_list {server}")).is_empty());
    assert_eq!(daemon.ask(&format!("sm_partition rm {uuid} Ab1/=")), "");
    assert_eq!(daemon.ask("lspart").lines().count(), 2);
}

#[test]
fn a_program_elsewhere_or_for_another_device_is_no_client() {
    let dirs = Dirs::new();
    assert_eq!(Client::start(&dirs, &[]).outcome(), "alone");
    assert_eq!(Client::start(&dirs, &[("CUDA_MPS_PIPE_DIRECTORY", "/dev/null/no-mps")]).outcome(), "alone");
    let daemon = Daemon::start_with(&[("CUDA_VISIBLE_DEVICES", "GPU-00000000-0000-0000-0000-000000000000")]);
    assert_eq!(Client::start(&daemon.dirs, &[]).outcome(), "error 100");
}

#[test]
fn a_terminated_client_is_no_client_any_more() {
    let daemon = Daemon::start();
    let board = play_board(&daemon.dirs.place());
    let mut client = Client::start(&daemon.dirs, &[]);
    client.outcome();
    let (server, pid) = (daemon.server(), client.pid());
    assert_eq!(daemon.ask(&format!("terminate_client {server} 1")), "Client 1 not found\n1");
    assert_eq!(daemon.ask("terminate_client 1 1"), "Server 1 not found\nServer 1 not found!\n1");
    assert_eq!(daemon.ask(&format!("terminate_client {server} {pid}")), "0");
    assert_eq!(board.lock().unwrap().heard, [Request::Terminate { server, pid }]);
    assert_eq!(daemon.ask(&format!("get_client_list {server}")), "");
    assert!(exists(pid), "its process lives on");
    assert_eq!(daemon.ask(&format!("terminate_client {server} {pid}")), format!("Client {pid} not found\n1"));
}

#[test]
fn quit_waits_for_clients_and_takes_no_new_ones() {
    let daemon = Daemon::start();
    let mut client = Client::start(&daemon.dirs, &[]);
    client.outcome();
    let server = daemon.server();
    assert_eq!(daemon.ask("quit"), "");
    assert_eq!(Client::start(&daemon.dirs, &[]).outcome(), "error 807");
    assert!(exists(daemon.pid) && exists(server));
    drop(client);
    eventually("the daemon ends", || !exists(daemon.pid));
    assert!(!exists(server));
}

#[test]
fn quit_with_a_time_ends_in_spite_of_clients() {
    let daemon = Daemon::start();
    let board = play_board(&daemon.dirs.place());
    let mut client = Client::start(&daemon.dirs, &[]);
    client.outcome();
    let server = daemon.server();
    daemon.ask("quit -t 0");
    eventually("the daemon ends", || !exists(daemon.pid));
    assert!(!exists(server));
    assert_eq!(board.lock().unwrap().heard, [Request::ServerGone { server }]);
}

#[test]
fn a_killed_daemon_takes_its_server_along_and_can_be_replaced() {
    let daemon = Daemon::start();
    let mut client = Client::start(&daemon.dirs, &[]);
    client.outcome();
    let server = daemon.server();
    kill(daemon.pid, libc::SIGKILL);
    eventually("both end", || !exists(daemon.pid) && !exists(server));
    assert_eq!(Client::start(&daemon.dirs, &[]).outcome(), "alone");
    assert!(daemon.dirs.control(&["-d"]).status.success());
    let pid = daemon.dirs.pid();
    assert_ne!(pid, daemon.pid);
    let mut next = Client::start(&daemon.dirs, &[]);
    assert!(next.outcome().ends_with(" 1 100 0"));
    drop(next);
    kill(pid, libc::SIGTERM);
    eventually("the second daemon ends", || !exists(pid));
}

#[test]
fn a_daemon_without_its_directories_says_why() {
    let dirs = Dirs::new();
    let mut command = Command::new(&*PROGRAM);
    dirs.environment(&mut command);
    let output = command.arg("-d").env("CUDA_MPS_LOG_DIRECTORY", "/dev/null/log").output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("/dev/null/log"), "{output:?}");
    assert!(!dirs.pipe().join("control").exists(), "nothing is left behind");
}
