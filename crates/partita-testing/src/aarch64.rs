//! Programs for aarch64 in an emulator, with this workspace's libraries built for it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::built::build;
use crate::child::succeed;
use crate::long::is_long;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
/// What is below this directory, emulated programs find at the root.
const ROOT: &str = "/usr/aarch64-linux-gnu";

/// An emulated machine.
#[derive(Debug)]
pub struct Aarch64 {
    emulator: &'static str,
    libraries: PathBuf,
}

/// The emulated machine, in long runs alone: the first call builds the hook and the simulated
/// driver, which takes minutes. `None`, with a message, otherwise, and where the emulator, the C
/// compiler or Rust's target is missing.
///
/// # Panics
/// If the libraries do not build.
pub fn aarch64() -> Option<&'static Aarch64> {
    static FOUND: LazyLock<Result<Aarch64, String>> = LazyLock::new(Aarch64::find);
    FOUND.as_ref().inspect_err(|missing| eprintln!("skipped on aarch64: {missing}")).ok()
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

impl Aarch64 {
    fn find() -> Result<Self, String> {
        if !is_long() {
            return Err("PARTITA_TEST_LONG=1 runs it".to_owned());
        }
        let emulator =
            ["qemu-aarch64-static", "qemu-aarch64"].into_iter().find(|program| is_installed(program));
        let emulator = emulator.ok_or("there is no qemu-aarch64-static here")?;
        if !is_installed(COMPILER) || !Path::new(ROOT).join("lib/libc.so.6").exists() {
            return Err(format!("there is no {COMPILER} here with a C library in {ROOT}"));
        }
        let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().expect("rustc runs");
        let sysroot = String::from_utf8(sysroot.stdout).expect("UTF-8");
        if !Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).is_dir() {
            return Err(format!("Rust lacks the target: `rustup target add {TARGET}`"));
        }
        let to = build().parent().expect("a profile is in the target directory");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "partita-hook", "--package", "partita-simcuda-so"]);
        cargo.args(["--target", TARGET, "--target-dir"]).arg(to);
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER);
        cargo.arg("--manifest-path").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
        succeed(&mut cargo);
        Ok(Self { emulator, libraries: to.join(TARGET).join("debug") })
    }

    /// The C compiler for it.
    pub fn cc(&self) -> Command {
        Command::new(COMPILER)
    }

    /// A library of the workspace, built for it.
    pub fn built(&self, name: &str) -> PathBuf {
        self.libraries.join(name)
    }

    /// A program in the emulator, with these variables of its own.
    pub fn command(&self, program: &Path, variables: &[(&str, String)]) -> Command {
        let mut command = Command::new(self.emulator);
        command.args(["-L", ROOT]);
        command.args(variables.iter().flat_map(|(name, value)| ["-E".to_owned(), format!("{name}={value}")]));
        command.arg(program);
        command
    }
}
