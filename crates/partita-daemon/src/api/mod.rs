//! The resources: their paths, what every request goes through, and the OpenAPI document that
//! follows from both.

pub mod app;
mod chains;
mod definition;
mod document;
mod escapes;
mod events;
mod extract;
mod foreign;
mod gpus;
mod guard;
mod health;
mod history;
mod job_map;
mod limits;
mod live;
mod looks;
mod memory;
mod metrics;
mod origin;
mod page;
mod partitions;
mod reference;
mod samples;
mod scrape;
mod sm;
mod streams;
mod targets;
mod tenants;
mod units;
mod waiting;
mod watch;
mod work;

use std::sync::{Arc, LazyLock};

use axum::middleware::from_fn_with_state;
use axum::response::Html;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::Value;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use app::{App, Parts};
pub use document::openapi_text;
pub use escapes::audit;
pub use gpus::check_groups;
pub use job_map::{make_dir, map_jobs};
pub use live::sample;
pub use targets::decisions;
pub use watch::follow;

pub use crate::caller::{Caller, Rights};

/// What handlers share.
pub(crate) type Shared = Arc<App>;

/// Every resource; what is not here is no route, and what is here is in the document.
fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(document::Document::openapi())
        .routes(routes!(health::healthz))
        .routes(routes!(metrics::metrics))
        .routes(routes!(gpus::list))
        .routes(routes!(gpus::get))
        .routes(routes!(gpus::topology))
        .routes(routes!(partitions::list))
        .routes(routes!(waiting::list))
        .routes(routes!(events::list))
        .routes(routes!(live::live))
        .routes(routes!(tenants::list))
        .routes(routes!(tenants::get, tenants::change, tenants::end))
        .routes(routes!(chains::list, chains::define))
        .routes(routes!(chains::get, chains::replace, chains::delete))
        .routes(routes!(chains::start))
        .routes(routes!(chains::stop))
        .routes(routes!(sm::configuration, sm::configure))
        .routes(routes!(sm::configure_component))
        .routes(routes!(sm::suggestion))
        .routes(routes!(history::optimizer, history::set_optimizer))
        .routes(routes!(history::history))
        .routes(routes!(history::events))
        .routes(routes!(memory::keepers))
        .routes(routes!(memory::leases))
        .routes(routes!(memory::lease))
        .routes(routes!(memory::held, memory::take_back))
        .routes(routes!(memory::disown))
}

/// The document of every route, generated at the first request.
static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::to_value(document::openapi()).unwrap_or_default());
/// The same as a page.
static PAGE: LazyLock<String> = LazyLock::new(|| reference::page(&DOCUMENT));

/// The service.
pub fn router(app: Shared) -> Router {
    let (router, _) = routes().split_for_parts();
    router
        .route("/", get(page::index))
        .route("/page/{*name}", get(page::file))
        .route("/openapi.json", get(async || Json(&*DOCUMENT)))
        .route("/docs", get(async || Html(PAGE.as_str())))
        .route("/docs/", get(async || Html(PAGE.as_str())))
        .fallback(guard::no_route)
        .method_not_allowed_fallback(guard::no_method)
        .layer(from_fn_with_state(Arc::clone(&app), guard::bounds))
        .layer(from_fn_with_state(Arc::clone(&app), guard::who))
        .layer(from_fn_with_state(Arc::clone(&app), origin::origin))
        .layer(from_fn_with_state(Arc::clone(&app), guard::account))
        .with_state(app)
}
