//! What users cannot make root's daemon do: end, remove, or change what belongs to somebody else.
//!
//! The attacks are those of `partita-cli/tests/boundary`.

mod common;

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Daemon, World};
use partita_testing::{is_real, succeed};
use serde_json::{Value, json};

/// Two users who need no account.
const VICTIM: u32 = 65_533;
const ATTACKER: u32 = 65_534;

struct Users {
    daemon: Daemon,
    world: World,
}

impl Users {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() || is_real() {
            eprintln!("skipped: needs root, to become two users, and a simulated GPU");
            return None;
        }
        if common::lacks_curl() {
            return None;
        }
        let world = World::new();
        fs::set_permissions(world.dir(), Permissions::from_mode(0o755)).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../partita-cli/tests/boundary/attack.c");
        succeed(Command::new("cc").args(["-O1", "-o"]).arg(world.dir().join("attack")).arg(source));
        let users = Self { daemon: world.start(), world };
        for user in [VICTIM, ATTACKER] {
            fs::create_dir(users.place(user)).unwrap();
            chown(users.place(user), Some(user), Some(user)).unwrap();
        }
        if !users.as_user(VICTIM, "--version").output().is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: other users cannot run {}", common::partita().display());
            return None;
        }
        Some(users)
    }

    fn place(&self, user: u32) -> PathBuf {
        self.world.dir().join(user.to_string())
    }

    fn run_dir(&self) -> PathBuf {
        self.world.dir().join("run")
    }

    fn as_user(&self, user: u32, line: &str) -> Command {
        let mut command = self.world.partita(line.split_whitespace());
        command.uid(user).gid(user).env("HOME", self.place(user)).env("TMPDIR", self.place(user));
        command.env("PARTITA_SIM_DIR", self.place(user).join("sim"));
        command.env("PARTITA_CACHE_DIR", self.place(user).join("cache"));
        command
    }

    /// A tenant of the victim's that waits, its directory, and a copy of its files for false ones.
    fn tenant(&self) -> (Running, PathBuf, PathBuf) {
        let mut command =
            self.as_user(VICTIM, "run --name alpha --sm 25% --mem 64MiB --isolation own -- sh -c");
        let tenant = Running::start(command.arg(r#"echo "$PARTITA_LEDGER"; exec sleep 1000"#));
        let dir = PathBuf::from(tenant.line.trim_end());
        let sample = self.place(ATTACKER).join("sample");
        fs::create_dir_all(&sample).unwrap();
        for file in ["limits", "usage"] {
            fs::copy(dir.join(file), sample.join(file)).unwrap();
        }
        let meta = fs::read_to_string(dir.join("meta.json")).unwrap().replace("\"alpha\"", "\"beta\"");
        fs::write(sample.join("meta.json"), meta).unwrap();
        for file in ["limits", "usage", "meta.json"] {
            fs::set_permissions(sample.join(file), Permissions::from_mode(0o644)).unwrap();
        }
        (tenant, dir, sample)
    }

    fn attack<S: AsRef<std::ffi::OsStr>>(
        &self,
        what: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Running {
        let mut command = Command::new(self.world.dir().join("attack"));
        let attack = Running::start(command.arg(what).args(arguments).uid(ATTACKER).gid(ATTACKER));
        assert_eq!(attack.line, "ready\n");
        attack
    }

    /// The status of a request of a user's.
    fn ask_as(&self, user: u32, method: &str, path: &str, body: Option<&Value>) -> u16 {
        let mut command = Command::new("curl");
        command.args([
            "--silent",
            "--max-time",
            "60",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
        ]);
        command.args(["--request", method, "--unix-socket"]).arg(self.daemon.socket());
        if let Some(body) = body {
            command.args(["--header", "content-type: application/json", "--data"]).arg(body.to_string());
        }
        command.arg(format!("http://partitad{path}")).uid(user).gid(user);
        let output = succeed(&mut command);
        String::from_utf8(output.stdout).unwrap().parse().unwrap()
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.run_dir()).into_iter().flatten().flatten() {
            if entry.metadata().is_ok_and(|meta| meta.uid() != 0) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// A process that has said its first line; ended with this.
struct Running {
    child: Child,
    line: String,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "{command:?}: {:?}", child.wait());
        Self { child, line }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // `partita run` passes it on, so that its program ends, too.
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// Finding 4. The daemon mapped the limits of every tenant, so a user who cut a file of their own short ended it.
#[test]
fn a_file_of_another_user_that_is_cut_short_does_not_end_the_daemon() {
    let Some(users) = Users::new() else { return };
    let (tenant, dir, sample) = users.tenant();
    let gpu = dir.parent().unwrap().file_name().unwrap();
    let homes = [users.run_dir(), users.run_dir().join(format!("user-{ATTACKER}"))];
    let attacks = homes.map(|home| {
        let fake = home.join(gpu).join("beta");
        let alive = users.attack("fake", [&fake, &sample]);
        // Nobody lets it into the run directory's own part any more where root has one of that GPU.
        let file = if fake.exists() { fake } else { sample.clone() }.join("limits");
        (alive, users.attack("cut", [file]))
    });
    for _ in 0..800 {
        users.daemon.get("/v1/tenants");
    }
    drop((attacks, tenant));
    assert!(users.daemon.log().contains("serving"));
    users.daemon.get("/v1/tenants");
}

/// Finding 1, asked for by the attacker.
#[test]
fn the_daemon_removes_nothing_that_another_user_leads_it_to() {
    let Some(users) = Users::new() else { return };
    let parent = users.world.dir().join("root's");
    fs::create_dir_all(parent.join("important")).unwrap();
    for home in [users.run_dir(), users.run_dir().join(format!("user-{ATTACKER}"))] {
        for round in 0..4 {
            let gpu = home.join(format!("GPU-{round}"));
            let attack = users.attack("lead-astray", [&gpu, &parent, &PathBuf::from("important")]);
            assert_eq!(users.ask_as(ATTACKER, "GET", "/v1/tenants", None), 200);
            drop(attack);
            assert!(parent.join("important").exists(), "{gpu:?}");
        }
    }
}

/// Finding 3. The daemon looked whose a tenant was, and changed what had its name by then.
#[test]
fn the_daemon_changes_no_limits_of_another_user() {
    let Some(users) = Users::new() else { return };
    let (mut tenant, dir, sample) = users.tenant();
    let before = fs::read(dir.join("limits")).unwrap();
    let gpu = dir.parent().unwrap();
    let home = users.run_dir().join(format!("user-{ATTACKER}"));
    let places = [gpu.to_owned(), home.join(gpu.file_name().unwrap())];
    let attacks = places.map(|gpu| {
        let (fake, link) = (gpu.join("beta"), gpu.join("link"));
        let alive = users.attack("fake", [&fake, &sample]);
        let mut command = Command::new("ln");
        let _ = command.arg("-s").args([&dir, &link]).uid(ATTACKER).gid(ATTACKER).output();
        (alive, users.attack("flip", [&fake, &link]))
    });
    let change = json!({ "memory_quota_bytes": 4096 });
    for _ in 0..100 {
        let status = users.ask_as(ATTACKER, "PATCH", "/v1/tenants/beta", Some(&change));
        assert!(matches!(status, 403 | 404), "{status}");
    }
    drop(attacks);
    assert_eq!(fs::read(dir.join("limits")).unwrap(), before);
    // Root's daemon changes nobody's; a tenant's user does it with `partita set`, or asks a daemon of their own.
    assert_eq!(users.ask_as(VICTIM, "PATCH", "/v1/tenants/alpha", Some(&change)), 403);
    assert_eq!(users.ask_as(ATTACKER, "DELETE", "/v1/tenants/alpha", None), 403);
    assert_eq!(fs::read(dir.join("limits")).unwrap(), before);
    // It ends processes of a user who asks for it.
    assert_eq!(users.ask_as(VICTIM, "DELETE", "/v1/tenants/alpha", None), 200);
    assert!(!tenant.child.wait().unwrap().success());
    assert_eq!(users.daemon.get("/v1/tenants"), json!([]));
}
