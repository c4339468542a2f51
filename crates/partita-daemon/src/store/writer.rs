//! The one thread that changes the state.

use std::io;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::problem::{Kind, Problem};

/// Changes that wait for the thread; more are refused.
const WAITING_MAX: usize = 1024;
/// Changes in one commit.
const TOGETHER_MAX: usize = 64;

/// Makes one change, unless there is no transaction for it; the returned closure answers, once the
/// commit has succeeded or failed.
type Change = Box<dyn FnOnce(Result<&Connection, Problem>) -> Answer + Send>;
type Answer = Box<dyn FnOnce(Result<(), Problem>)>;

/// The thread's handle; the thread ends with it, after waiting changes.
#[derive(Debug)]
pub(super) struct Writer {
    changes: Option<SyncSender<Change>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    pub fn start(connection: Connection) -> io::Result<Self> {
        let (changes, waiting) = sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || work(&connection, &waiting))?;
        Ok(Self { changes: Some(changes), thread: Mutex::new(Some(thread)) })
    }

    pub async fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Connection) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let (job, answered) = job(change);
        let gone =
            || Problem::new(Kind::Unavailable, "the state: the daemon is ending; ask again when it is back");
        let changes = self.changes.as_ref().ok_or_else(gone)?;
        changes.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => Problem::new(
                Kind::Unavailable,
                format!("the state: {WAITING_MAX} changes wait for the disk; ask again later"),
            ),
            TrySendError::Disconnected(_) => gone(),
        })?;
        answered.await.map_err(|_| gone())?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.changes.take());
        let thread = self.thread.get_mut().ok().and_then(Option::take);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// A change for the thread, and the channel of its answer.
fn job<T: Send + 'static>(
    change: impl FnOnce(&Connection) -> Result<T, Problem> + Send + 'static,
) -> (Change, oneshot::Receiver<Result<T, Problem>>) {
    let (answer, answered) = oneshot::channel();
    let job: Change = Box::new(move |connection| {
        let made = connection.and_then(|connection| whole(connection, change));
        Box::new(move |committed| {
            // The client may have left; the change is made anyway.
            let _ = answer.send(match (made, committed) {
                (Ok(value), Ok(())) => Ok(value),
                (Err(problem), _) | (Ok(_), Err(problem)) => Err(problem),
            });
        })
    });
    (job, answered)
}

/// One change inside a commit with others: all of it or nothing.
fn whole<T>(
    connection: &Connection,
    change: impl FnOnce(&Connection) -> Result<T, Problem>,
) -> Result<T, Problem> {
    connection.execute_batch("SAVEPOINT change")?;
    let made = change(connection);
    match made {
        Ok(_) => connection.execute_batch("RELEASE change")?,
        // SQLite may have ended the transaction itself, as on a full disk. Else nothing of it may
        // be committed.
        Err(_) if connection.execute_batch("ROLLBACK TO change; RELEASE change").is_err() => {
            let _ = connection.execute_batch("ROLLBACK");
        }
        Err(_) => {}
    }
    made
}

fn work(connection: &Connection, waiting: &Receiver<Change>) {
    while let Ok(first) = waiting.recv() {
        let begun = connection.execute_batch("BEGIN IMMEDIATE").map_err(Problem::from);
        let mut answers = vec![first(begun.clone().map(|()| connection))];
        // Outside of a transaction the release of a change would commit it, whatever is answered.
        while answers.len() < TOGETHER_MAX
            && !connection.is_autocommit()
            && let Ok(next) = waiting.try_recv()
        {
            answers.push(next(Ok(connection)));
        }
        let committed = begun.and_then(|()| connection.execute_batch("COMMIT").map_err(Problem::from));
        if let Err(problem) = &committed {
            tracing::error!(detail = problem.detail, "the state was not changed");
            let _ = connection.execute_batch("ROLLBACK");
        }
        for answer in answers {
            answer(committed.clone());
        }
    }
    // What is in the log goes into the file, so that a copy of the file is whole.
    let _ = connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn table(dir: &std::path::Path) -> Connection {
        let connection = Connection::open(dir.join("db")).unwrap();
        connection.busy_timeout(Duration::ZERO).unwrap();
        connection.execute_batch("CREATE TABLE IF NOT EXISTS t (n INTEGER)").unwrap();
        connection
    }

    fn insert(connection: &Connection, n: i64) -> Result<(), Problem> {
        connection.execute("INSERT INTO t VALUES (?1)", [n])?;
        Ok(())
    }

    fn numbers(connection: &Connection) -> Vec<i64> {
        let mut query = connection.prepare("SELECT n FROM t ORDER BY n").unwrap();
        query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    /// Has these changes made, together as far as they can be.
    fn make(connection: &Connection, changes: Vec<Change>) {
        let (sender, waiting) = sync_channel(WAITING_MAX);
        changes.into_iter().for_each(|change| sender.send(change).unwrap());
        drop(sender);
        work(connection, &waiting);
    }

    #[test]
    fn without_a_transaction_nothing_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (connection, other) = (table(dir.path()), table(dir.path()));
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        // The other holder of the file closes it right after it was found locked.
        let (first, mut answered) = job(move |connection| {
            other.execute_batch("ROLLBACK").unwrap();
            insert(connection, 1)
        });
        make(&connection, vec![first]);
        let problem = answered.try_recv().unwrap().unwrap_err();
        assert!(problem.code() == Kind::Unavailable && problem.detail.contains("nothing was changed"));
        assert!(numbers(&connection).is_empty());
    }

    #[test]
    fn what_comes_after_a_transaction_that_ended_by_itself_is_made_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let connection = table(dir.path());
        let (first, mut of_first) = job(|connection| insert(connection, 1));
        let (second, mut of_second) = job(|connection| -> Result<(), Problem> {
            insert(connection, 2)?;
            // As SQLite may where a disk is full.
            connection.execute_batch("ROLLBACK")?;
            Err(Problem::new(Kind::Unavailable, "the disk is full"))
        });
        let (third, mut of_third) = job(|connection| insert(connection, 3));
        make(&connection, vec![first, second, third]);
        assert!(of_first.try_recv().unwrap().is_err());
        assert_eq!(of_second.try_recv().unwrap().unwrap_err().detail, "the disk is full");
        assert_eq!(of_third.try_recv().unwrap(), Ok(()));
        assert_eq!(numbers(&connection), [3], "what was answered, and nothing else");
    }
}
