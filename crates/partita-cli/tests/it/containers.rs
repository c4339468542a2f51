//! Tenants in containers: a real podman and runc on a root file system that the test makes.

use crate::common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use common::{World, gpu_program, succeeds, text};

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
    let world = private_world();
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

/// A world whose run directory only this user enters, as prepared tenants need it.
fn private_world() -> World {
    let world = World::plan().own().in_memory().start();
    fs::create_dir(world.run_dir()).unwrap();
    fs::set_permissions(world.run_dir(), fs::Permissions::from_mode(0o700)).unwrap();
    world
}

/// A busybox, the test's program, and the libraries that these and the driver need.
fn make_root(root: &Path) {
    for dir in
        ["bin", "lib64", "lib/x86_64-linux-gnu", "etc", "tmp", "proc", "sys", "dev", "run", "usr/local"]
    {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    for name in ["sh", "env", "sleep"] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    let (program, kernels) = gpu_program();
    fs::copy(program, root.join("bin/gpu")).unwrap();
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
    common::executable(&root.join("lib64/ld-linux-x86-64.so.2"), &loader);
    // A loader that looks for another file: a program that is started by it has no library.
    let at = |part: &[u8]| loader.windows(part.len()).position(|window| window == part);
    let mut other = loader.clone();
    other[at(b"/etc/ld.so.preload").unwrap() + 5] = b'x';
    common::executable(&root.join("lib64/other"), &other);
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
        let mut command = self.podman();
        command.args(["run", "--rm", "--network", "none", "--ulimit", "nofile=1024:20000"]);
        command.args(["--ulimit", "nproc=1000:1000", "--device"]);
        command.arg(format!("partita.dev/tenant={}", self.name)).args(options).arg("--rootfs");
        command.arg(&self.root).args(words);
        command
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
    if !rustix::process::geteuid().is_root()
        || common::needs_simulator("the run directory is this test's own")
        || common::needs_user_mode("the run directory is this test's own")
    {
        return;
    }
    let world = private_world();
    let devices = world.dir().join("devices");
    let at = format!("--output {}", devices.display());
    world.ok(&format!("cdi prepare serve --gpu sim:h200 --sm 10% {at}"));
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

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.world.line(&format!("cdi remove --force {}", self.name));
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
    assert!(pod.world.refused(&format!("{prepare} --priority low")).contains("--priority"));
}
