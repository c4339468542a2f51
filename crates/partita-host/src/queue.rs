//! The programs of `partita run --wait`, as `ps` shows them. Their order:
//! [`registry`](crate::registry).

use std::collections::BTreeSet;

use serde::Serialize;

use crate::error::Error;
use crate::gpu::Gpu;
use crate::process::user_name;
use crate::registry::{Registry, Waiter, ahead, now_unix_s};

/// A program that waits, as `ps` shows it.
#[derive(Debug, Clone, Serialize)]
pub struct WaitingRow {
    /// The tenant that it will be.
    pub name: String,
    /// Its owner.
    pub user: String,
    /// The short names of the GPUs that it waits for.
    pub gpus: Vec<String>,
    /// Their UUIDs.
    pub gpu_uuids: Vec<String>,
    /// How many programs must start before it.
    pub ahead: usize,
    /// For how many seconds it has waited.
    pub waited_s: u64,
    /// Its `partita run`.
    pub pid: u32,
}

/// The programs that wait for room, in their order.
///
/// # Errors
/// [`Error::RunDirectory`], [`Error::Io`].
pub fn waiting(registry: &Registry) -> Result<Vec<WaitingRow>, Error> {
    let queue = registry.queue()?;
    let row = |waiter: &Waiter| {
        let keys: Vec<String> = waiter.gpus.iter().map(|gpu| gpu.key.clone()).collect();
        WaitingRow {
            name: waiter.name.clone(),
            user: user_name(waiter.user),
            gpus: waiter.gpus.iter().map(|gpu| gpu.label.clone()).collect(),
            gpu_uuids: waiter.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
            ahead: ahead(&queue, Some(waiter.number), &keys).len(),
            waited_s: now_unix_s().saturating_sub(waiter.since_unix_s),
            pid: waiter.run.pid,
        }
    };
    Ok(queue.iter().map(row).collect())
}

/// Checks that no program waits for room on these GPUs: a job is refused there.
///
/// # Errors
/// [`Error::Queued`] with the names of those that wait; [`Error::RunDirectory`], [`Error::Io`].
pub fn check_none_waits(registry: &Registry, gpus: &[Gpu]) -> Result<(), Error> {
    let keys: Vec<String> = gpus.iter().map(Gpu::key).collect();
    match ahead(&registry.queue()?, None, &keys) {
        ahead if ahead.is_empty() => Ok(()),
        ahead => {
            Err(Error::Queued { reason: format!("{}; submit the job again after that", ahead_text(&ahead)) })
        }
    }
}

/// The sentence that says which programs come first.
pub(crate) fn ahead_text(ahead: &[&Waiter]) -> String {
    let names: Vec<String> =
        ahead.iter().map(|waiter| format!("{} of {}", waiter.name, user_name(waiter.user))).collect();
    let (verb, come) = if names.len() == 1 { ("waits", "comes") } else { ("wait", "come") };
    let labels: BTreeSet<&str> =
        ahead.iter().flat_map(|waiter| waiter.gpus.iter().map(|gpu| gpu.label.as_str())).collect();
    let labels: Vec<&str> = labels.into_iter().collect();
    format!("{} {verb} for room on {} and {come} first", names.join(", "), labels.join(", "))
}
