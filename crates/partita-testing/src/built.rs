//! The programs and libraries that tests run: other packages' products, which cargo does not build
//! for a test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::child::succeed;

/// The directory of all programs and libraries of the workspace, in the profile of the calling
/// test. The first call builds what is not up to date. `PARTITA_TEST_LIB_DIR` names a directory
/// where everything is built already.
///
/// # Panics
/// If they do not build.
pub fn build() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        std::env::var_os("PARTITA_TEST_LIB_DIR").map_or_else(build_workspace, PathBuf::from)
    });
    &BUILT
}

/// Builds what `cargo build --workspace` does, so that nothing is left to do after that command.
/// Fewer packages would get their dependencies with fewer features, and compile them again. No test
/// of another package runs a benchmark.
fn build_workspace() -> PathBuf {
    let executable = std::env::current_exe().expect("a running test has a path");
    // TARGET/PROFILE/deps/TEST
    let profile = executable.ancestors().nth(2).expect("tests lie in a target directory");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--workspace", "--exclude", "partita-bench"]);
    cargo.arg("--target-dir").arg(profile.parent().expect("a profile is in the target directory"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    cargo.arg("--manifest-path").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
    succeed(&mut cargo);
    profile.to_owned()
}
