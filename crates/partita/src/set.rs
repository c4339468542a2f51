//! `partita set`: other limits for a tenant that runs.
//!
//! The new limits hold from the tenant's next launch and its next allocation
//! on. Kernels that run keep the TPCs that they began with.

use partita_core::{ByteSize, Share, TpcSet};
use partita_ledger::{LimitsFile, NO_QUOTA};
use serde::Serialize;

use crate::error::Error;
use crate::limits::{self, OnMisfit};
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
    let partition = match &request.share {
        Some(share) => {
            limits::check_share(Some(share), before.flags & partita_ledger::FLAG_GPCS_UNPROVED == 0)?;
            let present = RegistryLock::present(&tenants, &tenant.gpu_key)?;
            let plan = partita_core::replan(&topology, &present, &tenant.name, share)
                .map_err(|error| Error::Plan { reason: error.to_string() })?;
            Some(plan.set)
        }
        None => None,
    };
    if let Some(quota) = request.memory {
        let others =
            tenants.iter().filter(|other| other.gpu_key == tenant.gpu_key && other.name != tenant.name);
        let label = tenant.meta.as_ref().map_or(tenant.gpu_key.as_str(), |meta| &meta.gpu.label);
        limits::check_quota(quota, before.memory_total_bytes, label, others)?;
    }
    let mut file = LimitsFile::open_rw(&c_path(&tenant.limits_path())?)
        .map_err(|error| tenant.damaged_limits(&error.to_string()))?;
    file.update(|limits| {
        if let Some(set) = &partition {
            limits::set_partition(limits, &topology, set);
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
    if let Some(share) = &request.share {
        // For `ps` alone; the limits are what counts.
        let _ = tenant.update_share(share.to_string());
    }
    let set = TpcSet::from_words(now.set);
    Ok(SetOutcome {
        name: tenant.name.clone(),
        tpcs: set.to_string(),
        sms: set.len() * now.sms_per_tpc,
        memory_quota_bytes: Some(now.memory_quota_bytes).filter(|&quota| quota != NO_QUOTA),
        on_misfit: OnMisfit::of(&now),
        memory_used_bytes: tenant.usage()?.totals().map_or(0, |totals| totals.used),
    })
}
