//! Tenants in containers: a real podman and runc on a root file system that the test makes.

mod deaths;

use crate::time::{self, MEASURE_MS, SKIP_MS};
use crate::{common, gate};

use std::ffi::CString;
use std::fs;
use std::io::{Read, Write};
use std::ops::RangeInclusive;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use common::{World, gpu_program, succeeds, text};
use partita_ledger::GateMap;
use partita_testing::executable;

/// Containers of one test, with a private storage.
struct Pod {
    // Dropped last: the tenants' commands need it.
    world: World,
    name: String,
    root: PathBuf,
    /// A program on the host: the board lives as long as it does.
    board: std::process::Child,
}

/// `None`, with the reason, where containers cannot run.
fn pod(name: &str) -> Option<Pod> {
    let has =
        |program: &str| Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success());
    let missing: Vec<_> = ["podman", "runc"].into_iter().filter(|program| !has(program)).collect();
    if !missing.is_empty() || !Path::new("/bin/busybox").exists() || !rustix::process::geteuid().is_root() {
        eprintln!("skipped: containers need root, podman, runc and busybox-static; missing: {missing:?}");
        return None;
    }
    if common::is_real() || common::needs_user_mode("the run directory is this test's own") {
        eprintln!("skipped: the device of a real GPU is NVIDIA's to write");
        return None;
    }
    let world = private_world()?;
    // A board whose directory others can enter serves all users.
    fs::set_permissions(world.dir().join("sim"), fs::Permissions::from_mode(0o755)).unwrap();
    let root = world.dir().join("root");
    make_root(&root);
    let (program, kernels) = gpu_program();
    let mut board = world.bare(program);
    let board = board.arg(kernels).arg("loop").stdout(std::process::Stdio::null()).spawn().unwrap();
    let name = format!("{name}-{}", std::process::id());
    Some(Pod { world, name, root, board })
}

/// A world whose run directory only this user enters, as prepared tenants need it; `None` where
/// there can be none.
fn private_world() -> Option<World> {
    if !rustix::process::geteuid().is_root()
        || common::needs_simulator("the run directory is this test's own")
        || common::needs_user_mode("the run directory is this test's own")
    {
        return None;
    }
    let world = World::plan().own().in_memory().start();
    fs::create_dir(world.run_dir()).unwrap();
    fs::set_permissions(world.run_dir(), fs::Permissions::from_mode(0o700)).unwrap();
    Some(world)
}

/// A busybox, the test's program, and the libraries that these and the driver need.
fn make_root(root: &Path) {
    for dir in
        ["bin", "lib64", "lib/x86_64-linux-gnu", "etc", "tmp", "proc", "sys", "dev", "run", "usr/local"]
    {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    executable(&root.join("bin/busybox"), &fs::read("/bin/busybox").unwrap());
    for name in ["sh", "env", "sleep"] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    let (program, kernels) = gpu_program();
    executable(&root.join("bin/gpu"), &fs::read(program).unwrap());
    fs::copy(kernels, root.join("kernels.ptx")).unwrap();
    let beside = |name: &str| common::program().with_file_name(name);
    for file in
        [program.clone(), beside("partita-simgpu"), beside("libpartita_simcuda.so"), beside("libpartita.so")]
    {
        let listed = succeeds(Command::new("ldd").arg(file));
        for library in listed.lines().filter_map(|line| line.split("=> ").nth(1)?.split(' ').next()) {
            let name = Path::new(library).file_name().unwrap();
            fs::copy(library, root.join("lib/x86_64-linux-gnu").join(name)).unwrap();
        }
    }
    let loader = fs::read("/lib64/ld-linux-x86-64.so.2").unwrap();
    executable(&root.join("lib64/ld-linux-x86-64.so.2"), &loader);
    // A loader that looks for another file: a program that is started by it has no library.
    let at = |part: &[u8]| loader.windows(part.len()).position(|window| window == part);
    let mut other = loader.clone();
    other[at(b"/etc/ld.so.preload").unwrap() + 5] = b'x';
    executable(&root.join("lib64/other"), &other);
}

impl Pod {
    fn podman(&self) -> Command {
        let mut command = Command::new("podman");
        let dir = self.world.dir();
        command.arg("--root").arg(dir.join("storage")).arg("--runroot").arg(dir.join("pods"));
        command.args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--runtime", "runc"]);
        command
    }

    fn command(&self, options: &[&str], words: &[&str]) -> Command {
        self.command_in(&self.name, options, words)
    }

    /// In a container of the tenant of this name.
    fn command_in(&self, tenant: &str, options: &[&str], words: &[&str]) -> Command {
        let mut command = self.podman();
        command.args(["run", "--rm", "--network", "none", "--ulimit", "nofile=1024:20000"]);
        command.args(["--ulimit", "nproc=1000:1000", "--device"]);
        command.arg(format!("partita.dev/tenant={tenant}")).args(options).arg("--rootfs");
        command.arg(&self.root).args(words);
        command
    }

    /// Compiles a program of `tests/hook` into the root file system of the containers.
    fn adds(&self, source: &str) {
        let program = fs::read(common::compile(&self.world, source)).unwrap();
        executable(&self.root.join("bin").join(source), &program);
    }

    /// The name of a second tenant.
    fn other(&self) -> String {
        format!("{}-other", self.name)
    }

    fn prepare_other(&self, limits: &str) {
        self.world.ok(&format!("cdi prepare {} --gpu sim:h200 {limits}", self.other()));
    }

    /// Sends a signal to the program of the container of this name.
    fn signals(&self, signal: &str, container: &str) {
        succeeds(self.podman().args(["kill", "--signal", signal, container]));
    }

    fn run(&self, options: &[&str], words: &[&str]) -> Output {
        self.command(options, words).output().unwrap()
    }

    fn prints(&self, options: &[&str], words: &[&str]) -> String {
        succeeds(&mut self.command(options, words))
    }

    fn prepare(&self, limits: &str) -> String {
        self.world.ok(&format!("cdi prepare {} --gpu sim:h200 {limits}", self.name))
    }

    /// Ends the processes of its containers, and leaves the tenant.
    fn kill(&self) {
        let out = self.world.line(&format!("kill --grace 0 {}", self.name));
        assert!(out.status.success() && text(&out.stderr).contains("stays prepared"), "{out:?}");
    }

    fn device(&self) -> PathBuf {
        Path::new("/var/run/cdi").join(format!("partita.dev-tenant-{}.json", self.name))
    }

    fn processes(&self) -> usize {
        self.world.row(&self.name)["processes"].as_array().unwrap().len()
    }

    fn wait_for(&self, processes: usize) {
        while self.processes() != processes {
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A killed process is no process any more before the driver has taken everything from it. Its slot
/// in the ledger stays until then, and with it the tenant. A program on the host stands in for it:
/// `cdi remove` finds the processes of containers alone.
#[test]
fn a_tenant_is_removed_when_its_last_slot_is_free() {
    let Some(world) = private_world() else { return };
    let devices = world.dir().join("devices");
    let at = format!("--output {}", devices.display());
    world.ok(&format!("cdi prepare serve --gpu sim:h200 --sm 10% {at}"));
    // It has no program that `partita kill` could end.
    let said = world.refused("run --sm 100% -- true");
    assert!(said.contains("`partita cdi remove serve`"), "{said}");
    let file = fs::read(devices.join("partita.dev-tenant-serve.json")).unwrap();
    let device: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let mounts = device["devices"][0]["containerEdits"]["mounts"].as_array().unwrap();
    let limits = mounts.iter().find_map(|mount| mount["hostPath"].as_str()?.strip_suffix("/limits"));
    let (program, kernels) = gpu_program();
    let mut inside = world.bare(program);
    inside.arg(kernels).arg("loop").env("PARTITA_LEDGER", limits.unwrap());
    inside.env("LD_PRELOAD", common::program().with_file_name("libpartita.so"));
    let mut inside = common::Tenant::start(&mut inside);
    assert!(inside.next_line().starts_with("sms"));
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(500));
            inside.child.kill().unwrap();
        });
        world.ok(&format!("cdi remove --force serve {at}"));
    });
    assert_eq!(world.ps(), Vec::<serde_json::Value>::new());
}

/// The same words make no other tenant, whatever the policy adds to them, until it is changed.
#[test]
fn a_tenant_is_prepared_again_by_the_same_words() {
    let Some(world) = private_world() else { return };
    let policy = world.dir().join("policy.toml");
    fs::write(&policy, "[default]\nmem = \"2GiB\"\n").unwrap();
    let prepare = |limits: &str| {
        let at = world.dir().join("devices");
        let line =
            format!("cdi prepare serve --gpu sim:h200 --isolation own {limits} --output {}", at.display());
        let mut command = world.partita(line.split_whitespace());
        command.env("PARTITA_POLICY", &policy).output().unwrap()
    };
    let is_done = |limits: &str| {
        let done = prepare(limits);
        assert!(done.status.success(), "{limits}: {done:?}");
    };
    let is_refused = |limits: &str| {
        let refused = prepare(limits);
        assert!(text(&refused.stderr).contains("with other limits"), "{limits}: {refused:?}");
    };
    is_done("--sm 20% --place spread");
    is_done("--sm 20% --place spread");
    assert_eq!(world.row("serve")["memory_quota_bytes"], 2u64 << 30);
    is_refused("--sm 30%");
    world.ok("set serve --mem 1GiB");
    is_refused("--sm 20% --place spread");
    is_done("--sm 20% --mem 1GiB");
    world.ok("cdi remove serve");
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.world.line(&format!("cdi remove --force {} {}", self.name, self.other()));
        let _ = self.podman().args(["rm", "--all", "--force", "--time", "0"]).output();
        let _ = self.board.kill();
        let _ = self.board.wait();
        let _ = self.world.line("mps stop --gpu sim:h200 --force");
    }
}

const CENSUS: [&str; 3] = ["gpu", "/kernels.ptx", "census"];
const LOOP: [&str; 3] = ["gpu", "/kernels.ptx", "loop"];

#[test]
fn limits_hold_in_every_container_of_a_tenant() {
    let Some(pod) = pod("limits") else { return };
    pod.prepare("--sm 50% --mem 1GiB --isolation own");
    assert_eq!(common::sms(&pod.prints(&[], &CENSUS)).len(), 66);
    let half = ["gpu", "/kernels.ptx", "alloc", "629145600", "629145600"];
    let expected = pod.prints(&[], &half);
    assert!(expected.contains("error 2") || expected.contains(" 2"), "{expected}");
    // Unprivileged, read-only, and without or with another ledger in the environment.
    for options in [&["--user", "1000:1000", "--read-only"][..], &["--env", "PARTITA_LEDGER=/tmp"]] {
        assert_eq!(pod.prints(options, &half), expected);
        assert_eq!(pod.prints(options, &["gpu", "/kernels.ptx", "total"]), "total 1073741824\n");
    }
    for file in ["/usr/local/partita/gpu/0/tenant/limits", "/etc/ld.so.preload"] {
        let said = pod.run(&[], &["sh", "-c", &format!("echo x >{file}")]);
        assert!(text(&said.stderr).contains("Read-only file system"), "{said:?}");
    }
    // Limits change while containers run; these share the tenant.
    pod.world.ok(&format!("set {} --sm 25%", pod.name));
    assert!(common::sms(&pod.prints(&[], &CENSUS)).len() <= 33);
    let mut two: Vec<_> = (0..2)
        .map(|_| pod.command(&[], &LOOP).stdout(std::process::Stdio::null()).spawn().unwrap())
        .collect();
    pod.wait_for(2);
    let refused = pod.world.refused(&format!("cdi remove {}", pod.name));
    assert!(refused.contains("is in a container of it"), "{refused}");
    // Killed, the tenant stays, and a new container has all of it.
    pod.kill();
    two.iter_mut().for_each(|one| assert!(!one.wait().unwrap().success()));
    assert_eq!(pod.processes(), 0);
    assert_eq!(pod.world.row(&pod.name)["memory_used_bytes"], 0);
    assert_eq!(pod.prints(&[], &["gpu", "/kernels.ptx", "total"]), "total 1073741824\n");
    pod.world.ok(&format!("cdi remove {}", pod.name));
    pod.world.ok(&format!("cdi remove {}", pod.name));
    assert!(pod.world.ps().is_empty() && !pod.device().exists());
}

#[test]
fn containers_of_a_tenant_are_clients_of_one_mps_service() {
    let Some(pod) = pod("mps") else { return };
    pod.prepare("--sm 50% --mem 1GiB --isolation shared");
    let mut two: Vec<_> = (0..2)
        .map(|_| pod.command(&[], &LOOP).stdout(std::process::Stdio::null()).spawn().unwrap())
        .collect();
    pod.wait_for(2);
    let status = pod.world.ok("mps status --gpu sim:h200 --json");
    assert!(status.matches("/kernels.ptx loop").count() >= 2, "{status}");
    pod.kill();
    two.iter_mut().for_each(|one| assert!(!one.wait().unwrap().success()));
    assert_eq!(common::sms(&pod.prints(&[], &CENSUS)).len(), 66);
}

#[test]
fn a_container_without_the_library_is_an_escape() {
    let Some(pod) = pod("escape") else { return };
    pod.prepare("--sm 50% --mem 1GiB --isolation own");
    let mut escaped =
        pod.command(&["--user", "1000:1000"], &["/lib64/other", "/bin/gpu", "/kernels.ptx", "loop"]);
    let mut escaped = escaped.stdout(std::process::Stdio::null()).spawn().unwrap();
    let found = loop {
        let out = pod.world.line("ps --audit");
        if text(&out.stdout).contains("ESCAPED") {
            break out;
        }
        assert!(escaped.try_wait().unwrap().is_none(), "{out:?}");
        thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(found.status.code(), Some(1));
    assert!(text(&found.stdout).contains(&pod.name), "{found:?}");
    pod.kill();
    assert!(!escaped.wait().unwrap().success());
}

/// `partitad --system` beside the containers.
struct Daemon {
    process: Ended,
    log: PathBuf,
}

impl Daemon {
    fn start(pod: &Pod, policy: &Path) -> Self {
        let log = pod.world.dir().join("log");
        let mut command = Command::new(common::program().with_file_name("partitad"));
        common::with_env_of(&mut command, &pod.world.partita([] as [&str; 0]));
        command.env("PARTITA_POLICY", policy).args(["--system", "--audit-every", "1", "--state"]);
        command.arg(pod.world.dir().join("state")).stderr(fs::File::create(&log).unwrap());
        let daemon = Self { process: Ended(command.spawn().unwrap()), log };
        partita_testing::eventually("partitad serves", || daemon.line_with(&["serving"]).is_some());
        daemon
    }

    /// The first line of its log with all of these words.
    fn line_with(&self, words: &[&str]) -> Option<String> {
        let said = fs::read_to_string(&self.log).unwrap();
        said.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
    }

    /// Ends it, so that it removes its sockets.
    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.process.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.process.0.wait().unwrap().success());
    }
}

/// By default an escape is reported. Where the policy of the site says so, `partitad` ends it.
#[test]
fn an_escaped_program_is_ended_if_the_site_wants_that() {
    let Some(pod) = pod("ends") else { return };
    let policy = pod.world.dir().join("policy.toml");
    let write = |text: &str| fs::write(&policy, text).unwrap();
    write("");
    let daemon = Daemon::start(&pod, &policy);
    pod.prepare("--sm 50% --mem 1GiB --isolation own");
    let mut held = Ended(pod.command(&[], &LOOP).stdout(std::process::Stdio::null()).spawn().unwrap());
    pod.wait_for(1);
    // Not the container's first process, which SIGTERM does not end.
    let escape = "/lib64/other /bin/gpu /kernels.ptx loop & wait $!; echo ended by $?";
    let mut escaped = pod.command(&["--user", "1000:1000"], &["sh", "-c", escape]);
    let mut escaped = Ended(escaped.stdout(std::process::Stdio::piped()).spawn().unwrap());
    let found = || daemon.line_with(&["escape", "began", &pod.name]);
    partita_testing::eventually("the escape is reported", || found().is_some());
    let reported = found().unwrap();
    assert!(reported.contains("`partita kill"), "{reported}");
    // Several audits later it still runs.
    thread::sleep(Duration::from_secs(3));
    assert!(escaped.0.try_wait().unwrap().is_none(), "{:?}", fs::read_to_string(&daemon.log));
    write("[escaped]\nprograms = \"end\"\n");
    let mut said = String::new();
    escaped.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said.lines().last(), Some("ended by 143"), "{said}");
    let ended = daemon.line_with(&["ended by the policy of the site"]).unwrap();
    for part in [&*pod.name, "program=\"other\"", "[escaped] programs", "pid="] {
        assert!(ended.contains(part), "{part}: {ended}");
    }
    // The program that has the library goes on.
    assert!(held.0.try_wait().unwrap().is_none() && pod.processes() == 1);
    pod.kill();
    daemon.end();
}

#[test]
fn a_patch_resizes_the_tenant_of_a_running_container() {
    let Some(pod) = pod("patch") else { return };
    let policy = pod.world.dir().join("policy.toml");
    fs::write(&policy, "").unwrap();
    let daemon = Daemon::start(&pod, &policy);
    pod.adds("gate");
    pod.prepare("--sm 50% --mem 1GiB --priority low --isolation own");
    let mut inside = gate::Program::of(&mut pod.command(&UNPRIVILEGED, &GATE));
    let patch = |body: &str| {
        let mut stream = UnixStream::connect(pod.world.run_dir().join(".partitad-0.sock")).unwrap();
        let (name, bytes) = (&pod.name, body.len());
        let head = format!("PATCH /v1/tenants/{name} HTTP/1.1\r\nhost: partitad\r\nconnection: close\r\n");
        write!(stream, "{head}content-type: application/json\r\ncontent-length: {bytes}\r\n\r\n{body}")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = patch(r#"{"sm": "25%", "mem": "512MiB", "priority": "high"}"#);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let row = pod.world.row(&pod.name);
    assert_eq!((&row["sms"], &row["memory_quota_bytes"]), (&32.into(), &(512u64 << 20).into()));
    // The container that ran before has it, without a restart, and one that starts, too.
    let program = common::compile(&pod.world, "gate");
    let mut low = gate::Program::start(&pod.world, &program, "low", "--sm 25% --priority low");
    assert!(gate::is_seen(true, &mut inside, &mut low));
    assert_eq!(common::sms(&pod.prints(&[], &CENSUS)).len(), 32);
    assert_eq!(pod.prints(&[], &["gpu", "/kernels.ptx", "total"]), "total 536870912\n");
    // What does not hold in a container is refused, and changes nothing.
    let answer = patch(r#"{"sm": "50%", "time": "50%"}"#);
    assert!(answer.contains("was started without a share of time"), "{answer}");
    assert_eq!(pod.world.row(&pod.name)["sms"], 32);
    drop((inside, low));
    pod.kill();
    daemon.end();
}

/// A process that is killed when it is dropped.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_prepare_or_remove_is_finished_by_the_next() {
    let Some(pod) = pod("steps") else { return };
    let prepare = format!("cdi prepare {} --gpu sim:h200 --sm 50% --mem 1GiB --isolation shared", pod.name);
    let remove = format!("cdi remove {}", pod.name);
    for wait_ms in [0, 5, 20, 50, 100, 150, 200, 300, 400] {
        for line in [&prepare, &remove] {
            let mut killed =
                pod.world.partita(line.split(' ')).stdout(std::process::Stdio::null()).spawn().unwrap();
            thread::sleep(Duration::from_millis(wait_ms));
            let _ = killed.kill();
            let _ = killed.wait();
            assert!(pod.world.ok(&prepare).contains("--device"));
            assert_eq!(pod.world.row(&pod.name)["memory_quota_bytes"], 1u64 << 30);
        }
        pod.world.ok(&remove);
        assert!(pod.world.ps().is_empty() && !pod.device().exists(), "after {wait_ms} ms");
    }
    let refused = pod.world.refused(&format!("{prepare} --time 50% --time-policy tokens"));
    assert!(refused.contains("on the host") && refused.contains("--time-policy hard"), "{refused}");
    let refused = pod.world.refused(&format!("{} --sm 50%..100%", prepare.replace(" --sm 50%", "")));
    assert!(refused.contains("ceiling"), "{refused}");
}

/// With commands from this process, as an unprivileged user, in a read-only image. The first
/// process of a container ignores SIGTERM, and its end of input ends it.
const UNPRIVILEGED: [&str; 5] = ["-i", "--sig-proxy=false", "--user", "1000:1000", "--read-only"];
const TIME: [&str; 2] = ["time", "/kernels.ptx"];
const GATE: [&str; 2] = ["gate", "/kernels.ptx"];

/// Names this test among those who take turns: the numbers of tenants are odd.
const OTHER: u16 = 2;

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[test]
fn containers_take_turns_by_their_shares_of_time() {
    let _preferred = common::prefer_this_test();
    let Some(pod) = pod("turns") else { return };
    pod.adds("time");
    pod.prepare("--time 30% --isolation own");
    pod.prepare_other("--time 40% --isolation own");
    let mut one = time::Program::of(&mut pod.command(&UNPRIVILEGED, &TIME));
    let start = |name: &str| {
        let options = [&["--name", name], &UNPRIVILEGED[..]].concat();
        time::Program::of(&mut pod.command_in(&pod.other(), &options, &TIME))
    };
    let share = |program: &mut time::Program| program.share("kernel 1000000", SKIP_MS, MEASURE_MS).0;
    // Both have their shares at the same time, less what the changes of turns cost.
    let mut other = start(&pod.other());
    time::is_seen("30 % and 40 %", || {
        let both = thread::scope(|scope| {
            let other = scope.spawn(|| share(&mut other));
            (share(&mut one), other.join().unwrap())
        });
        match (250..=320).contains(&both.0) && (333..=420).contains(&both.1) {
            true => Ok(()),
            false => Err(format!("{both:?}")),
        }
    });
    // They wait for the turns of others, who see theirs: this process takes nearly all turns.
    let gate = pod.world.gpu_dir().join(".turns/gate");
    let gate = GateMap::open(&CString::new(gate.as_os_str().as_encoded_bytes()).unwrap()).unwrap();
    time::is_seen("turns of others", || {
        let mut turns = 0;
        let share = thread::scope(|scope| {
            let share = scope.spawn(|| share(&mut one));
            while !share.is_finished() {
                let now_ns = now_ns();
                let pause_ns = match gate.take_turn(OTHER, now_ns, now_ns + 50_000_000) {
                    Ok(()) => 50_000_000,
                    Err(until_ns) => {
                        turns += 1;
                        until_ns.saturating_sub(now_ns)
                    }
                };
                thread::sleep(Duration::from_nanos(pause_ns));
            }
            share.join().unwrap()
        });
        if turns > 0 && share < 200 { Ok(()) } else { Err(format!("{share} ‰, {turns} turns")) }
    });
    gate.end_turn(OTHER);
    drop(other);
    // One that takes its turns is stopped, or killed: the other one goes on.
    let used = || pod.world.row(&pod.other())["time"]["used_s"].as_f64().unwrap();
    for signal in ["STOP", "KILL"] {
        let name = format!("{}-{signal}", pod.other());
        let mut busy = start(&name);
        let before = used();
        busy.begin("share kernel 1000000 0 600000");
        while used() < before + 0.1 {
            thread::sleep(Duration::from_millis(5));
        }
        pod.signals(signal, &name);
        time::is_seen(signal, || match share(&mut one) {
            share if time::is_promised(share, 30) => Ok(()),
            share => Err(format!("{share} ‰")),
        });
        if signal == "STOP" {
            pod.signals("KILL", &name);
        }
    }
    // A soft share is one as long as the other tenant is there, whose work it does not see.
    pod.world.ok(&format!("set {} --time-policy soft", pod.name));
    let mut has = |shares: RangeInclusive<i64>| {
        time::is_seen("soft", || match share(&mut one) {
            share if shares.contains(&share) => Ok(()),
            share => Err(format!("{share} ‰")),
        });
    };
    has(280..=320);
    pod.world.ok(&format!("cdi remove {}", pod.other()));
    has(951..=1000);
    assert_eq!(pod.world.row(&pod.name)["time"]["share_percent"], 30.0);
}

#[test]
fn work_of_low_priority_waits_for_a_container_and_in_one() {
    let Some(pod) = pod("priority") else { return };
    let program = common::compile(&pod.world, "gate");
    pod.adds("gate");
    pod.prepare("--sm 25% --priority high --isolation own");
    let mut low = gate::Program::start(&pod.world, &program, "low", "--sm 25% --priority low");
    let mut high = gate::Program::of(&mut pod.command(&UNPRIVILEGED, &GATE));
    assert!(gate::is_seen(true, &mut high, &mut low));
    // A change applies in running containers from the next launch on.
    pod.world.ok(&format!("set {} --priority normal", pod.name));
    assert!(gate::is_seen(false, &mut high, &mut low));
    pod.world.ok(&format!("set {} --priority high", pod.name));
    // The same between two containers.
    pod.prepare_other("--sm 25% --priority low --isolation own");
    let mut inside = gate::Program::of(&mut pod.command_in(&pod.other(), &UNPRIVILEGED, &GATE));
    assert!(gate::is_seen(true, &mut high, &mut inside));
    // Killed with work in flight, it holds nobody for longer than a look.
    assert_eq!(high.tell("launch"), "ok");
    pod.kill();
    for held in [&mut low, &mut inside] {
        assert_eq!((held.tell("launch"), held.tell("sync")), ("ok".into(), "ok".into()));
        // A busy machine may be too late once.
        assert!((0..20).any(|_| {
            let is_held = held.is_held();
            held.ends();
            !is_held
        }));
    }
    // The gate is for containers and for this user of the host.
    let turns = pod.world.gpu_dir().join(".turns");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&turns), mode(&turns.join("gate"))), (0o700, 0o666));
}
