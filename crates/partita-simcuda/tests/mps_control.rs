//! The stand-in for `nvidia-cuda-mps-control`, as a program: commands, clients, faults, and ends of all kinds.
//!
//! Clients are processes that attach as the driver's client does and then wait. The board is played by a
//! thread, so that faults come when a test wants them.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use partita_mps::fault::{Culprit, Part, ServerState, Tracker};
use partita_mps::log::Tail;
use partita_mps::{
    ClientPriority, ControlBinary, DeviceName, MemoryLimit, MpsError, ServerStatus, Service, ServiceDirs,
};
use partita_simcuda::client::runtime::{device_uuid, uuid_text};
use partita_simcuda::mps::client::{attach, tell_context};
use partita_simcuda::shared::place::Place;
use partita_simcuda::shared::protocol::{BoardStatus, MpsIdentity, ProcessStatus, Reply, Request};
use partita_simcuda::shared::socket::{self, MESSAGE_BYTES_MAX, Received};

const PROGRAM: &str = env!("CARGO_BIN_EXE_partita-sim-mps-control");

/// Directories of one service and its board.
struct Dirs {
    temp: tempfile::TempDir,
}

impl Dirs {
    fn new() -> Self {
        Self { temp: tempfile::tempdir().unwrap() }
    }

    fn pipe(&self) -> PathBuf {
        self.temp.path().join("pipe")
    }

    fn place(&self) -> Place {
        Place::new("h200", 0, Some(self.temp.path().join("board").into_os_string())).unwrap()
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.temp.path().join("log").join(name)).unwrap_or_default()
    }

    fn environment(&self, command: &mut Command) {
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe())
            .env("CUDA_MPS_LOG_DIRECTORY", self.temp.path().join("log"))
            .env("PARTITA_SIM_DEVICE", "h200")
            .env("PARTITA_SIM_DIR", self.place().dir)
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    }

    fn control(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        self.environment(&mut command);
        command.args(arguments).stdin(Stdio::null()).output().unwrap()
    }

    fn pid(&self) -> u32 {
        let text = std::fs::read_to_string(self.pipe().join("nvidia-cuda-mps-control.pid")).unwrap();
        text.trim().parse().unwrap()
    }
}

/// A running daemon; ended with the test.
struct Daemon {
    dirs: Dirs,
    pid: u32,
}

impl Daemon {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(environment: &[(&str, &str)]) -> Self {
        Self::start_as(&["-d"], environment)
    }

    fn start_as(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let dirs = Dirs::new();
        let mut command = Command::new(PROGRAM);
        dirs.environment(&mut command);
        let output = command.args(arguments).envs(environment.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let pid = dirs.pid();
        Self { dirs, pid }
    }

    /// The reply to a command.
    fn ask(&self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let output = self.dirs.control(&words);
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    fn server(&self) -> u32 {
        self.ask("get_server_list").parse().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if exists(self.pid) {
            self.dirs.control(&["quit", "-t", "0"]);
            eventually("the daemon ends", || !exists(self.pid));
        }
    }
}

fn kill(pid: u32, signal: i32) {
    // SAFETY: takes numbers; the process is one that this test started.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

/// Whether there is such a process, other than as a zombie that somebody has yet to notice.
fn exists(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within 20 s");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A process that attaches and waits.
struct Client {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
}

impl Client {
    fn start(dirs: &Dirs, environment: &[(&str, &str)]) -> Self {
        Self::start_as(None, dirs, environment)
    }

    fn start_as(user: Option<u32>, dirs: &Dirs, environment: &[(&str, &str)]) -> Self {
        // By this name another user may run it wherever it lies.
        let mut command = Command::new("/proc/self/exe");
        if let Some(user) = user {
            command.uid(user);
        }
        dirs.environment(&mut command);
        command
            .args(["--exact", "client_process", "--ignored", "--nocapture"])
            .envs(environment.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it says of its attaching.
    fn outcome(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the client ended without a word");
            if let Some((_, outcome)) = line.split_once("OUTCOME ") {
                return outcome.trim().to_owned();
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// The same machine's GPU of this number.
fn on(place: &Place, index: u32) -> Place {
    let mut place = place.clone();
    place.index = index;
    place
}

#[test]
#[ignore = "run by other tests in a process of its own"]
fn client_process() {
    let first = Place::from_env().unwrap();
    let gpus = std::env::var("TEST_GPUS").unwrap_or_else(|_| "0".to_owned());
    let mut places = gpus.split(',').map(|index| on(&first, index.parse().unwrap()));
    let attached = attach(&places.next().unwrap());
    let _others: Vec<_> = places
        .map(|place| {
            let (_, connection) = attach(&place).unwrap().unwrap();
            tell_context(connection.as_fd(), 2, true).unwrap();
            connection
        })
        .collect();
    match &attached {
        Ok(None) => println!("OUTCOME alone"),
        Ok(Some((MpsIdentity { server, client, percentage, memory_limit_bytes, .. }, connection))) => {
            tell_context(connection.as_fd(), 1, true).unwrap();
            println!("OUTCOME {server} {client} {percentage} {}", memory_limit_bytes.unwrap_or(0));
        }
        Err(code) => println!("OUTCOME error {}", code.0),
    }
    // Waits until the test lets go.
    let _ = std::io::stdin().lines().count();
}

/// What the played board has heard, and what it says of its processes.
#[derive(Default)]
struct Script {
    heard: Vec<Request>,
    processes: Vec<ProcessStatus>,
}

impl Script {
    fn status(&self) -> BoardStatus {
        let processes = self.processes.clone();
        BoardStatus { used_bytes: 0, busy_percent: 0, corruptions: 0, processes }
    }

    fn has_fault(&self, server: u32) -> bool {
        self.processes.iter().any(|one| one.fault != 0 && one.mps.is_some_and(|mps| mps.server == server))
    }
}

fn play_board(place: &Place) -> Arc<Mutex<Script>> {
    place.make_dir().unwrap();
    let listener = socket::listen(&place.socket()).unwrap();
    let script = Arc::new(Mutex::new(Script::default()));
    let shared = Arc::clone(&script);
    // The threads end with the test's process.
    thread::spawn(move || {
        loop {
            match socket::accept(listener.as_fd()).unwrap() {
                Some(connection) => {
                    let script = Arc::clone(&shared);
                    thread::spawn(move || play_connection(&connection, &script));
                }
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
    });
    script
}

fn play_connection(connection: &OwnedFd, script: &Mutex<Script>) {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let mut awaits = None;
    loop {
        let say =
            |reply: &Reply| socket::send(connection.as_fd(), &postcard::to_allocvec(reply).unwrap(), &[]);
        if let Some(server) = awaits
            && script.lock().unwrap().has_fault(server)
        {
            let status = script.lock().unwrap().status();
            say(&Reply::Status(status)).unwrap();
            awaits = None;
        }
        let request: Request = match socket::receive(connection.as_fd(), &mut buffer) {
            Ok(Received::Packet(bytes, _)) => postcard::from_bytes(&buffer[..bytes]).unwrap(),
            Ok(Received::Nothing) => {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            _ => return,
        };
        let mut script = script.lock().unwrap();
        let reply = match request {
            Request::Hello { .. } => Reply::Welcome { device: "h200".to_owned(), instance: 1, sms: 132 },
            Request::Status => Reply::Status(script.status()),
            Request::AwaitFault { server } => {
                awaits = Some(server);
                continue;
            }
            other => {
                script.heard.push(other);
                Reply::Done
            }
        };
        say(&reply).unwrap();
    }
}

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

    // A server that nobody uses ends with the daemon.
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
    let mut command = Command::new(PROGRAM);
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

    // However a client ends, it is gone from the list, and the server stays.
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
fn static_partitions_are_what_clients_need_where_there_are_any() {
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

fn faulty(pid: u32, server: u32) -> ProcessStatus {
    let mps = Some(MpsIdentity::unlimited(server, 1));
    ProcessStatus { pid, command: "tenant".to_owned(), contexts: 1, used_bytes: 0, mps, fault: 700 }
}

#[test]
fn a_server_with_a_fault_takes_nobody_until_the_hurt_have_left() {
    let daemon = Daemon::start();
    let board = play_board(&daemon.dirs.place());
    let mut hurt = Client::start(&daemon.dirs, &[]);
    hurt.outcome();
    let server = daemon.server();
    board.lock().unwrap().processes = vec![faulty(hurt.pid(), server)];
    eventually("the daemon hears of it", || daemon.dirs.log("server.log").contains("fatal GPU error"));
    assert_eq!(daemon.ask(&format!("get_server_status {server}")), "FAULT");
    assert_eq!(Client::start(&daemon.dirs, &[]).outcome(), "error 807");
    board.lock().unwrap().processes.clear();
    assert_eq!(daemon.ask(&format!("get_server_status {server}")), "FAULT", "whom it hurt has to leave");
    drop(hurt);
    eventually("the server recovers", || daemon.ask(&format!("get_server_status {server}")) == "ACTIVE");
    assert_eq!(Client::start(&daemon.dirs, &[]).outcome(), format!("{server} 2 100 0"));
}

#[test]
fn clients_of_a_server_that_goes_lose_the_gpu_and_newcomers_get_a_new_one() {
    let daemon = Daemon::start();
    let board = play_board(&daemon.dirs.place());
    for how in ["shutdown_server -f", "kill"] {
        let mut client = Client::start(&daemon.dirs, &[]);
        client.outcome();
        let server = daemon.server();
        if how == "kill" {
            kill(server, libc::SIGKILL);
        } else {
            assert_eq!(daemon.ask(&format!("shutdown_server {server} -f")), "");
        }
        eventually("the server goes", || daemon.ask("get_server_list").is_empty());
        assert!(!exists(server));
        assert_eq!(
            std::mem::take(&mut board.lock().unwrap().heard),
            [Request::ServerGone { server }],
            "{how}"
        );
        let mut next = Client::start(&daemon.dirs, &[]);
        let outcome = next.outcome();
        assert_eq!(outcome, format!("{} 1 100 0", daemon.server()));
        assert_ne!(daemon.server(), server);
        drop(next);
        let quiet = format!("shutdown_server {}", daemon.server());
        daemon.ask(&quiet);
        eventually("the unused server goes", || daemon.ask("get_server_list").is_empty());
    }
    assert!(daemon.dirs.log("control.log").contains("exited with status 137"));
}

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
    let service =
        Service::new(ControlBinary::at(PROGRAM.as_ref()).unwrap(), service_dirs, &uuid).for_all_users();
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
        command.args(["--exact", "joining_process", "--ignored", "--nocapture"]).env("TEST_SERVICE", dir);
        let output = command.uid(NOBODY).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
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
    let Ok(binary) = ControlBinary::at(PROGRAM.as_ref()) else {
        println!("SKIPPED: another user cannot run {PROGRAM}");
        return;
    };
    let service_dirs = ServiceDirs::new(std::env::var_os("TEST_SERVICE").unwrap().as_ref()).unwrap();
    let service = Service::new(binary, service_dirs, "GPU-0").for_all_users();
    match service.ensure() {
        Ok(ensured) => println!("ENSURED {} {}", ensured.started, service.stop(true).unwrap_err()),
        Err(error) => println!("REFUSED {error}"),
    }
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
    let mut command = Command::new(PROGRAM);
    dirs.environment(&mut command);
    let output = command.arg("-d").env("CUDA_MPS_LOG_DIRECTORY", "/dev/null/log").output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("/dev/null/log"), "{output:?}");
    assert!(!dirs.pipe().join("control").exists(), "nothing is left behind");
}

#[test]
fn a_fault_is_written_down_and_its_reach_is_read_back() {
    let daemon = Daemon::start();
    let board = play_board(&daemon.dirs.place());
    let mut clients: Vec<Client> = (0..3).map(|_| Client::start(&daemon.dirs, &[])).collect();
    clients.iter_mut().for_each(|client| drop(client.outcome()));
    let (server, pids) = (daemon.server(), clients.iter().map(Client::pid).collect::<Vec<_>>());
    let mut control = Tail::from_start(&daemon.dirs.temp.path().join("log/control.log"));
    let mut tail = Tail::from_start(&daemon.dirs.temp.path().join("log/server.log"));
    let mut tracker = Tracker::new();
    let mut follow = |tracker: &mut Tracker| {
        for entry in control.poll().unwrap().into_iter().chain(tail.poll().unwrap()) {
            tracker.apply(&entry);
        }
    };
    eventually("every client is active", || {
        follow(&mut tracker);
        tracker.clients(server).count() == 3
    });
    assert_eq!(tracker.state(server), Some(ServerState::Active));
    board.lock().unwrap().processes = pids.iter().map(|&pid| faulty(pid, server)).collect();
    eventually("the fault is followed to its last word", || {
        follow(&mut tracker);
        tracker.fault(server).is_some_and(|fault| fault.hit.len() == 3 && !fault.devices.is_empty())
    });
    let fault = tracker.fault(server).unwrap();
    assert_eq!(tracker.state(server), Some(ServerState::Fault));
    assert_eq!(fault.culprit(), Culprit::OneOf(pids.iter().copied().collect()));
    assert_eq!(fault.part_of(pids[0]), Part::Hit);
    assert!(fault.spared.is_empty());
    board.lock().unwrap().processes.clear();
    clients.clear();
    eventually("the server is active again", || {
        follow(&mut tracker);
        tracker.state(server) == Some(ServerState::Active)
    });
    assert!(tracker.fault(server).unwrap().staying.is_empty());
}

/// Clients A on device 0, B on 0 and 1, C on 1, D on 2: section 2.3.3.2 of the MPS guide.
#[test]
fn the_four_clients_of_the_guide() {
    let daemon = Daemon::start();
    let places = [0, 1, 2].map(|index| on(&daemon.dirs.place(), index));
    let boards = places.each_ref().map(play_board);
    let mut clients: Vec<Client> =
        ["0", "0,1", "1", "2"].map(|gpus| Client::start(&daemon.dirs, &[("TEST_GPUS", gpus)])).into();
    clients.iter_mut().for_each(|client| drop(client.outcome()));
    let server = daemon.server();
    let [a, b, c, d] = [0, 1, 2, 3].map(|at| clients[at].pid());
    let log = || daemon.dirs.log("server.log");
    eventually("every context is there", || log().matches("is ACTIVE").count() == 5);
    // The board of device 0 fails those whom it knows.
    boards[0].lock().unwrap().processes = vec![faulty(a, server), faulty(b, server)];
    let mut tail = Tail::from_start(&daemon.dirs.temp.path().join("log/server.log"));
    let mut tracker = Tracker::new();
    eventually("the fault is written down", || {
        for entry in tail.poll().unwrap() {
            tracker.apply(&entry);
        }
        tracker.fault(server).is_some_and(|fault| fault.hit.len() == 3)
    });
    let fault = tracker.fault(server).unwrap().clone();
    assert_eq!(fault.devices.iter().copied().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(fault.hit, [a, b, c].into());
    assert_eq!([a, b, c, d].map(|pid| fault.part_of(pid)), [Part::Hit, Part::Hit, Part::Hit, Part::Spared]);
    let contained = Request::Contain { server, code: 700 };
    assert_eq!(boards[1].lock().unwrap().heard, [contained], "client B ties device 1 to it");
    assert!(boards[2].lock().unwrap().heard.is_empty());
    let status = format!("get_server_status {server}");
    assert_eq!(daemon.ask(&status), "FAULT");
    boards[0].lock().unwrap().processes.clear();
    let last = clients.pop().unwrap();
    clients.clear();
    eventually("the server is active with the one that was spared", || daemon.ask(&status) == "ACTIVE");
    assert_eq!(daemon.ask(&format!("get_client_list {server}")), last.pid().to_string());
}

#[test]
fn failures_come_as_scripted_and_are_told_apart() {
    let dirs = Dirs::new();
    let script = dirs.temp.path().join("script");
    let write = |text: &str| std::fs::write(&script, text).unwrap();
    let service = |dirs: &Dirs| {
        let service_dirs = ServiceDirs::new(dirs.temp.path()).unwrap();
        let uuid = uuid_text(device_uuid(&dirs.place()));
        Service::new(ControlBinary::at(PROGRAM.as_ref()).unwrap(), service_dirs, &uuid)
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
    assert!(ensured.started, "what it left is no obstacle");
    service.stop(true).unwrap();
}

#[test]
fn newer_commands_are_found_by_trying() {
    let dirs = Dirs::new();
    let script = dirs.temp.path().join("script");
    let service_dirs = ServiceDirs::new(dirs.temp.path()).unwrap();
    let uuid = uuid_text(device_uuid(&dirs.place()));
    let service = Service::new(ControlBinary::at(PROGRAM.as_ref()).unwrap(), service_dirs, &uuid)
        .with_env("PARTITA_SIM_MPS_SCRIPT", &script);
    let daemon = Daemon { dirs, pid: service.ensure().unwrap().pid };
    let control = service.control();
    assert!(!control.offers_partitions().unwrap() && !control.speaks_v3().unwrap(), "binary 13000");

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

    write("server say name,uid\\nserve,1000");
    assert!(control.speaks_v3().unwrap());
    assert_eq!(control.table("server", &[]).unwrap()[0]["uid"], "1000");
    drop(daemon);
}

#[test]
fn every_classic_command_is_understood_by_both_sides() {
    let dirs = Dirs::new();
    let uuid = uuid_text(device_uuid(&dirs.place()));
    let service_dirs = ServiceDirs::new(dirs.temp.path()).unwrap();
    let service = Service::new(ControlBinary::at(PROGRAM.as_ref()).unwrap(), service_dirs, &uuid);
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
    let service = Service::new(ControlBinary::at(PROGRAM.as_ref()).unwrap(), service_dirs, &uuid);
    let ensured = service.ensure().unwrap();
    // Ends the daemon also when the test fails.
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
