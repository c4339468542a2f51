//! Container images made of files of this machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

/// An image: files, and the command of its containers.
pub struct Image {
    name: String,
    command: Vec<String>,
    /// Where a file lies here, and in the image.
    files: Vec<(PathBuf, PathBuf)>,
}

fn succeeds(command: &mut Command) -> Vec<u8> {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {out:?}");
    out.stdout
}

impl Image {
    /// An image with a shell and small programs, which need no library.
    pub fn shell(name: &str, command: &[&str]) -> Self {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
        let busybox = busybox.expect("busybox is installed");
        Self { name: name.to_owned(), command, files: vec![(busybox.into(), "bin/busybox".into())] }
    }

    /// Adds a file and the libraries that it needs.
    pub fn with(mut self, here: &Path, inside: &str) -> Self {
        self.files.push((here.to_owned(), inside.into()));
        let needed = Command::new("ldd").arg(here).output().unwrap();
        let needed = String::from_utf8(needed.stdout).unwrap();
        for library in needed.split_whitespace().filter(|word| word.starts_with('/')) {
            self.files.push((library.into(), library.trim_start_matches('/').into()));
        }
        self
    }

    /// Writes the archive that `ctr images import` reads.
    pub fn write(&self, archive: &Path) {
        let temp = tempfile::tempdir_in(archive.parent().unwrap()).unwrap();
        let root = temp.path().join("root");
        for dir in ["bin", "etc", "tmp", "proc", "sys", "dev"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        for (here, inside) in self.files.iter().collect::<BTreeSet<_>>() {
            let inside = root.join(inside);
            fs::create_dir_all(inside.parent().unwrap()).unwrap();
            fs::copy(here, &inside).unwrap();
            // Debug information would be most of the image.
            let _ = Command::new("strip").arg(&inside).output();
        }
        for name in ["sh", "cat", "sleep", "mkdir", "cp", "mv", "grep", "echo", "ls"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
        }
        let layer = temp.path().join("layer.tar");
        succeeds(
            Command::new("tar")
                .arg("-C")
                .arg(&root)
                .args(["--owner=0", "--group=0", "-cf"])
                .arg(&layer)
                .arg("."),
        );
        let digest = String::from_utf8(succeeds(Command::new("sha256sum").arg(&layer))).unwrap();
        let digest = digest.split(' ').next().unwrap();
        let config = json!({
            "architecture": "amd64", "os": "linux",
            "config": {"Env": ["PATH=/bin:/usr/bin"], "Cmd": self.command},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
        });
        let manifest = json!([{"Config": "config.json", "RepoTags": [self.name], "Layers": ["layer.tar"]}]);
        fs::write(temp.path().join("config.json"), config.to_string()).unwrap();
        fs::write(temp.path().join("manifest.json"), manifest.to_string()).unwrap();
        let parts = ["manifest.json", "config.json", "layer.tar"];
        succeeds(Command::new("tar").arg("-C").arg(temp.path()).arg("-cf").arg(archive).args(parts));
    }
}
