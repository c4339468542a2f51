//! `/v1/tenants`: who shares the GPUs, with what limits and what use; changing the limits, and
//! ending.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use partita::error::Error;
use partita::kill;
use partita::limits::{Given, LimitSet, Refused, in_keys, option_of};
use partita::pace::TimesRow;
use partita::ps::TenantRow;
use partita::registry::Origin;
use partita::set::{self, SetOutcome, SetRequest, Whose};
use partita::slo::TargetRow;
use partita_core::ByteSize;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::{Asked, Input, Name, Output, Segments};
use super::limits::{changes, member_of};
use super::{App, Shared};
use crate::caller::Caller;
use crate::problem::{Kind, Problem};

/// How long processes may be given between SIGTERM and SIGKILL.
const GRACE_S_MAX: u32 = 20;
/// Additional time to wait for the end of a tenant before the answer says that it is still ending.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// A tenant.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct TenantView {
    /// Its name.
    name: String,
    /// Its owner.
    user: String,
    /// What it has on each of its GPUs, in the order in which its programs see them.
    parts: Vec<TenantPart>,
    /// The program and its arguments.
    command: Option<Vec<String>>,
    /// Whether its program was started.
    started: Option<bool>,
    /// Seconds since it was started.
    age_s: Option<u64>,
    /// Who wanted it: `request`, or `policy` for a program that was started without Partita, which
    /// the policy of the site limits.
    #[schema(example = "request")]
    origin: Option<&'static str>,
    /// What is wrong with it: a damaged file, or a process that its limits do not hold.
    problem: Option<String>,
}

/// What a tenant has on one GPU. What a damaged file would tell is missing.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct TenantPart {
    /// The GPU's short name.
    gpu: String,
    /// The GPU's UUID.
    gpu_uuid: Option<String>,
    /// Its TPCs, logical, as ranges; `all` without a partition.
    #[schema(example = "0-15,32")]
    tpcs: Option<String>,
    /// How many SMs they have.
    sms: Option<u32>,
    /// Device memory that its processes hold, in bytes.
    memory_used_bytes: Option<u64>,
    /// The most that they ever held together, in bytes.
    memory_peak_bytes: Option<u64>,
    /// Its limits.
    #[serde(flatten, serialize_with = "LimitSet::in_rest")]
    #[schema(ignore)]
    limits: LimitSet,
    /// Device memory that the driver has taken for itself in its processes, in bytes.
    memory_driver_bytes: Option<u64>,
    /// Host memory that its processes have instead, in bytes.
    memory_spilled_bytes: Option<u64>,
    /// Kernel launches of its living processes so far.
    launches: Option<u64>,
    /// Its bursts of work: from a process's first launch after a rest to the end of all of its
    /// work, where that end is seen.
    bursts: Option<TimesView>,
    /// Launches of these bursts, as far as launches are counted.
    burst_launches: Option<u64>,
    /// The part of the time since its start inside bursts, in percent; above 100 where several
    /// processes were busy at once. None before the first burst has ended.
    #[schema(example = 37.5)]
    duty_percent: Option<f64>,
    /// The steps that its programs name themselves, on the first GPU that they see.
    steps: Option<TimesView>,
    /// How its target stands; none without a target.
    target: Option<TargetView>,
    /// Its share of the GPU's time, in percent.
    time_share_percent: Option<f64>,
    /// What of the GPU's time it used over about the last second, in percent.
    time_used_percent: Option<f64>,
    /// Its processes that use the GPU.
    processes: Vec<TenantProcess>,
}

/// Times that a tenant's processes have counted since its start: of the dead ones, too.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(super) struct TimesView {
    /// How many.
    count: u64,
    /// Their sum, in seconds.
    sum_s: f64,
    /// The time that half of them do not exceed, in microseconds, within a 64th between 2 µs
    /// and 275 s; none without times.
    p50_us: Option<f64>,
    /// The time that 99 of 100 do not exceed, likewise.
    p99_us: Option<f64>,
}

impl From<TimesRow> for TimesView {
    fn from(row: TimesRow) -> Self {
        Self { count: row.count, sum_s: row.sum_s, p50_us: row.p50_us, p99_us: row.p99_us }
    }
}

/// How a target stands.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(super) struct TargetView {
    /// The longest time for 99 of 100 bursts or steps, in microseconds; none before its own time is
    /// learnt.
    bound_us: Option<f64>,
    /// What 99 of 100 of the last ones took at most, in microseconds.
    p99_us: Option<f64>,
    /// Whether the target holds; none as long as that is not known.
    holds: Option<bool>,
    /// Whether it is violated with all TPCs that the tenant can have.
    unmet: bool,
    /// The fewest TPCs on which it is known to hold.
    enough_tpcs: Option<u32>,
}

impl From<&TargetRow> for TargetView {
    fn from(row: &TargetRow) -> Self {
        let TargetRow { bound_us, p99_us, holds, unmet, enough_tpcs } = *row;
        Self { bound_us, p99_us, holds, unmet, enough_tpcs }
    }
}

/// A process of a tenant.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct TenantProcess {
    /// Its number, as it sees it itself.
    pid: i32,
    /// Device memory that it holds, in bytes.
    memory_bytes: u64,
    /// Its kernel launches so far.
    launches: u64,
    /// Its allocations that the quota refused.
    refused_allocations: u64,
}

impl TenantPart {
    fn of(row: &TenantRow) -> Self {
        Self {
            gpu: row.gpu.clone(),
            gpu_uuid: row.gpu_uuid.clone(),
            tpcs: row.tpcs.clone(),
            sms: row.sms,
            memory_used_bytes: row.memory_used_bytes,
            memory_peak_bytes: row.memory_peak_bytes,
            limits: row.limits,
            memory_driver_bytes: row.memory_driver_bytes,
            memory_spilled_bytes: row.memory_spilled_bytes,
            launches: row.launches,
            bursts: row.bursts.map(TimesView::from),
            burst_launches: row.burst_launches,
            duty_percent: row.duty_percent,
            steps: row.steps.map(TimesView::from),
            target: row.target.as_ref().map(TargetView::from),
            time_share_percent: row.time.map(|time| time.share_percent),
            time_used_percent: row.time.and_then(|time| time.used_percent),
            processes: row
                .processes
                .iter()
                .map(|process| TenantProcess {
                    pid: process.pid,
                    memory_bytes: process.memory_bytes,
                    launches: process.launches,
                    refused_allocations: process.refused_allocations,
                })
                .collect(),
        }
    }
}

/// Rows of the same name and user are one tenant.
pub(super) fn views(rows: &[TenantRow]) -> Vec<TenantView> {
    let mut views: Vec<TenantView> = Vec::new();
    for row in rows {
        let at = views
            .iter()
            .position(|view| (&view.name, &view.user) == (&row.name, &row.user))
            .unwrap_or_else(|| {
                views.push(TenantView {
                    name: row.name.clone(),
                    user: row.user.clone(),
                    parts: Vec::new(),
                    command: row.command.clone(),
                    started: row.started,
                    age_s: row.age_s,
                    origin: row.origin.map(Origin::name),
                    problem: None,
                });
                views.len() - 1
            });
        let view = &mut views[at];
        view.command = view.command.take().or_else(|| row.command.clone());
        view.started = view.started.or(row.started);
        view.age_s = view.age_s.or(row.age_s);
        view.origin = view.origin.or_else(|| row.origin.map(Origin::name));
        view.problem = match (view.problem.take(), &row.problem) {
            (Some(first), Some(next)) if first != *next => Some(format!("{first}; {next}")),
            (first, next) => first.or_else(|| next.clone()),
        };
        view.parts.push(TenantPart::of(row));
    }
    views
}

/// Every tenant of this machine
#[utoipa::path(get, path = "/v1/tenants", tag = "tenants", operation_id = "list_tenants",
    responses((status = 200, body = [TenantView])))]
pub(super) async fn list(State(app): State<Shared>) -> Result<Output<Vec<TenantView>>, Problem> {
    let rows = app.blocking(|app| Ok(partita::ps::ps(app.registry())?)).await?;
    Ok(Output(views(&rows)))
}

/// One tenant
#[utoipa::path(get, path = "/v1/tenants/{tenant}", tag = "tenants", operation_id = "get_tenant",
    params(("tenant" = String, Path, description = "Its name")),
    responses((status = 200, body = TenantView)))]
pub(super) async fn get(
    State(app): State<Shared>,
    Segments(Name(name)): Segments<Name>,
) -> Result<Output<TenantView>, Problem> {
    let view = app.blocking(move |app| {
        let rows = partita::ps::ps(app.registry())?;
        let found = views(&rows).into_iter().find(|view| view.name == name);
        match found {
            Some(view) => Ok(view),
            // Lists the existing ones.
            None => {
                app.registry().lock()?.tenant(&name)?;
                Err(Problem::not_found(format!("tenant {name} has just begun; ask again")))
            }
        }
    });
    Ok(Output(view.await?))
}

/// New limits; what is left out stays.
#[derive(Debug, Clone, ToSchema)]
pub(super) struct TenantChange {
    /// On which of its GPUs, as `--gpu` takes them; none for all.
    #[schema(min_length = 1)]
    gpu: Option<String>,
    /// The limits.
    #[schema(ignore)]
    limits: Given,
    /// Whether others make room, as few as need be.
    #[schema(required = false)]
    compact: bool,
}

/// As `#[serde(flatten)]` would, but each value is read as its member comes.
impl<'de> Deserialize<'de> for TenantChange {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = TenantChange;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<TenantChange, A::Error> {
                let (mut gpu, mut compact, mut limits) = (None, None, Given::default());
                while let Some(name) = members.next_key::<String>()? {
                    match &*name {
                        "gpu" if gpu.is_some() => return Err(A::Error::duplicate_field("gpu")),
                        "gpu" => gpu = Some(members.next_value()?),
                        "compact" if compact.is_some() => return Err(A::Error::duplicate_field("compact")),
                        "compact" => compact = Some(members.next_value()?),
                        _ => changes().read(&name, &mut members, &mut limits)?,
                    }
                }
                Ok(TenantChange { gpu: gpu.flatten(), limits, compact: compact.unwrap_or_default() })
            }
        }

        from.deserialize_map(Members)
    }
}

impl TenantChange {
    fn request(&self, name: String) -> Result<SetRequest, Problem> {
        let invalid =
            |field: &str, error: String| Problem::invalid(format!("/{field}"), format!("{field}: {error}"));
        let limits = self.limits.read().map_err(|refused| {
            let Refused { name, error, .. } = refused;
            invalid(name, error.to_string())
        })?;
        if limits.memory == Some(ByteSize(0).into()) {
            let name = self.limits.name_of("mem").unwrap_or("mem");
            let reason = "a program without device memory cannot start; give at least 1MiB, or leave it out";
            return Err(invalid(name, reason.to_owned()));
        }
        if self.limits.is_empty() && !self.compact {
            return Err(Problem::new(Kind::Invalid, "nothing to change; give sm, mem or another limit"));
        }
        let gpus = self.gpu.as_deref().map(str::parse).transpose();
        let gpus = gpus.map_err(|error| {
            let mut problem = self.refused(error);
            problem.field = Some("/gpu".to_owned());
            problem
        })?;
        Ok(SetRequest { whose: Whose::Name(name), gpus, limits, compact: self.compact })
    }

    /// A refusal in the names of the body, where commands have options.
    fn refused(&self, error: Error) -> Problem {
        let key = |option: &str| member_of(option, &self.limits);
        let text = error.to_string();
        let field = text.strip_prefix("--").and_then(|rest| key(option_of(rest)));
        let mut problem = Problem::new(Problem::from(error).code(), in_keys(&text, key));
        problem.field = field.map(|field| format!("/{field}"));
        problem
    }
}

/// The limits on one GPU as they are now.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct LimitsView {
    /// The GPU's short name.
    gpu: String,
    /// Its TPCs, logical, as ranges.
    tpcs: String,
    /// How many SMs they have.
    sms: u32,
    /// Its share as it was asked for, and how far it borrows: `10%..40tpc`.
    sm: Option<String>,
    /// Its quota, in bytes.
    memory_quota_bytes: Option<u64>,
    /// What it holds of it, in bytes.
    memory_used_bytes: u64,
    /// Its share of the GPU's time, in percent.
    time_share_percent: Option<f64>,
    /// Who made room: tenants whose TPCs are others now.
    moved: Vec<String>,
}

impl From<SetOutcome> for LimitsView {
    fn from(now: SetOutcome) -> Self {
        Self {
            gpu: now.gpu,
            tpcs: now.tpcs,
            sms: now.sms,
            sm: now.sm,
            memory_quota_bytes: now.memory_quota_bytes,
            memory_used_bytes: now.memory_used_bytes,
            time_share_percent: now.time.map(|time| time.share_percent),
            moved: now.moves.into_iter().map(|made| made.tenant).collect(),
        }
    }
}

/// Change a tenant's limits
///
/// As `partita set`: they hold from its next launch and its next allocation on. All GPUs are
/// changed, or none.
#[utoipa::path(patch, path = "/v1/tenants/{tenant}", tag = "tenants", operation_id = "change_tenant",
    params(("tenant" = String, Path, description = "Its name")),
    request_body = TenantChange,
    responses((status = 200, body = [LimitsView], description = "The limits as they are now, one a GPU")))]
pub(super) async fn change(
    State(app): State<Shared>,
    caller: Caller,
    Segments(Name(name)): Segments<Name>,
    Input(change): Input<TenantChange>,
) -> Result<Output<Vec<LimitsView>>, Problem> {
    let request = change.request(name)?;
    let outcomes = app.blocking(move |app| {
        set::set_for(app.registry(), &request, caller.user).map_err(|error| change.refused(error))
    });
    let outcomes = outcomes.await?;
    Ok(Output(outcomes.into_iter().map(LimitsView::from).collect()))
}

/// How a tenant is ended.
#[derive(Debug, Clone, Copy, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct End {
    /// Seconds between SIGTERM and SIGKILL, 0 to 20 [default: 5].
    #[param(minimum = 0, maximum = 20)]
    pub grace_s: Option<u32>,
}

/// What ending a tenant came to.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Ended {
    /// How many processes were ended.
    processes: usize,
    /// What did not go as it should, though the tenant is gone.
    notices: Vec<String>,
}

/// End a tenant
///
/// As `partita kill`: its work on the GPU first, so that its neighbours are not hurt, then its
/// processes.
#[utoipa::path(delete, path = "/v1/tenants/{tenant}", tag = "tenants", operation_id = "end_tenant",
    params(("tenant" = String, Path, description = "Its name"), End),
    responses(
        (status = 200, body = Ended, description = "It is gone"),
        (status = 202, description = "It is being ended and takes its time; it is gone when it is no longer found")
    ))]
pub(super) async fn end(
    State(app): State<Shared>,
    caller: Caller,
    Segments(Name(name)): Segments<Name>,
    Asked(End { grace_s }): Asked<End>,
) -> Result<Response, Problem> {
    let grace = grace(grace_s)?;
    stop(&app, name, grace, move |app, name| {
        kill::kill_for(app.install(), app.registry(), name, grace, caller.user)
    })
    .await
}

/// The time between SIGTERM and SIGKILL.
pub(super) fn grace(grace_s: Option<u32>) -> Result<Duration, Problem> {
    match grace_s {
        None => Ok(kill::GRACE_DEFAULT),
        Some(seconds @ 0..=GRACE_S_MAX) => Ok(Duration::from_secs(seconds.into())),
        Some(seconds) => Err(Problem::new(
            Kind::BadRequest,
            format!(
                "grace_s is {seconds}; it must be 0 to {GRACE_S_MAX}, and --grace of `partita kill` and \
                 `partita chain stop` takes more"
            ),
        )),
    }
}

/// Ends a tenant by `end`; one that takes long continues to end after the answer.
pub(super) async fn stop(
    app: &Shared,
    name: String,
    grace: Duration,
    end: impl FnOnce(&App, &str) -> Result<kill::KillOutcome, Error> + Send + 'static,
) -> Result<Response, Problem> {
    let app = app.clone();
    let mut ending = tokio::spawn(async move {
        let what = name.clone();
        let ended = app.blocking(move |app| Ok(end(app, &name)?)).await;
        if let Err(problem) = &ended {
            tracing::info!(tenant = what, detail = problem.detail, "a tenant was not ended");
        }
        ended
    });
    match tokio::time::timeout(grace + END_PATIENCE, &mut ending).await {
        Ok(Ok(outcome)) => {
            let kill::KillOutcome { processes, notices } = outcome?;
            Ok(Output(Ended { processes, notices }).into_response())
        }
        Ok(Err(error)) => Err(Problem::new(Kind::Internal, format!("ending it was given up: {error}"))),
        Err(_) => Ok(StatusCode::ACCEPTED.into_response()),
    }
}
