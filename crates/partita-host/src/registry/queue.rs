//! The files of the programs that wait for room: one for each, whose name is its number.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use super::dir::Dir;
use super::layout::{home_of, open_root};
use super::lock::RegistryLock;
use super::root::{Registry, Role};
use super::tenant::GpuMeta;
use super::waiter::{Waiter, now_unix_s};
use crate::error::Error;
use crate::process::ProcessId;

/// In the directory of its planner: a user's, or in system mode the run directory.
const QUEUE: &str = ".queue";
/// The most that is read of a place, in bytes.
const BYTES_MAX: u64 = 64 << 10;
/// Programs of one user that wait at once. Each has a process, so nobody needs as many.
const OF_USER_MAX: usize = 256;

impl Registry {
    /// The programs that wait for this planner, in their order.
    pub(crate) fn queue(&self) -> Result<Vec<Waiter>, Error> {
        let root = open_root(&self.root)?;
        let home = match self.role {
            Role::Planner | Role::Client => Some(root),
            Role::User if root.user == self.user => Some(root),
            Role::User => home_of(&root, self.user, false),
        };
        home.map_or_else(|| Ok(Vec::new()), |home| read(&home, |_, _| {}))
    }
}

impl RegistryLock<'_> {
    fn queue_home(&self) -> Result<Option<Arc<Dir>>, Error> {
        match self.registry.role {
            Role::Planner => Ok(Some(Arc::new(open_root(&self.registry.root)?))),
            Role::Client | Role::User => Ok(self.home.clone()),
        }
    }

    /// The living programs that wait, in their order. Removes the places of killed ones.
    pub(crate) fn queue(&self) -> Result<Vec<Waiter>, Error> {
        let Some(home) = self.queue_home()? else { return Ok(Vec::new()) };
        let queue = read(&home, |dir, name| {
            // If this fails, the next one removes it.
            let _ = dir.unlink(OsStr::new(name));
        })?;
        if queue.is_empty() {
            let _ = home.remove_empty(QUEUE);
        }
        Ok(queue)
    }

    /// Puts a program at the end of the queue.
    pub(crate) fn enqueue(&self, name: &str, gpus: Vec<GpuMeta>, run: ProcessId) -> Result<(), Error> {
        let queue = self.queue()?;
        let user = self.registry.user;
        let refuse = |reason: String| Error::Refused { what: "--wait".to_owned(), reason };
        if queue.iter().filter(|waiter| waiter.user == user).count() >= OF_USER_MAX {
            return Err(refuse(format!(
                "{OF_USER_MAX} programs of yours wait, which is the maximum; end some of them"
            )));
        }
        let home = self.queue_home()?.ok_or_else(|| Error::io(QUEUE)(io::ErrorKind::NotFound.into()))?;
        let failed = || Error::io(home.path().join(QUEUE).display().to_string());
        let dir = home.make(QUEUE).map_err(failed())?;
        if !dir.is_own() {
            return Err(failed()(io::ErrorKind::PermissionDenied.into()));
        }
        let number = queue.last().map_or(0, |last| last.number + 1);
        let name = name.to_owned();
        let waiter = Waiter { number, name, user, gpus, run, since_unix_s: now_unix_s() };
        let bytes = serde_json::to_vec(&waiter).map_err(|error| failed()(error.into()))?;
        dir.replace(&number.to_string(), &bytes, 0o644).map_err(failed())
    }

    /// Removes a program from the queue.
    pub(crate) fn dequeue(&self, number: u64) -> Result<(), Error> {
        let Some(home) = self.queue_home()? else { return Ok(()) };
        let failed = || Error::io(home.path().join(QUEUE).display().to_string());
        let dir = home.sub_of_owner(QUEUE).map_err(failed())?;
        dir.unlink(OsStr::new(&number.to_string())).map_err(failed())?;
        let _ = home.remove_empty(QUEUE);
        Ok(())
    }
}

/// The living waiters; `dead` gets the names of the other files.
fn read(home: &Dir, dead: impl Fn(&Dir, &str)) -> Result<Vec<Waiter>, Error> {
    let Ok(dir) = home.sub_of_owner(QUEUE) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for name in dir.texts().map_err(Error::io(dir.path().display().to_string()))? {
        let bytes = dir.bytes(&name, BYTES_MAX);
        let waiter = bytes.ok().and_then(|bytes| serde_json::from_slice::<Waiter>(&bytes).ok());
        match waiter {
            Some(waiter) if waiter.number.to_string() == name && waiter.run.lives() => found.push(waiter),
            _ => dead(&dir, &name),
        }
    }
    found.sort_by_key(|waiter| waiter.number);
    Ok(found)
}
