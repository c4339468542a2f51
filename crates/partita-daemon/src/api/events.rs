//! `/v1/events`: what the watch over processes has found, and what was decided for targets.

use axum::extract::State;

use super::Shared;
use super::extract::{Asked, Output};
use super::history::Part;
use crate::problem::Problem;
use crate::store::events::{self, Event};

/// Escaped processes, what else audits found, and decisions for targets, the oldest first
///
/// An event when something begins and one when it is over: a process that uses a GPU without the
/// limits of its tenant, a process that has the gate of a GPU open and is no tenant's, and an audit
/// of a GPU that fails. The last 10 000 of them are kept, and the last 2 000 decisions for targets,
/// each of which is one event.
#[utoipa::path(get, path = "/v1/events", tag = "tenants", operation_id = "list_events",
    params(Part),
    responses((status = 200, body = [Event])))]
pub(super) async fn list(
    State(app): State<Shared>,
    Asked(part): Asked<Part>,
) -> Result<Output<Vec<Event>>, Problem> {
    let limit = part.limit()?;
    let events = app.store().read(move |connection| match part.after {
        Some(after) => events::after(connection, after, limit),
        None => events::newest(connection, limit),
    });
    Ok(Output(events.await?))
}
