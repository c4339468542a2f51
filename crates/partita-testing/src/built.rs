//! The programs and libraries that tests run: other packages' products, which cargo does not build
//! for a test.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::child::succeed;

/// The packages that every test needs. The same for all: another choice would have other features,
/// and each would rebuild the other's.
const PACKAGES: [&str; 3] = ["partita-simcuda", "partita-simcuda-so", "partita-hook"];

/// The directory of the simulator, its library `libpartita_simcuda.so` and the hook, and of what
/// `more` packages make; built if they are not up to date, in the profile of the calling test.
/// `PARTITA_TEST_LIB_DIR` names one where all is there already.
///
/// # Panics
/// If they do not build.
#[must_use]
pub fn build(more: &[&str]) -> PathBuf {
    if let Some(dir) = std::env::var_os("PARTITA_TEST_LIB_DIR") {
        return dir.into();
    }
    let executable = std::env::current_exe().expect("a running test has a path");
    // TARGET/PROFILE/deps/TEST
    let profile = executable.ancestors().nth(2).expect("tests lie in a target directory");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet"]);
    for package in PACKAGES.iter().chain(more) {
        cargo.args(["--package", package]);
    }
    cargo.arg("--target-dir").arg(profile.parent().expect("a profile is in the target directory"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    cargo.arg("--manifest-path").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
    succeed(&mut cargo);
    profile.to_owned()
}
