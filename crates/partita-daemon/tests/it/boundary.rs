//! Users cannot make root's daemon end, remove, or change what belongs to another user.
//!
//! The attacks are those of `partita-testing/src/attack.c`.

use crate::common;

use std::fs::{self, Permissions};
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use common::{Daemon, World};
use partita_testing::{ATTACKER, Running, Users, VICTIM, is_long, succeed};
use serde_json::{Value, json};

/// A daemon of root's, and two users of its run directory.
struct Shared {
    users: Users,
    daemon: Daemon,
    world: World,
}

impl Deref for Shared {
    type Target = Users;

    fn deref(&self) -> &Users {
        &self.users
    }
}

impl Shared {
    fn new() -> Option<Self> {
        if common::lacks_curl() {
            return None;
        }
        let world = World::new();
        let users = Users::new(world.dir(), &world.dir().join("run"), &common::partita())?;
        Some(Self { users, daemon: world.start(), world })
    }

    fn run_dir(&self) -> PathBuf {
        self.world.dir().join("run")
    }

    fn as_user(&self, user: u32, line: &str) -> Command {
        let mut command = self.world.partita(line.split_whitespace());
        self.enter(user, &mut command);
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

/// Finding 4. The daemon mapped the limits of every tenant, so a user who cut a file of their own
/// short ended it.
#[test]
fn a_file_of_another_user_that_is_cut_short_does_not_end_the_daemon() {
    let Some(users) = Shared::new() else { return };
    let (tenant, dir, sample) = users.tenant();
    let gpu = dir.parent().unwrap().file_name().unwrap();
    let homes = [users.run_dir(), users.run_dir().join(format!("user-{ATTACKER}"))];
    let attacks = homes.map(|home| {
        let fake = home.join(gpu).join("beta");
        let alive = users.attack("fake", [&fake, &sample]);
        // It has no access to the run directory's part any more if root has one of that GPU.
        let file = if fake.exists() { fake } else { sample.clone() }.join("limits");
        (alive, users.attack("cut", [file]))
    });
    for _ in 0..if is_long() { 800 } else { 200 } {
        users.daemon.get("/v1/tenants");
    }
    drop((attacks, tenant));
    assert!(users.daemon.log().contains("serving"));
    users.daemon.get("/v1/tenants");
}

/// Finding 1, asked for by the attacker.
#[test]
fn the_daemon_removes_nothing_that_another_user_leads_it_to() {
    let Some(users) = Shared::new() else { return };
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
    let Some(users) = Shared::new() else { return };
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
    for _ in 0..if is_long() { 100 } else { 25 } {
        let status = users.ask_as(ATTACKER, "PATCH", "/v1/tenants/beta", Some(&change));
        assert!(matches!(status, 403 | 404), "{status}");
    }
    drop(attacks);
    assert_eq!(fs::read(dir.join("limits")).unwrap(), before);
    // Root's daemon changes no user's tenant; the user does it with `partita set`, or asks a daemon
    // of their own.
    assert_eq!(users.ask_as(VICTIM, "PATCH", "/v1/tenants/alpha", Some(&change)), 403);
    assert_eq!(users.ask_as(ATTACKER, "DELETE", "/v1/tenants/alpha", None), 403);
    assert_eq!(fs::read(dir.join("limits")).unwrap(), before);
    // It ends processes of a user who asks for it.
    assert_eq!(users.ask_as(VICTIM, "DELETE", "/v1/tenants/alpha", None), 200);
    assert!(!tenant.child.wait().unwrap().success());
    assert_eq!(users.daemon.get("/v1/tenants"), json!([]));
}
