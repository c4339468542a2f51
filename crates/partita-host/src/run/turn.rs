//! Whether it is a program's turn: the planner's side of `--wait`.

use partita_core::ByteSize;
use partita_ledger::{FLAG_MEMORY_REST, Limits, NO_QUOTA};

use crate::error::Error;
use crate::gpu::Gpu;
use crate::process::ProcessId;
use crate::queue::ahead_text;
use crate::registry::{self, GpuMeta, RegistryLock, Tenant};
use crate::request::RunRequest;

/// Plans a program beside the tenants if no earlier one waits, and returns its place in the queue,
/// if it has one, and the plan. A program with `--wait` that must wait gets a place.
///
/// A program waits for what other tenants have, and for nothing else: it is refused if it would not
/// fit without them.
///
/// # Errors
/// [`Error::Waits`] for a program that has a place in the queue now; [`Error::Queued`] without
/// `--wait`; those of the plan.
pub(super) fn plan_in_turn<P>(
    lock: &RegistryLock<'_>,
    request: &RunRequest,
    gpus: &[Gpu],
    name: &str,
    run: ProcessId,
    tenants: &[Tenant],
    plan_beside: impl Fn(&[Tenant]) -> Result<P, Error>,
) -> Result<(Option<u64>, P), Error> {
    let queue = lock.queue()?;
    let own = queue.iter().find(|waiter| waiter.run == run && waiter.name == name).map(|own| own.number);
    let keys: Vec<String> = gpus.iter().map(Gpu::key).collect();
    let ahead = registry::ahead(&queue, own, &keys);
    let reason = if ahead.is_empty() {
        match plan_beside(tenants) {
            Err(Error::Plan { reason }) if request.wait.is_some() => reason,
            Err(error @ Error::MemoryPromised { .. }) if request.wait.is_some() => error.to_string(),
            planned => return Ok((own, planned?)),
        }
    } else {
        // A mistake in the request is reported at once.
        match plan_beside(tenants) {
            Ok(_) | Err(Error::Plan { .. } | Error::MemoryPromised { .. }) => {}
            Err(error) => return Err(error),
        }
        let reason = ahead_text(&ahead);
        if request.wait.is_none() {
            // Only `partita run` has the option.
            let can_wait = request.description.is_none() && request.prepared.is_none() && !request.is_outside;
            let remedy = if can_wait { "add --wait to start after them" } else { "try again after that" };
            return Err(Error::Queued { reason: format!("{reason}; {remedy}") });
        }
        // Refusals of the planner name them themselves.
        let holders = holders(tenants, &keys);
        if holders.is_empty() { reason } else { format!("{reason}; {holders}") }
    };
    if own.is_none() {
        plan_beside(&[])?;
        lock.enqueue(name, gpus.iter().map(GpuMeta::of).collect(), run)?;
    }
    Err(Error::Waits { reason })
}

/// Who has what of these GPUs.
fn holders(tenants: &[Tenant], gpu_keys: &[String]) -> String {
    let has = |tenant: &Tenant, limits: &Limits| {
        let sms = limits.topology().ok()?.sms_per_tpc() * tenant.set().ok()?.len();
        let is_promised = limits.flags & FLAG_MEMORY_REST == 0 && limits.memory_quota_bytes != NO_QUOTA;
        let quota = is_promised.then(|| ByteSize(limits.memory_quota_bytes).approximate());
        let quota = quota.map_or_else(String::new, |quota| format!(" and {quota}"));
        Some(format!("{} has {sms} SMs{quota}", tenant.name_among_all()))
    };
    let here = tenants.iter().filter(|tenant| gpu_keys.contains(&tenant.gpu_key));
    let texts: Vec<String> = here.filter_map(|tenant| has(tenant, tenant.limits().ok()?)).collect();
    texts.join(", ")
}
