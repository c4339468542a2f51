//! What all requests share.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use partita::gpu::Gpu;
use partita::gpus::Selectors;
use partita::install::Install;
use partita::registry::Registry;
use tokio::sync::{Mutex, broadcast, watch};

use super::looks::Looks;
use super::metrics::Metrics;
use super::samples::Samples;
use super::streams::Streams;
use super::work::{OfUser, WORK_OF_USER};
use crate::args::MetricNames;
use crate::chains::Chains;
use crate::memory::Memory;
use crate::problem::{Kind, Problem};
use crate::site::SitePolicy;
use crate::store::Store;
use crate::store::history::Entry;
use crate::token::Tokens;

/// How long data about the GPUs is cached.
const GPUS_FRESH: Duration = Duration::from_secs(5);
/// Entries of histories that a watcher may be behind by before it reads them from the store.
const EVENTS_BEHIND_MAX: usize = 256;

/// What a daemon is made of.
#[derive(Debug)]
pub struct Parts {
    /// What outlives it.
    pub store: Store,
    /// The tenants of this machine.
    pub registry: Registry,
    /// Where its programs are.
    pub install: Install,
    /// `--gpu`.
    pub gpus: Option<Selectors>,
    /// The chains that run.
    pub chains: Box<dyn Chains>,
    /// The keepers.
    pub memory: Box<dyn Memory>,
    /// The user that it runs as.
    pub user: u32,
    /// The tokens of clients on TCP.
    pub tokens: Tokens,
    /// The names of this machine that clients on TCP may use, in lower case, beside addresses and
    /// `localhost`; its own first, if it has one.
    pub hosts: Vec<String>,
    /// Under whose names else `/metrics` has its figures.
    pub metric_names: Vec<MetricNames>,
    /// `--dcgm-job-map`.
    pub job_map: Option<PathBuf>,
    /// The interval of audits; `None` for no audits.
    pub audit_every: Option<Duration>,
    /// The policy of the site, in system mode.
    pub site: Option<SitePolicy>,
    /// How long the answer to a request may take.
    pub answer_limit: Duration,
    /// How long the body of a request may take to arrive.
    pub body_limit: Duration,
    /// True from the moment in which the daemon begins to end.
    pub ended: watch::Receiver<bool>,
}

/// What all requests share.
#[derive(Debug)]
pub struct App {
    parts: Parts,
    pub(super) metrics: Metrics,
    pub(super) looks: Looks,
    pub(super) samples: Samples,
    pub(super) streams: Streams,
    pub(super) events: broadcast::Sender<Arc<Entry>>,
    gpus: Mutex<Option<(Instant, Arc<Vec<Gpu>>)>>,
    in_flight: AtomicUsize,
    pub(super) users: std::sync::Mutex<HashMap<u32, OfUser>>,
}

impl App {
    /// A daemon of these parts.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self {
            parts,
            metrics: Metrics::new(),
            looks: Looks::default(),
            samples: Samples::default(),
            streams: Streams::default(),
            events: broadcast::channel(EVENTS_BEHIND_MAX).0,
            gpus: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            users: std::sync::Mutex::default(),
        }
    }

    /// What outlives it.
    pub fn store(&self) -> &Store {
        &self.parts.store
    }

    /// Requests that are being answered now.
    pub fn requests_in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn in_flight(&self) -> &AtomicUsize {
        &self.in_flight
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.parts.registry
    }

    pub(super) fn install(&self) -> &Install {
        &self.parts.install
    }

    pub(super) fn chains(&self) -> &dyn Chains {
        &*self.parts.chains
    }

    pub(super) fn memory(&self) -> &dyn Memory {
        &*self.parts.memory
    }

    pub(super) fn user(&self) -> u32 {
        self.parts.user
    }

    pub(super) fn tokens(&self) -> &Tokens {
        &self.parts.tokens
    }

    pub(super) fn hosts(&self) -> &[String] {
        &self.parts.hosts
    }

    /// This machine's name.
    pub(super) fn host(&self) -> &str {
        self.parts.hosts.first().map_or("localhost", String::as_str)
    }

    pub(super) fn metric_names(&self) -> &[MetricNames] {
        &self.parts.metric_names
    }

    pub(super) fn job_map(&self) -> Option<&Path> {
        self.parts.job_map.as_deref()
    }

    pub(super) fn site(&self) -> Option<&SitePolicy> {
        self.parts.site.as_ref()
    }

    pub(super) fn audit_every(&self) -> Option<Duration> {
        self.parts.audit_every
    }

    pub(super) fn answer_limit(&self) -> Duration {
        self.parts.answer_limit
    }

    pub(super) fn body_limit(&self) -> Duration {
        self.parts.body_limit
    }

    pub(super) fn ended(&self) -> watch::Receiver<bool> {
        self.parts.ended.clone()
    }

    /// Runs blocking work on a separate thread, after other work of this request's user. It runs to
    /// its end even if the client leaves.
    pub(super) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let permit = match WORK_OF_USER.try_with(Arc::clone) {
            Ok(permits) => permits.acquire_owned().await.ok(),
            // The daemon's own work, or root's.
            Err(_) => None,
        };
        self.at_once(move |app| {
            let _permit = permit;
            work(app)
        })
        .await
    }

    /// The same without waiting for other work.
    async fn at_once<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let app = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&app));
        done.await
            .map_err(|error| Problem::new(Kind::Internal, format!("this work was given up: {error}")))?
    }

    /// The GPUs that are served, as they were a few seconds ago at most.
    pub(super) async fn gpus(self: &Arc<Self>) -> Result<Arc<Vec<Gpu>>, Problem> {
        // Requests that come during a query wait for its result.
        let mut known = self.gpus.lock().await;
        if let Some((at, gpus)) = &*known
            && at.elapsed() < GPUS_FRESH
        {
            return Ok(Arc::clone(gpus));
        }
        // Not after this user's other work, because requests of all users wait for the result.
        let looked = self.at_once(|app| {
            let install = app.install();
            let everyone = Selectors::All(None);
            let selectors = app.parts.gpus.as_ref().unwrap_or(&everyone);
            Ok(Arc::new(partita::gpus::select(install, Some(selectors))?.gpus))
        });
        let gpus = looked.await?;
        *known = Some((Instant::now(), Arc::clone(&gpus)));
        Ok(gpus)
    }
}
