//! `partita chain stop`: a chain ends in order, and by force only where that takes too long.
//!
//! The word to end is in the chain's file: components find it when they ask for their next frame,
//! and the process that runs the chain finds it when it looks at them. `partita kill` would begin
//! with their work on the GPU, whose loss is an error to each that is about to launch.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use partita_frames::ChainFile;
use partita_host::error::Error;
use partita_host::install::Install;
use partita_host::kill::{self, KillOutcome};
use partita_host::registry::Registry;

use super::state::{of_file, open_file, parts};
use super::supervisor::is_supervised;

/// How often it is looked whether the chain has ended.
const POLL: Duration = Duration::from_millis(10);

/// Has a chain end: no frame begins any more, those on their way are finished, and its components
/// leave. What is left of it after `grace` is ended as [`kill::kill`] does it, with the same grace
/// once more. `user` asks, who must be allowed to do it, as the current one must.
///
/// # Errors
/// As [`super::view`], and those of [`kill::kill`].
pub fn stop(
    install: &Install,
    registry: &Registry,
    name: &str,
    grace: Duration,
    user: u32,
) -> Result<KillOutcome, Error> {
    let (first, tenant) = parts(registry, name)?;
    kill::check_may_end(&tenant, user)?;
    if !first.is_own() {
        // Its file is another user's, and not opened. Its processes can be ended all the same.
        return kill::end(install, registry, name, &tenant, grace);
    }
    let here = Here::of(&first.dir).map_err(Error::io(first.dir.display().to_string()))?;
    let file = open_file(&first.dir)?;
    let processes = kill::processes(&tenant).len();
    // Without a process that runs it nobody removes the tenant; then its components are all that
    // can be waited for.
    let is_supervised = is_supervised(&first.dir);
    let has_ended = || -> Result<bool, Error> {
        if is_supervised { here.is_gone(registry) } else { has_nobody(&file, name) }
    };
    file.stop();
    let deadline = Instant::now() + grace;
    let mut ended = has_ended()?;
    while !ended && Instant::now() < deadline {
        thread::sleep(POLL);
        ended = has_ended()?;
    }
    if here.is_gone(registry)? {
        return Ok(KillOutcome { processes, notices: Vec::new() });
    }
    let outcome = kill::end(install, registry, name, &tenant, grace)?;
    // Those that have left by themselves have ended as well.
    Ok(KillOutcome { processes: processes.max(outcome.processes), ..outcome })
}

/// Whether no process has a place in the chain.
fn has_nobody(file: &ChainFile, name: &str) -> Result<bool, Error> {
    for role in 0..file.roles() {
        if file.is_held(role).map_err(|error| of_file(name, &error))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A tenant's directory, which one of the same name that begins later does not have.
struct Here {
    path: PathBuf,
    /// Open, so that its number goes to no other.
    dir: File,
}

impl Here {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), dir: File::open(path)? })
    }

    /// Whether the tenant is no more.
    fn is_gone(&self, registry: &Registry) -> Result<bool, Error> {
        let is = |now: &fs::Metadata| {
            self.dir.metadata().is_ok_and(|then| (then.dev(), then.ino()) == (now.dev(), now.ino()))
        };
        if !fs::symlink_metadata(&self.path).is_ok_and(|now| is(&now)) {
            return Ok(true);
        }
        // One whose `partita run` has died is removed by whoever looks.
        Ok(!registry.lock()?.tenants()?.iter().any(|tenant| tenant.dir == self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_of_the_same_name_that_begins_later_is_another_one() {
        let temp = tempfile::tempdir().unwrap();
        let registry = Registry::at(&temp.path().join("run")).unwrap();
        let dir = temp.path().join("toy");
        fs::create_dir(&dir).unwrap();
        let here = Here::of(&dir).unwrap();
        fs::remove_dir(&dir).unwrap();
        assert!(here.is_gone(&registry).unwrap());
        for _ in 0..100 {
            fs::create_dir(&dir).unwrap();
            let is_same =
                Here::of(&dir).unwrap().dir.metadata().unwrap().ino() == here.dir.metadata().unwrap().ino();
            assert!(!is_same && here.is_gone(&registry).unwrap());
            fs::remove_dir(&dir).unwrap();
        }
    }
}
