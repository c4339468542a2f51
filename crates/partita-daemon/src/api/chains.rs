//! `/v1/chains`: chains by their definitions, and what runs of them.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use partita::process::user_name;
use partita_chain_host::Definition;
use serde::Serialize;
use utoipa::ToSchema;

use super::Shared;
use super::definition::{self, ChainDefinition};
use super::extract::{
    Asked, Input, InputWithBytes, Name, NoBody, Output, Segments, header_list, header_text,
};
use super::tenants::{End, Ended, grace, stop as stop_tenant};
use crate::caller::Caller;
use crate::chains::Running;
use crate::problem::{Kind, Problem};
use crate::store::answers::{self, Answer};
use crate::store::chain::{self, Kept};

/// The longest `Idempotency-Key`, in bytes.
const KEY_BYTES_MAX: usize = 255;
/// How long the start of a chain is waited for.
const START_LIMIT: Duration = Duration::from_secs(25);

/// A chain: defined here, or running, or both.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct ChainView {
    /// Its name.
    name: String,
    /// What is defined here; none for one that `partita chain start` started from elsewhere.
    defined: Option<Defined>,
    /// What runs of it; none if it does not run.
    running: Option<Running>,
}

/// A definition as it is kept.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Defined {
    /// What was defined.
    #[schema(value_type = ChainDefinition)]
    definition: Definition,
    /// The user who defined it.
    owner: u32,
    /// How often it was changed, from 1; also its `ETag`.
    revision: i64,
    /// When it was defined, in milliseconds since 1970.
    created_unix_ms: i64,
    /// When it was changed last, in milliseconds since 1970.
    changed_unix_ms: i64,
}

impl From<Kept> for Defined {
    fn from(kept: Kept) -> Self {
        let Kept { definition, owner, revision, created_unix_ms, changed_unix_ms } = kept;
        Self { definition, owner, revision, created_unix_ms, changed_unix_ms }
    }
}

/// The chain of this name, which runs.
pub(super) async fn running(app: &Shared, name: &str) -> Result<Running, Problem> {
    let look = name.to_owned();
    match app.blocking(move |app| app.chains().look(&look)).await? {
        Some(chain) => Ok(chain),
        None => {
            exists(app, name).await?;
            let reason = match runs_for_other(app, name).await? {
                Some(user) => format!(
                    "a tenant of {} has the name {name}, and a daemon looks into chains of its own user \
                     alone; that user sees and steers it with `partita chain`",
                    user_name(user)
                ),
                None => format!("chain {name} does not run; start it with POST /v1/chains/{name}/start"),
            };
            Err(Problem::new(Kind::Conflict, reason))
        }
    }
}

/// The other user than the daemon's whose tenant has a chain's name, if there is one.
async fn runs_for_other(app: &Shared, name: &str) -> Result<Option<u32>, Problem> {
    let name = name.to_owned();
    app.blocking(move |app| {
        let tenants = app.registry().lock()?.tenants()?;
        let other = tenants.iter().find(|tenant| tenant.name == name && !tenant.is_of_own_user());
        Ok(other.map(|tenant| tenant.user))
    })
    .await
}

/// Checks that a chain of this name is defined or runs.
pub(super) async fn exists(app: &Shared, name: &str) -> Result<(), Problem> {
    find(app, name).await.map(drop)
}

async fn kept(app: &Shared, name: &str) -> Result<Option<Kept>, Problem> {
    let name = name.to_owned();
    let kept = app.store().read(move |connection| chain::get(connection, &name)).await;
    match kept {
        Err(problem) if problem.code() == Kind::NotFound => Ok(None),
        kept => kept.map(Some),
    }
}

async fn find(app: &Shared, name: &str) -> Result<(Option<Kept>, Option<Running>), Problem> {
    let look = name.to_owned();
    let kept = kept(app, name).await?;
    let running = app.blocking(move |app| app.chains().look(&look)).await?;
    if kept.is_none() && running.is_none() {
        return Err(chain::unknown(name));
    }
    Ok((kept, running))
}

/// Checks that the caller may change a chain, and returns the user who defined it. Whether it may
/// change one that is not defined here, what runs it decides.
pub(super) async fn owned(app: &Shared, name: &str, caller: Caller) -> Result<Option<u32>, Problem> {
    let owner = find(app, name).await?.0.map(|kept| kept.owner);
    owner.map_or(Ok(()), |owner| caller.check(&format!("chain {name}"), owner))?;
    Ok(owner)
}

/// Every chain that is defined or runs
#[utoipa::path(get, path = "/v1/chains", tag = "chains", operation_id = "list_chains",
    responses((status = 200, body = [ChainView])))]
pub(super) async fn list(State(app): State<Shared>) -> Result<Output<Vec<ChainView>>, Problem> {
    let kept = app.store().read(chain::list).await?;
    let mut running = app.blocking(|app| app.chains().running()).await?;
    let mut views: Vec<ChainView> = kept
        .into_iter()
        .map(|kept| {
            let at = running.iter().position(|one| one.name == kept.definition.name);
            ChainView {
                name: kept.definition.name.clone(),
                running: at.map(|at| running.swap_remove(at)),
                defined: Some(kept.into()),
            }
        })
        .collect();
    views.extend(running.into_iter().map(|one| ChainView {
        name: one.name.clone(),
        defined: None,
        running: Some(one),
    }));
    views.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Output(views))
}

/// Define a chain
///
/// It does not start by that. With an `Idempotency-Key` the same request may be sent again within a
/// day: it is answered as the first time.
#[utoipa::path(post, path = "/v1/chains", tag = "chains", operation_id = "define_chain",
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable characters that no other request of this user has",
        min_length = 1, max_length = 255, pattern = "^[!-~]([ -~]*[!-~])?$")),
    request_body = ChainDefinition,
    responses((status = 201, body = Defined, headers(
        ("Location" = String, description = "The chain"), ("ETag" = String, description = "Its revision")))))]
pub(super) async fn define(
    State(app): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    InputWithBytes(definition, bytes): InputWithBytes<Definition>,
) -> Result<Response, Problem> {
    definition::check(&definition)?;
    let key = header_text(&headers, "idempotency-key")?;
    if let Some(key) = &key
        && (key.is_empty() || key.len() > KEY_BYTES_MAX)
    {
        return Err(Problem::new(
            Kind::BadRequest,
            format!("Idempotency-Key: it has {} bytes; it must have 1 to {KEY_BYTES_MAX}", key.len()),
        ));
    }
    let request = format!("POST /v1/chains {}", String::from_utf8_lossy(&bytes));
    let answer = app.store().write(move |connection| {
        if let Some(key) = &key
            && let Some(answer) = answers::find(connection, caller.user, key, &request)?
        {
            return Ok(answer);
        }
        let defined = Defined::from(chain::insert(connection, caller.user, &definition)?);
        let body = serde_json::to_string(&defined)
            .map_err(|error| Problem::new(Kind::Internal, error.to_string()))?;
        let location = Some(format!("/v1/chains/{}", definition.name));
        let answer = Answer { status: 201, location, body };
        if let Some(key) = &key {
            answers::keep(connection, caller.user, key, &request, &answer)?;
        }
        Ok(answer)
    });
    let Answer { status, location, body } = answer.await?;
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::CREATED);
    let mut response = (status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
    if let Some(location) = location.and_then(|location| HeaderValue::try_from(location).ok()) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(with_revision(response, 1))
}

fn with_revision(mut response: Response, revision: i64) -> Response {
    if let Ok(value) = HeaderValue::try_from(format!("\"{revision}\"")) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response
}

/// Checks `If-Match`, if it was sent.
fn check_revision(wanted: Option<&str>, name: &str, revision: i64) -> Result<(), Problem> {
    let Some(wanted) = wanted else { return Ok(()) };
    let is = |one: &str| one == "*" || one == format!("\"{revision}\"");
    if wanted.split(',').any(|one| is(one.trim())) {
        return Ok(());
    }
    Err(Problem::new(
        Kind::PreconditionFailed,
        format!("chain {name} has revision {revision} now; read it again, and send that as If-Match"),
    ))
}

/// One chain
#[utoipa::path(get, path = "/v1/chains/{chain}", tag = "chains", operation_id = "get_chain",
    params(("chain" = String, Path, description = "Its name")),
    responses((status = 200, body = ChainView, headers(("ETag" = String, description = "The revision of its definition")))))]
pub(super) async fn get(
    State(app): State<Shared>,
    Segments(Name(name)): Segments<Name>,
) -> Result<Response, Problem> {
    let (kept, running) = find(&app, &name).await?;
    let revision = kept.as_ref().map(|kept| kept.revision);
    let response = Output(ChainView { name, defined: kept.map(Defined::from), running }).into_response();
    Ok(match revision {
        Some(revision) => with_revision(response, revision),
        None => response,
    })
}

/// Change a chain's definition
///
/// It holds from the chain's next start. With `If-Match` it is changed only if it still has that
/// revision.
#[utoipa::path(put, path = "/v1/chains/{chain}", tag = "chains", operation_id = "change_chain",
    params(("chain" = String, Path, description = "Its name"),
        ("If-Match" = Option<String>, Header, description = "The revision that is to be changed, as ETag has it")),
    request_body = ChainDefinition,
    responses((status = 200, body = Defined, headers(("ETag" = String, description = "Its revision")))))]
pub(super) async fn replace(
    State(app): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    Segments(Name(name)): Segments<Name>,
    Input(definition): Input<Definition>,
) -> Result<Response, Problem> {
    definition::check(&definition)?;
    if definition.name != name {
        return Err(Problem::invalid(
            "/name",
            format!("name is {}, and the path says {name}; a chain keeps its name", definition.name),
        ));
    }
    let wanted = header_list(&headers, "if-match")?;
    let defined = app.store().write(move |connection| {
        let before = chain::get(connection, &name)?;
        caller.check(&format!("chain {name}"), before.owner)?;
        check_revision(wanted.as_deref(), &name, before.revision)?;
        chain::replace(connection, &before, &definition)
    });
    let defined = Defined::from(defined.await?);
    let revision = defined.revision;
    Ok(with_revision(Output(defined).into_response(), revision))
}

/// Delete a chain's definition and history
///
/// One that runs must be stopped first.
#[utoipa::path(delete, path = "/v1/chains/{chain}", tag = "chains", operation_id = "delete_chain",
    params(("chain" = String, Path, description = "Its name"),
        ("If-Match" = Option<String>, Header, description = "The revision that is to be deleted, as ETag has it")),
    responses((status = 204, description = "It is gone")))]
pub(super) async fn delete(
    State(app): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    Segments(Name(name)): Segments<Name>,
) -> Result<StatusCode, Problem> {
    let wanted = header_list(&headers, "if-match")?;
    let look = name.clone();
    let runs = app.blocking(move |app| app.chains().look(&look)).await?.is_some();
    let deleted = app.store().write(move |connection| {
        let (owner, revision) = chain::owner_and_revision(connection, &name)?;
        caller.check(&format!("chain {name}"), owner)?;
        if runs {
            return Err(Problem::new(
                Kind::Conflict,
                format!("chain {name} runs; stop it first, with POST /v1/chains/{name}/stop"),
            ));
        }
        check_revision(wanted.as_deref(), &name, revision)?;
        chain::delete(connection, &name)
    });
    deleted.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Start a chain
///
/// It runs as a tenant of its own, and goes on when the daemon ends. What is left of one whose
/// process has died is ended first. A daemon starts chains of its own user alone, and sees no
/// others run: other users start, see and steer theirs with `partita chain`.
#[utoipa::path(post, path = "/v1/chains/{chain}/start", tag = "chains", operation_id = "start_chain",
    params(("chain" = String, Path, description = "Its name")),
    responses((status = 200, body = Running, description = "It runs")))]
pub(super) async fn start(
    State(app): State<Shared>,
    caller: Caller,
    Segments(Name(name)): Segments<Name>,
    NoBody: NoBody,
) -> Result<Output<Running>, Problem> {
    let (kept, running) = find(&app, &name).await?;
    let runs = || {
        Problem::new(Kind::Conflict, format!("chain {name} is running; stop it before you start it again"))
    };
    let Some(kept) = kept else { return Err(runs()) };
    caller.check(&format!("chain {name}"), kept.owner)?;
    if running.is_some_and(|running| running.supervised) {
        return Err(runs());
    }
    if kept.owner != app.user() {
        return Err(Problem::new(
            Kind::Forbidden,
            format!(
                "chain {name} is user {}'s, and this daemon runs as user {}, so its programs would get rights that are not theirs; start it \
                 with `partita chain start`, or from a daemon of your own",
                kept.owner,
                app.user()
            ),
        ));
    }
    let definition = kept.definition;
    Ok(Output(app.blocking(move |app| app.chains().start(&definition, START_LIMIT)).await?))
}

/// Stop a chain
///
/// No frame begins any more, those on their way are finished, and its components leave. What has
/// not left after `grace_s` is ended as a tenant is. Its definition and history stay.
#[utoipa::path(post, path = "/v1/chains/{chain}/stop", tag = "chains", operation_id = "stop_chain",
    params(("chain" = String, Path, description = "Its name"), End),
    responses(
        (status = 200, body = Ended, description = "It has ended"),
        (status = 202, description = "It is being ended and takes its time; it has ended when `running` is null")
    ))]
pub(super) async fn stop(
    State(app): State<Shared>,
    caller: Caller,
    Segments(Name(name)): Segments<Name>,
    Asked(end): Asked<End>,
    NoBody: NoBody,
) -> Result<Response, Problem> {
    let grace = grace(end.grace_s)?;
    let owner = owned(&app, &name, caller).await?;
    // Not any tenant of that name: one of the user who defined the chain, or a chain of the
    // daemon's.
    if owner.is_none() || owner != runs_for_other(&app, &name).await? {
        running(&app, &name).await?;
    }
    stop_tenant(&app, name, grace, move |app, name| {
        partita_chain_host::stop(app.install(), app.registry(), name, grace, caller.user)
    })
    .await
}
