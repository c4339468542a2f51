//! Shares of time: from the request to the ledger, and their display in `ps`.

use partita_core::time::{Law, TimeAccount, TimeShare};
use partita_ledger::{FLAG_TIMED, Limits, MECHANISM_NONE};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::error::Error;
use crate::registry::Tenant;

/// A tenant's share of the time of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimeRow {
    /// Its promised share, in percent.
    pub share_percent: f64,
    /// `hard` or `soft`.
    pub policy: &'static str,
    /// Its recent use, in percent: over about a second. `None` if its account cannot be read.
    pub used_percent: Option<f64>,
    /// GPU time that it used so far, in seconds.
    pub used_s: Option<f64>,
}

/// The promise and the use of a tenant with a share of time.
pub(crate) fn row(tenant: &Tenant, limits: &Limits) -> Option<TimeRow> {
    if !is_timed(limits) {
        return None;
    }
    let policy = limits.time_policy();
    let now_ns = now_ns();
    let account = (tenant.time().ok())
        .and_then(|view| view.account().ok())
        .map(|words| TimeAccount::from_words(Law::new(limits.time_permille, policy), now_ns, &words));
    Some(TimeRow {
        share_percent: f64::from(limits.time_permille) / 10.0,
        policy: policy.name(),
        used_percent: account.map(|account| f64::from(account.used_permille(now_ns)) / 10.0),
        used_s: account.map(|account| account.used_ns() as f64 / 1e9),
    })
}

/// The clock by which tenants keep their accounts.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// Whether a tenant has the whole GPU in its turns, and no partition.
pub(crate) fn is_whole(tenant: &Tenant) -> bool {
    tenant.limits().is_ok_and(has_whole)
}

fn has_whole(limits: &Limits) -> bool {
    limits.mechanism == MECHANISM_NONE
}

fn is_timed(limits: &Limits) -> bool {
    limits.flags & FLAG_TIMED != 0
}

/// Refuses a share of the whole GPU's time that others were promised, or that tenants with a
/// priority on the whole GPU would not leave.
///
/// # Errors
/// [`Error::NotOffered`], [`Error::DamagedTenant`].
pub(crate) fn check_sum<'a>(
    wanted: &Limits,
    gpu: &str,
    others: impl Iterator<Item = &'a Tenant>,
) -> Result<(), Error> {
    let (mut left, mut holders) = (1000u32, Vec::new());
    // Turns are taken by the gate, which is one user's.
    for tenant in others.filter(|tenant| tenant.is_own()) {
        let limits = tenant.limits()?;
        if has_whole(limits) && is_timed(limits) != is_timed(wanted) {
            let by = if is_timed(limits) { "a share of its time" } else { "a priority" };
            return Err(Error::NotOffered {
                option: "--via time".to_owned(),
                reason: format!(
                    "tenant `{}` has the whole of {gpu} by {by}, and all tenants that take turns there \
                     must do it in one way; request the same, or end it with `partita kill {}`",
                    tenant.name, tenant.name
                ),
            });
        }
        if has_whole(limits) && is_timed(limits) {
            left = left.saturating_sub(limits.time_permille);
            holders.push(format!(
                "tenant `{}` was promised {}",
                tenant.name,
                TimeShare(limits.time_permille)
            ));
        }
    }
    if !is_timed(wanted) || wanted.time_permille <= left {
        return Ok(());
    }
    Err(Error::NotOffered {
        option: format!("--time {}", TimeShare(wanted.time_permille)),
        reason: format!(
            "{} of the time of {gpu} is left: {}; ask for less, or end one of them with `partita kill`",
            TimeShare(left),
            holders.join(", ")
        ),
    })
}
