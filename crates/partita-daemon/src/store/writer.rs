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

/// Makes one change; what it returns answers, once it is known whether the commit was made.
type Change = Box<dyn FnOnce(&Connection) -> Answer + Send>;
type Answer = Box<dyn FnOnce(Result<(), Problem>)>;

/// The thread's handle; the thread ends with it, after what waits.
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
        let (answer, answered) = oneshot::channel();
        let job: Change = Box::new(move |connection| {
            let made = whole(connection, change);
            Box::new(move |committed| {
                // Whoever asked may have gone; the change is made all the same.
                let _ = answer.send(match (made, committed) {
                    (Ok(value), Ok(())) => Ok(value),
                    (Err(problem), _) | (Ok(_), Err(problem)) => Err(problem),
                });
            })
        });
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

/// One change inside a commit with others: all of it or nothing.
fn whole<T>(
    connection: &Connection,
    change: impl FnOnce(&Connection) -> Result<T, Problem>,
) -> Result<T, Problem> {
    connection.execute_batch("SAVEPOINT change")?;
    let made = change(connection);
    connection.execute_batch(match made {
        Ok(_) => "RELEASE change",
        Err(_) => "ROLLBACK TO change; RELEASE change",
    })?;
    made
}

fn work(connection: &Connection, waiting: &Receiver<Change>) {
    while let Ok(first) = waiting.recv() {
        // If this fails, so does the commit.
        let begun = connection.execute_batch("BEGIN IMMEDIATE");
        let mut answers = vec![first(connection)];
        while answers.len() < TOGETHER_MAX
            && let Ok(next) = waiting.try_recv()
        {
            answers.push(next(connection));
        }
        let committed = begun.and_then(|()| connection.execute_batch("COMMIT")).map_err(Problem::from);
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
