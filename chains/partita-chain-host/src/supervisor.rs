//! Which process runs a chain: the one that holds a lock for its whole life.
//!
//! The lock is on a file in the chain's directory. The file gets its name after it is locked, so
//! if it is unlocked, the process that ran the chain has died and nothing restarts its components.
//! A new process does not adopt such a chain: it could not learn how orphaned components exit, and
//! the definition may have changed. It ends what is left and starts the chain from the beginning.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use partita_host::error::Error;
use partita_host::files::open_regular;
use partita_host::install::Install;
use partita_host::kill;
use partita_host::registry::Registry;
use partita_mps::lock::lock_within;

use super::place;

/// The name of the file in the chain's directory.
const FILE: &str = "chain.supervisor";
/// The longest time that a check of the lock by others, which holds it, can take.
const PROBE_LIMIT: Duration = Duration::from_millis(100);

/// The right to run the chain of a tenant, until it is dropped or the process ends.
#[derive(Debug)]
pub(super) struct Supervisor {
    _file: File,
}

impl Supervisor {
    /// Acquires the right to run a new chain.
    ///
    /// # Errors
    /// [`Error::Refused`] if another process runs it, or ran it and has died; those of the system.
    pub(super) fn begin(dir: &Path, chain: &str) -> Result<Self, Error> {
        let fresh = PathBuf::from(format!("{}.new-{}", path(dir).display(), std::process::id()));
        let made = (|| {
            let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&fresh)?;
            file.set_permissions(Permissions::from_mode(0o600))?;
            file.try_lock().map_err(io::Error::from)?;
            // Not a rename, which would replace another process's file.
            fs::hard_link(&fresh, path(dir)).map(|()| file)
        })();
        let _ = fs::remove_file(&fresh);
        match made {
            Ok(file) => Ok(Self { _file: file }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Error::Refused {
                what: format!("chain {chain}"),
                reason: match is_supervised(dir) {
                    true => runs(chain),
                    false => format!(
                        "the process that ran it has died; restart it with `partita chain start \
                         {chain}`"
                    ),
                },
            }),
            Err(error) => Err(Error::io(path(dir).display().to_string())(error)),
        }
    }

    /// Takes over from a process that has died; `None` if it is alive, or if the tenant is not a
    /// chain.
    fn of_dead(dir: &Path) -> Option<Self> {
        let file = open_regular(&path(dir)).ok()?;
        lock_within(&file, PROBE_LIMIT).is_ok_and(|locked| locked).then_some(Self { _file: file })
    }
}

fn runs(chain: &str) -> String {
    format!("another process runs it; `partita chain stop {chain}` ends it")
}

fn path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// Whether a living process runs the chain whose directory this is.
pub(super) fn is_supervised(dir: &Path) -> bool {
    // A shared lock, so that two checks at the same time do not disturb each other.
    open_regular(&path(dir))
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
}

/// Ends what is left of a chain whose process has died, so that it can restart. If two processes
/// try, one succeeds, and the other finds the name in use.
///
/// # Errors
/// [`Error::Refused`] if the chain runs; those of [`kill::kill`].
pub(super) fn clear(
    install: &Install,
    registry: &Registry,
    chain: &str,
    say: &mut dyn FnMut(&str),
) -> Result<(), Error> {
    let tenant = match registry.lock()?.tenant(chain) {
        Err(Error::NoSuchTenant { .. }) => return Ok(()),
        tenant => tenant?,
    };
    let Some(first) = tenant.first().filter(|first| first.is_of_own_user()) else { return Ok(()) };
    let Some(dir) = place::of(&first.dir) else { return Ok(()) };
    if is_supervised(&dir) {
        return Err(Error::Refused { what: format!("chain {chain}"), reason: runs(chain) });
    }
    let Some(_supervisor) = Supervisor::of_dead(&dir) else { return Ok(()) };
    say(&format!(
        "chain {chain}: the process that ran it has died; its components are ended, and the chain \
         restarts"
    ));
    let outcome = kill::end(install, registry, chain, &tenant, kill::GRACE_DEFAULT)?;
    outcome.notices.iter().for_each(|notice| say(notice));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn one_process_runs_a_chain_and_one_takes_the_place_of_a_dead_one() {
        let temp = tempfile::tempdir().unwrap();
        let tenant = temp.path();
        assert!(!is_supervised(tenant));
        assert!(Supervisor::of_dead(tenant).is_none(), "not a chain, or a chain that is about to start");
        let first = Supervisor::begin(tenant, "toy").unwrap();
        assert!(is_supervised(tenant) && Supervisor::of_dead(tenant).is_none());
        let error = Supervisor::begin(tenant, "toy").unwrap_err().to_string();
        assert!(error.contains("another process runs it"), "{error}");
        drop(first);
        assert!(!is_supervised(tenant));
        let error = Supervisor::begin(tenant, "toy").unwrap_err().to_string();
        assert!(error.contains("has died") && error.contains("partita chain start toy"), "{error}");
        // Several threads try to take the lock while others check it.
        let taken = std::sync::Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let one = Supervisor::of_dead(tenant);
                    taken.lock().unwrap().extend(one);
                });
                scope.spawn(|| (0..100).filter(|_| is_supervised(tenant)).count());
            }
        });
        assert_eq!(taken.lock().unwrap().len(), 1);
        assert_eq!(fs::read_dir(tenant).unwrap().count(), 1, "a thread that failed left its file behind");
    }
}
