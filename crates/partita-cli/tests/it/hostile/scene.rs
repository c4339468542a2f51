//! Root, user A, user B, and the invariants after each action of B.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use partita_testing::{ATTACKER, Users, VICTIM, is_long, succeed};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use crate::common::{self, Answering, PATIENCE, World, gpu_program, text, with_env_of, without_wait};

/// The bound of each command of a victim. They take milliseconds, and wait a second for other
/// users' locks.
const BOUND: Duration = Duration::from_secs(30);
/// A file that only root can read.
const SECRET: &str = "root's secret";
/// The start of B's scripts. `fake NAME EDIT` makes a living tenant of that name in B's part of the
/// run directory, whose directory is `$D`; EDIT is sed's, and changes its `meta.json`. In system
/// mode B cannot make one: `$D` is that of a real one, in which B tries the same.
const B_BEGINS: &str = r#"
exec 2>/dev/null
umask 022
fake() {
    rm -rf "$B/s" "$B/said"
    cp -r "$SAMPLE" "$B/s"
    sed -i "s/\"sample\"/\"$1\"/;$2" "$B/s/meta.json"
    D="$HOME_B/$KEY/$1"
    if test "$SYSTEM"; then
        "$ATTACK" fake "$D" "$B/s" > "$B/fake" & fake=$!
        while ! grep -q . "$B/fake" && kill -0 $fake; do sleep 0.02; done
        kill $fake
        "$PARTITA" run --name "$1" --sm 1tpc --mem 16MiB --isolation own -- \
            sh -c 'echo ready; exec sleep 1000' > "$B/said" &
        until grep -q ready "$B/said" || ! kill -0 $!; do sleep 0.02; done
        case $1 in
        alpha | rho) ;;
        *) grep -q ready "$B/said" || echo "broken: no tenant $1" ;;
        esac
        sed -i "$2" "$D/meta.json"
    else
        "$ATTACK" fake "$D" "$B/s" > "$B/said" &
        until grep -q ready "$B/said"; do sleep 0.02; done
    fi
}
"#;
const B_ENDS: &str = "\necho ready\nexec sleep 1000\n";

/// The user of a step.
#[derive(Debug, Clone, Copy)]
pub enum Who {
    Root,
    A,
}

/// The required result of a step.
#[derive(Debug, Clone, Copy)]
pub enum End {
    /// With exit code 0.
    Well,
    /// With exit code 125 and one line that contains this.
    Refused(&'static str),
    /// The same where the tenant's files are B's. In system mode they are root's, and it succeeds.
    RefusedOfB(&'static str),
}

/// A shell line of a victim, in which `p` is `partita`.
#[derive(Debug, Clone, Copy)]
pub struct Step(pub Who, pub &'static str, pub End);

/// One action of B. Then the victims act; the scene's invariants must hold afterwards.
#[derive(Debug, Clone, Copy)]
pub struct Act {
    /// Its name.
    pub name: &'static str,
    /// B's script. It prints `won …` if B got what B must not get, and `cannot …` if the attack
    /// could not start.
    pub does: &'static str,
    /// The victims' steps beside the usual ones.
    pub then: &'static [Step],
    /// Why it is no attack in system mode.
    pub only_in_user_mode: Option<&'static str>,
}

impl Act {
    /// An act with the victims' usual steps.
    pub const fn new(name: &'static str, does: &'static str) -> Self {
        Self { name, does, then: &[], only_in_user_mode: None }
    }

    /// The same with further steps.
    pub const fn then(self, then: &'static [Step]) -> Self {
        Self { then, ..self }
    }

    /// The same, which is no attack in system mode, for this reason.
    pub const fn only_in_user_mode(self, reason: &'static str) -> Self {
        Self { only_in_user_mode: Some(reason), ..self }
    }
}

/// The victims' steps after every act.
const ALWAYS: [Step; 2] = [
    Step(Who::A, "p set alpha --mem 64MiB", End::Well),
    Step(Who::Root, "p run --sm 10% --mem 16MiB --isolation own -- true", End::Well),
];

/// B's running script.
struct Attacker {
    child: Child,
    lines: Receiver<String>,
}

impl Attacker {
    fn start(command: &mut Command) -> Self {
        let mut child =
            command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("sh starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    /// Its output until it is `ready`, or, where it may be refused, until it has ended.
    fn until_ready(&self, act: &Act, may_be_refused: bool) -> Vec<String> {
        let mut said = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line == "ready" => return said,
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Disconnected) if may_be_refused => {
                    said.push("cannot go on".to_owned());
                    return said;
                }
                Err(error) => panic!("{}: the script is not ready ({error}); it said {said:?}", act.name),
            }
        }
    }

    /// Ends it with all its children, and returns its output since then.
    fn end(mut self) -> Vec<String> {
        self.kill();
        self.lines.iter().collect()
    }

    fn kill(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Processes that end with this.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

/// A machine with a tenant of A's, `alpha`, and one of root's, `rho`.
pub struct Scene {
    alpha: Answering,
    rho: Answering,
    /// The variables of scripts and steps.
    pub variables: Vec<(&'static str, String)>,
    /// The state that must not change.
    kept: Vec<PathBuf>,
    pub users: Users,
    pub world: World,
}

impl Scene {
    /// `None` if there cannot be two users.
    pub fn new() -> Option<Self> {
        let world = World::new();
        let users = Users::new(world.root(), &world.run_dir(), common::program())?;
        world.ok("ps");
        let [secret, mine] = [world.dir().join("secret"), users.place(VICTIM).join("mine")];
        for (dir, user) in [(&secret, 0), (&mine, VICTIM)] {
            fs::create_dir_all(dir.join("important")).unwrap();
            let file = dir.join("important/file");
            fs::write(&file, SECRET).unwrap();
            fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
            for path in [dir, &dir.join("important"), &file] {
                chown(path, Some(user), Some(user)).unwrap();
            }
        }
        let program = world.dir().join("steady");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/hostile/steady.c");
        succeed(Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(source).arg("-ldl"));
        let sample = sample(&world);
        let kernels = world.dir().join("kernels.ptx");
        fs::copy(&gpu_program().1, &kernels).unwrap();
        let start = |user: u32, name: &str| {
            let line = format!("run --name {name} --sm 25% --mem 64MiB --isolation own -- sh -c");
            let mut command = world.as_root(line.split_whitespace());
            enter(&world, &users, user, &mut command);
            command.arg(r#"echo "$PARTITA_LEDGER"; exec "$0" "$1""#).arg(&program).arg(&kernels);
            let mut tenant = Answering::start(&mut command);
            let (dir, pid) = (PathBuf::from(tenant.tenant.next_line()), tenant.tenant.next_line());
            (tenant, dir, pid)
        };
        let (alpha, alpha_dir, alpha_pid) = start(VICTIM, "alpha");
        let (rho, rho_dir, rho_pid) = start(0, "rho");
        let runs = [&alpha, &rho].map(|tenant| tenant.tenant.child.id().to_string()).join(" ");
        let key = |dir: &Path| dir.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        let ticks = {
            let stat = fs::read_to_string(format!("/proc/{alpha_pid}/stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().to_owned()
        };
        let shown = |path: &Path| path.display().to_string();
        let variables = vec![
            ("RUN", shown(&world.run_dir())),
            ("HOME_A", shown(&users.home(VICTIM))),
            ("HOME_B", shown(&users.home(ATTACKER))),
            ("PLACE_A", shown(&users.place(VICTIM))),
            ("B", shown(&users.place(ATTACKER))),
            ("KEY", key(&alpha_dir)),
            ("KEY_ROOT", key(&rho_dir)),
            ("ALPHA", shown(&alpha_dir)),
            ("RHO", shown(&rho_dir)),
            ("PIDS", format!("{alpha_pid} {rho_pid} {runs}")),
            ("ALPHA_PID", alpha_pid),
            ("ALPHA_TICKS", ticks),
            ("RHO_PID", rho_pid),
            ("SECRET", shown(&secret)),
            ("SAMPLE", shown(&sample)),
            ("STEADY", shown(&program)),
            ("KERNELS", shown(&kernels)),
            ("LIBS", shown(partita_testing::build())),
            ("ATTACK", shown(&users.attacker())),
            ("PARTITA", shown(common::program())),
            ("SYSTEM", world.system.as_ref().map_or("", |_| "1").to_owned()),
        ];
        let kept = vec![secret, mine, alpha_dir, rho_dir];
        Some(Self { alpha, rho, variables, kept, users, world })
    }

    /// Plays the acts, one after the other: in a short run every third. In system mode an act may
    /// be refused: B cannot write where it begins.
    pub fn play(&mut self, acts: &[Act]) {
        // The files of the first change of limits exist from now on.
        let nothing = Act::new("nothing", "").then(&[Step(Who::Root, "p set rho --mem 64MiB", End::Well)]);
        ALWAYS.iter().chain(nothing.then).for_each(|step| self.step(&nothing, step));
        let before = self.state();
        let is_system = self.world.system.is_some();
        let mut refused = 0;
        for act in acts.iter().step_by(if is_long() { 1 } else { 3 }) {
            if let Some(reason) = act.only_in_user_mode.filter(|_| is_system) {
                println!("{}: not in system mode: {reason}", act.name);
                continue;
            }
            println!("{}", act.name);
            let script = format!("{B_BEGINS}{}{B_ENDS}", act.does);
            let attacker = Attacker::start(&mut self.shell(ATTACKER, &script));
            let mut said = attacker.until_ready(act, is_system);
            self.step(act, &Step(Who::Root, "p ps", End::Well));
            for step in ALWAYS.iter().chain(act.then) {
                self.step(act, step);
            }
            self.check(&before, act.name);
            said.extend(attacker.end());
            let is_refusal = |line: &String| is_system && line.starts_with("cannot");
            refused += u32::from(said.iter().any(is_refusal));
            said.retain(|line| ["won", "cannot", "broken"].iter().any(|word| line.starts_with(word)));
            said.retain(|line| !is_refusal(line));
            assert!(said.is_empty(), "{}: {said:?}", act.name);
            self.clear();
        }
        self.check(&before, "when all is over");
        println!("{refused} acts were refused at their beginning");
    }

    /// Nothing of A and root has changed since `before`.
    fn check(&mut self, before: &[String], what: &str) {
        let now = self.state();
        let gone: Vec<_> = before.iter().filter(|line| !now.contains(line)).collect();
        let new: Vec<_> = now.iter().filter(|line| !before.contains(line)).collect();
        assert!(gone.is_empty() && new.is_empty(), "{what}: was {gone:#?}, is {new:#?}");
    }

    /// A script of a user's.
    pub fn shell(&self, user: u32, script: &str) -> Command {
        let mut command = Command::new("sh");
        with_env_of(&mut command, &self.world.as_root([] as [&str; 0]));
        command.args(["-c", script]).stdin(Stdio::null());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        enter(&self.world, &self.users, user, &mut command);
        command
    }

    fn step(&self, act: &Act, step: &Step) {
        let Step(who, line, end) = step;
        let user = match who {
            Who::Root => 0,
            Who::A => VICTIM,
        };
        let what = format!("{}: {who:?}: {line}", act.name);
        let output =
            within_bound(&what, &mut self.shell(user, &format!("p() {{ \"$PARTITA\" \"$@\"; }}\n{line}")));
        let (said, complaint) = (text(&output.stdout), text(&output.stderr));
        for text in [&said, &complaint] {
            let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!text.contains(steers), "{what}: {text:?}");
            assert!(!text.contains(SECRET), "{what}: {text}");
        }
        match end {
            End::RefusedOfB(_) if self.world.system.is_some() => {
                assert!(output.status.success(), "{what}: {output:?}");
            }
            End::Well => assert!(output.status.success(), "{what}: {output:?}"),
            End::Refused(reason) | End::RefusedOfB(reason) => {
                assert_eq!(output.status.code(), Some(125), "{what}: {output:?}");
                let complaint = without_wait(&complaint);
                assert!(complaint.lines().count() == 1 && complaint.contains(reason), "{what}: {complaint}");
            }
        }
    }

    /// The tenants of A and root, as their programs and every user see them, and the content of
    /// their private directories.
    fn state(&mut self) -> Vec<String> {
        let mut state = self.work();
        for user in [0, VICTIM] {
            let output = within_bound("ps --json", &mut self.shell(user, r#"exec "$PARTITA" ps --json"#));
            let rows: Vec<Value> = serde_json::from_slice(&output.stdout)
                .unwrap_or_else(|error| panic!("user {user}: ps: {error}: {output:?}"));
            let names = [("alpha", self.world_user(VICTIM)), ("rho", self.world_user(0))];
            for (name, owner) in names {
                let rows: Vec<_> =
                    rows.iter().filter(|row| row["name"] == name && row["user"] == owner.as_str()).collect();
                assert_eq!(rows.len(), 1, "user {user}: {name}: {output:?}");
                let told =
                    ["gpu_uuid", "tpcs", "memory_quota_bytes", "memory_used_bytes", "priority", "problem"];
                let told = told.map(|key| rows[0][key].to_string()).join(" ");
                let pids: Vec<&Value> = rows[0]["processes"].as_array().into_iter().flatten().collect();
                let pids: Vec<&Value> = pids.iter().map(|process| &process["pid"]).collect();
                state.push(format!("{user} sees {name}: {told} {pids:?}"));
            }
        }
        self.kept.iter().for_each(|path| note(path, &mut state));
        state
    }

    fn world_user(&self, user: u32) -> String {
        if user == 0 { "root".to_owned() } else { format!("user {user}") }
    }

    /// The permissions of the two programs.
    fn work(&mut self) -> Vec<String> {
        let answer = [&mut self.alpha, &mut self.rho].map(|tenant| tenant.line("look"));
        assert!(answer.iter().all(|line| line.starts_with("2 47 sms")), "{answer:?}");
        answer.into()
    }

    /// Removes B's files.
    fn clear(&self) {
        let place = self.users.place(ATTACKER);
        let entries = |dir: &Path| fs::read_dir(dir).unwrap().flatten().collect::<Vec<_>>();
        let own = entries(&place).into_iter().filter(|entry| entry.file_name() != "cache");
        let shared = entries(&self.world.run_dir()).into_iter();
        let shared = shared.filter(|entry| entry.metadata().is_ok_and(|meta| meta.uid() == ATTACKER));
        for path in own.chain(shared).map(|entry| entry.path()) {
            // A board that exits removes its own files meanwhile.
            let removed = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
            assert!(removed.is_ok() || path.symlink_metadata().is_err(), "{}: {removed:?}", path.display());
        }
    }
}

/// Makes a command run as a user. In system mode all users share the machine's simulated GPU.
pub fn enter(world: &World, users: &Users, user: u32, command: &mut Command) {
    match (user, &world.system) {
        (0, _) => {}
        (_, Some(_)) => world.enter(user, command),
        (_, None) => users.enter(user, command),
    }
}

/// The files of a real tenant, for false ones; on one in 20 of the compute units.
fn sample(world: &World) -> PathBuf {
    let tenant = world.idle("--name sample --sm 5% --isolation own");
    let (dir, sample) = (world.gpu_dir().join("sample"), world.dir().join("sample"));
    fs::create_dir(&sample).unwrap();
    for file in ["limits", "usage", "meta.json"] {
        fs::copy(dir.join(file), sample.join(file)).unwrap();
        fs::set_permissions(sample.join(file), PermissionsExt::from_mode(0o644)).unwrap();
    }
    drop(tenant);
    world.ok("ps");
    sample
}

/// Records the state of a path: owner, length and content, except for parts that running tenants
/// write.
fn note(path: &Path, notes: &mut Vec<String>) {
    let meta = path.symlink_metadata().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut told = format!("{} {:o} {}", path.display(), meta.mode(), meta.uid());
    if meta.is_file() && !path.ends_with("usage") && !path.ends_with("limits") {
        told += &format!(" {:?}", text(&fs::read(path).unwrap()));
    }
    notes.push(told);
    if meta.is_dir() {
        let mut entries: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        entries.iter().for_each(|entry| note(entry, notes));
    }
}

/// The output of a command that ends within its bound.
pub fn within_bound(what: &str, command: &mut Command) -> Output {
    let child =
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let group = Pid::from_raw(child.id() as i32);
    let (sender, ended) = channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    match ended.recv_timeout(BOUND) {
        Ok(output) => output.expect("it can be waited for"),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            let _ = group.map(|group| kill_process_group(group, Signal::KILL));
            panic!("{what}: it does not end within {} s", BOUND.as_secs());
        }
    }
}
