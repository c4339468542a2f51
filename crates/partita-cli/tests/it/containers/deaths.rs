//! Violent deaths in containers of an MPS client with work in flight: neighbours go on, as beside
//! programs on the host (`deaths.rs`).

use super::{CENSUS, Pod, pod};
use crate::common;

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use common::{PATIENCE, Tenant};
use partita_testing::eventually;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use rustix::process::Signal;

/// A tenant for containers with a program that dies, and a neighbour on the host.
struct Scene {
    // Ended before the pod's service.
    neighbour: Option<Tenant>,
    pod: Pod,
}

impl Scene {
    fn new(name: &str) -> Option<Self> {
        let pod = pod(name)?;
        pod.adds("deaths");
        let workloads = partita_abi::workloads::WORKLOADS_MODULE.to_bytes();
        fs::write(pod.root.join("workloads.ptx"), workloads).unwrap();
        pod.prepare("--sm 10% --mem 1GiB --isolation shared");
        let mut scene = Self { neighbour: None, pod };
        scene.begin_neighbour();
        Some(scene)
    }

    fn begin_neighbour(&mut self) {
        let mut neighbour = Tenant::start(&mut self.pod.world.gpu("--name neighbour --sm 10%", "loop"));
        assert!(neighbour.next_line().starts_with("sms"));
        self.neighbour = Some(neighbour);
    }

    /// A container of this name whose program has its work in flight.
    fn dying(&self, container: &str, work: &str, death: &str) -> Tenant {
        // Not the container's first process, which a signal of its own does not end.
        let line = format!("deaths /workloads.ptx {work} {death}; exit 0");
        let options = ["--interactive", "--user", "1000:1000", "--name", container];
        let mut command = self.pod.command(&options, &["sh", "-c", &line]);
        let mut dying = Tenant::start(command.stdin(Stdio::piped()));
        assert_eq!(dying.next_line(), "ready");
        dying
    }

    fn problem(&self) -> String {
        self.pod.world.row(&self.pod.name)["problem"].as_str().unwrap_or_default().to_owned()
    }

    fn goes_on(&mut self, what: &str) {
        for _ in 0..5 {
            let line = self.neighbour.as_mut().unwrap().next_line();
            assert!(line.starts_with("sms"), "{what}: {line}; {}", self.pod.world.service_logs());
        }
    }

    fn eventually(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            self.goes_on(what);
            assert!(Instant::now() < deadline, "{what}: never; {:?}", self.pod.world.ps());
        }
        self.goes_on(what);
    }

    /// The holder's process.
    fn holder(&self) -> Option<u32> {
        let end = format!("internal-holder\0--\0{}\0", self.pod.name);
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.ends_with(end.as_bytes())
        })
    }

    fn end_holder(&self) {
        let holder = self.holder().unwrap();
        let pid = rustix::process::Pid::from_raw(holder.cast_signed()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        eventually("the holder has ended", || self.holder().is_none());
    }

    /// Whether a holder has what a program in flight has given it.
    fn is_held(&self) -> bool {
        let Some(holder) = self.holder() else { return false };
        let Ok(open) = fs::read_dir(format!("/proc/{holder}/fd")) else { return false };
        let files = open.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        files.into_iter().any(|file| file.to_string_lossy().contains("memfd:partita-flight"))
    }

    /// The directory with the socket, on the host.
    fn socket_dir(&self) -> PathBuf {
        let device = fs::read(self.pod.device()).unwrap();
        let device: serde_json::Value = serde_json::from_slice(&device).unwrap();
        let mounts = device["devices"][0]["containerEdits"]["mounts"].as_array().unwrap();
        let mut paths = mounts.iter().filter_map(|mount| mount["hostPath"].as_str());
        paths.find(|path| path.ends_with("/holder")).unwrap().into()
    }
}

#[test]
fn every_kind_of_death_leaves_the_neighbour_alone() {
    let Some(mut scene) = Scene::new("kinds") else { return };
    for death in ["kill", "segv", "abort", "_exit", "return", "exec"] {
        let mut dying = scene.dying(&format!("by-{death}"), "finite", death);
        // The end of its input is the order to die.
        drop(dying.child.stdin.take());
        scene.goes_on(death);
        assert!(dying.child.wait().is_ok());
        scene.eventually(death, |scene| {
            let row = scene.pod.world.row(&scene.pod.name);
            row["problem"].is_null()
                && row["processes"].as_array().unwrap().is_empty()
                && row["memory_used_bytes"] == 0
        });
    }
    assert_eq!(common::sms(&scene.pod.prints(&[], &CENSUS)).len(), 12);
}

/// As the kubelet and `podman kill` do it. Silent connections, which any program of a container can
/// make, keep no message from the holder.
#[test]
fn work_of_a_killed_container_that_never_ends_is_held_until_no_neighbour_is_left() {
    let Some(mut scene) = Scene::new("endless") else { return };
    let address = SocketAddrUnix::new(scene.socket_dir().join("socket")).unwrap();
    let silent: Vec<_> = (0..200)
        .map(|_| {
            let silent = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
            connect(&silent, &address).unwrap();
            silent
        })
        .collect();
    let mut dying = scene.dying("endless", "endless", "kill");
    scene.pod.signals("KILL", "endless");
    assert!(!dying.child.wait().unwrap().success());
    scene.eventually("shown", |scene| scene.problem().contains("has not ended"));
    drop(silent);
    // Its compute units stay taken, and the tenant with them.
    let name = scene.pod.name.clone();
    let refused = scene.pod.world.refused(&format!("cdi remove --force {name}"));
    assert!(
        refused.contains("has not ended") && refused.contains(&format!("`partita kill {name}`")),
        "{refused}"
    );
    scene.goes_on("a refused removal");
    scene.neighbour = None;
    eventually("it is let go of", || scene.problem().is_empty());
    scene.pod.world.ok(&format!("cdi remove {}", scene.pod.name));
    eventually("the holder has ended", || scene.holder().is_none());
}

#[test]
fn a_kill_lets_go_of_what_never_ends_and_the_tenant_stays() {
    let Some(mut scene) = Scene::new("lets-go") else { return };
    let mut dying = scene.dying("lets-go", "endless", "kill");
    scene.pod.signals("KILL", "lets-go");
    assert!(!dying.child.wait().unwrap().success());
    scene.eventually("shown", |scene| scene.problem().contains("has not ended"));
    let said = scene.pod.world.line(&format!("kill {}", scene.pod.name));
    assert!(common::text(&said.stderr).contains("was let go of"), "{said:?}");
    assert_eq!(scene.problem(), "");
    // The next work that never ends is held again.
    scene.neighbour = None;
    scene.begin_neighbour();
    let mut dying = scene.dying("again", "endless", "kill");
    scene.pod.signals("KILL", "again");
    assert!(!dying.child.wait().unwrap().success());
    scene.eventually("shown again", |scene| scene.problem().contains("has not ended"));
    // Without its holder nothing is held, and the next one shows that.
    scene.end_holder();
    scene.pod.world.ok(&format!("cdi generate {}", scene.pod.name));
    eventually("what was held is not shown any more", || scene.problem().is_empty());
}

/// Its end lets go of everything, as the end of any process does. The next `cdi generate` or
/// `mps start` starts another, to which running programs give their descriptors.
#[test]
fn a_holder_that_was_killed_has_a_successor_that_holds() {
    let Some(mut scene) = Scene::new("successor") else { return };
    for again in [format!("cdi generate {}", scene.pod.name), "mps start --gpu sim:h200".to_owned()] {
        let mut dying = scene.dying("successor", "endless", "kill");
        scene.eventually("it has the program's descriptors", Scene::is_held);
        scene.end_holder();
        scene.goes_on("the end of the holder");
        scene.pod.world.ok(&again);
        scene.eventually("the next one has them", Scene::is_held);
        // A call more changes nothing.
        let second = scene.holder();
        scene.pod.world.ok(&again);
        assert_eq!(scene.holder(), second);
        scene.pod.signals("KILL", "successor");
        assert!(!dying.child.wait().unwrap().success());
        scene.eventually(&again, |scene| scene.problem().contains("has not ended"));
        scene.neighbour = None;
        eventually("it is let go of", || scene.problem().is_empty());
        scene.begin_neighbour();
    }
}

#[test]
fn only_the_socket_is_in_the_container_and_none_without_mps() {
    let Some(pod) = pod("socket") else { return };
    pod.prepare("--sm 10% --mem 1GiB --isolation shared");
    let dir = "/usr/local/partita/gpu/0/tenant/holder";
    let listed = pod.prints(&["--user", "1000:1000"], &["sh", "-c", &format!("echo {dir}/*")]);
    assert_eq!(listed, format!("{dir}/socket\n"));
    let said = pod.run(&[], &["sh", "-c", &format!("echo x >{dir}/x")]);
    assert!(common::text(&said.stderr).contains("Read-only file system"), "{said:?}");
    pod.world.ok(&format!("cdi remove {}", pod.name));
    pod.prepare("--sm 10% --mem 1GiB --isolation own");
    assert!(!fs::read_to_string(pod.device()).unwrap().contains("/holder"));
}
