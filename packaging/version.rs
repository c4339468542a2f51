//! Build script of the programs: `PARTITA_VERSION` is the version, with the commit in a checkout.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn main() {
    tell();
}

/// Tells cargo the version.
pub fn tell() {
    let version = std::env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    // The log of HEAD changes with every commit and every checkout.
    let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]);
    if let Some(log) = &log {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = log.and_then(|_| git(&["rev-parse", "--short=12", "HEAD"]));
    let version = commit.map_or(version.clone(), |commit| format!("{version} ({commit})"));
    println!("cargo::rustc-env=PARTITA_VERSION={version}");
}
