//! The policy of the site: read at the start and whenever its file changes. One with a mistake does
//! not hold; the old one stays.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use partita::Error;
use partita::policy;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How often the daemon looks at the file.
const LOOK: Duration = Duration::from_secs(2);

/// The policy that holds.
#[derive(Debug, Clone)]
pub(super) struct SitePolicy {
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// The text of the policy that holds.
    text: String,
    /// What identified the file when it was read last.
    seen: Option<(SystemTime, u64, u64)>,
}

impl SitePolicy {
    /// Reads the file.
    ///
    /// # Errors
    /// The mistake: without an old policy there is none to keep.
    pub fn begin(path: PathBuf) -> Result<Self, Error> {
        let seen = identity(&path);
        let (_, text) = policy::load(&path)?;
        Ok(Self { path, state: Arc::new(Mutex::new(State { text, seen })) })
    }

    /// The text of the policy that holds now. A changed file is read before.
    pub fn text(&self) -> String {
        self.refresh(false);
        self.state.lock().unwrap_or_else(PoisonError::into_inner).text.clone()
    }

    /// Reads the file if it has changed, or in any case.
    fn refresh(&self, in_any_case: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = identity(&self.path);
        if seen == state.seen && !in_any_case {
            return;
        }
        state.seen = seen;
        let path = self.path.display();
        match policy::load(&self.path) {
            Ok((read, text)) => {
                let (rules, reservations) = (read.rules.len(), read.reservations.len());
                tracing::info!(%path, rules, reservations, "the policy of the site holds from now on");
                for unknown in policy::unknown_names(&read) {
                    tracing::warn!(%path, "the policy of the site: {unknown}");
                }
                state.text = text;
            }
            Err(error) => tracing::error!(%error, "the old policy of the site stays"),
        }
    }

    /// Follows the file, and SIGHUP, until the daemon ends.
    ///
    /// # Errors
    /// No handler for the signal.
    pub fn follow(&self, mut ended: watch::Receiver<bool>) -> std::io::Result<()> {
        let mut hangup = signal(SignalKind::hangup())?;
        let site = self.clone();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(LOOK);
            loop {
                tokio::select! {
                    _ = ticks.tick() => site.refresh(false),
                    _ = hangup.recv() => site.refresh(true),
                    _ = ended.wait_for(|&ended| ended) => return,
                }
            }
        });
        Ok(())
    }
}

/// What changes with the file; `None` without one.
fn identity(path: &std::path::Path) -> Option<(SystemTime, u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let about = fs::metadata(path).ok()?;
    Some((about.modified().ok()?, about.len(), about.ino()))
}
