//! `/v1/keepers` and `/v1/leases`: device memory on lease.

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Shared;
use super::extract::{Asked, Output, Segments};
use crate::caller::Caller;
use crate::memory::{Keeper, Lease};
use crate::problem::Problem;

/// Every keeper: the processes that own leased device memory
#[utoipa::path(get, path = "/v1/keepers", tag = "memory", operation_id = "list_keepers",
    responses((status = 200, body = [Keeper])))]
pub(super) async fn keepers(State(app): State<Shared>) -> Result<Output<Vec<Keeper>>, Problem> {
    Ok(Output(app.blocking(|app| app.memory().keepers()).await?))
}

/// Every lease that is held, and those that have ended and whose memory rests
#[utoipa::path(get, path = "/v1/leases", tag = "memory", operation_id = "list_leases",
    responses((status = 200, body = [Lease])))]
pub(super) async fn leases(State(app): State<Shared>) -> Result<Output<Vec<Lease>>, Problem> {
    Ok(Output(app.blocking(|app| app.memory().leases()).await?))
}

/// Revoke a lease
///
/// The lease ends as if its deadline had passed. Its owner learns it with the next heartbeat. The
/// memory is free when the owner has released it, too, or has ended. For the keeper's user and
/// root.
#[utoipa::path(delete, path = "/v1/keepers/{keeper}/leases/{lease}", tag = "memory", operation_id = "take_back_lease",
    params(("keeper" = u32, Path, description = "The keeper's process"), ("lease" = u64, Path, description = "The lease's number")),
    responses((status = 204, description = "It has ended")))]
pub(super) async fn take_back(
    State(app): State<Shared>,
    caller: Caller,
    Segments((keeper, lease)): Segments<(u32, u64)>,
) -> Result<StatusCode, Problem> {
    app.blocking(move |app| app.memory().take_back(caller, keeper, lease)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How the leases of an owner that has ended are given back.
#[derive(Debug, Clone, Copy, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Disown {
    /// Although a process that could write there lives [default: false].
    #[serde(default)]
    force: bool,
}

/// What was given back.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Disowned {
    /// How many leases.
    leases: u64,
}

/// Release the leases of an owner that has left
///
/// The keeper does that by itself when the owner's process ends. If a process has closed its
/// connection and still lives, pass `force=true` to state that it does not write to the memory any
/// more. For the keeper's user and root.
#[utoipa::path(delete, path = "/v1/keepers/{keeper}/owners/{owner}", tag = "memory", operation_id = "disown_leases",
    params(("keeper" = u32, Path, description = "The keeper's process"), ("owner" = u64, Path, description = "The owner's number, as its leases have it"),
        Disown),
    responses((status = 200, body = Disowned, description = "They are free")))]
pub(super) async fn disown(
    State(app): State<Shared>,
    caller: Caller,
    Segments((keeper, owner)): Segments<(u32, u64)>,
    Asked(Disown { force }): Asked<Disown>,
) -> Result<Output<Disowned>, Problem> {
    let leases = app.blocking(move |app| app.memory().disown(caller, keeper, owner, force)).await?;
    Ok(Output(Disowned { leases }))
}
