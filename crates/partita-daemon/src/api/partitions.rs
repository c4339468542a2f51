//! `/v1/partitions`: which TPCs of each GPU are whose.

use axum::extract::State;
use partita::ps::{GpcRow, TenantRow};
use serde::Serialize;
use utoipa::ToSchema;

use super::Shared;
use super::extract::Output;
use crate::problem::Problem;

/// What a tenant holds of a GPU's TPCs.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Partition {
    /// The GPU's short name.
    gpu: String,
    /// The GPU's UUID.
    gpu_uuid: Option<String>,
    /// The tenant.
    tenant: String,
    /// Its TPCs, logical, as ranges; `all` without a partition of its own.
    tpcs: Option<String>,
    /// How many SMs they have.
    sms: Option<u32>,
    /// How many SMs the GPU has.
    sms_of_device: Option<u32>,
    /// What they are of each GPC, where GPCs are proved.
    gpcs: Option<Vec<PartOfGpc>>,
}

/// TPCs of one GPC.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct PartOfGpc {
    /// The GPC.
    gpc: u8,
    /// How many of its TPCs.
    tpcs: u32,
    /// How many it has.
    tpcs_of_gpc: u32,
}

impl From<&TenantRow> for Partition {
    fn from(row: &TenantRow) -> Self {
        let part = |&GpcRow { gpc, tpcs, tpcs_of_gpc }: &GpcRow| PartOfGpc { gpc, tpcs, tpcs_of_gpc };
        Self {
            gpu: row.gpu.clone(),
            gpu_uuid: row.gpu_uuid.clone(),
            tenant: row.name.clone(),
            tpcs: row.tpcs.clone(),
            sms: row.sms,
            sms_of_device: row.sms_of_device,
            gpcs: row.gpcs.as_ref().map(|gpcs| gpcs.iter().map(part).collect()),
        }
    }
}

/// Every partition of this machine's GPUs
#[utoipa::path(get, path = "/v1/partitions", tag = "tenants", operation_id = "list_partitions",
    responses((status = 200, body = [Partition])))]
pub(super) async fn list(State(app): State<Shared>) -> Result<Output<Vec<Partition>>, Problem> {
    let rows = app.blocking(|app| Ok(partita::ps::ps(app.registry())?)).await?;
    Ok(Output(rows.iter().map(Partition::from).collect()))
}
