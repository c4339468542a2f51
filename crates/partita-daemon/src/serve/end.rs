//! Start and end: the signals that end the daemon, and messages to the service manager.

use std::io;

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

/// The signals that end the daemon in order.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for one, and returns its name. The same signal once more then ends the process at
    /// once.
    pub async fn wait(mut self) -> &'static str {
        let name = tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        };
        tokio::spawn(async move {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
            tracing::warn!("ended by a second signal; requests in flight are cut off");
            std::process::exit(1);
        });
        name
    }
}

/// Tells the service manager that the daemon serves, and from now on that it lives.
pub(super) fn tell_ready() -> Option<JoinHandle<()>> {
    tell(&[NotifyState::Ready]);
    let limit = sd_notify::watchdog_enabled()?;
    Some(tokio::spawn(async move {
        // Twice as often as required. A runtime whose threads all hang does not reach this.
        let mut ticks = tokio::time::interval(limit / 2);
        loop {
            ticks.tick().await;
            tell(&[NotifyState::Watchdog]);
        }
    }))
}

pub(super) fn tell_stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager could not be notified");
    }
}
