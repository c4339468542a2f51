//! `/v1/keepers` and `/v1/leases`: device memory on lease.

use axum::extract::State;

use super::Shared;
use super::extract::Output;
use crate::memory::{Keeper, Lease};
use crate::problem::Problem;

/// Every keeper: the processes that own leased device memory
#[utoipa::path(get, path = "/v1/keepers", tag = "memory", operation_id = "list_keepers",
    responses((status = 200, body = [Keeper])))]
pub(super) async fn keepers(State(app): State<Shared>) -> Result<Output<Vec<Keeper>>, Problem> {
    Ok(Output(app.blocking(|app| app.memory().keepers()).await?))
}

/// Every lease that is held
#[utoipa::path(get, path = "/v1/leases", tag = "memory", operation_id = "list_leases",
    responses((status = 200, body = [Lease])))]
pub(super) async fn leases(State(app): State<Shared>) -> Result<Output<Vec<Lease>>, Problem> {
    Ok(Output(app.blocking(|app| app.memory().leases()).await?))
}
