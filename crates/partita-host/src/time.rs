//! Shares of time: from the request to the ledger, and their display in `ps`.

use partita_core::TpcSet;
use partita_core::time::{Law, Policy, Priority, TimeAccount, TimeShare};
use partita_ledger::{FLAG_TIMED, Limits};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::error::Error;
use crate::registry::{Isolation, Tenant, acting_user};

/// A tenant's share of the time of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimeRow {
    /// Its promised share, in percent.
    pub share_percent: f64,
    /// `hard`, `soft` or `tokens`.
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
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// Whether a tenant shares its TPCs with others, in turns.
pub(crate) fn takes_turns(tenant: &Tenant) -> bool {
    tenant.limits().is_ok_and(Limits::takes_turns)
}

fn is_timed(limits: &Limits) -> bool {
    limits.flags & FLAG_TIMED != 0
}

/// The turns that tenants on a GPU take.
struct Turns<'a> {
    /// Those with a share of time, and their shares. In system mode time is promised to tenants of
    /// all users.
    timed: Vec<(&'a Tenant, TimeShare)>,
    /// One of the acting user's with a priority instead. The gate, which knows priorities, is one
    /// user's.
    by_priority: Option<&'a Tenant>,
    /// Whether one of another user's has a priority.
    is_other_by_priority: bool,
    /// The time that is not promised.
    left: TimeShare,
}

impl<'a> Turns<'a> {
    fn of(tenants: impl Iterator<Item = &'a Tenant>) -> Result<Self, Error> {
        let mut turns =
            Self { timed: Vec::new(), by_priority: None, is_other_by_priority: false, left: TimeShare(1000) };
        for tenant in tenants.filter(|tenant| tenant.is_kept_here()) {
            let limits = tenant.limits()?;
            if limits.takes_turns() && is_timed(limits) {
                turns.timed.push((tenant, TimeShare(limits.time_permille)));
                turns.left.0 = turns.left.0.saturating_sub(limits.time_permille);
            } else if limits.takes_turns() && tenant.user == acting_user() {
                turns.by_priority = Some(tenant);
            } else if limits.takes_turns() {
                turns.is_other_by_priority = true;
            }
        }
        Ok(turns)
    }

    /// The command that takes so much from the largest share that the caller may change.
    fn make_room(&self, missing: impl Fn(TimeShare) -> u32) -> Option<String> {
        let own = self.timed.iter().filter(|(tenant, _)| tenant.is_own());
        let (tenant, share) = own.max_by_key(|(_, share)| share.0)?;
        let name = &tenant.name;
        Some(match share.0.checked_sub(missing(*share)) {
            None | Some(0) => format!("`partita {} {name}`", tenant.end_command()),
            Some(rest) => format!("`partita set {name} --time {}`", TimeShare(rest)),
        })
    }

    /// The option with which one more tenant takes turns, and the command that must come before it.
    /// `by_priority` is the one beside turns by a priority, as the policy allows it.
    fn way_in(&self, by_priority: &str) -> Option<String> {
        match (self.left, self.make_room(|share| share.0 / 2)) {
            _ if self.by_priority.is_some() || self.timed.is_empty() && self.is_other_by_priority => {
                Some(format!("`{by_priority}`"))
            }
            _ if self.timed.is_empty() => None,
            (TimeShare(0), room) => room.map(|room| format!("--time, after {room}")),
            (left, _) => Some(format!("`--time {left}` or less")),
        }
    }
}

/// Refuses a token bucket in containers, one whose share is no limit of that law, and one that NVML
/// cannot refill.
///
/// # Errors
/// [`Error::NotOffered`].
pub(crate) fn check_law(wanted: &Limits, isolation: Isolation, is_prepared: bool) -> Result<(), Error> {
    let policy = wanted.time_policy();
    if !is_timed(wanted) || policy != Policy::Tokens {
        return Ok(());
    }
    let refuse = |reason: String| {
        Err(Error::NotOffered { option: format!("--time-policy {}", policy.name()), reason })
    };
    if is_prepared {
        return refuse(
            "containers do not see the numbers that their processes have on the host; use --time-policy hard"
                .to_owned(),
        );
    }
    match wanted.time_permille {
        1000.. => {}
        permille if permille % 10 != 0 => {
            return refuse(format!(
                "it takes whole percentages and --time is {}; use `--time {}%`, or --time-policy hard",
                TimeShare(permille),
                permille.div_ceil(10).min(99)
            ));
        }
        _ => {}
    }
    match isolation {
        Isolation::Own => Ok(()),
        Isolation::Shared => refuse(
            "it needs the utilization of each process, which NVML is not known to report for clients of \
             MPS; start the tenant with --isolation own, or use --time-policy hard"
                .to_owned(),
        ),
    }
}

/// How a tenant takes turns.
pub(crate) enum Turn {
    /// By a share of time.
    Time(TimeShare),
    /// By a priority.
    Priority(Priority),
}

/// How a tenant without `--sm` joins the caller's tenants that take turns on a GPU: with half of
/// the time that is left, so that the next one finds some too, or with low priority. `None` if
/// there are compute units for it, or no such tenants, or no time.
pub(crate) fn join<'a>(tenants: impl Iterator<Item = &'a Tenant> + Clone) -> Option<Turn> {
    let firm = tenants.clone().filter(|tenant| tenant.rests().is_none());
    let held = firm.filter_map(|tenant| tenant.set().ok()).fold(TpcSet::EMPTY, |all, set| all | set);
    let tpc_count = tenants.clone().find_map(|tenant| Some(tenant.limits().ok()?.tpc_count))?;
    if held.len() < tpc_count || tenants.clone().any(|tenant| tenant.rests().is_some()) {
        return None;
    }
    let turns = Turns::of(tenants).ok()?;
    match (turns.by_priority, turns.timed.is_empty(), turns.left) {
        (Some(_), ..) => Some(Turn::Priority(Priority::Low)),
        (None, false, TimeShare(left @ 1..)) => Some(Turn::Time(TimeShare(left.div_ceil(2)))),
        (None, true, _) if turns.is_other_by_priority => Some(Turn::Priority(Priority::Low)),
        _ => None,
    }
}

/// What a tenant can do that finds no compute units beside those that take turns; `None` if no
/// tenant of the caller takes turns there. `by_priority` is the option beside turns by a
/// priority.
pub(crate) fn instead_of_units<'a>(
    tenants: impl Iterator<Item = &'a Tenant>,
    by_priority: &str,
) -> Option<String> {
    let turns = Turns::of(tenants).ok()?;
    let first = turns.timed.first().map(|(tenant, _)| *tenant);
    let with = turns.by_priority.or(first).map(Tenant::name_among_all);
    let with = with.map_or_else(String::new, |name| format!(" with tenant `{name}`"));
    Some(format!("to take turns{with}, use {} instead of --sm", turns.way_in(by_priority)?))
}

/// Refuses a share of time that others who take turns were promised, or turns by time beside turns
/// by priority.
///
/// # Errors
/// [`Error::Plan`], [`Error::DamagedTenant`].
pub(crate) fn check_sum<'a>(
    wanted: &Limits,
    gpu: &str,
    others: impl Iterator<Item = &'a Tenant>,
) -> Result<(), Error> {
    let turns = Turns::of(others)?;
    let is_same_gate = |(tenant, _): &&(&Tenant, TimeShare)| tenant.user == acting_user();
    match (is_timed(wanted), turns.by_priority, turns.timed.iter().find(is_same_gate)) {
        // As of compute units, in all three cases: it fits when others end.
        (true, Some(tenant), _) => Err(Error::Plan {
            reason: format!(
                "--time {} is refused: tenant `{name}` takes turns on {gpu} by a priority, and so must all \
                 others there; use `--priority low` instead, or end it with `partita {} {name}`",
                TimeShare(wanted.time_permille),
                tenant.end_command(),
                name = tenant.name
            ),
        }),
        (false, _, Some((tenant, _))) => Err(Error::Plan {
            reason: format!(
                "--priority alone is refused: tenant `{}` takes turns on {gpu} by a share of time, and \
                 so must all others there; add {}",
                tenant.name,
                turns.way_in("--priority low").unwrap_or_default()
            ),
        }),
        (true, None, _) if wanted.time_permille > turns.left.0 => {
            let promised = |(tenant, share): &(&Tenant, TimeShare)| {
                format!("tenant `{}` was promised {share}", tenant.name_among_all())
            };
            let holders: Vec<String> = turns.timed.iter().map(promised).collect();
            let less = match turns.left {
                TimeShare(0) => String::new(),
                left => format!("ask for `--time {left}` or less, or "),
            };
            let room = match turns.make_room(|_| wanted.time_permille - turns.left.0) {
                Some(room) => format!("make room with {room}"),
                None => "ask the owner of a tenant to shrink or end it".to_owned(),
            };
            Err(Error::Plan {
                reason: format!(
                    "--time {} is refused: {} of the time of {gpu} is left: {}; {less}{room}",
                    TimeShare(wanted.time_permille),
                    turns.left,
                    holders.join(", "),
                ),
            })
        }
        _ => Ok(()),
    }
}
