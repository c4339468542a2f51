//! `/healthz`: whether the daemon works, and what it stands on.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use partita_core::Count;
use serde::Serialize;
use utoipa::ToSchema;

use super::Shared;
use super::extract::Output;
use crate::problem::Problem;

/// What the daemon stands on.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Health {
    /// Whether everything works.
    healthy: bool,
    /// The daemon's version.
    version: &'static str,
    /// Each part that it needs.
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

/// Whether the daemon works
///
/// 200 if every part does, 503 if one does not; both say which.
#[utoipa::path(get, path = "/healthz", tag = "machine", operation_id = "health",
    responses((status = 200, body = Health), (status = 503, body = Health)))]
pub(super) async fn healthz(State(app): State<Shared>) -> Response {
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
    let parts = vec![
        Part::of("store", store),
        Part::of("registry", registry),
        Part::of("gpus", gpus),
        Part::of("keepers", keepers),
    ];
    let healthy = parts.iter().all(|part| part.works);
    let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Output(Health { healthy, version: env!("CARGO_PKG_VERSION"), parts })).into_response()
}
