//! The chart and the driver in a real cluster of one node, with simulated GPUs.
//!
//! `PARTITA_TEST_KUBE` names a directory with the programs of [`cluster::PROGRAMS`]. The test
//! needs root, busybox and iproute2, and runs in namespaces of its own. Without them it is skipped.

mod cluster;
mod image;
mod node;
mod scenarios;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::container;

/// Set in the child that is in namespaces of its own: its directory.
const INSIDE: &str = "PARTITA_TEST_KUBE_DIR";

fn programs() -> Option<PathBuf> {
    let Some(dir) = std::env::var_os("PARTITA_TEST_KUBE") else {
        eprintln!("skipped: PARTITA_TEST_KUBE names no directory with Kubernetes' programs");
        return None;
    };
    let dir = std::path::absolute(dir).unwrap();
    let missing: Vec<_> = cluster::PROGRAMS.iter().filter(|name| !dir.join(name).exists()).collect();
    assert!(missing.is_empty(), "{} lacks {missing:?}", dir.display());
    Some(dir)
}

#[test]
fn pods_of_a_real_cluster_hold_their_shares() {
    let Some(programs) = programs() else { return };
    if let Some(dir) = std::env::var_os(INSIDE) {
        hide_directories();
        cluster::prepare_network();
        tokio::runtime::Runtime::new().unwrap().block_on(scenarios::all(Path::new(&dir), &programs));
        return;
    }
    if !container::can_mount() {
        return;
    }
    let temp = tempfile::Builder::new().prefix("pkreal").tempdir_in("/tmp").unwrap();
    // All that was started ends with the first process of the namespace.
    let mut command = Command::new("unshare");
    command.args(["--net", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.arg(std::env::current_exe().unwrap()).args(["real::pods_of_a_real_cluster", "--nocapture"]);
    let status = command.env(INSIDE, temp.path()).status().unwrap();
    for root in cluster::cgroup_roots() {
        remove_cgroup(&root.join(temp.path().file_name().unwrap()));
    }
    assert!(status.success(), "{status}");
}

fn remove_cgroup(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            remove_cgroup(&entry.path());
        }
    }
    let _ = fs::remove_dir(dir);
}

/// Directories that the programs have by name, empty and of this mount namespace.
fn hide_directories() {
    for dir in ["/run", "/var/lib/kubelet", "/var/log", "/dev/shm"] {
        fs::create_dir_all(dir).unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "test", dir]).status().unwrap();
        assert!(mount.success(), "{dir}");
    }
}
