//! `/v1/keepers` and `/v1/leases`: device memory on lease.

use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use partita::process::ProcessId;
use partita_memory::BadName;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Shared;
use super::extract::{Asked, Input, Output, Segments};
use crate::caller::{Caller, Peer};
use crate::memory::{Held, Keeper, Lease, Wanted};
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

/// Memory to lease.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LeaseRequest {
    /// How much, in bytes.
    #[schema(minimum = 1, example = 4_194_304)]
    bytes: u64,
    /// The tenant of the memory: processes of one user and tenant share slabs, and can write to
    /// each other's memory.
    #[schema(example = "cameras", min_length = 1, max_length = 63)]
    tenant: String,
    /// The process that uses the memory, with whose end the lease ends; by default the caller.
    #[schema(nullable = false, minimum = 1)]
    pid: Option<u32>,
}

/// Lease memory
///
/// For a process of this machine that opens the memory by its handle (`cuIpcOpenMemHandle`). The
/// lease ends when it is deleted, when the process ends, and when the daemon ends; the memory is
/// leased again only after the first two. Clients that lease often use the keeper's socket, where a
/// lease costs microseconds. For the keeper's user and root.
#[utoipa::path(post, path = "/v1/keepers/{keeper}/leases", tag = "memory", operation_id = "lease_memory",
    params(("keeper" = u32, Path, description = "The keeper's process")), request_body = LeaseRequest,
    responses((status = 201, body = Held, description = "The lease", headers(("location" = String, description = "Its path")))))]
pub(super) async fn lease(
    State(app): State<Shared>,
    caller: Caller,
    Extension(peer): Extension<Peer>,
    Segments(keeper): Segments<u32>,
    Input(LeaseRequest { bytes, tenant, pid }): Input<LeaseRequest>,
) -> Result<impl IntoResponse, Problem> {
    if bytes == 0 {
        return Err(Problem::invalid("/bytes", "a lease has at least one byte"));
    }
    let tenant = tenant.parse().map_err(|error: BadName| Problem::invalid("/tenant", error.to_string()))?;
    let of_peer = match peer {
        Peer::Process { pid, .. } => pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0),
        Peer::Network(_) => None,
    };
    let pid = pid.or(of_peer).ok_or_else(|| {
        let detail = "the caller is no process of this machine; name the process that opens the memory";
        Problem::invalid("/pid", detail)
    })?;
    let gone = || Problem::invalid("/pid", format!("process {pid} does not exist; name a living one"));
    let process = ProcessId::living(pid).ok_or_else(gone)?;
    let user = process.user().ok_or_else(gone)?;
    caller.check(&format!("process {pid}"), user)?;
    let wanted = Wanted { process, user, tenant, bytes };
    let held = app.blocking(move |app| app.memory().lease(caller, keeper, &wanted)).await?;
    let location = format!("/v1/keepers/{keeper}/leases/{}", held.id);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Output(held)))
}

/// A lease that was made over HTTP, with its handle
///
/// For its process's user and root.
#[utoipa::path(get, path = "/v1/keepers/{keeper}/leases/{lease}", tag = "memory", operation_id = "get_lease",
    params(("keeper" = u32, Path, description = "The keeper's process"), ("lease" = u64, Path, description = "The lease's number")),
    responses((status = 200, body = Held)))]
pub(super) async fn held(
    State(app): State<Shared>,
    caller: Caller,
    Segments((keeper, lease)): Segments<(u32, u64)>,
) -> Result<Output<Held>, Problem> {
    Ok(Output(app.blocking(move |app| app.memory().held(caller, keeper, lease)).await?))
}

/// Give back or revoke a lease
///
/// A lease that was made over HTTP is given back, by its process's user or root: the process no
/// longer uses the memory. Any other lease ends as if its deadline had passed. Its owner learns it
/// with the next heartbeat. The memory is free when the owner has released it, too, or has ended.
/// For the keeper's user and root.
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

/// How the leases of an owner that has left are released.
#[derive(Debug, Clone, Copy, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Disown {
    /// Whether to do so although a process that could write to the memory lives [default: false].
    #[serde(default)]
    force: bool,
}

/// What was released.
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
