//! `partita chain stop`: ends a chain in order, and by force only after a timeout.
//!
//! The chain file has the flag to end: components see it when they ask for their next frame, and
//! the process that runs the chain sees it when it checks them. `partita kill` would first end
//! their GPU work, which is an error for each component that is about to launch.

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

use super::place;
use super::state::{ChainState, not_begun, of_file, open_file, parts};
use super::supervise::is_described;
use super::supervisor::is_supervised;

/// The interval between two checks whether the chain has ended.
const POLL: Duration = Duration::from_millis(10);

/// Ends a chain: no new frame begins, frames in the chain are finished, and its components exit.
/// After `grace`, [`kill::kill`] ends what is left, again with `grace`. Both `user` and the current
/// user must have the right to end it.
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
    if !first.is_of_own_user() {
        // The chain file belongs to another user and must not be opened. Its processes can still be
        // ended.
        if !first.meta().is_ok_and(|meta| is_described(&meta.command)) {
            return Err(not_begun(name));
        }
        return kill::end(install, registry, name, &tenant, grace);
    }
    let tenant_dir = TenantDir::of(&first.dir).map_err(Error::io(first.dir.display().to_string()))?;
    let dir = place::of(&first.dir).ok_or_else(|| not_begun(name))?;
    ChainState::read(&dir)?.ok_or_else(|| not_begun(name))?;
    let file = open_file(&dir)?;
    let processes = kill::processes(&tenant).len();
    // Only the process that runs the chain removes the tenant. Without it, wait for the components.
    let is_supervised = is_supervised(&dir);
    let has_ended = || -> Result<bool, Error> {
        if is_supervised { tenant_dir.is_gone(registry) } else { is_empty(&file, name) }
    };
    file.stop();
    let deadline = Instant::now() + grace;
    let mut ended = has_ended()?;
    while !ended && Instant::now() < deadline {
        thread::sleep(POLL);
        ended = has_ended()?;
    }
    if tenant_dir.is_gone(registry)? {
        return Ok(KillOutcome { processes, notices: Vec::new() });
    }
    let outcome = kill::end(install, registry, name, &tenant, grace)?;
    place::sweep();
    // Processes that exited by themselves count too.
    Ok(KillOutcome { processes: processes.max(outcome.processes), ..outcome })
}

/// Whether no process has a place in the chain.
fn is_empty(file: &ChainFile, name: &str) -> Result<bool, Error> {
    for role in 0..file.roles() {
        if file.is_held(role).map_err(|error| of_file(name, &error))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A tenant's directory; a later tenant of the same name has another one.
struct TenantDir {
    path: PathBuf,
    /// Stays open, so that no other directory gets the inode number.
    dir: File,
}

impl TenantDir {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), dir: File::open(path)? })
    }

    /// Whether the tenant is gone.
    fn is_gone(&self, registry: &Registry) -> Result<bool, Error> {
        let is = |now: &fs::Metadata| {
            self.dir.metadata().is_ok_and(|then| (then.dev(), then.ino()) == (now.dev(), now.ino()))
        };
        if !fs::symlink_metadata(&self.path).is_ok_and(|now| is(&now)) {
            return Ok(true);
        }
        // Reading the tenants removes those whose `partita run` has died.
        Ok(!registry.lock()?.tenants()?.iter().any(|tenant| tenant.dir == self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_tenant_of_the_same_name_is_another_one() {
        let temp = tempfile::tempdir().unwrap();
        let registry = Registry::at(&temp.path().join("run")).unwrap();
        let dir = temp.path().join("toy");
        fs::create_dir(&dir).unwrap();
        let tenant_dir = TenantDir::of(&dir).unwrap();
        fs::remove_dir(&dir).unwrap();
        assert!(tenant_dir.is_gone(&registry).unwrap());
        for _ in 0..100 {
            fs::create_dir(&dir).unwrap();
            let is_same = TenantDir::of(&dir).unwrap().dir.metadata().unwrap().ino()
                == tenant_dir.dir.metadata().unwrap().ino();
            assert!(!is_same && tenant_dir.is_gone(&registry).unwrap());
            fs::remove_dir(&dir).unwrap();
        }
    }
}
