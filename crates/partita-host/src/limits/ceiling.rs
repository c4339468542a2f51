//! How far a tenant borrows: the second figure of `--sm 30%..100%`.

use partita_core::{Share, Topology, TpcSet};
use partita_ledger::{Limits, MECHANISM_MASK};

use super::LimitSet;
use crate::error::Error;
use crate::registry::Isolation;

/// Writes how far a tenant may borrow, as asked, beside the TPCs that it has. A share without a
/// ceiling ends borrowing.
///
/// # Errors
/// [`Error::NotOffered`] with the reason, if nothing can be lent to such a tenant, or if the
/// ceiling is below its own TPCs.
pub(crate) fn put(
    asked: &LimitSet,
    topology: &Topology,
    isolation: Isolation,
    limits: &mut Limits,
) -> Result<(), Error> {
    let Some(up_to) = asked.up_to else {
        if asked.share.is_some() {
            limits.borrow_tpcs_max = 0;
        }
        return Ok(());
    };
    let refuse = |reason: String| Err(Error::NotOffered { option: format!("--sm ..{up_to}"), reason });
    if limits.mechanism != MECHANISM_MASK || limits.takes_turns() {
        return refuse(
            "TPCs are borrowed by masks in each launch; this tenant has none: leave out --via, --mps-partition, and \
             --time or --priority without --sm"
                .to_owned(),
        );
    }
    if isolation == Isolation::Own {
        return refuse(
            "with --isolation own tenants take turns, and while one runs no other uses its TPCs; leave it out".to_owned(),
        );
    }
    if limits.flags & partita_ledger::FLAG_TIMED != 0 {
        return refuse(
            "a share of time beside it would count borrowed time; use --time-policy soft without a ceiling, or leave out \
             --time"
                .to_owned(),
        );
    }
    if matches!(up_to, Share::Gpcs(_) | Share::Exact(_)) {
        return refuse("a ceiling is a number: write 100%, 40sm or 20tpc".to_owned());
    }
    let most = match up_to.tpcs_wanted(topology) {
        Ok(most) => most,
        Err(error) => return refuse(error.to_string()),
    };
    let own = TpcSet::from_words(limits.set).len();
    if most < own {
        return refuse(format!(
            "the tenant has {own} TPCs of its own, and that is {most}; write the larger one last"
        ));
    }
    limits.borrow_tpcs_max = if most == own { 0 } else { most.into() };
    Ok(())
}
