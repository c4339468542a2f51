//! `/v1/gpus`: the GPUs that are served.

use std::time::Instant;

use axum::extract::State;
use partita::gpu::{Gpu, Selector};
use partita::groups::GpuGroups;
use partita::ps::TenantRow;
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::{Output, Segments, short};
use super::units::Units;
use super::{App, Shared};
use crate::problem::{Kind, Problem};

/// A GPU.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct GpuView {
    /// What names it in paths and as `gpu` of a definition.
    #[schema(example = "GPU-9b1b0b8e-0000-1111-2222-333344445555")]
    selector: String,
    /// NVML's index of it.
    index: u32,
    /// Its short name.
    label: String,
    /// Its UUID.
    uuid: String,
    /// The product's name.
    name: String,
    /// Its place on the bus.
    pci: Option<String>,
    /// The driver's build.
    driver_version: String,
    /// The newest CUDA that the driver serves.
    #[schema(example = "13.0")]
    cuda_version: String,
    /// Major and minor number.
    #[schema(example = "9.0")]
    compute_capability: String,
    /// Device memory, in bytes.
    memory_total_bytes: u64,
    /// What of it is in use by anybody, in bytes.
    memory_used_bytes: u64,
    /// SMs; null if the GPU was never measured and has no tenant.
    sms: Option<u32>,
    /// SMs that no tenant has; null also where MPS divides them.
    free_sms: Option<u32>,
    /// The part of the last moments in which at least one kernel ran, in percent, as NVML reports
    /// it; null if it does not.
    utilization_percent: Option<u32>,
    /// The part of them in which device memory was read or written, in percent, as NVML reports it;
    /// null if it does not.
    memory_utilization_percent: Option<u32>,
    /// Whether MIG is enabled; null if the GPU does not support it.
    mig_enabled: Option<bool>,
    /// Its compute mode.
    compute_mode: String,
    /// Whether it is a simulated one.
    simulated: bool,
}

impl GpuView {
    /// `tenants`: those of all GPUs.
    pub fn of(app: &App, gpu: &Gpu, tenants: &[TenantRow]) -> Self {
        let facts = &gpu.facts;
        let Units { sms, free_sms } = Units::of(app.install(), gpu, tenants);
        Self {
            selector: gpu.selector().to_string(),
            index: facts.index,
            label: gpu.label(),
            uuid: facts.uuid.clone(),
            name: facts.name.clone(),
            pci: facts.pci.clone(),
            driver_version: gpu.driver_version.clone(),
            cuda_version: gpu.cuda_version_text(),
            compute_capability: gpu.compute_capability_text(),
            memory_total_bytes: facts.memory_total_bytes,
            memory_used_bytes: facts.memory_used_bytes,
            sms,
            free_sms,
            utilization_percent: facts.utilization_percent,
            memory_utilization_percent: facts.memory_utilization_percent,
            mig_enabled: facts.mig_enabled,
            compute_mode: facts.compute_mode.clone(),
            simulated: gpu.sim().is_some(),
        }
    }
}

/// Every GPU that is served
#[utoipa::path(get, path = "/v1/gpus", tag = "machine", operation_id = "list_gpus",
    responses((status = 200, body = [GpuView])))]
pub(super) async fn list(State(app): State<Shared>) -> Result<Output<Vec<GpuView>>, Problem> {
    let gpus = app.gpus().await?;
    let views = app.blocking(move |app| {
        let tenants = partita::ps::ps(app.registry())?;
        Ok(gpus.iter().map(|gpu| GpuView::of(app, gpu, &tenants)).collect())
    });
    Ok(Output(views.await?))
}

/// One GPU
#[utoipa::path(get, path = "/v1/gpus/{gpu}", tag = "machine", operation_id = "get_gpu",
    params(("gpu" = String, Path, description = "An index, a UUID or its unique beginning, or sim:NAME")),
    responses((status = 200, body = GpuView)))]
pub(super) async fn get(
    State(app): State<Shared>,
    Segments(gpu): Segments<String>,
) -> Result<Output<GpuView>, Problem> {
    let gpu = find(&app, &gpu).await?;
    let view = app.blocking(move |app| Ok(GpuView::of(app, &gpu, &partita::ps::ps(app.registry())?)));
    Ok(Output(view.await?))
}

/// Where the units of a GPU lie, who holds them, and how that is known
///
/// The JSON of `partita topology --json`. A GPU that was never measured is measured now, which
/// takes a moment.
#[utoipa::path(get, path = "/v1/gpus/{gpu}/topology", tag = "machine", operation_id = "get_topology",
    params(("gpu" = String, Path, description = "An index, a UUID or its unique beginning, or sim:NAME")),
    responses((status = 200, body = Object, description = "The chart; `schema` is its version")))]
pub(super) async fn topology(
    State(app): State<Shared>,
    Segments(gpu): Segments<String>,
) -> Result<Output<partita::topology::Chart>, Problem> {
    let gpu = find(&app, &gpu).await?;
    let refuse = |error: partita::Error| Problem::new(Kind::Conflict, error.to_string());
    partita::run::check_usable(&gpu).map_err(refuse)?;
    let begin = Instant::now();
    let chart = app.blocking(move |app| {
        partita::topology::examine(app.install(), &gpu, false, begin).map_err(Problem::from)
    });
    Ok(Output(chart.await?))
}

/// Logs which names in `--gpu-groups` no served GPU has: a typing mistake there leaves a GPU open
/// to every user. A GPU that has failed is no reason not to start.
pub async fn check_groups(app: Shared, groups: GpuGroups) {
    if groups.is_empty() {
        return;
    }
    match app.gpus().await {
        Ok(gpus) => {
            for gpu in groups.without_gpu(&gpus) {
                tracing::warn!(
                    gpu,
                    "--gpu-groups names a GPU that is not served here, and so restricts none; `partita \
                     devices` lists the GPUs"
                );
            }
        }
        Err(problem) => tracing::warn!(detail = problem.detail, "--gpu-groups: the GPUs are not known"),
    }
}

/// The served GPU that a path names.
pub(super) async fn find(app: &Shared, text: &str) -> Result<Gpu, Problem> {
    let gpus = app.gpus().await?;
    let labels = || gpus.iter().map(Gpu::label).collect::<Vec<_>>().join(", ");
    let unknown = |reason: &str| {
        Problem::not_found(format!(
            "there is no GPU {:?} here: {reason}; there are {}",
            short(text),
            labels()
        ))
    };
    let selector: Selector =
        text.parse().map_err(|_| unknown("it is not an index, a UUID or a simulated GPU"))?;
    let is = |gpu: &&Gpu| match &selector {
        Selector::Index(index) => gpu.facts.index == *index,
        Selector::Uuid(uuid) => gpu.facts.uuid.to_ascii_lowercase().starts_with(&uuid.to_ascii_lowercase()),
        sim => gpu.selector() == *sim,
    };
    let mut found = gpus.iter().filter(is);
    match (found.next(), found.next()) {
        (Some(gpu), None) => Ok(gpu.clone()),
        (Some(_), Some(_)) => Err(Problem::new(
            Kind::NotFound,
            format!("GPU {:?}: more than one matches; there are {}", short(text), labels()),
        )),
        (None, _) => Err(unknown("it is not served")),
    }
}
