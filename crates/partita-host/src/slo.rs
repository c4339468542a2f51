//! Targets instead of shares: who may have one, and the controller that moves TPCs so that they
//! hold.
//!
//! Tenants that take turns have targets, too: all have the whole GPU, and those for throughput wait
//! while one with a target works. There is nothing to move; the controller says whether it holds.
//!
//! [`partita_core::slo`] is the law. One process at a time applies it to the tenants of a user on a
//! GPU ([`Controller`]): a thread of the `partita run` that holds the lock ([`Standby`]), or
//! `partitad` in system mode, which keeps the tenants of all users. When it ends, the tenants run
//! on with the last division, and the next one takes over.
//!
//! The target itself is in `meta.json`, beside the share: the programs of a tenant never read it,
//! so the layout of the ledger has no word for it. What the controller finds is in the tenant's
//! `slo.json`.

mod controller;
mod record;
mod remembered;
mod silence;
mod standby;

use std::ffi::OsString;

use partita_core::slo::{Bound, Goal, Slo, Target};
use partita_core::time::Priority;
use partita_core::{Share, Topology};
use partita_ledger::{FLAG_TIMED, Limits, MECHANISM_MASK, MECHANISM_PERSISTENT};

use crate::error::Error;
use crate::limits::LimitSet;
use crate::offered::Via;
use crate::registry::{Isolation, Tenant};

pub use self::controller::Controller;
pub use self::record::{Decided, LevelRow, Record, StepRow, TargetRow, decided};
pub use self::standby::{Standby, control_all};

/// Whether a request has a target or a goal.
#[must_use]
pub fn is_asked(limits: &LimitSet) -> bool {
    matches!(limits.slo, Some(Slo::Target(_))) || matches!(limits.goal, Some(Goal::Throughput))
}

fn option(asked: &LimitSet) -> String {
    match (asked.slo, asked.goal) {
        (Some(Slo::Target(target)), _) => format!("--slo {target}"),
        (_, goal) => format!("--goal {}", goal.unwrap_or_default()),
    }
}

fn refuse(asked: &LimitSet, reason: &str) -> Error {
    Error::NotOffered { option: option(asked), reason: reason.to_owned() }
}

/// Refuses a target or a goal for a tenant whose TPCs cannot be moved. `limits` are those that it
/// is to have.
///
/// # Errors
/// [`Error::NotOffered`] with the reason and the remedy.
pub(crate) fn check(asked: &LimitSet, limits: &Limits, isolation: Isolation) -> Result<(), Error> {
    if !is_asked(asked) {
        return Ok(());
    }
    if asked.slo.is_some_and(|slo| slo != Slo::None) && asked.goal == Some(Goal::Throughput) {
        return Err(refuse(asked, "a tenant has a target or a goal, not both; leave out --goal"));
    }
    if limits.takes_turns() {
        return check_turns(asked, limits, isolation);
    }
    if !matches!(limits.mechanism, MECHANISM_MASK | MECHANISM_PERSISTENT) {
        return Err(refuse(
            asked,
            "it moves compute units, and this tenant has none of its own; leave out --mps-partition",
        ));
    }
    if isolation == Isolation::Own {
        return Err(refuse(
            asked,
            "with --isolation own tenants take turns, and more compute units do not end the wait for a turn; leave it \
             out, or hold the target in turns with --via time",
        ));
    }
    if limits.borrow_tpcs_max != 0 {
        return Err(refuse(
            asked,
            "it moves compute units itself, beside which a tenant cannot borrow any; write --sm without a ceiling, and \
             leave out --borrow",
        ));
    }
    if matches!(asked.share, Some(Share::Exact(_) | Share::Gpcs(_))) {
        return Err(refuse(
            asked,
            "it chooses the compute units, and --sm is the least number of them; write 30%, 40sm or 20tpc",
        ));
    }
    Ok(())
}

/// Whether a program with a target, which asks for no compute units and for no way of enforcing, is
/// to take turns: with masks it could not meet this target on this GPU before, and in turns it did
/// or has not tried.
pub(crate) fn is_for_turns(asked: &LimitSet, gpu_uuid: &str, command: &[OsString]) -> bool {
    let Some(Slo::Target(target)) = asked.slo else { return false };
    let asks_for_more = asked.via() != Via::Auto
        || asked.share.is_some()
        || asked.place.is_some()
        || asked.time.is_some()
        || asked.up_to.is_some()
        || asked.priority.is_some()
        || asked.isolation.is_some();
    if asks_for_more {
        return false;
    }
    let slo = target.to_string();
    let command: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let user = rustix::process::geteuid().as_raw();
    let key = remembered::key_of(user, gpu_uuid, slo.starts_with("step-"), &command.join(" "));
    remembered::is_missed_with_masks_alone(&key, &slo)
}

/// The priority by which a tenant that takes turns holds its target, or works for throughput; that
/// which it asks for in all other cases.
pub(crate) fn priority_in_turns(asked: &LimitSet) -> Option<Priority> {
    let wanted = match (asked.slo, asked.goal) {
        (Some(Slo::Target(_)), _) => Some(Priority::High),
        (_, Some(Goal::Throughput)) => Some(Priority::Low),
        _ => None,
    };
    asked.priority.or(wanted)
}

fn check_turns(asked: &LimitSet, limits: &Limits, isolation: Isolation) -> Result<(), Error> {
    if limits.flags & FLAG_TIMED != 0 {
        return Err(refuse(
            asked,
            "in turns a priority holds targets, and this tenant has a share of time; leave out --time",
        ));
    }
    if isolation != Isolation::Own {
        return Err(refuse(
            asked,
            "in turns only the GPU's own time slices can interrupt a neighbour's kernel; \
             leave out --isolation shared",
        ));
    }
    let priority = Priority::from_number(limits.priority);
    let (needed, others) = match asked.goal {
        Some(Goal::Throughput) => (Priority::Low, "makes way for targets"),
        _ => (Priority::High, "goes before others"),
    };
    if priority != needed {
        return Err(refuse(
            asked,
            &format!(
                "in turns only a tenant of {needed} priority {others}, and this one has {priority} priority; start it with \
                 {} --via time",
                option(asked)
            ),
        ));
    }
    Ok(())
}

/// Refuses a multiple of the tenant's own time in turns in system mode.
///
/// # Errors
/// [`Error::NotOffered`].
pub(crate) fn check_multiple(asked: &LimitSet, takes_turns: bool, is_system: bool) -> Result<(), Error> {
    let is_multiple = matches!(asked.slo, Some(Slo::Target(Target { bound: Bound::Alone { .. }, .. })));
    match is_multiple && takes_turns && is_system {
        true => Err(refuse(
            asked,
            "to learn its own time the others must wait, and partitad never writes the gate that users have for \
             that; write a time: p99=2.5ms",
        )),
        false => Ok(()),
    }
}

/// Refuses a target or a goal on several GPUs, and in containers.
///
/// # Errors
/// [`Error::NotOffered`].
pub(crate) fn check_gpus(asked: &LimitSet, gpus: usize, is_prepared: bool) -> Result<(), Error> {
    if is_asked(asked) && is_prepared {
        return Err(refuse(
            asked,
            "the tenant is for containers, where any program can write its bursts; use --sm",
        ));
    }
    if is_asked(asked) && gpus > 1 {
        return Err(refuse(
            asked,
            "a program with several GPUs has no bursts that could be timed; name one GPU with --gpu",
        ));
    }
    Ok(())
}

/// Refuses a target beside others that need so much that it could not have its guarantee. Tenants
/// that take turns need no compute units of each other.
///
/// # Errors
/// [`Error::Plan`] with the sum: a start waits for tenants that leave, as for compute units.
pub(crate) fn check_sum<'a>(
    asked: &LimitSet,
    topology: &Topology,
    here: impl Iterator<Item = &'a Tenant>,
) -> Result<(), Error> {
    let Some(Slo::Target(_)) = asked.slo else { return Ok(()) };
    let least = asked.share.map_or(Ok(1), |share| share.tpcs_wanted(topology));
    let Ok(least) = least else { return Ok(()) };
    let has_target = |tenant: &&Tenant| tenant.meta.as_ref().is_ok_and(|meta| meta.target().is_some());
    let with_target = here.filter(|tenant| tenant.is_steered() && has_target(tenant));
    let needs: Vec<(String, u32)> = with_target
        .map(|tenant| {
            let found = Record::of(tenant).target.and_then(|target| target.enough_tpcs);
            (tenant.name_among_all(), tenant.promised_tpcs().max(found.unwrap_or(0)))
        })
        .collect();
    let sum = needs.iter().fold(least, |sum, (_, tpcs)| sum.saturating_add(*tpcs));
    if needs.is_empty() || sum <= topology.tpc_count() {
        return Ok(());
    }
    let others: Vec<String> = needs.iter().map(|(name, tpcs)| format!("{name} needs {tpcs}")).collect();
    Err(Error::Plan {
        reason: format!(
            "{}: the targets exclude each other: {}, this one {least}, {sum} TPCs together of {}; ask for a \
             smaller --sm, loosen a target with `partita set NAME --slo`, or use another GPU",
            option(asked),
            others.join(", "),
            topology.tpc_count()
        ),
    })
}
