//! Which TPCs the tenants that borrow may not borrow at all: those of tenants that do not show when
//! they are at work. These are tenants in containers, of other users, and without masks.
//!
//! Each command that makes, changes or removes a tenant writes it again.

use partita_core::TpcSet;
use partita_ledger::{FLAG_LENDS, Limits, MECHANISM_MASK};

use super::tenant::Tenant;

/// Writes for every borrower what it may not borrow.
pub(super) fn divide(tenants: &[Tenant]) {
    let borrows = |tenant: &&Tenant| tenant.limits().is_ok_and(|limits| limits.borrow_tpcs_max != 0);
    for tenant in tenants.iter().filter(borrows) {
        let lends = |other: &Tenant, limits: &Limits| {
            other.user == tenant.user && limits.flags & FLAG_LENDS != 0 && limits.mechanism == MECHANISM_MASK
        };
        let others = tenants.iter().filter(|other| other.gpu_key == tenant.gpu_key && other.counts());
        let shut = others.filter_map(|other| {
            let limits = other.limits().ok()?;
            (!other.is_of_same(tenant) && !lends(other, limits)).then(|| TpcSet::from_words(limits.set))
        });
        let shut = shut.fold(TpcSet::EMPTY, |all, set| all | set).to_words();
        if tenant.limits().is_ok_and(|limits| limits.not_lent != shut)
            && let Ok(mut file) = tenant.kept_limits_file()
        {
            // The next command that reads a damaged file reports it.
            let _ = file.update(|limits| limits.not_lent = shut);
        }
    }
}
