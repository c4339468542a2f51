//! The mechanisms of this build on a GPU. Later checks prove them.

use partita_core::Words;
use partita_host::gpu::Gpu;
use partita_host::offered::Via;

use super::check::Check;

/// Lists the values of `--via`.
pub(super) fn check(gpu: &Gpu) -> Check {
    if gpu.facts.mig_enabled == Some(true) {
        let detail =
            "enforced in MIG instances: a memory quota and a share of time, by environment variables alone";
        return Check::ok("mechanisms", detail);
    }
    let enforced = Via::VALUES.iter().filter(|via| **via != Via::Auto).map(|via| via.name());
    Check::ok("mechanisms", format!("enforced: {}", enforced.collect::<Vec<_>>().join(", ")))
}
