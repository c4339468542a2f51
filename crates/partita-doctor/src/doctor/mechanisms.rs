//! The mechanisms of this build on a GPU. Later checks prove them.

use partita_host::offered::Via;

use super::check::Check;

const NAME: &str = "mechanisms";

/// Lists the values of `--via`, and why the others are refused.
pub(super) fn check() -> Check {
    let (enforced, refused): (Vec<Via>, Vec<Via>) =
        Via::ALL.into_iter().partition(|via| via.refusal().is_none());
    let enforced: Vec<&str> = enforced.into_iter().map(Via::name).collect();
    let refused =
        refused.into_iter().filter_map(|via| Some(format!("{} is refused: {}", via.name(), via.refusal()?)));
    let refused: Vec<String> = refused.collect();
    Check::ok(NAME, format!("enforced: {}; {}", enforced.join(", "), refused.join(". ")))
}
