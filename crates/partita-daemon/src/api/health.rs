//! `/healthz`: whether the daemon works, and what it stands on.
//!
//! A request gets the result of the last look. A look takes the registry's lock, reads the disk and
//! asks keepers, so a task of its own makes it: one look at a time, and none for some seconds after
//! it, however many requests come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use partita_core::Count;
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::Output;
use super::{App, Shared};
use crate::problem::Problem;

/// How long a look is believed.
const FRESH: Duration = Duration::from_secs(5);

/// What the daemon stands on.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Health {
    /// Whether everything works.
    healthy: bool,
    /// The daemon's version.
    version: &'static str,
    /// How long ago the parts were looked at, in milliseconds; none before the first look has
    /// ended.
    age_ms: Option<u64>,
    /// Each part that it needs, as it was then.
    parts: Vec<Part>,
}

/// A part that the daemon needs.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Part {
    /// `store`, `registry`, `gpus` or `keepers`.
    name: &'static str,
    /// Whether it works.
    works: bool,
    /// What was found, or what is wrong and what to do about it.
    detail: String,
}

impl Part {
    fn of(name: &'static str, found: Result<String, Problem>) -> Self {
        match found {
            Ok(detail) => Self { name, works: true, detail },
            Err(problem) => Self { name, works: false, detail: problem.detail },
        }
    }
}

/// What looks have found.
#[derive(Debug, Default)]
pub(super) struct Looks {
    is_looking: AtomicBool,
    last: Mutex<Option<(Instant, Arc<Vec<Part>>)>>,
}

impl App {
    /// Looks at each part aside, unless somebody does or has just done so.
    pub(crate) fn look_at_health(self: &Arc<Self>) {
        let is_fresh = self.looks.last().is_some_and(|(at, _)| at.elapsed() < FRESH);
        if is_fresh || self.looks.is_looking.swap(true, Ordering::Relaxed) {
            return;
        }
        let app = Arc::clone(self);
        tokio::spawn(async move {
            let parts = Arc::new(look(&app).await);
            *app.looks.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), parts));
            app.looks.is_looking.store(false, Ordering::Relaxed);
        });
    }
}

impl Looks {
    fn last(&self) -> Option<(Instant, Arc<Vec<Part>>)> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn look(app: &Shared) -> Vec<Part> {
    let store = app.store().read(|connection| {
        let chains: i64 = connection.query_row("SELECT count(*) FROM chain", [], |row| row.get(0))?;
        Ok(format!("{chains} chains are defined"))
    });
    let registry = app.blocking(|app| {
        let tenants = app.registry().lock()?.tenants()?;
        Ok(Count(tenants.len(), "tenant").to_string())
    });
    let keepers = app.blocking(|app| Ok(format!("{} keepers", app.memory().keepers()?.len())));
    let gpus = async {
        let gpus = app.gpus().await?;
        Ok(gpus.iter().map(partita::gpu::Gpu::label).collect::<Vec<_>>().join(", "))
    };
    let (store, registry, gpus, keepers) = tokio::join!(store, registry, gpus, keepers);
    vec![
        Part::of("store", store),
        Part::of("registry", registry),
        Part::of("gpus", gpus),
        Part::of("keepers", keepers),
    ]
}

/// Whether the daemon works
///
/// 200 if every part did at the last look, and before the first one; 503 if one did not. The answer
/// says which, and how old it is: at most some seconds more than the time since the last question.
#[utoipa::path(get, path = "/healthz", tag = "machine", operation_id = "health",
    responses((status = 200, body = Health), (status = 503, body = Health)))]
pub(super) async fn healthz(State(app): State<Shared>) -> Response {
    let last = app.looks.last();
    app.look_at_health();
    let age_ms = last.as_ref().map(|(at, _)| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX));
    let parts = last.map(|(_, parts)| parts.to_vec()).unwrap_or_default();
    let healthy = parts.iter().all(|part| part.works);
    let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Output(Health { healthy, version: env!("PARTITA_VERSION"), age_ms, parts })).into_response()
}
