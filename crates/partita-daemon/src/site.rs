//! The policy of the site: read at the start and whenever its file changes. One with a mistake does
//! not hold; the old one stays.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use partita::Error;
use partita::policy::{self, Policy, Reservation};
use partita::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// What is reserved for unknown users and groups stays reserved, so a misspelt name must show.
fn warn_of_unknown(path: &Path, policy: &Policy) {
    for unknown in policy::unknown_names(policy) {
        tracing::warn!(path = %path.display(), "the policy of the site: {unknown}");
    }
}

/// How often the daemon looks at the file.
const LOOK: Duration = Duration::from_secs(2);

/// The policy that holds.
#[derive(Debug, Clone)]
pub struct SitePolicy {
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// The text of the policy that holds.
    text: String,
    /// What identified the file when it was read last.
    seen: Option<(SystemTime, u64, u64)>,
    /// Why the file does not hold, if it does not.
    mistake: Option<String>,
}

impl SitePolicy {
    /// Reads the file.
    ///
    /// # Errors
    /// The mistake: without an old policy there is none to keep.
    pub fn begin(path: PathBuf) -> Result<Self, Error> {
        let seen = identity(&path);
        let (policy, text) = policy::load(&path)?;
        warn_of_unknown(&path, &policy);
        Ok(Self { path, state: Arc::new(Mutex::new(State { text, seen, mistake: None })) })
    }

    /// The text of the policy that holds now. A changed file is read before.
    pub fn text(&self) -> String {
        self.refresh(false);
        self.state.lock().unwrap_or_else(PoisonError::into_inner).text.clone()
    }

    /// The policy that holds now, and the mistake of its file, if that has one. A changed file is
    /// read before.
    pub fn now(&self) -> (Policy, Option<String>) {
        let text = self.text();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // It was read before it held.
        (Policy::parse(&text).unwrap_or_default(), state.mistake.clone())
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
                warn_of_unknown(&self.path, &read);
                (state.text, state.mistake) = (text, None);
            }
            Err(error) => {
                tracing::error!(%error, "the old policy of the site stays");
                state.mistake = Some(error.to_string());
            }
        }
    }

    /// Follows the file, the clock and SIGHUP until the daemon ends, and holds the tenants to what
    /// is reserved of the memory from then on.
    ///
    /// # Errors
    /// No handler for the signal.
    pub fn follow(&self, registry: Registry, mut ended: watch::Receiver<bool>) -> std::io::Result<()> {
        let mut hangup = signal(SignalKind::hangup())?;
        let site = self.clone();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(LOOK);
            let mut held = None;
            loop {
                tokio::select! {
                    _ = ticks.tick() => site.refresh(false),
                    _ = hangup.recv() => site.refresh(true),
                    _ = ended.wait_for(|&ended| ended) => return,
                }
                let policy = site.now().0;
                let kept = kept_now(&policy);
                if held.as_ref() == Some(&kept) {
                    continue;
                }
                let registry = registry.clone();
                match tokio::task::spawn_blocking(move || partita::site::hold(&registry, policy)).await {
                    Ok(Ok(())) => held = Some(kept),
                    // The next look tries it again.
                    Ok(Err(error)) => tracing::warn!(%error, "the memory that the policy reserves"),
                    Err(error) => tracing::error!(%error, "the memory that the policy reserves"),
                }
            }
        });
        Ok(())
    }
}

/// The reservations of memory whose hours it is.
fn kept_now(policy: &Policy) -> Vec<Reservation> {
    let now = policy::moment();
    let keeps =
        |entry: &&Reservation| entry.memory.is_some() && entry.hours.is_none_or(|hours| hours.has(now));
    policy.reservations.iter().filter(keeps).cloned().collect()
}

/// What changes with the file; `None` without one.
fn identity(path: &std::path::Path) -> Option<(SystemTime, u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let about = fs::metadata(path).ok()?;
    Some((about.modified().ok()?, about.len(), about.ino()))
}
