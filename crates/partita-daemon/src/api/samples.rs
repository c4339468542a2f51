//! [`Samples`]: the newest sample of the GPUs and tenants, for those who read it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

/// The time between two samples.
pub(super) const EVERY: Duration = Duration::from_secs(1);

/// A sample as an event.
#[derive(Debug)]
pub(super) struct Taken {
    /// The event's kind.
    pub kind: &'static str,
    /// Its data.
    pub json: String,
    /// When the sample was taken.
    pub at: Instant,
}

/// The newest sample.
#[derive(Debug)]
pub(super) struct Samples {
    newest: watch::Sender<Option<Arc<Taken>>>,
    /// Somebody has begun to read.
    wanted: Notify,
}

impl Default for Samples {
    fn default() -> Self {
        Self { newest: watch::channel(None).0, wanted: Notify::new() }
    }
}

impl Samples {
    /// Waits until there is a reader.
    pub async fn wanted(&self) {
        while self.newest.receiver_count() == 0 {
            self.wanted.notified().await;
        }
    }

    /// Gives a sample to all readers.
    pub fn publish(&self, taken: Taken) {
        self.newest.send_replace(Some(Arc::new(taken)));
    }

    /// A reader.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<Taken>>> {
        let mut receiver = self.newest.subscribe();
        // An older one is of an earlier reader's time.
        if receiver.borrow().as_ref().is_some_and(|taken| taken.at.elapsed() < 2 * EVERY) {
            receiver.mark_changed();
        }
        self.wanted.notify_one();
        receiver
    }
}
