//! A container runtime as far as a CDI file needs one: mounts and variables on a root of its own,
//! in a mount namespace of its own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;

use serde_json::Value;

use crate::world::is_real;

/// A directory with what containers find at their root: `gpu`, an ordinary CUDA program, with
/// `kernels.ptx`, and `deaths`, which dies with work in flight, with `workloads.ptx`.
pub fn programs() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let dir =
            tempfile::Builder::new().prefix("pkgpu").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap().keep();
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../crates/partita-cli/tests");
        for (name, source) in [("gpu", "it/common/gpu.c"), ("deaths", "hook/deaths.c")] {
            let mut compile = Command::new("cc");
            compile.args(["-O1", "-pthread", "-o"]).arg(dir.join(name)).arg(tests.join(source)).arg("-ldl");
            assert!(compile.status().unwrap().success(), "the test's program does not build");
        }
        std::fs::write(dir.join("kernels.ptx"), partita_abi::kernels::PTX_MODULE.to_bytes()).unwrap();
        let workloads = partita_abi::workloads::WORKLOADS_MODULE.to_bytes();
        std::fs::write(dir.join("workloads.ptx"), workloads).unwrap();
        dir
    });
    &BUILT
}

/// Whether this test may mount. It says so if not.
pub fn can_mount() -> bool {
    let tried = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    let can = tried.is_ok_and(|status| status.success());
    if !can {
        eprintln!("skipped: a container needs root and mount namespaces");
    }
    can
}

/// A shell's words that make a root with the devices of these files, and end with `chroot $R`.
fn root(files: &[&Path]) -> String {
    let mut script = "set -e\nR=$(mktemp -d)\nmount -t tmpfs root $R\n".to_owned();
    script += "for d in bin lib lib64 usr; do mkdir $R/$d; mount --rbind /$d $R/$d; done\n";
    script +=
        "mkdir $R/etc $R/tmp $R/proc $R/dev $R/run\nmount -t proc proc $R/proc\nmount --rbind /dev $R/dev\n";
    script += "mount -t tmpfs local $R/usr/local\n";
    let mut variables = Vec::new();
    if is_real() {
        // What the device of NVIDIA's toolkit brings: the driver's libraries.
        script += "cp /etc/ld.so.cache $R/etc/\n";
        script += "D=/usr/local/nvidia; if [ -d $D ]; then mkdir $R$D; mount --rbind $D $R$D; fi\n";
        let path = std::env::var("LD_LIBRARY_PATH").ok();
        variables.extend(path.map(|path| format!("'LD_LIBRARY_PATH={path}'")));
    }
    script += &format!("cp {}/* $R/\n", programs().display());
    for file in files {
        let spec: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(spec["cdiVersion"], "0.5.0");
        let edits = &spec["devices"][0]["containerEdits"];
        for mount in edits["mounts"].as_array().unwrap() {
            let [host, inside] = ["hostPath", "containerPath"].map(|key| mount[key].as_str().unwrap());
            let is_read_only = mount["options"].as_array().unwrap().contains(&"ro".into());
            script += &format!(
                "if [ -d {host} ]; then mkdir -p $R{inside}; else mkdir -p $(dirname $R{inside}); touch $R{inside}; fi\n\
                 mount --bind {host} $R{inside}\n"
            );
            if is_read_only {
                script += &format!("mount -o remount,ro,bind $R{inside}\n");
            }
        }
        let of_file = edits["env"].as_array().into_iter().flatten();
        variables.extend(of_file.map(|one| format!("'{}'", one.as_str().unwrap())));
    }
    script + &format!("exec chroot $R /usr/bin/env -i {} ", variables.join(" "))
}

fn within(script: &str, words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The command that runs the program in a container with the device of this file.
pub fn command(cdi: &Path, words: &[&str]) -> Command {
    within(&format!("{}/gpu /kernels.ptx \"$@\"\n", root(&[cdi])), words)
}

/// A program in a container with the device of this file, which has such work in flight.
pub fn at_work(cdi: &Path, work: &str) -> Child {
    let words = format!("{}/deaths /workloads.ptx {work} kill\n", root(&[cdi]));
    let mut child = within(&words, &[]).stdin(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "{:?}", child.wait_with_output());
    child
}

/// What a shell prints in a container with the devices of these files.
pub fn shell(files: &[&Path], script: &str) -> Output {
    within(&format!("{}/bin/sh -c \"$1\"\n", root(files)), &[script]).output().unwrap()
}

pub fn run(cdi: &Path, words: &[&str]) -> Output {
    command(cdi, words).output().unwrap()
}

pub fn prints(cdi: &Path, words: &[&str]) -> String {
    let out = run(cdi, words);
    assert!(out.status.success(), "{words:?}: {out:?}");
    String::from_utf8(out.stdout).unwrap()
}
