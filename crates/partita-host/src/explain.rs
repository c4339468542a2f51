//! `partita explain`: what a tenant has, why, and what would change it.

use partita_core::slo::{Goal, Slo, Time};
use partita_core::time::{Policy, Priority};
use partita_ledger::Limits;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::limits::LimitSet;
use crate::pace::TimesRow;
use crate::registry::{Isolation, Registry, Tenant};
use crate::slo::{self, LevelRow, Record, StepRow, TargetRow};
use crate::time;

/// What is known of a tenant's TPCs on one GPU.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Explanation {
    /// The tenant.
    pub name: String,
    /// Its GPU's short name.
    pub gpu: String,
    /// The TPCs that it holds.
    pub tpcs: Option<u32>,
    /// Those that it has at least.
    pub least_tpcs: Option<u32>,
    /// Those of the device.
    pub tpcs_of_device: Option<u32>,
    /// `--slo`.
    pub slo: Option<String>,
    /// `--goal`.
    pub goal: Option<String>,
    /// How its target stands; `None` without one.
    pub target: Option<TargetRow>,
    /// The number of the process that moves its TPCs, if one does.
    pub controller: Option<u32>,
    /// Its own p99 on all that it can have, in microseconds, if that was learnt.
    pub alone_us: Option<f64>,
    /// What its bursts or steps were like on each number of TPCs.
    pub levels: Vec<LevelRow>,
    /// The tenants for throughput on the same GPU: what it gives up, they get.
    pub others: Vec<Neighbour>,
    /// What was decided and what became of it, the oldest first.
    pub steps: Vec<StepRow>,
    /// Why it has what it has, in sentences.
    pub why: Vec<String>,
    /// What would change it, in sentences; `not known` where it has not been tried.
    pub what_if: Vec<String>,
}

/// A tenant for throughput beside the explained one.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Neighbour {
    /// Its name.
    pub name: String,
    /// The TPCs that it holds.
    pub tpcs: Option<u32>,
    /// What its bursts were like on each number of TPCs.
    pub levels: Vec<LevelRow>,
}

/// Explains a tenant: one entry for each of its GPUs.
///
/// # Errors
/// [`Error::NoSuchTenant`], [`Error::RunDirectory`], [`Error::Io`].
pub fn explain(registry: &Registry, name: &str) -> Result<Vec<Explanation>, Error> {
    let (parts, all) = {
        let lock = registry.lock()?;
        (lock.tenant(name)?, lock.tenants()?)
    };
    let user = crate::registry::acting_user();
    parts.iter().try_for_each(|part| part.check_of(user).map_err(unseen))?;
    // Only root sees the speed of other users' tenants.
    let all: Vec<Tenant> = all.into_iter().filter(|tenant| tenant.check_of(user).is_ok()).collect();
    Ok(parts.iter().map(|part| of(part, &all)).collect())
}

/// The refusal of what only its owner and root see.
fn unseen(refused: Error) -> Error {
    match refused {
        Error::NotYours { name, user } => Error::Refused {
            what: format!("tenant {name} belongs to {user}"),
            reason: match user.as_str() {
                "root" => "only root sees it; ask root".to_owned(),
                _ => format!("only {user} and root see it; ask {user}, or run this as {user}"),
            },
        },
        other => other,
    }
}

/// The tenants for throughput beside one, with what was measured of them.
fn others(tenant: &Tenant, all: &[Tenant]) -> Vec<Neighbour> {
    let is_beside = |other: &&Tenant| {
        other.gpu_key == tenant.gpu_key
            && !other.is_of_same(tenant)
            && other.meta.as_ref().is_ok_and(|meta| meta.goal == Goal::Throughput)
    };
    let neighbour = |other: &Tenant| Neighbour {
        name: other.name_among_all(),
        tpcs: other.set().ok().map(|set| set.len()),
        levels: Record::of(other).levels,
    };
    let others = all.iter().filter(is_beside).map(neighbour);
    others.filter(|other| !other.levels.is_empty()).collect()
}

fn of(tenant: &Tenant, all: &[Tenant]) -> Explanation {
    let (limits, meta) = (tenant.limits.as_ref().ok(), tenant.meta.as_ref().ok());
    let asked = LimitSet::of(limits, meta);
    let record = Record::of(tenant);
    let slo = meta.and_then(|meta| meta.slo.clone());
    let is_controlled = tenant.is_controlled();
    let is_of_it = is_controlled && record.slo == slo;
    let target = record.target.clone().filter(|_| is_of_it && slo.is_some());
    let mut explained = Explanation {
        name: tenant.name.clone(),
        gpu: tenant.gpu_label().to_owned(),
        tpcs: tenant.set().ok().map(|set| set.len()),
        least_tpcs: limits.map(|_| tenant.promised_tpcs()),
        tpcs_of_device: limits.map(|limits| limits.tpc_count),
        target: target.or_else(|| slo.is_some().then(TargetRow::default)),
        slo,
        goal: asked.goal.map(|goal| goal.to_string()),
        controller: record.controller.filter(|_| is_of_it),
        alone_us: record.alone_ns.filter(|_| is_of_it).map(|ns| ns as f64 / 1e3),
        levels: if is_of_it { record.levels } else { Vec::new() },
        others: if is_controlled { others(tenant, all) } else { Vec::new() },
        steps: record.steps.into(),
        why: Vec::new(),
        what_if: Vec::new(),
    };
    if let Some(placed) = meta.and_then(|meta| meta.placed.as_ref()) {
        explained.why.push(format!("`--gpu any` chose {placed}"));
    }
    if meta.is_some_and(|meta| meta.is_put_in_turns) {
        explained.why.push("Partita chose turns: with masks it could not meet this target before".to_owned());
    }
    if is_controlled && time::takes_turns(tenant) {
        why_in_turns(&mut explained);
        why_target(&mut explained);
        what_if_in_turns(&mut explained);
    } else if is_controlled {
        why_controlled(&mut explained);
        why_target(&mut explained);
        why_moved(&mut explained);
        what_if_controlled(&mut explained, record.next_trial_s.filter(|_| is_of_it));
    } else {
        without_target(&mut explained, tenant, &asked);
    }
    explained
}

fn us(time_us: f64) -> String {
    Time(((time_us * 10.0).round() * 100.0) as u64).to_string()
}

fn why_controlled(of: &mut Explanation) {
    let Explanation { tpcs, least_tpcs, controller, .. } = of;
    let number = |tpcs: &Option<u32>| tpcs.map_or_else(|| "?".to_owned(), |tpcs| tpcs.to_string());
    of.why.push(format!("it has {} TPCs, and {} at least", number(tpcs), number(least_tpcs)));
    if controller.is_none() {
        of.why.push(
            "no process moves its TPCs: `partita run` or `partitad --system` begins within a second"
                .to_owned(),
        );
    }
}

fn why_in_turns(of: &mut Explanation) {
    let has = match of.tpcs {
        Some(tpcs) if of.tpcs != of.tpcs_of_device => format!("with the {tpcs} TPCs that partitions leave"),
        _ => "with the whole GPU".to_owned(),
    };
    of.why.push(match of.slo {
        Some(_) => format!("it takes turns and goes before tenants of low priority, {has}"),
        None => format!("it takes turns and waits while a tenant of high priority works, {has}"),
    });
}

fn what_if_in_turns(of: &mut Explanation) {
    let is_missed = of.target.as_ref().is_some_and(|target| target.unmet || target.holds == Some(false));
    of.what_if.push(match (&of.slo, is_missed) {
        (Some(_), true) => "fewer neighbours, or ones with shorter kernels, disturb it less".to_owned(),
        (Some(_), false) => {
            "a looser target would free nothing: the others have all the time that it leaves".to_owned()
        }
        (None, _) => "it gets more time when the tenants of high priority work less".to_owned(),
    });
}

fn why_target(of: &mut Explanation) {
    if let Some(target) = &of.target {
        let p99 = target.p99_us.map_or_else(|| "not known".to_owned(), us);
        let bound = target.bound_us.map_or_else(|| "not known before its own time is learnt".to_owned(), us);
        of.why.push(match (target.holds, target.unmet) {
            (_, true) => format!("the target is missed with all that it can have: p99 {p99}, bound {bound}"),
            (Some(true), _) if target.p99_us > target.bound_us => {
                format!("the target holds: p99 {p99}, bound {bound}, and the difference is not certain yet")
            }
            (Some(true), _) => format!("the target holds: p99 {p99}, bound {bound}"),
            (Some(false), _) => format!("the target is violated: p99 {p99}, bound {bound}"),
            (None, _) => format!("whether the target holds is not known: p99 {p99}, bound {bound}"),
        });
    }
}

fn why_moved(of: &mut Explanation) {
    let moved = of.steps.iter().rev().find(|step| step.from_tpcs != step.tpcs);
    if let Some(step) = moved {
        of.why.push(format!("it went from {} to {} TPCs: {}", step.from_tpcs, step.tpcs, step.why));
    }
}

/// The level next to the present one.
fn next(levels: &[LevelRow], tpcs: u32, is_more: bool) -> Option<&LevelRow> {
    match is_more {
        true => levels.iter().find(|level| level.tpcs > tpcs),
        false => levels.iter().rev().find(|level| level.tpcs < tpcs),
    }
}

fn what_if_controlled(of: &mut Explanation, next_trial_s: Option<f64>) {
    let Some(tpcs) = of.tpcs else { return };
    let here = of.levels.iter().find(|level| level.tpcs == tpcs).copied();
    let at = |level: &LevelRow| {
        format!("p99 {}, mean {} on {} TPCs", us(level.p99_us), us(level.mean_us), level.tpcs)
    };
    let beside = here.map_or_else(String::new, |here| format!(", beside {} now", at(&here)));
    of.what_if.push(match next(&of.levels, tpcs, true) {
        Some(more) => format!("with more TPCs it had {}{beside}", at(more)),
        None => "what one more TPC would bring is not known: it has not been tried".to_owned(),
    });
    let fewer = next(&of.levels, tpcs, false);
    of.what_if.push(match fewer {
        Some(fewer) => format!("with fewer TPCs it had {}{beside}", at(fewer)),
        None => "what fewer TPCs would cost is not known: it has not been tried".to_owned(),
    });
    if let Some(bound_us) = of.target.as_ref().and_then(|target| target.bound_us) {
        let kind =
            if of.slo.as_ref().is_some_and(|slo| slo.starts_with("step-")) { "step-p99" } else { "p99" };
        let looser = of.levels.iter().rev().find(|level| level.tpcs < tpcs && level.p99_us > bound_us);
        of.what_if.push(match looser {
            // A 32nd more: a quantile is known to a 64th, and the next one, too.
            Some(level) => format!(
                "`partita set {} --slo {kind}={}` would need {} TPCs, as far as is known",
                of.name,
                us(level.p99_us * (1.0 + 1.0 / 32.0)),
                level.tpcs
            ),
            None => "what a looser target would free is not known: it has not been tried".to_owned(),
        });
    }
    if of.target.as_ref().is_some_and(|target| target.unmet) {
        of.what_if.push(
            "`partita run --via time --slo` holds a target in turns, in which no neighbour uses caches \
             and memory meanwhile; the next start without --via takes turns if no tenant has compute \
             units of its own"
                .to_owned(),
        );
    }
    of.what_if.extend(next_trial_s.map(|seconds| match seconds {
        seconds if seconds > 0.0 => format!("the next trial is in {seconds:.0} s at the earliest"),
        _ => "the next trial begins when enough bursts have been in time, and another tenant can use what it frees".to_owned(),
    }));
}

/// What limits a tenant without a target, and which command changes that.
fn without_target(of: &mut Explanation, tenant: &Tenant, asked: &LimitSet) {
    let name = &tenant.name;
    let tpcs = of.tpcs.unwrap_or(0);
    if time::takes_turns(tenant) {
        of.why.push("it shares its compute units with other tenants, in turns".to_owned());
        let option = if asked.time.is_some() { "--time SHARE" } else { "--priority PRIORITY" };
        of.what_if.push(format!("`partita set {name} {option}` changes its turns"));
    } else if tenant.rests().is_some() {
        of.why.push(format!(
            "it has no --sm: its {tpcs} TPCs are an even part of what the shares of others leave"
        ));
        of.what_if.push(format!("`partita set {name} --sm 50%` gives it a share of its own"));
    } else {
        let share = asked.share.map_or_else(|| "its share".to_owned(), |share| format!("--sm {share}"));
        let ceiling = tenant.limits().map_or(0, |limits| limits.borrow_tpcs_max);
        of.why.push(match ceiling {
            0 => format!("it has {share}: {tpcs} TPCs, whatever it does"),
            most => format!("it has {share}: {tpcs} TPCs, and up to {most} while others leave them idle"),
        });
        of.what_if.push(format!("`partita set {name} --sm SHARE` gives it more or fewer"));
    }
    if let Some(share) = asked.time {
        let is_soft = |limits: &&Limits| limits.time_policy() == Policy::Soft;
        let more = match tenant.limits().ok().filter(is_soft).map(Limits::has_strangers) {
            Some(false) => ", and what others leave idle",
            Some(true) => ", and borrows none: it does not see when some of the others leave the GPU idle",
            None => "",
        };
        of.why.push(format!("it has {share} of the GPU's time{more}"));
        if !time::takes_turns(tenant) {
            of.what_if.push(format!("`partita set {name} --time SHARE` gives it more"));
        }
    }
    if asked.priority == Some(Priority::Low) {
        of.why.push("its priority is low: it waits while a tenant of high priority has work".to_owned());
        of.what_if.push(format!("`partita set {name} --priority normal` ends that"));
    }
    let pace = tenant.usage().ok().and_then(|usage| usage.pace().ok());
    let bursts = pace.map(|pace| TimesRow::from(pace.bursts)).filter(|bursts| bursts.count > 0);
    // What `partita set` would refuse is not advised.
    let isolation = tenant.meta().map_or(Isolation::Shared, |meta| meta.isolation);
    let target = LimitSet { slo: "p99=1s".parse().ok(), ..*asked };
    if !tenant.limits().is_ok_and(|limits| slo::check(&target, limits, isolation).is_ok()) {
        return;
    }
    match bursts.and_then(|bursts| bursts.p99_us) {
        Some(p99_us) => of.what_if.push(format!(
            "`partita set {name} --slo p99={}` holds the p99 of its bursts that it has now, with as few TPCs as that needs",
            us(p99_us * 1.125)
        )),
        None => of.what_if.push("what more or fewer TPCs would bring is not known: no end of a burst was seen".to_owned()),
    }
    debug_assert!(asked.slo.is_none_or(|slo| slo == Slo::None));
}
