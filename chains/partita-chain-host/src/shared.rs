//! What the process that runs a chain knows of it, for both of its threads, and for others to read.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use partita_host::error::Error;
use partita_steering::Allocation;

use super::log::{Log, Period};
use super::state::{ChainState, ComponentState, Phase};

/// How often the state is written for others, at most.
const WRITE: Duration = Duration::from_millis(100);

/// What the process knows of its chain, for both of its threads.
#[derive(Debug)]
pub(super) struct Shared {
    inner: Mutex<Inner>,
    tenant: PathBuf,
    began: Instant,
}

#[derive(Debug)]
struct Inner {
    state: ChainState,
    written: Option<Instant>,
    log: Option<Log>,
    /// That the log has ended before the chain, if nobody was told yet.
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
    pub(super) fn new(state: ChainState, tenant: &Path, log: Option<&Path>) -> Result<Self, Error> {
        let log = log.map(|path| Log::begin(path, &state.definition)).transpose()?;
        let inner = Inner { state, written: None, log, log_ended: None };
        Ok(Self { inner: Mutex::new(inner), tenant: tenant.to_owned(), began: Instant::now() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Notes that something happened.
    pub(super) fn note(&self, what: String) {
        self.lock().state.note(self.at_s(), what, None);
    }

    pub(super) fn set_components(&self, components: Vec<ComponentState>) {
        self.lock().state.components = components;
    }

    /// That the log has ended before the chain, once.
    pub(super) fn take_log_end(&self) -> Option<String> {
        self.lock().log_ended.take()
    }

    /// Writes the state for others to read.
    pub(super) fn write(&self) -> Result<(), Error> {
        let mut inner = self.lock();
        inner.written = Some(Instant::now());
        inner.write_log(self.at_s(), |log, _| log.flush());
        inner.state.write(&self.tenant)
    }

    /// Changes the state, and writes it if it was not for a while, or `now`.
    pub(super) fn change(&self, now: bool, change: impl FnOnce(&mut ChainState, f64)) {
        let mut inner = self.lock();
        change(&mut inner.state, self.at_s());
        let is_due = inner.written.is_none_or(|written| written.elapsed() >= WRITE);
        drop(inner);
        if is_due || now {
            // Who cannot see it now sees it after the next period.
            let _ = self.write();
        }
    }

    /// A period is over.
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

    /// The TPCs were divided anew.
    pub(super) fn applied(&self, allocation: &Allocation) {
        self.change(true, |state, _| {
            // It is one trial of many, unless nobody optimizes.
            if matches!(state.phase, Phase::Settled) {
                state.phase = Phase::Searching;
            }
            state.tpcs = Some(allocation.tpcs().to_vec());
        });
    }
}
