//! `/v1/chains/{chain}/optimizer`: who divides a chain's TPCs, and what came of it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use partita_chain_host::{Algorithm, Steering};
use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, mpsc};
use utoipa::{IntoParams, ToSchema};

use super::Shared;
use super::chains::{owned, running};
use super::extract::{Asked, Input, Name, Output, Segments, header_text};
use super::streams::Open;
use crate::caller::Caller;
use crate::problem::{Kind, Problem};
use crate::store::history::{self, Entry};

/// Entries of one answer, unless it is asked for fewer.
const ENTRIES_OF_ANSWER_MAX: u32 = 1000;
/// How often a stream without events shows that it lives.
const ALIVE: Duration = Duration::from_secs(10);
/// Events that wait for a slow reader.
const EVENTS_WAITING_MAX: usize = 64;

/// Who divides a running chain's TPCs, and how far that is.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct OptimizerView {
    /// `steady`, `published`, `none`, or `hand`.
    #[schema(example = "steady")]
    algorithm: String,
    /// `waiting`, `searching`, `settled` or `off`.
    #[schema(example = "settled")]
    state: String,
    /// Periods that were measured.
    periods: u64,
    /// What comes out of the last component, in frames per second, over the last period.
    throughput_fps: Option<f64>,
}

/// What the optimizer of a running chain does
#[utoipa::path(get, path = "/v1/chains/{chain}/optimizer", tag = "chains", operation_id = "get_optimizer",
    params(("chain" = String, Path, description = "Its name")),
    responses((status = 200, body = OptimizerView)))]
pub(super) async fn optimizer(
    State(app): State<Shared>,
    Segments(Name(name)): Segments<Name>,
) -> Result<Output<OptimizerView>, Problem> {
    let chain = super::chains::running(&app, &name).await?;
    Ok(Output(OptimizerView {
        algorithm: chain.algorithm,
        state: chain.optimizer_state,
        periods: chain.periods,
        throughput_fps: chain.throughput_fps,
    }))
}

/// Who is to divide a running chain's TPCs.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OptimizerChange {
    /// `steady`, `published` or `none`.
    #[schema(value_type = String, example = "steady", pattern = "^(steady|published|none)$")]
    algorithm: Algorithm,
}

/// Have an optimizer divide a running chain's TPCs
///
/// From now on and until the chain ends; what its definition says holds from its next start.
#[utoipa::path(put, path = "/v1/chains/{chain}/optimizer", tag = "chains", operation_id = "set_optimizer",
    params(("chain" = String, Path, description = "Its name")),
    request_body = OptimizerChange,
    responses((status = 204, description = "It will")))]
pub(super) async fn set_optimizer(
    State(app): State<Shared>,
    caller: Caller,
    Segments(Name(name)): Segments<Name>,
    Input(change): Input<OptimizerChange>,
) -> Result<Response, Problem> {
    owned(&app, &name, caller).await?;
    running(&app, &name).await?;
    let steering = Steering::Algorithm(change.algorithm);
    app.blocking(move |app| app.chains().steer(&name, &steering, caller.user)).await?;
    Ok(axum::http::StatusCode::NO_CONTENT.into_response())
}

/// Which part of a list that grows.
#[derive(Debug, Clone, Copy, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Part {
    /// Entries after the one of this number, the oldest first; none for the newest ones.
    pub after: Option<i64>,
    /// How many at most, 1 to 1000 [default: 1000].
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

impl Part {
    /// How many entries at most.
    ///
    /// # Errors
    /// [`Kind::BadRequest`] for none or too many.
    pub fn limit(self) -> Result<u32, Problem> {
        let limit = self.limit.unwrap_or(ENTRIES_OF_ANSWER_MAX);
        if (1..=ENTRIES_OF_ANSWER_MAX).contains(&limit) {
            return Ok(limit);
        }
        Err(Problem::new(
            Kind::BadRequest,
            format!("limit is {limit}; it must be 1 to {ENTRIES_OF_ANSWER_MAX}, and `after` gets the rest"),
        ))
    }
}

/// What happened to a chain while it ran, the oldest first
///
/// The last 10 000 steps are kept, also when the chain has ended.
#[utoipa::path(get, path = "/v1/chains/{chain}/optimizer/history", tag = "chains", operation_id = "get_history",
    params(("chain" = String, Path, description = "Its name"), Part),
    responses((status = 200, body = [Entry])))]
pub(super) async fn history(
    State(app): State<Shared>,
    Segments(Name(name)): Segments<Name>,
    Asked(part): Asked<Part>,
) -> Result<Output<Vec<Entry>>, Problem> {
    let limit = part.limit()?;
    super::chains::exists(&app, &name).await?;
    let entries = app.store().read(move |connection| match part.after {
        Some(after) => history::after(connection, &name, after, limit),
        None => history::newest(connection, &name, limit),
    });
    Ok(Output(entries.await?))
}

/// The same as it happens, as server-sent events
///
/// Each event's data is an entry of the history and its id the entry's. A reader that comes back
/// with `Last-Event-ID` misses nothing.
#[utoipa::path(get, path = "/v1/chains/{chain}/optimizer/events", tag = "chains", operation_id = "watch_history",
    params(
        ("chain" = String, Path, description = "Its name"),
        ("Last-Event-ID" = Option<i64>, Header, description = "The entry after which to begin; none for what is yet to come")
    ),
    responses((status = 200, body = Entry, content_type = "text/event-stream")))]
pub(super) async fn events(
    State(app): State<Shared>,
    caller: Caller,
    Segments(Name(name)): Segments<Name>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let open = Open::count(&app, caller)?;
    let from = match header_text(&headers, "last-event-id")? {
        None => None,
        Some(text) => Some(text.parse::<i64>().map_err(|_| {
            Problem::new(
                Kind::BadRequest,
                "Last-Event-ID: it is no number of an entry; send the last event's id",
            )
        })?),
    };
    super::chains::exists(&app, &name).await?;
    // Before the past is read, so that nothing falls between.
    let live = app.events.subscribe();
    let (sender, receiver) = mpsc::channel(EVENTS_WAITING_MAX);
    tokio::spawn(send(app, name, from, live, sender));
    Ok(Sse::new(Events { entries: receiver, _open: open })
        .keep_alive(KeepAlive::new().interval(ALIVE))
        .into_response())
}

/// Sends the history from `from` on, and then new entries, until the reader leaves or the daemon
/// ends.
async fn send(
    app: Shared,
    name: String,
    from: Option<i64>,
    mut live: broadcast::Receiver<Arc<Entry>>,
    sender: mpsc::Sender<Arc<Entry>>,
) {
    let mut ended = app.ended();
    let mut sent = from;
    let mut waiting: VecDeque<Arc<Entry>> = VecDeque::new();
    let mut is_behind = from.is_some();
    loop {
        if is_behind {
            let (chain, last) = (name.clone(), sent.unwrap_or(i64::MAX));
            let look = move |connection: &rusqlite::Connection| {
                history::after(connection, &chain, last, ENTRIES_OF_ANSWER_MAX)
            };
            let Ok(entries) = app.store().read(look).await else { return };
            is_behind = entries.len() == ENTRIES_OF_ANSWER_MAX as usize;
            waiting.extend(entries.into_iter().map(Arc::new));
        }
        while let Some(entry) = waiting.pop_front() {
            if sent.is_some_and(|sent| entry.id <= sent) {
                continue;
            }
            sent = Some(entry.id);
            tokio::select! {
                done = sender.send(entry) => if done.is_err() { return },
                _ = ended.wait_for(|&ended| ended) => return,
            }
        }
        if is_behind {
            continue;
        }
        tokio::select! {
            next = live.recv() => match next {
                Ok(entry) if entry.chain == name => waiting.push_back(entry),
                Ok(_) => {}
                // A reader that has received nothing yet has missed nothing.
                Err(broadcast::error::RecvError::Lagged(_)) => is_behind = sent.is_some(),
                Err(broadcast::error::RecvError::Closed) => return,
            },
            () = sender.closed() => return,
            _ = ended.wait_for(|&ended| ended) => return,
        }
    }
}

/// Entries as events.
struct Events {
    entries: mpsc::Receiver<Arc<Entry>>,
    _open: Open,
}

impl Stream for Events {
    type Item = Result<Event, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = |entry: Arc<Entry>| Event::default().id(entry.id.to_string()).json_data(&*entry);
        self.entries.poll_recv(context).map(|entry| entry.map(event))
    }
}
