//! A separate world for each test: directories, a simulated board, and a check at the end that
//! nothing is left behind.
//!
//! `PARTITA_TEST_GPU=real` runs the same tests on the machine's first GPU.

#![allow(dead_code)]

pub mod container;
pub mod typist;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use partita_testing::{VICTIM, build, succeed, without_own_variables};
#[allow(unused_imports, reason = "each test file uses a part")]
pub use partita_testing::{is_real, needs_simulator};
use rustix::fs::FlockOperation;
use serde_json::Value;

/// A generous limit for things that take milliseconds: only a hang exceeds it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The places of bursts and steps, which are the end of a usage file.
pub const PACES_BYTES: usize = 64 * 14_016;

pub fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_partita"))
}

/// Whether a process exists and is not a zombie: one whose parent has died may stay a zombie.
pub fn lives(pid: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The CUDA test program and the file with its kernels.
pub fn gpu_program() -> &'static (PathBuf, PathBuf) {
    static BUILT: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    BUILT.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/common/gpu.c");
        // Tests in several processes build at the same time: each its own, then one rename.
        let fresh = dir.join(format!("gpu.{}", std::process::id()));
        succeed(Command::new("cc").args(["-O1", "-o"]).arg(&fresh).arg(source).arg("-ldl"));
        let ptx = dir.join(format!("kernels.{}.ptx", std::process::id()));
        fs::write(&ptx, partita_abi::kernels::PTX_MODULE.to_bytes()).unwrap();
        let (program, kernels) = (dir.join("gpu"), dir.join("kernels.ptx"));
        fs::rename(&fresh, &program).unwrap();
        fs::rename(&ptx, &kernels).unwrap();
        (program, kernels)
    })
}

pub struct World {
    temp: tempfile::TempDir,
    /// A directory of the user who runs the commands.
    dir: PathBuf,
    run_dir: PathBuf,
    /// The directory of the simulated boards.
    boards: PathBuf,
    /// The directory of the calibrations.
    cache: PathBuf,
    /// The user who runs the commands, unless it is the one who runs the tests.
    user: Option<u32>,
    /// Variables of every program here, including the daemon.
    machine: Variables,
    /// In system mode.
    pub system: Option<System>,
    /// When it began.
    begin: Instant,
    /// The turn on the real GPU.
    _turn: Option<File>,
    /// The turn of a test that is preferred.
    _preferred: Option<File>,
}

/// Variables that change the machine: another simulated GPU, other parts of the installation.
pub type Variables = Vec<(&'static str, OsString)>;

/// Whether the tests of this program run in system mode: as a user, with `partitad` as root. With
/// `PARTITA_TEST_SYSTEM=1` those of every program do. Prints the reason if this machine cannot run
/// them.
pub fn is_system() -> bool {
    static IS_SYSTEM: LazyLock<bool> = LazyLock::new(|| {
        let is_wanted = env!("CARGO_CRATE_NAME") == "system"
            || std::env::var_os("PARTITA_TEST_SYSTEM").is_some_and(|value| value == "1");
        is_wanted && partita_testing::can_be_users(program())
    });
    *IS_SYSTEM
}

/// Why some tests do not apply to system mode.
pub const SHARED_BY_USERS: &str =
    "this is about a run directory that every user writes in; `system` is about root's";

/// Why others do not.
pub const OF_ROOT_FOR_USERS: &str =
    "root's scripts of batch systems make tenants as the user of the job, and partitad refuses those";

/// The options of a world.
pub struct Plan {
    parent: &'static str,
    is_own: bool,
    is_alone: bool,
    is_measured: bool,
}

impl Plan {
    /// A GPU can map its files.
    pub fn in_memory(self) -> Self {
        Self { parent: "/dev/shm", ..self }
    }

    /// Its run directory is the user's own, for actions that partitad refuses to all users: its
    /// refusals tell users to set one.
    pub fn own(self) -> Self {
        Self { is_own: true, ..self }
    }

    /// No other test uses the real GPU: this one reads how much memory the whole GPU has left.
    pub fn alone(self) -> Self {
        Self { is_alone: true, ..self }
    }

    /// It measures shares of time ([`prefer_this_test`]).
    pub fn measured(self) -> Self {
        Self { is_measured: true, ..self }
    }

    pub fn start(self) -> World {
        self.on(|_| Vec::new())
    }

    /// Starts it on a machine that these variables describe. `machine` gets [`World::dir`].
    pub fn on(self, machine: impl FnOnce(&Path) -> Variables) -> World {
        build();
        let preferred = self.is_measured.then(prefer_this_test);
        let turn = is_real().then(|| turn(self.is_alone));
        // Short: socket paths have 107 bytes.
        let temp = tempfile::Builder::new().prefix("pt").tempdir_in(self.parent).unwrap();
        let mut dir = temp.path().to_owned();
        let user = is_system().then_some(VICTIM);
        if let Some(user) = user {
            partita_testing::make_places(&dir);
            dir.push(user.to_string());
        }
        let machine = machine(&dir);
        let root = if self.is_own { &dir } else { temp.path() };
        let [run_dir, boards] = ["run", "sim"].map(|name| root.join(name));
        // The directory of all tests is root's, if that is another user.
        let caches = match user.is_some() && self.is_own {
            true => &dir,
            false => Path::new(env!("CARGO_TARGET_TMPDIR")),
        };
        let cache = caches.join("cache");
        let begin = Instant::now();
        let (_turn, _preferred, system) = (turn, preferred, None);
        let mut world =
            World { temp, dir, run_dir, boards, cache, user, machine, system, begin, _turn, _preferred };
        partita_testing::make_boards(&world.boards);
        if is_system() && !self.is_own {
            // A machine's GPUs are available to every user.
            fs::set_permissions(&world.boards, PermissionsExt::from_mode(0o777)).unwrap();
            world.system = Some(System::start(&world));
        } else {
            world.give(&world.boards);
        }
        world
    }
}

/// Waits for a turn on the real GPU, which ends when the file is closed.
fn turn(is_alone: bool) -> File {
    let file = File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpu.lock")).unwrap();
    let operation = match is_alone {
        true => FlockOperation::LockExclusive,
        false => FlockOperation::LockShared,
    };
    rustix::fs::flock(&file, operation).unwrap();
    file
}

/// Prints the reason and returns true in system mode, for a test that does not apply there.
pub fn needs_user_mode(reason: &str) -> bool {
    if is_system() {
        eprintln!("skipped in system mode: {reason}");
    }
    is_system()
}

/// Lets the machine prefer this test, and all that it starts, to its other work, where root runs
/// the tests: a tenant that gets no processor is charged late, and its share of time is not seen.
/// One test at a time has this, until the file is closed.
pub fn prefer_this_test() -> File {
    let file = File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("preferred.lock")).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    // That of the calling thread alone.
    let _ = rustix::process::setpriority_process(None, -15);
    file
}

impl World {
    pub fn new() -> Self {
        Self::plan().start()
    }

    /// A world whose files a GPU can map.
    pub fn in_memory() -> Self {
        Self::plan().in_memory().start()
    }

    /// The same for a test that measures shares of time.
    pub fn measured() -> Self {
        Self::plan().in_memory().measured().start()
    }

    /// A world with other options.
    pub fn plan() -> Plan {
        Plan { parent: "/tmp", is_own: false, is_alone: false, is_measured: false }
    }

    /// The daemon of system mode.
    pub fn system(&mut self) -> &mut System {
        self.system.as_mut().expect("a test of system mode")
    }

    /// `partita` with these arguments, as the user who runs the tests: root, if the tests can use
    /// several users.
    pub fn as_root<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(program());
        command.args(arguments);
        self.surround(&mut command);
        command
    }

    /// `partita` with these arguments, as a user.
    pub fn as_user<S: AsRef<OsStr>>(&self, user: u32, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.as_root(arguments);
        self.enter(user, &mut command);
        command
    }

    /// Makes a command run as a user.
    pub fn enter(&self, user: u32, command: &mut Command) {
        let place = self.temp.path().join(user.to_string());
        command.uid(user).gid(user).env("HOME", &place).env("TMPDIR", &place);
    }

    /// Makes a program run as the user who runs the commands.
    pub fn as_its_user(&self, command: &mut Command) {
        if let Some(user) = self.user {
            self.enter(user, command);
        }
    }

    /// The number of that user.
    pub fn user(&self) -> u32 {
        self.user.unwrap_or_else(|| rustix::process::geteuid().as_raw())
    }

    /// The name of that user in messages.
    pub fn owner(&self) -> String {
        if self.user() == 0 { "root".to_owned() } else { format!("user {}", self.user()) }
    }

    /// Its directory, which is that of the user who runs the tests.
    pub fn root(&self) -> &Path {
        self.temp.path()
    }

    /// A directory of the user who runs the commands.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A directory in it, which that user can write.
    pub fn make_dir(&self, name: impl AsRef<Path>) -> PathBuf {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir).unwrap();
        self.give(&dir);
        dir
    }

    /// Gives one of the test's files to that user.
    pub fn give(&self, path: &Path) {
        if let Some(user) = self.user {
            std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
        }
    }

    /// What is in the logs of its MPS services, incidents included.
    pub fn service_logs(&self) -> String {
        let mut find = Command::new("find");
        find.arg(self.root()).args(["-name", "*.log", "-o", "-name", "incidents.jsonl"]);
        let listed = text(&find.output().unwrap().stdout);
        let files = listed.lines().map(|file| {
            let content = fs::read(file).unwrap_or_default();
            format!("\n== {file}\n{}", String::from_utf8_lossy(&content))
        });
        files.collect()
    }

    /// The directory of calibrations.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    pub fn run_dir(&self) -> PathBuf {
        self.run_dir.clone()
    }

    /// `partita` with these arguments, in this world.
    pub fn partita<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.as_root(arguments);
        self.as_its_user(&mut command);
        command
    }

    /// `partita` with the words of this line, as the user who owns the MPS services: root in system
    /// mode.
    pub fn keeper(&self, line: &str) -> Command {
        let words = line.split_whitespace();
        if self.system.is_some() { self.as_root(words) } else { self.partita(words) }
    }

    fn surround(&self, command: &mut Command) {
        without_own_variables(command);
        command
            .env("PARTITA_RUN_DIR", self.run_dir())
            .env("PARTITA_CACHE_DIR", &self.cache)
            .env("PARTITA_STATE_DIR", self.dir().join("state"))
            .env("PARTITA_SIM_DIR", &self.boards)
            .env("PARTITA_LIB_DIR", build())
            .env("PARTITA_GPU", if is_real() { "0" } else { "sim:h200" })
            .envs(self.machine.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
    }

    /// A program without Partita, on this world's GPU.
    pub fn bare(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", r#"test -z "$1" || eval "$("$1" sim env)"; shift; exec "$@""#, "sh"]);
        command.arg(if is_real() { Path::new("") } else { self::program() }).arg(program);
        let partita = self.partita([] as [&str; 0]);
        command
            .envs(partita.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .stdin(Stdio::null());
        self.as_its_user(&mut command);
        command
    }

    /// A command of this world, run by a shell script that ends with `exec "$@"`.
    pub fn through_shell(&self, base: &Command, script: &str) -> Command {
        let mut command = through_shell(base, script);
        self.as_its_user(&mut command);
        command
    }

    /// Runs a line of arguments to its end.
    pub fn line(&self, line: &str) -> Output {
        self.partita(line.split_whitespace()).output().expect("partita runs")
    }

    /// Runs a line of arguments that must succeed without a message, and returns its stdout.
    pub fn ok(&self, line: &str) -> String {
        succeeds(&mut self.partita(line.split_whitespace()))
    }

    /// The same as the user who owns the MPS services.
    pub fn keeper_ok(&self, line: &str) -> String {
        succeeds(&mut self.keeper(line))
    }

    /// As [`World::refused`], as the user who owns the MPS services.
    pub fn keeper_refused(&self, line: &str) -> String {
        refusal(&mut self.keeper(line))
    }

    /// Runs a line of arguments that Partita refuses, and returns its one line.
    pub fn refused(&self, line: &str) -> String {
        refusal(&mut self.partita(line.split_whitespace()))
    }

    /// `partita run` with these options and the GPU program doing `what`.
    pub fn gpu<'a>(&self, options: &'a str, what: &'a str) -> Command {
        let (program, kernels) = gpu_program();
        let mut command = self.partita(["run"].into_iter().chain(options.split_whitespace()));
        command.arg("--").arg(program).arg(kernels).args(what.split_whitespace());
        command
    }

    /// Starts a tenant that does nothing until its end, and waits until it runs.
    pub fn idle(&self, options: &str) -> Tenant {
        let line = format!("run {options} -- sh -c");
        let mut command = self.partita(line.split_whitespace());
        command.arg("echo ready; exec sleep 1000");
        let mut tenant = Tenant::start(&mut command);
        assert_eq!(tenant.next_line(), "ready");
        // The program may be faster than the record of its start.
        let deadline = Instant::now() + PATIENCE;
        while self.ps().iter().any(|row| row["started"] == false) {
            assert!(Instant::now() < deadline, "the program's start is never noted");
        }
        tenant
    }

    /// Waits until the last tenant has gone: one whose process was ended with work on the GPU may
    /// outlive its `partita run` by a moment.
    pub fn until_no_tenant(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.ps().is_empty() {
            assert!(Instant::now() < deadline, "{:?}", self.ps());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The rows of `ps --json`. No tenant has used a GPU for longer than this world exists.
    pub fn ps(&self) -> Vec<Value> {
        let rows: Vec<Value> = serde_json::from_str(&self.ok("ps --json")).expect("ps prints JSON");
        let age_s = self.begin.elapsed().as_secs_f64();
        let used_s = |row: &Value| row["time"]["used_s"].as_f64().unwrap_or(0.0);
        assert!(rows.iter().all(|row| used_s(row) <= age_s), "in {age_s} s: {rows:?}");
        rows
    }

    /// The same as root sees them.
    pub fn ps_of_root(&self) -> Vec<Value> {
        let output = self.as_root(["ps", "--json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).expect("ps prints JSON")
    }

    /// The row of one tenant.
    pub fn row(&self, name: &str) -> Value {
        let rows = self.ps();
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {rows:?}")).clone()
    }

    /// The only directory of a GPU.
    pub fn gpu_dir(&self) -> PathBuf {
        let home = match &self.system {
            Some(_) => self.run_dir().join(format!("user-{VICTIM}")),
            None => self.run_dir(),
        };
        let dirs: Vec<PathBuf> = fs::read_dir(home)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .collect();
        assert_eq!(dirs.len(), 1, "{dirs:?}");
        dirs[0].clone()
    }

    /// Everything in the run directory except its lock, users' own directories and a running
    /// daemon's files, and every process of this world except that daemon.
    pub fn remains(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut dirs = vec![self.run_dir()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                let name = entry.file_name().into_string().unwrap();
                let is_daemons = name.starts_with(".system.sock") || name.starts_with(".partitad-");
                let is_lock =
                    (name.starts_with(".mig-") || name.starts_with(".vf-")) && name.ends_with(".lock");
                let stays = [".lock", ".system"].contains(&&*name) || is_lock;
                if stays || (is_daemons && self.daemon().is_some()) {
                    continue;
                }
                let is_users = name.starts_with("user-");
                if !is_users {
                    found.push(entry.path().display().to_string());
                }
                if entry.path().is_dir() {
                    dirs.push(entry.path());
                }
            }
        }
        found.extend(self.processes().into_iter().map(|(pid, name)| format!("process {pid} ({name})")));
        found
    }

    /// The daemon of system mode, while it runs.
    fn daemon(&self) -> Option<u32> {
        self.system.as_ref().filter(|system| !system.is_stopped).map(|system| system.child.id())
    }

    /// The living processes that have this world in their environment, except the daemon and the
    /// simulated board, which exits by itself a moment after its last client.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let mark = self.run_dir().display().to_string();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let read = |file| fs::read(entry.path().join(file)).unwrap_or_default();
            let environment = String::from_utf8_lossy(&read("environ")).into_owned();
            let name = text(&read("comm")).trim().to_owned();
            let is_of_machine = name.starts_with("partita-simgpu") || self.daemon() == Some(pid);
            if environment.contains(&mark) && !is_of_machine {
                found.push((pid, name));
            }
        }
        found
    }

    /// Asserts that nothing is left soon.
    pub fn assert_clean(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let remains = self.remains();
            if remains.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left behind: {remains:#?}");
            std::thread::sleep(Duration::from_millis(5));
            if is_real() {
                // The driver takes a process down after `partita run` has ended: then the next
                // command removes the tenant.
                let _ = self.keeper("ps").output();
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.keeper("mps stop --force").output();
        let _ = self.keeper("ps").output();
        if self.daemon().is_some() && !std::thread::panicking() {
            // The holder of a tenant ends a moment after the tenant, and has partitad remove it.
            let deadline = Instant::now() + PATIENCE / 6;
            while !self.remains().is_empty() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if let Some(system) = &mut self.system {
            system.stop();
        }
        if std::thread::panicking() {
            for (pid, _) in self.processes() {
                if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
        } else {
            self.assert_clean();
        }
    }
}

/// `partitad` in system mode. It ends with its world.
pub struct System {
    daemon: Command,
    child: Child,
    is_stopped: bool,
}

impl System {
    fn start(world: &World) -> Self {
        let mut daemon = Command::new(program().with_file_name("partitad"));
        daemon.arg("--system").arg("--state").arg(world.temp.path().join("state"));
        daemon.args(["--log", "error", "--audit-every", "1"]);
        world.surround(&mut daemon);
        let child = Self::spawn(&mut daemon, &world.run_dir());
        Self { daemon, child, is_stopped: false }
    }

    fn spawn(daemon: &mut Command, run_dir: &Path) -> Child {
        let mut child = daemon.spawn().expect("partitad starts");
        let deadline = Instant::now() + PATIENCE;
        while std::os::unix::net::UnixStream::connect(run_dir.join(".system.sock")).is_err() {
            assert!(
                child.try_wait().unwrap().is_none() && Instant::now() < deadline,
                "partitad does not serve"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        child
    }

    /// Kills it, as the out-of-memory killer would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again after that.
    pub fn start_again(&mut self, run_dir: &Path) {
        self.child = Self::spawn(&mut self.daemon, run_dir);
    }

    fn stop(&mut self) {
        self.is_stopped = true;
        if let (Ok(None), Some(pid)) =
            (self.child.try_wait(), rustix::process::Pid::from_raw(self.child.id() as i32))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

impl Drop for System {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A `partita run` in the background; ended with the test.
pub struct Tenant {
    pub child: Child,
    lines: BufReader<ChildStdout>,
}

impl Tenant {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("partita runs");
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line of the program's stdout. Panics with its stderr if stdout has ended.
    pub fn next_line(&mut self) -> String {
        self.line().unwrap_or_else(|| {
            let mut complaint = String::new();
            let _ = std::io::Read::read_to_string(&mut self.child.stderr.take().unwrap(), &mut complaint);
            panic!("the tenant ended with {:?}: {complaint}", self.child.wait());
        })
    }

    /// The next line of the program's stdout; none if that has ended.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let bytes = self.lines.read_line(&mut line).unwrap();
        (bytes > 0).then(|| line.trim_end().to_owned())
    }

    /// Sends a signal, if it has not ended.
    pub fn signal(&mut self, signal: rustix::process::Signal) {
        if let Ok(None) = self.child.try_wait() {
            let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
            rustix::process::kill_process(pid, signal).unwrap();
        }
    }

    /// The exit code once it has ended.
    pub fn exit_code(&mut self) -> i32 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or_else(|| panic!("{status}"));
            }
            assert!(Instant::now() < deadline, "partita run does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        // The program gets SIGTERM too, so that the tenant ends with its `run`.
        if let Ok(None) = self.child.try_wait() {
            self.signal(rustix::process::Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

/// A tenant whose program answers commands, a line each; `done` ends an answer.
pub struct Answering {
    pub tenant: Tenant,
    pub input: ChildStdin,
}

impl Answering {
    pub fn start(command: &mut Command) -> Self {
        let mut tenant = Tenant::start(command.stdin(Stdio::piped()));
        let input = tenant.child.stdin.take().expect("a pipe");
        Self { tenant, input }
    }

    /// The lines of an answer.
    pub fn ask(&mut self, what: &str) -> Vec<String> {
        writeln!(self.input, "{what}").expect("the program reads");
        std::iter::from_fn(|| Some(self.tenant.next_line()).filter(|line| line != "done")).collect()
    }

    /// Makes the program exit, and returns what it, or the library in it, has written to standard
    /// error.
    pub fn complaints(self) -> String {
        let Self { mut tenant, input } = self;
        drop(input);
        assert_eq!(tenant.exit_code(), 0);
        let mut said = String::new();
        let mut stderr = tenant.child.stderr.take().expect("a pipe");
        std::io::Read::read_to_string(&mut stderr, &mut said).expect("readable");
        said
    }

    /// An answer of one line.
    pub fn line(&mut self, what: &str) -> String {
        let lines = self.ask(what);
        assert_eq!(lines.len(), 1, "{what}: {lines:?}");
        lines[0].clone()
    }
}

/// A program of `tests/hook`, compiled for the first test that asks for it.
pub fn compile(world: &World, name: &str) -> PathBuf {
    static COMPILED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", env!("CARGO_CRATE_NAME")));
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if !compiled.contains(name) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hook").join(name).with_extension("c");
        succeed(Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&built).arg(&source).arg("-ldl"));
        compiled.insert(name.to_owned());
    }
    drop(compiled);
    // In another process: no child of this one may have the file open for writing when it runs.
    let program = world.dir().join(name);
    succeed(Command::new("cp").arg("--remove-destination").arg(built).arg(&program));
    program
}

/// The SMs of TPCs with two SMs each, in the form of those programs.
pub fn sms_of(set: &str) -> String {
    let mut sms: Vec<u32> = tpcs(set).iter().flat_map(|tpc| [2 * tpc, 2 * tpc + 1]).collect();
    sms.sort_unstable();
    sms.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that succeeds without a complaint, and returns its stdout.
pub fn succeeds(command: &mut Command) -> String {
    let output = command.output().expect("partita runs");
    assert!(output.status.success(), "{command:?}: {output:?}");
    assert_eq!(text(&output.stderr), "", "{command:?}");
    text(&output.stdout)
}

/// Standard error without the notice of a start that waits for a tenant that has not ended.
pub fn without_wait(stderr: &str) -> &str {
    match stderr.split_once('\n') {
        Some((first, rest)) if first.starts_with("partita: waiting up to 10 s for tenant ") => rest,
        _ => stderr,
    }
}

/// Runs a command that Partita refuses: exit code 125, nothing on stdout, one line on stderr.
pub fn refusal(command: &mut Command) -> String {
    refusal_by(125, command)
}

/// The same with another exit code.
pub fn refusal_by(code: i32, command: &mut Command) -> String {
    let output = command.output().expect("partita runs");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {output:?}");
    assert_eq!(text(&output.stdout), "", "{command:?}");
    let stderr = without_wait(&stderr);
    assert_eq!(stderr.lines().count(), 1, "{command:?}: {stderr}");
    let line = stderr.trim_end().strip_prefix("partita: ").unwrap_or_else(|| panic!("{stderr}"));
    line.to_owned()
}

/// The SMs of a line of the GPU program's census.
pub fn sms(line: &str) -> Vec<u32> {
    let mut words = line.split_whitespace();
    assert_eq!(words.next(), Some("sms"), "{line}");
    words.map(|word| word.parse().unwrap()).collect()
}

/// The logical TPCs of a text like `0-3,7`.
pub fn tpcs(ranges: &str) -> Vec<u32> {
    ranges
        .split(',')
        .flat_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            first.parse::<u32>().unwrap()..=last.parse().unwrap()
        })
        .collect()
}

/// The same command as the user who runs the tests, run by a shell script that ends with `exec
/// "$@"`.
pub fn through_shell(base: &Command, script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(base.get_program()).args(base.get_args());
    with_env_of(&mut command, base);
    command
}

/// Gives a command the environment of another.
pub fn with_env_of(command: &mut Command, base: &Command) {
    for (key, value) in base.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
}
