//! The mechanisms of this build on a GPU. Later checks prove them.

use partita_core::Words;
use partita_host::offered::Via;

use super::check::Check;

/// Lists the values of `--via`.
pub(super) fn check() -> Check {
    let enforced = Via::VALUES.iter().filter(|via| **via != Via::Auto).map(|via| via.name());
    Check::ok("mechanisms", format!("enforced: {}", enforced.collect::<Vec<_>>().join(", ")))
}
