//! What the process that runs a chain knows about it, shared by its two threads and written for
//! readers.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use partita_host::error::Error;
use partita_steering::Allocation;

use super::log::{Log, Period};
use super::state::{ChainState, ComponentState, Phase};

/// The shortest time between two writes of the state.
const WRITE: Duration = Duration::from_millis(100);

/// What the process knows about its chain, for both of its threads.
#[derive(Debug)]
pub(super) struct Shared {
    inner: Mutex<Inner>,
    /// The chain's directory.
    dir: PathBuf,
    began: Instant,
}

#[derive(Debug)]
struct Inner {
    state: ChainState,
    written: Option<Instant>,
    log: Option<Log>,
    /// Why the log ended before the chain; until it is reported.
    log_ended: Option<String>,
}

impl Inner {
    fn write_log(&mut self, at_s: f64, write: impl FnOnce(&mut Log, &ChainState) -> io::Result<()>) {
        let Some(log) = &mut self.log else { return };
        if let Err(error) = write(log, &self.state) {
            let line = log.ends_by(&error);
            self.state.note(at_s, line.clone(), None);
            self.log_ended = Some(line);
            self.log = None;
        }
    }
}

impl Shared {
    pub(super) fn new(state: ChainState, dir: &Path, log: Option<&Path>) -> Result<Self, Error> {
        let log = log.map(|path| Log::begin(path, &state.definition)).transpose()?;
        let inner = Inner { state, written: None, log, log_ended: None };
        Ok(Self { inner: Mutex::new(inner), dir: dir.to_owned(), began: Instant::now() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Records an event.
    pub(super) fn note(&self, what: String) {
        self.lock().state.note(self.at_s(), what, None);
    }

    pub(super) fn set_components(&self, components: Vec<ComponentState>) {
        self.lock().state.components = components;
    }

    /// Why the log ended before the chain; returned once.
    pub(super) fn take_log_end(&self) -> Option<String> {
        self.lock().log_ended.take()
    }

    /// Writes the state for readers.
    pub(super) fn write(&self) -> Result<(), Error> {
        let mut inner = self.lock();
        inner.written = Some(Instant::now());
        inner.write_log(self.at_s(), |log, _| log.flush());
        inner.state.write(&self.dir)
    }

    /// Changes the state, and writes it if [`WRITE`] has passed or if `now` is set.
    pub(super) fn change(&self, now: bool, change: impl FnOnce(&mut ChainState, f64)) {
        let mut inner = self.lock();
        change(&mut inner.state, self.at_s());
        let is_due = inner.written.is_none_or(|written| written.elapsed() >= WRITE);
        drop(inner);
        if is_due || now {
            // After a failure, the next period writes it.
            let _ = self.write();
        }
    }

    /// Records the end of a period.
    pub(super) fn measured(&self, throughput_fps: f64, applied: Option<&Allocation>) {
        self.change(false, |state, _| {
            state.periods += 1;
            state.throughput_fps = Some(throughput_fps);
        });
        let at_s = self.at_s();
        self.lock().write_log(at_s, |log, state| {
            log.period(&Period {
                at_s,
                throughput_fps,
                tpcs: applied.map(|allocation| allocation.tpcs().to_vec()),
                tpcs_of_chain: state.tpcs_of_chain,
                phase: state.phase,
            })
        });
    }

    /// Records a new division of the TPCs.
    pub(super) fn applied(&self, allocation: &Allocation) {
        self.change(true, |state, _| {
            // While an algorithm searches, this is one trial of many and no event.
            if matches!(state.phase, Phase::Settled) {
                state.phase = Phase::Searching;
            }
            state.tpcs = Some(allocation.tpcs().to_vec());
        });
    }
}
