//! Promises of memory are kept: tenants without one are held to what is not promised.
//!
//! A tenant that was started without `--mem` has a quota while another tenant of its GPU has a
//! promise, and none otherwise. The command that makes, changes or removes a tenant divides the
//! rest again: first some quotas become smaller, then others larger. A tenant may allocate at the
//! same moment. So the command reads the use after it lowered a quota, and the hook reads the quota
//! after it charged an allocation: one of the two sees the other.
//!
//! What the policy of the site reserves for users counts as promised to them: others get no promise
//! of what its users do not have of it, and do not grow into it ([`kept`]).
//!
//! A command writes the quotas of tenants whose files its user may write. In system mode these are
//! all; otherwise tenants of other users without a promise are not held.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{Ordering, fence};

use partita_core::ByteSize;
use partita_core::memory::{Claim, RESERVE_BYTES, Reserve, To, divide, most, unused};
use partita_ledger::{DRIVER_ALLOWANCES, FLAG_MEMORY_REST, Limits, NO_QUOTA};

use super::tenant::{GpuMeta, Tenant};
use super::user::acting_user;
use crate::error::Error;
use crate::policy::{Kept, Rules, user_of};

/// How often quotas are lowered again because a tenant has allocated meanwhile. It has then used a
/// part of what its quota still allowed, so each round leaves it less to allocate.
const ROUNDS_MAX: usize = 64;

/// A promise of memory that a new tenant or a changed one is to get on a GPU, or the place of a new
/// tenant without one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The GPU's key.
    pub gpu_key: &'a str,
    /// Its short name.
    pub gpu: &'a str,
    /// Its memory.
    pub total_bytes: u64,
    /// The quota, if there is to be one.
    pub quota: Option<ByteSize>,
    /// What the driver may take for itself in a process, free of charge.
    pub driver_allowance: u64,
    /// The tenant, if it exists.
    pub tenant: Option<&'a Tenant>,
    /// What is reserved on the GPU.
    pub kept: &'a [Kept],
}

impl<'a> Wanted<'a> {
    fn claim(&self) -> Claim {
        let driver = self.tenant.map_or(0, |tenant| claim_of(tenant).driver);
        let to = self.quota.map_or(To::Rest(0), |quota| To::Promise(quota.0));
        let user = self.tenant.map_or_else(acting_user, |tenant| tenant.user);
        Claim { to, driver: driver.max(self.driver_allowance), user }
    }

    /// What it claims in place of what the tenant claims now.
    fn change(&self) -> (Option<Claim>, Claim) {
        (self.tenant.map(claim_of), self.claim())
    }

    /// The other tenants of the GPU.
    fn others(&self, tenants: &'a [Tenant]) -> Vec<&'a Tenant> {
        let is_other = |tenant: &&Tenant| {
            tenant.gpu_key == self.gpu_key
                && tenant.counts()
                && !self.tenant.is_some_and(|this| this.is_of_same(tenant))
        };
        tenants.iter().filter(is_other).collect()
    }

    /// Checks whether there is room for it, and changes nothing.
    ///
    /// # Errors
    /// [`Error::QuotaZero`], [`Error::QuotaAboveDevice`], [`Error::MemoryPromised`].
    pub fn check(&self, tenants: &'a [Tenant]) -> Result<(), Error> {
        let (gpu, total) = (self.gpu.to_owned(), ByteSize(self.total_bytes));
        match self.quota {
            Some(ByteSize(0)) => return Err(Error::QuotaZero),
            Some(wanted) if wanted.0 > total.0 => {
                return Err(Error::QuotaAboveDevice { wanted, total, gpu });
            }
            _ => {}
        }
        let others = self.others(tenants);
        match fits(self.total_bytes, &claims(&others, None), self.change(), &reserves(self.kept)) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.refusal(tenants)),
        }
    }

    /// What could be promised to it now.
    pub fn free_bytes(&self, tenants: &'a [Tenant]) -> u64 {
        let (before, claim) = self.change();
        let others = claims(&self.others(tenants), None);
        most(self.total_bytes, &others, before, claim, &reserves(self.kept)).unwrap_or(0)
    }

    /// What is reserved for its user, not in use, and can be promised to it now, in whole MiB.
    pub fn own_reserve(&self, tenants: &'a [Tenant]) -> Option<ByteSize> {
        let claim = self.claim();
        let unused = unused(&claims(&self.others(tenants), None), &reserves(self.kept));
        let own = self.kept.iter().zip(unused).filter(|(kept, _)| kept.reserve.users.contains(&claim.user));
        let own: u64 = own.map(|(_, bytes)| bytes).fold(0, u64::saturating_add);
        let bytes = own.saturating_sub(claim.driver).min(self.free_bytes(tenants)) >> 20 << 20;
        Some(ByteSize(bytes)).filter(|bytes| bytes.0 > 0)
    }

    /// Holds the others to what remains beside it, after it was checked.
    ///
    /// # Errors
    /// [`Error::MemoryPromised`]; the others then have what they had.
    pub fn make_room(&self, tenants: &'a [Tenant]) -> Result<(), Error> {
        let others = self.others(tenants);
        let reserves = reserves(self.kept);
        if hold(self.total_bytes, &others, Some(self.change()), &reserves).is_ok() {
            return Ok(());
        }
        divide_gpu(self.total_bytes, &self.all(tenants), &reserves);
        Err(self.refusal(tenants))
    }

    /// All tenants of the GPU.
    fn all(&self, tenants: &'a [Tenant]) -> Vec<&'a Tenant> {
        tenants.iter().filter(|tenant| tenant.gpu_key == self.gpu_key && tenant.counts()).collect()
    }

    fn refusal(&self, tenants: &'a [Tenant]) -> Error {
        let others = self.others(tenants);
        let (before, claim) = self.change();
        let beside = claims(&others, None);
        let mut holders: Vec<String> = Vec::new();
        for (tenant, claim) in others.iter().zip(&beside) {
            let name = tenant.name_among_all();
            match claim.to {
                To::Promise(0) | To::Rest(0) | To::Unheld(0) => {}
                To::Promise(bytes) => {
                    holders.push(format!("tenant `{name}` was promised {}", ByteSize(bytes)))
                }
                To::Rest(used) | To::Unheld(used) => holders
                    .push(format!("tenant `{name}` uses {} without --mem", ByteSize(used).approximate())),
            }
        }
        let reserves = reserves(self.kept);
        let mut for_others = Vec::new();
        for (kept, bytes) in self.kept.iter().zip(unused(&beside, &reserves)) {
            if bytes > 0 && !kept.reserve.users.contains(&claim.user) {
                let Kept { line, who, .. } = kept;
                holders.push(format!(
                    "reservation of {} (line {line} of the site's policy) keeps {}",
                    who.names(),
                    ByteSize(bytes).approximate()
                ));
                for_others.push(line.to_string());
            }
        }
        let driver = beside.iter().fold(RESERVE_BYTES, |sum, claim| sum.saturating_add(claim.driver));
        let driver = driver.saturating_add(claim.driver);
        holders.push(format!("{} are kept for the driver", ByteSize(driver).approximate()));
        // In whole MiB, which can be read.
        let left_bytes = self.free_bytes(tenants) >> 20 << 20;
        let mut remedy = match (self.quota, left_bytes) {
            (Some(_), 1..) => format!("ask for --mem {} or less", ByteSize(left_bytes).rounded_down()),
            _ => {
                let missing = fits(self.total_bytes, &beside, (before, claim), &reserves).err();
                remedy(&others, &beside, missing.unwrap_or(0))
            }
        };
        if !for_others.is_empty() {
            let (lines, word) = (for_others.join(", "), if for_others.len() == 1 { "line" } else { "lines" });
            remedy.push_str(&format!(", or have root change the reservation ({word} {lines} of the policy)"));
        }
        Error::MemoryPromised {
            wanted: self.quota,
            left: ByteSize(left_bytes),
            total: ByteSize(self.total_bytes),
            gpu: self.gpu.to_owned(),
            holders: holders.join(", "),
            remedy,
        }
    }
}

/// The command by which the caller gets so many bytes of others, if there is one.
fn remedy(others: &[&Tenant], claims: &[Claim], missing: u64) -> String {
    let promises = others.iter().zip(claims).filter_map(|(tenant, claim)| match claim.to {
        To::Promise(bytes) if tenant.is_own() && tenant.user == acting_user() => Some((tenant, bytes)),
        _ => None,
    });
    let Some((tenant, promised)) = promises.max_by_key(|(_, bytes)| *bytes) else {
        return "ask the owner of a tenant to lower its --mem or to end it".to_owned();
    };
    // In whole MiB, which can be read.
    let rest = promised.saturating_sub(missing) >> 20 << 20;
    match Some(rest).filter(|rest| *rest > 0 && *rest >= used(tenant)) {
        Some(rest) => format!("make room with `partita set {} --mem {}`", tenant.name, ByteSize(rest)),
        None => format!("end a tenant with `partita {} {}`", tenant.end_command(), tenant.name),
    }
}

/// What the rules keep of the memory of a GPU, for the users of these tenants and one more. A
/// GPU that no tenant's description names is one of which each reservation may be.
pub(crate) fn kept<'a>(
    rules: &Rules,
    gpu: Option<&GpuMeta>,
    total: u64,
    tenants: impl IntoIterator<Item = &'a Tenant>,
    user: Option<u32>,
) -> Vec<Kept> {
    if !rules.policy.keeps_memory() {
        return Vec::new();
    }
    let users: BTreeSet<u32> = tenants.into_iter().map(|tenant| tenant.user).chain(user).collect();
    let users: Vec<_> = users.into_iter().map(|user| (user, user_of(user))).collect();
    let is_gpu = |selector: &_| gpu.is_none_or(|gpu| gpu.is(selector));
    rules.policy.kept_memory(rules.now, is_gpu, total, &users)
}

fn reserves(kept: &[Kept]) -> Vec<Reserve> {
    kept.iter().map(|kept| kept.reserve.clone()).collect()
}

/// Divides the memory of every GPU among these tenants again, by these rules.
pub(crate) fn divide_all(tenants: &[Tenant], rules: &Rules) {
    let mut gpus: BTreeMap<&str, Vec<&Tenant>> = BTreeMap::new();
    for tenant in tenants.iter().filter(|tenant| tenant.counts()) {
        gpus.entry(&tenant.gpu_key).or_default().push(tenant);
    }
    for tenants in gpus.values() {
        let total = tenants.iter().find_map(|tenant| Some(tenant.limits().ok()?.memory_total_bytes));
        let gpu = tenants.iter().find_map(|tenant| Some(&tenant.meta.as_ref().ok()?.gpu));
        let total = total.unwrap_or(0);
        divide_gpu(total, tenants, &reserves(&kept(rules, gpu, total, tenants.iter().copied(), None)));
    }
}

fn divide_gpu(total: u64, tenants: &[&Tenant], reserves: &[Reserve]) {
    if hold(total, tenants, None, reserves).is_err() {
        // More is in use than there would be: none grows, and nothing more is promised.
        tenants.iter().filter(|tenant| is_held(tenant)).for_each(|tenant| {
            store(tenant, used(tenant));
        });
    }
}

/// Whether there is room for a claim beside others, in place of one that is there.
///
/// # Errors
/// The missing bytes.
fn fits(
    total: u64,
    others: &[Claim],
    (before, claim): (Option<Claim>, Claim),
    reserves: &[Reserve],
) -> Result<(), u64> {
    let bytes = match claim.to {
        To::Promise(bytes) => bytes,
        To::Rest(_) | To::Unheld(_)
            if reserves.is_empty() && !others.iter().any(|claim| matches!(claim.to, To::Promise(_))) =>
        {
            return Ok(());
        }
        To::Rest(bytes) | To::Unheld(bytes) => bytes,
    };
    // What the driver lacks comes on top of what is asked for.
    let most = most(total, others, before, claim, reserves).map_err(|lacks| lacks.saturating_add(bytes))?;
    if bytes <= most { Ok(()) } else { Err(bytes - most) }
}

/// Writes the quotas of those without a promise, beside a change of one more claim.
///
/// # Errors
/// They use too much for it, and quotas may be lowered already.
fn hold(
    total: u64,
    tenants: &[&Tenant],
    change: Option<(Option<Claim>, Claim)>,
    reserves: &[Reserve],
) -> Result<(), ()> {
    let concerns = |tenant: &&Tenant| {
        tenant.limits().is_ok_and(|limits| promise(limits).is_some() || rest(limits).is_some())
    };
    let promises = change.is_some_and(|(_, claim)| matches!(claim.to, To::Promise(_)));
    if !promises && reserves.is_empty() && !tenants.iter().any(concerns) {
        return Ok(());
    }
    for _ in 0..ROUNDS_MAX {
        if let Some(change) = change {
            fits(total, &claims(tenants, None), change, reserves).map_err(drop)?;
        }
        let claims = claims(tenants, change.map(|(_, claim)| claim));
        let most = divide(total, &claims, reserves).map_err(drop)?;
        let quotas: Vec<(&Tenant, u64)> = (tenants.iter().zip(&most))
            .filter(|(tenant, _)| is_held(tenant))
            .map(|(tenant, most)| (*tenant, most.unwrap_or(NO_QUOTA)))
            .collect();
        let (lower, higher): (Vec<_>, Vec<_>) =
            quotas.into_iter().partition(|(tenant, quota)| quota_now(tenant) > *quota);
        lower.iter().for_each(|(tenant, quota)| store(tenant, *quota));
        fence(Ordering::SeqCst);
        if lower.iter().all(|(tenant, quota)| used(tenant) <= *quota) {
            higher.iter().for_each(|(tenant, quota)| store(tenant, *quota));
            return Ok(());
        }
    }
    Err(())
}

/// Whether this process writes the quota of a tenant that was started without one.
fn is_held(tenant: &Tenant) -> bool {
    tenant.is_kept_here() && tenant.limits().is_ok_and(|limits| limits.flags & FLAG_MEMORY_REST != 0)
}

/// The claims of these tenants, as their files say now, and one more.
fn claims(tenants: &[&Tenant], more: Option<Claim>) -> Vec<Claim> {
    tenants.iter().map(|tenant| claim_of(tenant)).chain(more).collect()
}

fn claim_of(tenant: &Tenant) -> Claim {
    let Ok(limits) = tenant.limits() else {
        return Claim { to: To::Unheld(0), driver: 0, user: tenant.user };
    };
    let (used, driver) = tenant.memory_in_use().unwrap_or((0, 0));
    let allowance = limits.driver_allowance_bytes;
    let to = match promise(limits) {
        Some(bytes) => To::Promise(bytes),
        None if is_held(tenant) => To::Rest(used),
        // An environment's that writes its limits itself.
        None if tenant.is_own() => To::Unheld(used),
        // Another user's: only its owner writes there, and a false number would block promises.
        None => To::Unheld(0),
    };
    let driver = driver.clamp(allowance, allowance.saturating_mul(DRIVER_ALLOWANCES));
    Claim { to, driver, user: tenant.user }
}

fn used(tenant: &Tenant) -> u64 {
    tenant.memory_in_use().map_or(0, |(used, _)| used)
}

/// The memory that limits promise.
pub(crate) fn promise(limits: &Limits) -> Option<u64> {
    let is_promise = limits.flags & FLAG_MEMORY_REST == 0 && limits.memory_quota_bytes != NO_QUOTA;
    is_promise.then_some(limits.memory_quota_bytes)
}

/// The memory to which limits hold a tenant without a promise.
pub(crate) fn rest(limits: &Limits) -> Option<u64> {
    let is_rest = limits.flags & FLAG_MEMORY_REST != 0 && limits.memory_quota_bytes != NO_QUOTA;
    is_rest.then_some(limits.memory_quota_bytes)
}

fn quota_now(tenant: &Tenant) -> u64 {
    let now = tenant.kept_limits_file().ok().and_then(|file| file.load().ok());
    now.map_or(NO_QUOTA, |(_, limits)| limits.memory_quota_bytes)
}

fn store(tenant: &Tenant, quota: u64) {
    if quota_now(tenant) != quota
        && let Ok(mut file) = tenant.kept_limits_file()
    {
        // A damaged file is reported by the command that reads it next.
        let _ = file.update(|limits| limits.memory_quota_bytes = quota);
    }
}
