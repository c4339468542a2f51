//! A service of the stand-in for `nvidia-cuda-mps-control`, its clients, and its boards.
//!
//! Clients are processes that attach as the driver's client does and then wait. A thread plays a
//! board, so that faults come when a test wants them.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use partita_simcuda::mps::client::{attach, notify_context};
use partita_simcuda::mps::own::Own;
use partita_simcuda::shared::place::Place;
use partita_simcuda::shared::protocol::{BoardStatus, MpsIdentity, ProcessStatus, Reply, Request};
use partita_simcuda::shared::socket::{self, Received};

pub static PROGRAM: LazyLock<PathBuf> =
    LazyLock::new(|| partita_testing::build().join("partita-sim-mps-control"));

/// Directories of one service and its board.
pub struct Dirs {
    pub temp: tempfile::TempDir,
}

impl Dirs {
    pub fn new() -> Self {
        Self { temp: tempfile::tempdir().unwrap() }
    }

    pub fn pipe(&self) -> PathBuf {
        self.temp.path().join("pipe")
    }

    pub fn place(&self) -> Place {
        Place::new("h200", 0, Some(self.temp.path().join("board").into_os_string())).unwrap()
    }

    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.temp.path().join("log").join(name)).unwrap_or_default()
    }

    pub fn environment(&self, command: &mut Command) {
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe())
            .env("CUDA_MPS_LOG_DIRECTORY", self.temp.path().join("log"))
            .env("PARTITA_SIM_DEVICE", "h200")
            .env("PARTITA_SIM_DIR", self.place().dir)
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    }

    pub fn control(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&*PROGRAM);
        self.environment(&mut command);
        command.args(arguments).stdin(Stdio::null()).output().unwrap()
    }

    pub fn pid(&self) -> u32 {
        let text = std::fs::read_to_string(self.pipe().join("nvidia-cuda-mps-control.pid")).unwrap();
        text.trim().parse().unwrap()
    }
}

/// A running daemon; ended with the test.
pub struct Daemon {
    pub dirs: Dirs,
    pub pid: u32,
}

impl Daemon {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(environment: &[(&str, &str)]) -> Self {
        Self::start_as(&["-d"], environment)
    }

    pub fn start_as(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let dirs = Dirs::new();
        let mut command = Command::new(&*PROGRAM);
        dirs.environment(&mut command);
        let output = command.args(arguments).envs(environment.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let pid = dirs.pid();
        Self { dirs, pid }
    }

    /// The reply to a command.
    pub fn ask(&self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let output = self.dirs.control(&words);
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    pub fn server(&self) -> u32 {
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

pub fn kill(pid: u32, signal: i32) {
    // SAFETY: takes numbers; the process is one that this test started.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

/// Whether such a process exists and is not a zombie.
pub fn exists(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within 60 s");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A process that attaches and waits.
pub struct Client {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
}

impl Client {
    pub fn start(dirs: &Dirs, environment: &[(&str, &str)]) -> Self {
        Self::start_as(None, dirs, environment)
    }

    pub fn start_as(user: Option<u32>, dirs: &Dirs, environment: &[(&str, &str)]) -> Self {
        // Under this name another user can run it, wherever it is.
        let mut command = Command::new("/proc/self/exe");
        if let Some(user) = user {
            command.uid(user);
        }
        dirs.environment(&mut command);
        command
            .args(["--exact", "mps_service::client_process", "--ignored", "--nocapture"])
            .envs(environment.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its report of attaching.
    pub fn outcome(&mut self) -> String {
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
pub fn on(place: &Place, index: u32) -> Place {
    let mut place = place.clone();
    place.index = index;
    place
}

#[test]
#[ignore = "other tests run this in a separate process"]
fn client_process() {
    let first = Place::from_env().unwrap();
    let gpus = std::env::var("TEST_GPUS").unwrap_or_else(|_| "0".to_owned());
    let mut places = gpus.split(',').map(|index| on(&first, index.parse().unwrap()));
    let attach = |place: &Place| attach(place, Own::from_env(place, std::slice::from_ref(place)));
    let attached = attach(&places.next().unwrap());
    let _others: Vec<_> = places
        .map(|place| {
            let (_, connection) = attach(&place).unwrap().unwrap();
            notify_context(connection.as_fd(), 2, true).unwrap();
            connection
        })
        .collect();
    // Devices that it sees but does not use.
    let seen = std::env::var("TEST_SEES").unwrap_or_default();
    let seen = seen.split_terminator(',').map(|index| on(&first, index.parse().unwrap()));
    let _idle: Vec<_> = seen.map(|place| attach(&place).unwrap().unwrap()).collect();
    match &attached {
        Ok(None) => println!("OUTCOME alone"),
        Ok(Some((identity, connection))) => {
            let MpsIdentity { server, client, percentage, memory_limit_bytes, is_below_normal, .. } =
                identity;
            notify_context(connection.as_fd(), 1, true).unwrap();
            let low = if *is_below_normal { " low" } else { "" };
            println!("OUTCOME {server} {client} {percentage} {}{low}", memory_limit_bytes.unwrap_or(0));
        }
        Err(code) => println!("OUTCOME error {}", code.0),
    }
    // Waits until the test closes its input.
    let _ = std::io::stdin().lines().count();
}

/// The messages that the played board got, and its answers about its processes.
#[derive(Default)]
pub struct Script {
    pub heard: Vec<Request>,
    pub processes: Vec<ProcessStatus>,
}

impl Script {
    pub fn status(&self) -> BoardStatus {
        let processes = self.processes.clone();
        BoardStatus { used_bytes: 0, busy_percent: 0, memory_percent: 0, corruptions: 0, processes }
    }

    pub fn has_fault(&self, server: u32) -> bool {
        self.processes.iter().any(|one| one.fault != 0 && one.mps.is_some_and(|mps| mps.server == server))
    }
}

pub fn play_board(place: &Place) -> Arc<Mutex<Script>> {
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
        let request: Request = match socket::receive(connection.as_fd()) {
            Ok(Received::Packet(packet, _)) => postcard::from_bytes(&packet).unwrap(),
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
