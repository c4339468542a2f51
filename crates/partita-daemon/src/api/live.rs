//! `/v1/live`: GPUs and tenants once a second, as server-sent events.
//!
//! One task takes the samples for all readers, and only while there is one. A reader that is slower
//! than the samples misses some: nothing but the newest sample waits for it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::extract::State;
use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use partita::process::user_name;
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use utoipa::ToSchema;

use super::gpus::GpuView;
use super::samples::{EVERY, Taken};
use super::streams::Open;
use super::tenants::{self, TenantView};
use super::{App, Shared};
use crate::caller::{Caller, Rights};
use crate::problem::Problem;
use crate::store::{events, now_unix_ms};

/// What a caller is.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct CallerView {
    /// The user; over TCP the daemon's own.
    user: String,
    /// Whether the caller's token allows changes. Each tenant's owner decides beside that.
    may_change: bool,
    /// The daemon's version.
    version: &'static str,
}

/// The GPUs and the tenants at one time.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Sample {
    /// When, in milliseconds since 1970.
    at_unix_ms: i64,
    /// Every GPU that is served; their memory and utilization can be 5 s old.
    gpus: Vec<GpuView>,
    /// Every tenant.
    tenants: Vec<TenantView>,
    /// The number of the newest event of `/v1/events`; 0 if there was none.
    newest_event: i64,
}

/// Takes samples until the daemon ends.
pub async fn sample(app: Shared) {
    let mut ended = app.ended();
    loop {
        tokio::select! {
            _ = ended.wait_for(|&ended| ended) => return,
            () = app.samples.wanted() => {}
        }
        let at = Instant::now();
        let taken = tokio::select! {
            // A process that holds the registry's lock must not delay the end.
            _ = ended.wait_for(|&ended| ended) => return,
            taken = take(&app) => taken,
        };
        let (kind, json) = match taken {
            Ok(sample) => ("sample", serde_json::to_string(&sample)),
            Err(problem) => ("problem", serde_json::to_string(&problem)),
        };
        match json {
            Ok(json) => {
                app.samples.publish(Taken { kind, json, at });
            }
            Err(error) => tracing::error!(%error, "a sample has no JSON"),
        }
        tokio::select! {
            _ = ended.wait_for(|&ended| ended) => return,
            () = tokio::time::sleep(EVERY.saturating_sub(at.elapsed()).max(EVERY / 4)) => {}
        }
    }
}

async fn take(app: &Shared) -> Result<Sample, Problem> {
    let gpus = app.gpus().await?;
    let newest = app.store().read(|connection| events::newest(connection, 1)).await?;
    app.blocking(move |app: &App| {
        let rows = partita::ps::ps(app.registry())?;
        Ok(Sample {
            at_unix_ms: now_unix_ms(),
            gpus: gpus.iter().map(|gpu| GpuView::of(app, gpu, &rows)).collect(),
            tenants: tenants::views(&rows),
            newest_event: newest.first().map_or(0, |event| event.id),
        })
    })
    .await
}

/// GPUs and tenants as they change, as server-sent events
///
/// First an event `caller`, whose data is a `CallerView`; then each second an event `sample`, or
/// `problem` with a problem document while nothing can be read. A slow reader misses samples.
/// At most 200 streams are open at once.
#[utoipa::path(get, path = "/v1/live", tag = "tenants", operation_id = "watch_tenants",
    responses((status = 200, body = Sample, content_type = "text/event-stream")))]
pub(super) async fn live(State(app): State<Shared>, caller: Caller) -> Result<Response, Problem> {
    let open = Open::count(&app, caller)?;
    let caller = CallerView {
        user: user_name(caller.user),
        may_change: caller.rights == Rights::All,
        version: env!("PARTITA_VERSION"),
    };
    let first = Event::default()
        .event("caller")
        .json_data(&caller)
        .map_err(|error| Problem::new(crate::Kind::Internal, error.to_string()))?;
    let (sender, events) = mpsc::channel(1);
    let receiver = app.samples.subscribe();
    tokio::spawn(send(app, receiver, first, sender));
    let mut response = Sse::new(Events { events, _open: open }).into_response();
    // A proxy that collects what it passes on would show samples late.
    let unbuffered = (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response.headers_mut().insert(unbuffered.0, unbuffered.1);
    Ok(response)
}

/// Sends samples until the reader leaves or the daemon ends.
async fn send(
    app: Shared,
    mut samples: watch::Receiver<Option<Arc<Taken>>>,
    first: Event,
    sender: mpsc::Sender<Event>,
) {
    let mut ended = app.ended();
    let mut next = Some(first);
    loop {
        if let Some(event) = next.take() {
            tokio::select! {
                sent = sender.send(event) => if sent.is_err() { return },
                _ = ended.wait_for(|&ended| ended) => return,
            }
        }
        tokio::select! {
            changed = samples.changed() => if changed.is_err() { return },
            () = sender.closed() => return,
            _ = ended.wait_for(|&ended| ended) => return,
        }
        let taken = samples.borrow_and_update().clone();
        next = taken.map(|taken| Event::default().event(taken.kind).data(&taken.json));
    }
}

/// The events of one reader.
struct Events {
    events: mpsc::Receiver<Event>,
    _open: Open,
}

impl Stream for Events {
    type Item = Result<Event, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_recv(context).map(|event| event.map(Ok))
    }
}
