//! In a shared run directory, one user cannot harm another user or root.
//!
//! Each test is an attack that once succeeded (`partita-testing/src/attack.c`). Two users need
//! root, which can become any user.

use crate::common;

use std::fs::{self, Permissions};
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::container::{Container, MEMORY};
use common::{Answering, Tenant, World, compile, text, without_wait};
use partita_testing::{ATTACKER, Running, Users, VICTIM, succeed};
use serde_json::{Value, json};

/// A world whose run directory is root's and open to two users.
struct Shared {
    users: Users,
    world: World,
}

impl Deref for Shared {
    type Target = Users;

    fn deref(&self) -> &Users {
        &self.users
    }
}

impl Shared {
    /// `None` if there cannot be two users.
    fn new() -> Option<Self> {
        if common::needs_user_mode(common::SHARED_BY_USERS) {
            return None;
        }
        let world = World::new();
        let users = Users::new(world.dir(), &world.run_dir(), common::program())?;
        // Root creates the run directory.
        world.ok("ps");
        Some(Self { users, world })
    }

    fn as_user(&self, user: u32, line: &str) -> Command {
        let mut command = self.world.partita(line.split_whitespace());
        self.enter(user, &mut command);
        command
    }

    /// The files of a real tenant of root's, as a sample for a false one with this change of its
    /// `meta.json`; and the name of its GPU.
    fn sample(&self, name: &str, change: impl FnOnce(&mut Value)) -> (PathBuf, String) {
        let tenant = self.world.idle(&format!("--name {name} --sm 25% --isolation own"));
        let gpu = self.world.gpu_dir();
        let sample = self.place(ATTACKER).join("sample");
        fs::create_dir_all(&sample).unwrap();
        for file in ["limits", "usage", "meta.json"] {
            fs::copy(gpu.join(name).join(file), sample.join(file)).unwrap();
            fs::set_permissions(sample.join(file), Permissions::from_mode(0o644)).unwrap();
        }
        let mut meta: Value = serde_json::from_slice(&fs::read(sample.join("meta.json")).unwrap()).unwrap();
        change(&mut meta);
        fs::write(sample.join("meta.json"), meta.to_string()).unwrap();
        drop(tenant);
        self.world.ok("ps");
        (sample, gpu.file_name().unwrap().to_str().unwrap().to_owned())
    }

    /// False tenants with this name, in every place where a command might look.
    fn fakes(&self, gpu: &str, name: &str, sample: &Path) -> Vec<Running> {
        let places = [self.home(ATTACKER), self.world.run_dir()];
        places.map(|place| self.attack("fake", [place.join(gpu).join(name).as_path(), sample])).into()
    }
}

fn refused(output: &Output) -> String {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert_eq!(without_wait(&said).lines().count(), 1, "{said}");
    said
}

/// Finding 1. Root followed a path into another user's directory, who replaced it by a link
/// meanwhile: root removed the target of the link.
#[test]
fn root_removes_nothing_that_another_user_leads_it_to() {
    let Some(users) = Shared::new() else { return };
    let parent = users.world.dir().join("root's");
    for home in [users.world.run_dir(), users.home(ATTACKER)] {
        for round in 0..4 {
            fs::create_dir_all(parent.join("important")).unwrap();
            fs::write(parent.join("important/file"), "kept").unwrap();
            let gpu = home.join(format!("GPU-{round}"));
            let attack = users.attack("lead-astray", [&gpu, &parent, &PathBuf::from("important")]);
            users.world.ok("ps");
            drop(attack);
            assert_eq!(fs::read_to_string(parent.join("important/file")).unwrap(), "kept", "{gpu:?}");
        }
    }
    // Remains of other users' tenants stay too: only those users remove them.
    let entries = |name: String| fs::read_dir(users.home(ATTACKER).join(name)).into_iter().flatten().count();
    let left = (0..4).flat_map(|round| [format!("GPU-{round}"), format!("GPU-{round}.link")]).map(entries);
    assert_eq!(left.max(), Some(202));
}

/// Finding 2. The first user to make a GPU's directory had every other user's `run` make files
/// there, and replaced the new files by links.
#[test]
fn a_tenant_in_a_directory_of_another_user_is_refused() {
    let Some(users) = Shared::new() else { return };
    let (_, gpu) = users.sample("first", |_| {});
    let secret = users.world.dir().join("secret");
    fs::write(&secret, "root's").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let place = users.world.run_dir().join(&gpu);
    for _ in 0..3 {
        let attack = users.attack("take-place", [&place, &secret]);
        let said = refused(&users.world.line("run --sm 10% --isolation own -- true"));
        assert!(
            said.contains("belongs to ") && said.contains(&format!("sudo rm -r {}", place.display())),
            "{said}"
        );
        drop(attack);
        fs::remove_dir_all(&place).unwrap();
    }
    let elsewhere = users.place(ATTACKER).join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, &place).unwrap();
    refused(&users.world.line("run --sm 10% --isolation own -- true"));
    fs::remove_file(&place).unwrap();
    let meta = secret.metadata().unwrap();
    assert_eq!((meta.mode() & 0o777, fs::read_to_string(&secret).unwrap().as_str()), (0o600, "root's"));
    users.world.ok("run --sm 10% --isolation own -- true");
}

/// Other users, including root, refuse to use a run directory of one user.
#[test]
fn a_run_directory_of_another_user_is_refused() {
    let Some(users) = Shared::new() else { return };
    let run = users.place(ATTACKER).join("run");
    for mode in [0o1777, 0o700] {
        fs::create_dir(&run).unwrap();
        chown(&run, Some(ATTACKER), Some(ATTACKER)).unwrap();
        fs::set_permissions(&run, Permissions::from_mode(mode)).unwrap();
        for user in [0, VICTIM] {
            let said = refused(&users.as_user(user, "ps").env("PARTITA_RUN_DIR", &run).output().unwrap());
            // The victim may not even enter the second one.
            let owner = said.contains("belongs to ") && said.contains("mkdir -m 1777");
            assert!((owner || mode == 0o700) && said.contains("PARTITA_RUN_DIR"), "{said}");
        }
        succeed(users.as_user(ATTACKER, "ps").env("PARTITA_RUN_DIR", &run));
        fs::remove_dir_all(&run).unwrap();
    }
    // One that a user makes belongs to that user only.
    succeed(users.as_user(ATTACKER, "ps").env("PARTITA_RUN_DIR", &run));
    assert_eq!(run.metadata().unwrap().mode() & 0o7777, 0o700);
}

/// Finding 5. Any user who may read a file may lock it: no process of the tenant got a GPU any
/// more, its bytes and compute units never came back, and it could not be changed.
#[test]
fn locks_of_another_user_delay_no_command() {
    let Some(users) = Shared::new() else { return };
    let program = compile(&users.world, "spill");
    let script = r#"echo "$PARTITA_LEDGER"; read go; exec "$0""#;
    let mut command = users.as_user(VICTIM, "run --name alpha --sm 25% --mem 64MiB --isolation own -- sh -c");
    let mut alpha = Answering::start(command.arg(script).arg(&program));
    let dir = PathBuf::from(alpha.tenant.next_line());
    let gpu = dir.parent().unwrap();
    let home = gpu.parent().unwrap();
    let mut locked: Vec<PathBuf> =
        ["usage", "limits", "owner", "meta.json", "limits.lock", "."].map(|name| dir.join(name)).into();
    locked.extend([gpu.to_owned(), home.to_owned(), home.join(".lock"), users.world.run_dir().join(".lock")]);
    locked.push(users.world.run_dir());
    let attack = users.attack("lock", &locked);

    let listed = |user| {
        let output = succeed(&mut users.as_user(user, "ps --json"));
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        rows.into_iter().filter(|row| row["name"] == "alpha").count()
    };
    assert_eq!((listed(VICTIM), listed(0), listed(ATTACKER)), (1, 1, 1));
    // A process of the tenant gets its slot and memory.
    std::io::Write::write_all(&mut alpha.input, b"go\n").unwrap();
    assert_eq!(alpha.line("a 16"), "0 48");
    succeed(&mut users.as_user(VICTIM, "set alpha --mem 32MiB"));
    assert_eq!(alpha.line("a 16"), "0 0");
    // All comes back, and the name with it.
    let killed = succeed(&mut users.as_user(VICTIM, "kill alpha"));
    assert!(text(&killed.stdout).contains("alpha: ended"), "{killed:?}");
    assert_eq!((listed(VICTIM), listed(0)), (0, 0));
    succeed(&mut users.as_user(VICTIM, "run --name alpha --sm 100% --isolation own -- true"));
    users.world.ok("run --sm 10% --isolation own -- true");
    drop(attack);
}

/// Finding 10. A tenant with unreadable limits stopped every `run` on its GPU until root ended it.
#[test]
fn a_malformed_tenant_of_another_user_is_a_row_and_blocks_no_command() {
    let Some(users) = Shared::new() else { return };
    let (sample, gpu) = users.sample("fake", |_| {});
    // So that the GPU has a directory, in which all users could once make entries.
    let mut own = users.world.idle("--name own --sm 25% --isolation own");
    for damage in ["limits", "meta.json"] {
        fs::write(sample.join(damage), "").unwrap();
        let fakes = users.fakes(&gpu, "fake", &sample);
        users.world.ok("run --name other --sm 10% --mem 64MiB --isolation own -- true");
        users.world.ok("set own --sm 50%");
        users.world.ok("set own --sm 25% --mem 1GiB");
        let rows = users.world.ps();
        let rows: Vec<&Value> = rows.iter().filter(|row| row["name"] == "fake").collect();
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert!(rows[0]["problem"].as_str().unwrap().contains("limits"), "{rows:?}");
        let audit = users.world.line("ps --audit");
        assert!(audit.status.success() && text(&audit.stderr).contains("was skipped"), "{audit:?}");
        drop(fakes);
    }
    users.world.ok("kill own");
    own.exit_code();
}

/// Another user's tenant keeps its units, and a user's false claims about other users' tenants have
/// no effect.
#[test]
fn plans_reckon_with_tenants_of_other_users() {
    let Some(users) = Shared::new() else { return };
    let (sample, gpu) = users.sample("fake", |_| {});
    // Not in the run directory itself, where root's would be refused.
    let place = users.home(ATTACKER).join(&gpu).join("fake");
    let fake = users.attack("fake", [&place, &sample]);
    let said = refused(&users.world.line("run --name all --sm 100% --isolation own -- true"));
    assert!(said.contains("fake of "), "{said}");
    // It is not the caller's to change.
    assert!(said.trim_end().ends_with("or ask the owner of a tenant to shrink or end it"), "{said}");
    drop(fake);
    let mut own = users.world.idle("--name own --sm 25% --isolation own");
    let held = users.world.row("own")["tpcs"].clone();
    // The same as the false tenant's, so it claims nothing that is free.
    let fake = users.attack("fake", [&place, &sample]);
    assert_eq!(users.world.row("fake")["tpcs"], held);
    users.world.ok("set own --sm 100%");
    users.world.ok("kill own");
    drop(fake);
    own.exit_code();
}

/// Finding 10. The audit connected to a board that another user's file named, and waited there: it
/// examined no tenant at all.
#[test]
fn the_audit_connects_to_nothing_that_another_user_names() {
    let Some(users) = Shared::new() else { return };
    let boards = users.place(ATTACKER).join("boards");
    fs::create_dir(&boards).unwrap();
    chown(&boards, Some(ATTACKER), Some(ATTACKER)).unwrap();
    let (sample, _) = users.sample("silent", |meta| {
        meta["gpu"]["key"] = json!("sim-h200-0bad0bad");
        meta["gpu"]["sim"]["dir"] = json!(boards);
    });
    let board = users.attack("board", [boards.join("h200.sock")]);
    let fakes = users.fakes("sim-h200-0bad0bad", "silent", &sample);

    // It still finds a process that has escaped from root's own tenant.
    let program = compile(&users.world, "spill");
    let orders = users.world.dir().join("orders");
    succeed(Command::new("mkfifo").arg(&orders));
    let script = r#"env -u LD_PRELOAD -u PARTITA_LEDGER "$0" < "$1" & exec "$0""#;
    let line = "run --name leaky --sm 25% --mem 64MiB --isolation own -- sh -c";
    let mut command = users.world.partita(line.split_whitespace());
    let mut leaky = Answering::start(command.arg(script).arg(&program).arg(&orders));
    assert_eq!(leaky.line("a 16"), "0 48");
    let mut escaped = fs::OpenOptions::new().write(true).open(&orders).unwrap();
    std::io::Write::write_all(&mut escaped, b"a 128\n").unwrap();
    assert!(leaky.tenant.next_line().starts_with("0 "));
    let output = users.world.line("ps --audit --json");
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), rows.len()), (Some(1), 2), "{output:?}");
    assert_eq!((&rows[0]["tenant"], &rows[0]["escaped"]), (&json!("leaky"), &json!(true)));
    assert!(said.contains("tenant silent of ") && said.contains("was skipped"), "{said}");
    drop(fakes);
    assert_eq!(board.end(), "", "no process has connected");
    users.world.ok("kill leaky");
}

/// Finding 15. `kill` reported the end of a tenant held by a process that cannot be found.
#[test]
fn kill_says_ended_of_what_has_ended() {
    let Some(users) = Shared::new() else { return };
    let mut tenant = users.world.idle("--name held --sm 25% --isolation own");
    let usage = users.world.gpu_dir().join("held/usage");
    let mut hold = Command::new(users.attacker());
    let hold = Running::attack(hold.arg("hold").arg(&usage));
    let said = refused(&users.world.line("kill held"));
    assert!(said.contains("tenant held") && said.contains("fuser"), "{said}");
    assert_eq!(users.world.ps().len(), 1, "it is there still");
    drop(hold);
    tenant.exit_code();
    assert!(users.world.ps().is_empty());
}

/// Finding 16. Text of other users reached the terminal unfiltered.
#[test]
fn what_other_users_wrote_reaches_terminals_escaped() {
    let Some(users) = Shared::new() else { return };
    const EVIL: &str = "\x1b]0;pwned\x07\x1b[2J\nforged row\u{9b}31m\u{202e}";
    let (sample, gpu) = users.sample("evil", |meta| {
        for key in ["label", "uuid"] {
            meta["gpu"][key] = json!(EVIL);
        }
        meta["command"] = json!([EVIL]);
        meta["share"] = json!(EVIL);
    });
    let fakes = users.fakes(&gpu, "evil", &sample);
    let plain = |bytes: &[u8]| {
        let said = text(bytes);
        let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!said.contains(steers), "{said:?}");
        said
    };
    let table = users.world.line("ps");
    assert_eq!(plain(&table.stdout).lines().count(), 3, "a head, one row and the mode: {table:?}");
    assert!(plain(&table.stdout).contains(r"\u{1b}[2J"), "{table:?}");
    plain(&table.stderr);
    let json = plain(&users.world.line("ps --json").stdout);
    assert!(json.contains("evil"), "{json}");
    let said = users.world.line("run --name evil --sm 1% --isolation own -- true");
    assert!(plain(&said.stderr).contains("in use"), "{said:?}");
    for line in ["ps --audit", "kill nobody", "set evil --sm 1%"] {
        let output = users.world.line(line);
        plain(&output.stdout);
        plain(&output.stderr);
    }
    drop(fakes);
}

/// Root sees tenants of all users and may end their processes; it changes no tenant of theirs.
#[test]
fn root_ends_tenants_of_others_and_changes_none() {
    let Some(users) = Shared::new() else { return };
    let mut command = users.as_user(VICTIM, "run --name alpha --sm 25% --isolation own -- sh -c");
    let mut alpha = Tenant::start(command.arg(r#"echo "$PARTITA_LEDGER"; exec sleep 1000"#));
    let limits = PathBuf::from(alpha.next_line()).join("limits");
    assert!(limits.starts_with(users.home(VICTIM)), "{limits:?}");
    let before = fs::read(&limits).unwrap();
    let said = refused(&users.world.line("set alpha --sm 5%"));
    assert!(said.contains("belongs to "), "{said}");
    assert_eq!(fs::read(&limits).unwrap(), before);
    for user in [ATTACKER, VICTIM, 0] {
        let output = succeed(&mut users.as_user(user, "ps --json"));
        assert!(text(&output.stdout).contains("\"alpha\""), "{user}: {output:?}");
    }
    assert!(users.world.ok("kill alpha").contains("alpha: ended (1 process)"));
    alpha.exit_code();
    assert!(users.world.ps().is_empty());
    succeed(&mut users.as_user(VICTIM, "ps"));
    assert!(!limits.exists(), "its user's next command removes what is left");
}

/// Root's `kill` ended the tenant of the lower user number, whichever was meant.
#[test]
fn root_says_whose_tenant_is_to_end_where_two_users_have_the_name() {
    let Some(users) = Shared::new() else { return };
    let (sample, gpu) = users.sample("alpha", |_| {});
    let mut command = users.as_user(VICTIM, "run --name alpha --sm 25% --isolation own -- sh -c");
    let mut alpha = Tenant::start(command.arg("echo ready; exec sleep 1000"));
    assert_eq!(alpha.next_line(), "ready");
    let forged = users.fakes(&gpu, "alpha", &sample);
    let said = refused(&users.world.line("kill alpha"));
    assert!(said.contains(&format!("users {VICTIM}, {ATTACKER} have a tenant alpha each")), "{said}");
    assert!(said.contains(&format!("sudo -u '#{VICTIM}' partita kill alpha")), "{said}");
    // Its owner's command means their own.
    let ended = succeed(&mut users.as_user(VICTIM, "kill alpha"));
    assert!(text(&ended.stdout).contains("alpha: ended"), "{ended:?}");
    alpha.exit_code();
    drop(forged);
}

/// A simulated GPU of another user controls what it reports, and receives what it is sent. Root
/// used any.
#[test]
fn root_uses_no_simulated_gpu_of_another_user() {
    let Some(users) = Shared::new() else { return };
    let boards = users.place(ATTACKER).join("boards");
    fs::create_dir(&boards).unwrap();
    chown(&boards, Some(ATTACKER), Some(ATTACKER)).unwrap();
    let board = users.attack("board", [boards.join("h200.sock")]);
    let mut command = users.world.partita("run --isolation own -- true".split_whitespace());
    let said = refused(&command.env("PARTITA_SIM_DIR", &boards).output().unwrap());
    assert!(said.contains("CUDA_ERROR_NO_DEVICE"), "{said}");
    assert_eq!(board.end(), "", "no process has connected");
}

/// A program whose limits its environment names took them from any owner of their directory.
#[test]
fn limits_of_an_environment_are_not_taken_from_another_user() {
    let Some(users) = Shared::new() else { return };
    let container = Container::new(&users.world, "pod").with(MEMORY, "64m");
    let own_by = |dir: &Path, user| chown(dir, Some(user), Some(user)).unwrap();
    // Others may make entries, as below /tmp.
    fs::create_dir(container.root()).unwrap();
    fs::set_permissions(container.root(), Permissions::from_mode(0o1777)).unwrap();
    own_by(&container.root(), ATTACKER);
    assert!(container.refused().contains("belongs to another user"));
    own_by(&container.root(), 0);
    assert_eq!(container.allocates("a 16\n").0, ["0 48"]);
    let [tenant] = &container.tenants()[..] else { panic!("{:?}", container.tenants()) };
    own_by(tenant, ATTACKER);
    assert!(container.refused().contains("belongs to another user"));
    own_by(tenant, 0);
    assert_eq!(container.allocates("a 16\n").0, ["0 48"]);
}

#[test]
fn exec_is_for_the_tenants_user_and_root_runs_it_as_that_user() {
    let Some(users) = Shared::new() else { return };
    let mut command = users.as_user(VICTIM, "run --name alpha --sm 25% --isolation own -- sh -c");
    let mut tenant = Tenant::start(command.arg("echo ready; exec sleep 1000"));
    assert_eq!(tenant.next_line(), "ready");
    let said = refused(&users.as_user(ATTACKER, "exec alpha -- true").output().unwrap());
    assert!(said.contains("belongs to"), "{said}");
    let id = "exec alpha -- sh -c";
    for mut command in [users.as_user(VICTIM, id), users.world.partita(id.split_whitespace())] {
        let output = succeed(command.arg("id -u; id -G; echo $PARTITA_LEDGER"));
        let lines = text(&output.stdout);
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines[..2], [VICTIM.to_string(), VICTIM.to_string()]);
        assert!(lines[2].ends_with("/alpha"), "{lines:?}");
    }
}
