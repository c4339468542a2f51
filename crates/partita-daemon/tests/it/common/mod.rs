//! A daemon of a test's own: directories, a simulated GPU, and a client.

#![allow(dead_code, reason = "each test file uses a part")]

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use partita::install::Install;
use partita::kill;
use partita::registry::Registry;
use partita_chain_host::daemon::{Answer, Client};
use partita_testing::{build, eventually, is_real, without_own_variables};
use serde_json::{Value, json};

/// A generous limit for things that take milliseconds: reached only by a hang.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_partitad"))
}

/// The program `partita`.
pub fn partita() -> PathBuf {
    build().join("partita")
}

/// Whether there is no curl here; says so.
pub fn lacks_curl() -> bool {
    let is_here = Command::new("curl").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let lacks = !is_here.is_ok_and(|status| status.success());
    if lacks {
        eprintln!("skipped: curl is not installed");
    }
    lacks
}

/// A place for daemons: a run directory, a state directory, a simulated GPU.
pub struct World {
    temp: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        Self::below("/tmp")
    }

    /// One whose files can be mapped by a GPU.
    pub fn in_memory() -> Self {
        Self::below("/dev/shm")
    }

    fn below(dir: &str) -> Self {
        build();
        // Short: socket paths have 107 bytes.
        let temp = tempfile::Builder::new().prefix("ptd").tempdir_in(dir).unwrap();
        partita_testing::make_boards(&temp.path().join("sim"));
        Self { temp }
    }

    pub fn dir(&self) -> &Path {
        self.temp.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir().join("run").join(format!(".partitad-{}.sock", rustix::process::geteuid().as_raw()))
    }

    pub fn state(&self) -> PathBuf {
        self.dir().join("state")
    }

    pub fn surround(&self, command: &mut Command) {
        without_own_variables(command);
        command
            .env("PARTITA_RUN_DIR", self.dir().join("run"))
            .env("PARTITA_CACHE_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"))
            .env("PARTITA_SIM_DIR", self.dir().join("sim"))
            .env("PARTITA_LIB_DIR", build())
            .env("PARTITA_GPU", if is_real() { "0" } else { "sim:h200" })
            .env("PARTITA_STATE_DIR", self.state())
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .stdin(Stdio::null());
    }

    /// `partitad` with these arguments.
    pub fn partitad<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(program());
        command.args(arguments);
        self.surround(&mut command);
        command
    }

    /// `partita` with these arguments.
    pub fn partita<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(partita());
        command.args(arguments);
        self.surround(&mut command);
        command
    }

    /// A file with this token.
    pub fn token_file(&self, name: &str, token: &str) -> String {
        let path = self.dir().join(name);
        fs::write(&path, token).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Ends a chain.
    pub fn kill_chain(&self, name: &str) {
        let registry = Registry::at(&self.dir().join("run")).unwrap();
        let install = Install::of(program().to_owned(), Some(build().into()));
        let _ = kill::kill(&install, &registry, name, Duration::ZERO);
    }

    /// A daemon that serves.
    pub fn start(&self) -> Daemon {
        self.start_with::<&str>([])
    }

    pub fn start_with<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Daemon {
        let mut command = self.partitad(arguments);
        Daemon::start(&mut command, &self.socket(), &self.dir().join("log"))
    }

    /// The one line that `partitad` refuses these arguments with.
    pub fn refused<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        let Output { status, stderr, .. } = self.partitad(arguments).output().unwrap();
        let text = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(125), "{text}");
        let last = text.lines().last().unwrap_or_default();
        assert!(last.starts_with("partitad: "), "{text}");
        last.to_owned()
    }
}

impl World {
    /// The living processes that have this world in their environment, but the simulated board,
    /// which leaves by itself a moment after its last client.
    fn processes(&self) -> Vec<(i32, String)> {
        let mark = self.dir().join("run").display().to_string();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let read = |file| {
                String::from_utf8_lossy(&fs::read(entry.path().join(file)).unwrap_or_default()).into_owned()
            };
            let name = read("comm").trim().to_owned();
            if read("environ").contains(&mark) && !name.starts_with("partita-simgpu") {
                found.push((pid, name));
            }
        }
        found
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The MPS service outlives tenants on purpose; nothing else does.
        let is_service =
            |name: &str| name.starts_with("nvidia-cuda-mps") || name.starts_with("partita-sim-mps");
        if !std::thread::panicking() {
            eventually("all processes of the test have ended", || {
                self.processes().iter().all(|(_, name)| is_service(name))
            });
        }
        for (pid, _) in self.processes() {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// A daemon.
pub struct Daemon {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Daemon {
    pub fn start(command: &mut Command, socket: &Path, log: &Path) -> Self {
        // One that was killed may have left it: it is a new one that answers.
        let file = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        let begin = file.metadata().unwrap().len();
        let mut child = command.stderr(file).spawn().unwrap();
        let serves = || fs::read_to_string(log).unwrap()[begin as usize..].contains("serving");
        eventually("the daemon serves", || {
            assert!(child.try_wait().unwrap().is_none(), "{}", fs::read_to_string(log).unwrap());
            serves()
        });
        Self { child, socket: socket.to_owned(), log: log.to_owned() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn client(&self) -> Client {
        Client::at(&self.socket)
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Where it listens on TCP.
    pub fn address(&self) -> String {
        let log = self.log();
        log.rsplit("address=").next().unwrap().split_whitespace().next().unwrap().to_owned()
    }

    /// A request and its answer, which is a problem document if it is no success.
    pub fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let answer = self
            .client()
            .request(method, path, body.as_ref())
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        if answer.status >= 300 {
            check_problem(answer.status, &answer.body);
        }
        answer
    }

    pub fn get(&self, path: &str) -> Value {
        self.ok("GET", path, None)
    }

    pub fn ok(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let answer = self.ask(method, path, body);
        assert!((200..300).contains(&answer.status), "{method} {path}: {answer:?}");
        answer.body
    }

    /// The problem of a request that is refused with this status.
    pub fn refused(&self, status: u16, method: &str, path: &str, body: Option<Value>) -> Value {
        let answer = self.ask(method, path, body);
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        answer.body
    }

    /// The status and the body of `/healthz`, which is no problem document when something does not
    /// work.
    pub fn ask_health(&self) -> (u16, Value) {
        let (status, _, body) = self.send("GET /healthz HTTP/1.1", b"");
        (status, serde_json::from_str(&body).unwrap())
    }

    /// Sends bytes and reads what comes until the daemon closes the connection.
    pub fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // It may have heard enough before all is sent.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    /// The same for what may be no request or only a part of one: nothing more will come.
    pub fn raw_to_its_end(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    /// One request as it is written, with `Connection: close`; its status, its headers and its
    /// body.
    pub fn send(&self, head: &str, body: &[u8]) -> (u16, String, String) {
        let mut bytes = format!("{head}\r\nhost: x\r\nconnection: close\r\n\r\n").into_bytes();
        bytes.extend_from_slice(body);
        parse(&self.raw(&bytes)).unwrap_or_else(|| panic!("no answer to {head}"))
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it in order.
    pub fn end(mut self) {
        self.signal(rustix::process::Signal::TERM);
        let status = self.wait();
        assert!(status.success(), "{status}: {}", self.log());
    }

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer in its parts.
pub fn parse(bytes: &[u8]) -> Option<(u16, String, String)> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, head.to_ascii_lowercase(), body.to_owned()))
}

/// Every failure has this form.
pub fn check_problem(status: u16, body: &Value) {
    let text = |key: &str| body[key].as_str().unwrap_or_else(|| panic!("{status}: no {key} in {body}"));
    assert_eq!(body["status"], status, "{body}");
    assert!(text("type").starts_with("urn:partita:problem:"), "{body}");
    assert!(!text("title").is_empty() && !text("detail").is_empty(), "{body}");
    assert!(!text("detail").contains('\n') && text("detail").len() < 4000, "{body}");
}

/// A definition with components that do nothing.
pub fn definition(name: &str) -> Value {
    let component = |name: &str| json!({ "name": name, "command": ["sleep", "1000"] });
    json!({ "name": name, "frame": "4KiB", "component": [component("first"), component("second")] })
}
