//! `/v1/waiting`: the programs that wait for room.

use axum::extract::State;
use partita::queue::WaitingRow;
use serde::Serialize;
use utoipa::ToSchema;

use super::Shared;
use super::extract::Output;
use crate::problem::Problem;

/// A program that waits for room (`partita run --wait`).
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Waiting {
    /// The tenant that it will be.
    name: String,
    /// Its owner.
    user: String,
    /// The short names of the GPUs that it waits for.
    gpus: Vec<String>,
    /// Their UUIDs.
    gpu_uuids: Vec<String>,
    /// How many programs must start before it.
    ahead: usize,
    /// For how many seconds it has waited.
    waited_s: u64,
    /// The process number of its `partita run`.
    pid: u32,
}

impl From<WaitingRow> for Waiting {
    fn from(row: WaitingRow) -> Self {
        let WaitingRow { name, user, gpus, gpu_uuids, ahead, waited_s, pid } = row;
        Self { name, user, gpus, gpu_uuids, ahead, waited_s, pid }
    }
}

/// The programs that wait for room, in their order
///
/// In user mode those of the daemon's own user.
#[utoipa::path(get, path = "/v1/waiting", tag = "tenants", operation_id = "list_waiting",
    responses((status = 200, body = [Waiting])))]
pub(super) async fn list(State(app): State<Shared>) -> Result<Output<Vec<Waiting>>, Problem> {
    let rows = app.blocking(|app| Ok(partita::queue::waiting(app.registry())?)).await?;
    Ok(Output(rows.into_iter().map(Waiting::from).collect()))
}
