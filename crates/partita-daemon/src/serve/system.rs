//! System mode: each connection of a user's command becomes the stdin of a process that answers its
//! one request.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::connection::Guarded;
use crate::caller::Peer;
use crate::site::SitePolicy;

/// Concurrent requests of one user. Others wait. Root has no limit, so that no user can lock root
/// out. Few, because all of them compete with other users for the registry's lock; more than one,
/// because a request to end a tenant waits for its processes.
const OF_USER_MAX: usize = 6;
/// Requests of all users but root that are answered at once.
const ALL_MAX: usize = 256;
/// The most that one request may take: the first run on a GPU proves its masks first, and `kill`
/// waits for processes.
const LIMIT: Duration = Duration::from_secs(600);
/// How long a client may say nothing.
const SILENCE: Duration = Duration::from_secs(10);
/// The hidden subcommand of `partita` that answers a request.
const SUBCOMMAND: &str = "internal-system";

/// How requests are answered.
#[derive(Debug, Clone)]
pub(super) struct Answering {
    /// The command-line program, which answers them.
    pub command: PathBuf,
    /// Who may use which GPUs.
    pub gpu_groups: String,
    /// The policy of the site.
    pub policy: SitePolicy,
}

/// Accepts requests until the daemon ends.
pub(super) async fn accept(
    mut listener: Guarded<UnixListener>,
    answering: Answering,
    mut ended: watch::Receiver<bool>,
) {
    let all = Arc::new(Semaphore::new(ALL_MAX));
    let mut users: HashMap<u32, Arc<Semaphore>> = HashMap::new();
    loop {
        let (connection, peer) = tokio::select! {
            accepted = listener.accept() => accepted,
            // The sender gone is the end too.
            _ = ended.wait_for(|&ended| ended) => return,
        };
        // Only processes of this machine reach a Unix socket.
        let Peer::Process { user, .. } = peer else { continue };
        let limits = (user != 0).then(|| {
            let of_user = users.entry(user).or_insert_with(|| Arc::new(Semaphore::new(OF_USER_MAX)));
            [Arc::clone(of_user), Arc::clone(&all)]
        });
        let answering = answering.clone();
        tokio::spawn(async move {
            let (stream, _place) = connection.into_parts();
            if !says_something(&stream).await {
                return;
            }
            let mut permits = Vec::new();
            for limit in limits.into_iter().flatten() {
                permits.push(limit.acquire_owned().await);
            }
            answer(&answering, stream, user).await;
        });
    }
}

/// Waits for the first byte of a request. A client that sends none costs no process.
async fn says_something(stream: &UnixStream) -> bool {
    let peek = || rustix::net::recv(stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    let first = stream.async_io(Interest::READABLE, || Ok(peek()?.0));
    matches!(timeout(SILENCE, first).await, Ok(Ok(1..)))
}

/// Starts a separate process that answers a request. It continues if this daemon ends.
async fn answer(answering: &Answering, stream: UnixStream, user: u32) {
    let Answering { command, gpu_groups, policy } = answering;
    let blocking = |stream: UnixStream| {
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        std::io::Result::Ok(stream)
    };
    let child = blocking(stream).and_then(|stream| {
        Command::new(command)
            .arg(SUBCOMMAND)
            .env(partita::groups::VARIABLE, gpu_groups)
            .env(partita::policy::TEXT_VARIABLE, policy.text())
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
