//! System mode: each connection of a user's command becomes the stdin of a process that answers its one request.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::timeout;

/// How many requests of one user there may be, and how many of all users but root. Root has no limit: nobody locks
/// root out.
type Most = (usize, usize);
/// Requests that are answered at once.
const ANSWERED: Most = (32, 256);
/// The same with those that wait for a place.
const WAITING: Most = (256, 1024);
/// How often one that waits looks.
const POLL: Duration = Duration::from_millis(10);
/// The most that one request may take: the first run on a GPU proves its masks first, and `kill` waits for processes.
const LIMIT: Duration = Duration::from_secs(600);

/// How many requests of each user are being answered.
type Counts = Arc<Mutex<HashMap<u32, usize>>>;

/// Accepts requests until the daemon ends. `command` is the command-line program, which answers them.
pub(super) async fn accept(listener: UnixListener, command: PathBuf, mut ended: watch::Receiver<bool>) {
    let (counts, waiting) = (Counts::default(), Counts::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // The sender gone is the end too.
            _ = ended.wait_for(|&ended| ended) => return,
        };
        let peer = accepted.and_then(|(stream, _)| Ok((stream.peer_cred()?.uid(), stream)));
        match peer {
            Ok((user, stream)) => match Place::take(&waiting, user, WAITING) {
                Some(waits) => {
                    let (command, counts) = (command.clone(), Counts::clone(&counts));
                    tokio::spawn(async move {
                        let place = loop {
                            match Place::take(&counts, user, ANSWERED) {
                                Some(place) => break place,
                                None => tokio::time::sleep(POLL).await,
                            }
                        };
                        answer(&command, stream, user).await;
                        drop((place, waits));
                    });
                }
                None => refuse(&stream),
            },
            // Out of descriptors, most likely; some requests will end.
            Err(error) => {
                tracing::error!(%error, "no request of a command can be taken");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

/// Has a process of its own answer a request. It goes on if this daemon ends.
async fn answer(command: &Path, stream: UnixStream, user: u32) {
    let blocking = |stream: UnixStream| {
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        std::io::Result::Ok(stream)
    };
    let child = blocking(stream).and_then(|stream| {
        Command::new(command)
            .arg(SUBCOMMAND)
            .stdin(Stdio::from(OwnedFd::from(stream)))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .current_dir("/")
            .spawn()
    });
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            tracing::error!(command = %command.display(), %error, "a request of a command cannot be answered");
            return;
        }
    };
    match timeout(LIMIT, child.wait()).await {
        Ok(Ok(status)) => tracing::debug!(user, %status, "a request of a command"),
        Ok(Err(error)) => tracing::error!(user, %error, "a request of a command"),
        Err(_) => {
            tracing::error!(
                user,
                limit_s = LIMIT.as_secs(),
                "a request of a command takes too long and is ended"
            );
            let _ = child.kill().await;
        }
    }
}

/// The hidden subcommand of `partita` that answers a request.
const SUBCOMMAND: &str = "internal-system";

/// Says that there are too many requests. Whoever does not read is not waited for.
fn refuse(stream: &UnixStream) {
    let reason =
        format!("{} requests of this user wait for partitad already; try again in a moment", WAITING.0);
    let answer = serde_json::json!({ "refused": { "reason": reason } });
    let _ = stream.try_write(answer.to_string().as_bytes());
}

/// A place among the requests that are answered, free again when this is dropped.
struct Place {
    user: u32,
    counts: Counts,
}

impl Place {
    fn take(counts: &Counts, user: u32, (of_user_max, all_max): Most) -> Option<Self> {
        let mut counting = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = counting.iter().filter(|(user, _)| **user != 0).map(|(_, count)| count).sum();
        let of_user = counting.entry(user).or_default();
        if user != 0 && (*of_user >= of_user_max || all >= all_max) {
            return None;
        }
        *of_user += 1;
        Some(Self { user, counts: Arc::clone(counts) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.user);
            }
        }
    }
}
