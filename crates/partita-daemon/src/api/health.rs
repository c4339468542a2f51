//! `/healthz`: whether the daemon works, and what it stands on.
//!
//! A request gets the result of the last look. A look takes the registry's lock, reads the disk and
//! asks keepers, so a task of its own makes it: one look at a time, and none for some seconds after
//! it, however many requests come.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use partita_core::Count;
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::Output;
use super::looks::Part;
use super::{App, Shared};

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

impl App {
    /// Checks each part in the background, unless a check runs or has just ended.
    pub(crate) fn look_at_health(self: &Arc<Self>) {
        if !self.looks.begin() {
            return;
        }
        let app = Arc::clone(self);
        tokio::spawn(async move { app.looks.end(look(&app).await) });
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
