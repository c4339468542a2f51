//! Processes that are ready to control: [`Standby`], a thread of `partita run`, and
//! [`control_all`], a thread of `partitad` in system mode. Both run one loop.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::controller::{Controller, LOOK};
use super::record::Record;
use crate::error::Error;
use crate::files;
use crate::registry::{Registry, SLO_RECORD, SLO_RECORD_BYTES_MAX};

/// How often a process looks for a GPU that it could control.
const SEEK: Duration = Duration::from_millis(250);
/// Looks between two looks at the record.
const RECORD_LOOKS: u32 = 8;
/// The user gets a message when this many of these looks in a row find no directory.
const MISSING_LOOKS: u32 = 2;

/// A thread that ends with this value.
#[derive(Debug)]
pub struct Standby {
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Standby {
    /// Begins for a tenant on these GPUs, whose directory is `dir`. `say` gets what its user should
    /// know of the target, and of the directory if it is removed.
    #[must_use]
    pub fn begin(
        registry: &Registry,
        gpu_keys: Vec<String>,
        name: &str,
        dir: PathBuf,
        say: impl FnMut(&str) + Send + 'static,
    ) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let thread = {
            let (ending, registry) = (Arc::clone(&ending), registry.clone());
            // In system mode `partitad` controls, and this thread only reports.
            let gpu_keys = if registry.is_client() { Vec::new() } else { gpu_keys };
            let mut reporter = Reporter { name: name.to_owned(), dir, told_ms: 0, missing: 0, say };
            let run = move || {
                let mut looks = 0u32;
                let is_over = || {
                    let is_over = ending.load(Ordering::Relaxed);
                    if is_over || looks.is_multiple_of(RECORD_LOOKS) {
                        reporter.tell();
                    }
                    looks = looks.wrapping_add(1);
                    is_over
                };
                // The tenants keep what they have, and the next look tries again.
                control(&registry, || Ok(gpu_keys.clone()), is_over, |_| {});
            };
            // The program runs without it, too, and other commands control.
            thread::Builder::new().name("partita-slo".to_owned()).spawn(run).ok()
        };
        Self { ending, thread }
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Controls all GPUs of a machine in system mode, until `is_over`. `tell` gets what fails.
pub fn control_all(registry: &Registry, is_over: impl FnMut() -> bool, tell: impl FnMut(&Error)) {
    let steered = || {
        let tenants = registry.lock()?.tenants()?;
        Ok(tenants.into_iter().filter(|it| it.is_controlled()).map(|it| it.gpu_key).collect())
    };
    control(registry, steered, is_over, tell);
}

/// Controls those of the GPUs that no other process controls, until `is_over`, which is called
/// before each look. What fails is tried again.
fn control(
    registry: &Registry,
    mut gpu_keys: impl FnMut() -> Result<Vec<String>, Error>,
    mut is_over: impl FnMut() -> bool,
    mut tell: impl FnMut(&Error),
) {
    let mut controllers: BTreeMap<String, Controller> = BTreeMap::new();
    let mut sought: Option<Instant> = None;
    while !is_over() {
        if sought.is_none_or(|sought| sought.elapsed() >= SEEK) {
            for key in gpu_keys().inspect_err(&mut tell).unwrap_or_default() {
                if !controllers.contains_key(&key)
                    && let Some(controller) = Controller::take(registry, &key)
                {
                    controllers.insert(key, controller);
                }
            }
            sought = Some(Instant::now());
        }
        controllers.retain(|_, controller| controller.look().inspect_err(&mut tell).unwrap_or(true));
        thread::park_timeout(if controllers.is_empty() { SEEK } else { LOOK });
    }
}

/// Tells the user of a `partita run` what became of its target.
struct Reporter<S> {
    name: String,
    dir: PathBuf,
    /// When what was told last happened.
    told_ms: u64,
    /// How many looks in a row found no directory.
    missing: u32,
    say: S,
}

impl<S: FnMut(&str)> Reporter<S> {
    fn tell(&mut self) {
        self.tell_of_directory();
        let file = self.dir.join(SLO_RECORD);
        let Ok(record) = files::read_json::<Record>(&file, SLO_RECORD_BYTES_MAX) else { return };
        let told_ms = self.told_ms;
        let news = record.steps.iter().filter(|step| step.at_unix_ms > told_ms);
        for step in news.filter(|step| step.is_about_target()) {
            (self.say)(&format!("target of {}: {}", self.name, step.why));
            self.told_ms = step.at_unix_ms;
        }
    }

    /// A tenant whose program has ended loses its directory too, so one look is not enough.
    fn tell_of_directory(&mut self) {
        let is_missing =
            fs::symlink_metadata(&self.dir).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        self.missing = if is_missing { self.missing.saturating_add(1) } else { 0 };
        if self.missing == MISSING_LOOKS {
            (self.say)(&format!(
                "{} was removed while {} runs: it keeps its limits, but other commands do not see it and may \
                 give others what it holds; end it and start it again",
                self.dir.display(),
                self.name
            ));
        }
    }
}
