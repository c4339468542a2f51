//! Which ways of holding a tenant this build has on a GPU. The checks that prove them come after it.

use super::Check;
use crate::gpu::Gpu;
use crate::offered::{TimeShare, Via, check_time};

const NAME: &str = "mechanisms";

/// Lists what `--via` takes, and why it refuses the rest.
pub(super) fn check(gpu: &Gpu) -> Check {
    let refusal = |via: Via| match via {
        Via::Time => {
            check_time(gpu.sim().is_some(), TimeShare::default()).err().map(|error| error.to_string())
        }
        via => via.refusal().map(str::to_owned),
    };
    let (enforced, refused): (Vec<_>, Vec<_>) = Via::ALL
        .into_iter()
        .map(|via| (via.name(), refusal(via)))
        .partition(|(_, refusal)| refusal.is_none());
    let enforced: Vec<&str> = enforced.iter().map(|(name, _)| *name).collect();
    let refused = refused
        .iter()
        .filter_map(|(name, refusal)| Some(format!("{name} is refused: {}", refusal.as_ref()?)));
    let refused: Vec<String> = refused.collect();
    Check::ok(NAME, format!("enforced: {}; {}", enforced.join(", "), refused.join(". ")))
}
