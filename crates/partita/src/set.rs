//! `partita set`: other limits for a tenant that runs.
//!
//! The new limits hold from the tenant's next launch and its next allocation
//! on. Kernels that run keep the TPCs that they began with.

use std::collections::BTreeSet;

use partita_core::{ByteSize, Share, TpcSet};
use partita_ledger::{Limits, LimitsFile, NO_QUOTA};
use serde::Serialize;

use crate::error::Error;
use crate::limits::{self, OnMisfit};
use crate::partition::{self, ClusterRow, MoveRow, PartitionRow, Place, Wanted};
use crate::registry::{Registry, RegistryLock, Tenant, c_path};

/// Which tenant.
#[derive(Debug, Clone)]
pub enum Whose {
    /// The one of this name.
    Name(String),
    /// The one that this process is of.
    Pid(u32),
}

impl Whose {
    /// Finds it.
    ///
    /// # Errors
    /// [`Error::NoSuchTenant`], [`Error::NoTenantOfProcess`], [`Error::Io`].
    pub fn find(&self, lock: &RegistryLock<'_>) -> Result<Tenant, Error> {
        match self {
            Self::Name(name) => lock.tenant(name),
            Self::Pid(pid) => lock.tenant_of(*pid),
        }
    }
}

/// What to change. What is none stays.
#[derive(Debug, Clone)]
pub struct SetRequest {
    /// The tenant.
    pub whose: Whose,
    /// `--sm`.
    pub share: Option<Share>,
    /// `--mem`.
    pub memory: Option<ByteSize>,
    /// `--on-misfit`.
    pub on_misfit: Option<OnMisfit>,
    /// `--place`; none for as the tenant was placed before.
    pub place: Option<Place>,
    /// `--compact`: others make room, as few as need be.
    pub compact: bool,
}

/// The limits as they are now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SetOutcome {
    /// The tenant.
    pub name: String,
    /// Its TPCs, logical, as ranges.
    pub tpcs: String,
    /// How many SMs they have.
    pub sms: u32,
    /// Its memory quota in bytes, if it has one.
    pub memory_quota_bytes: Option<u64>,
    /// What it holds of it, in bytes.
    pub memory_used_bytes: u64,
    /// What happens to launches that cannot fit.
    pub on_misfit: OnMisfit,
    /// What clusters of blocks it can run; none on devices without clusters.
    pub clusters: Option<ClusterRow>,
    /// Who made room.
    pub moves: Vec<MoveRow>,
}

/// Changes a tenant's limits.
///
/// # Errors
/// [`Error::NoSuchTenant`], [`Error::NoTenantOfProcess`], [`Error::NotYours`], [`Error::Plan`], the quota
/// errors, and [`Error::DamagedTenant`]; the limits are unchanged then.
pub fn set(registry: &Registry, request: &SetRequest) -> Result<SetOutcome, Error> {
    let lock = registry.lock()?;
    let tenant = request.whose.find(&lock)?;
    tenant.check_yours()?;
    let before = tenant.limits()?.clone();
    let topology = limits::topology(&before).map_err(|reason| tenant.damaged_limits(&reason))?;
    let tenants = lock.tenants()?;
    let gpcs_proved = before.flags & partita_ledger::FLAG_GPCS_UNPROVED == 0;
    limits::check_share(request.share.as_ref(), gpcs_proved)?;
    partition::check_place(request.place, request.share.as_ref(), gpcs_proved)?;
    let planned = match request.share.or_else(|| request.compact.then(|| share_of(&tenant, &before))) {
        Some(share) => Some(partition::plan(&Wanted {
            topology: &topology,
            tenants: &tenants,
            gpu_key: &tenant.gpu_key,
            name: Some(&tenant.name),
            share,
            place: request
                .place
                .unwrap_or_else(|| tenant.meta().map_or_else(|_| Place::default(), |meta| meta.place)),
            compact: request.compact,
        })?),
        None => None,
    };
    if let Some(quota) = request.memory {
        let others =
            tenants.iter().filter(|other| other.gpu_key == tenant.gpu_key && other.name != tenant.name);
        let label = tenant.meta.as_ref().map_or(tenant.gpu_key.as_str(), |meta| &meta.gpu.label);
        limits::check_quota(quota, before.memory_total_bytes, label, others)?;
    }
    if let Some(planned) = &planned {
        partition::store(&planned.stores, &tenants, &tenant.gpu_key, &topology)?;
    }
    let mut file = LimitsFile::open_rw(&c_path(&tenant.limits_path())?)
        .map_err(|error| tenant.damaged_limits(&error.to_string()))?;
    file.update(|limits| {
        if let Some(planned) = &planned {
            limits::set_partition(limits, &topology, &planned.plan.set);
        }
        if let Some(quota) = request.memory {
            limits.memory_quota_bytes = quota.0;
        }
        if let Some(on_misfit) = request.on_misfit {
            on_misfit.put(limits);
        }
    })
    .map_err(|error| tenant.damaged_limits(&error.to_string()))?;
    let (_, now) = file.load().map_err(|error| tenant.damaged_limits(&error.to_string()))?;
    if request.share.is_some() || request.place.is_some() {
        // For `ps` and later plans; the limits are what counts.
        let _ = tenant.update_share(request.share.map(|share| share.to_string()), request.place);
    }
    let set = TpcSet::from_words(now.set);
    Ok(SetOutcome {
        name: tenant.name.clone(),
        tpcs: set.to_string(),
        sms: set.len() * now.sms_per_tpc,
        memory_quota_bytes: Some(now.memory_quota_bytes).filter(|&quota| quota != NO_QUOTA),
        on_misfit: OnMisfit::of(&now),
        clusters: PartitionRow::of(&now).ok().and_then(|row| row.clusters),
        moves: planned.iter().flat_map(|planned| &planned.moves).map(MoveRow::from).collect(),
        memory_used_bytes: tenant.usage()?.totals().map_or(0, |totals| totals.used),
    })
}

/// What a tenant asks for that is only to be placed anew: the TPCs that it named, or as many as it has.
fn share_of(tenant: &Tenant, limits: &Limits) -> Share {
    let set = TpcSet::from_words(limits.set);
    if partition::has_named(tenant) { Share::Exact(set) } else { Share::Tpcs(set.len()) }
}

/// Brings tenants that came and went back into few GPCs, on every GPU: those of the caller that are packed and named no TPCs. Returns who
/// moved.
///
/// # Errors
/// [`Error::Plan`], [`Error::DamagedTenant`], [`Error::RunDirectory`], [`Error::Io`].
pub fn repack(registry: &Registry) -> Result<Vec<MoveRow>, Error> {
    let lock = registry.lock()?;
    let tenants = lock.tenants()?;
    let gpus: BTreeSet<&str> = tenants.iter().map(|tenant| tenant.gpu_key.as_str()).collect();
    let mut moves = Vec::new();
    for gpu_key in gpus {
        moves.extend(partition::repack(&tenants, gpu_key)?);
    }
    Ok(moves)
}
