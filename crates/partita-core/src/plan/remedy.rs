//! Who could make room for a request that was refused, and with which shares.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use super::error::{Holder, PlanError, Remedy, Resize};
use crate::{Share, Topology};

/// What the caller may do to a holder of TPCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Give it a smaller share, or end it.
    Shrink,
    /// End it.
    End,
    /// Nothing: it belongs to another user.
    Nothing,
    /// Nothing: it stands for a reservation.
    Reserved,
}

impl PlanError {
    /// The same with the commands that make room for the request, as far as the caller has access
    /// to the holders of these names. `end` names the command of Partita that ends one of them.
    #[must_use]
    pub fn with_remedy(
        mut self,
        topology: &Topology,
        access: impl Fn(&str) -> Access,
        end: impl Fn(&str) -> &'static str,
    ) -> Self {
        let end_one = |holders: &[Holder]| end_one(holders, &access, &end);
        let can_shrink = |holder: &Holder| access(&holder.name) == Access::Shrink;
        let holders: &mut [Holder] = match &mut self {
            Self::NotEnough(error) => &mut error.holders,
            Self::NoneFree(error) => &mut error.holders,
            Self::Taken(error) => &mut error.conflicts,
            Self::Share(_) | Self::UnknownTenant { .. } | Self::Deadlock { .. } => &mut [],
        };
        for holder in holders {
            holder.is_reservation = access(&holder.name) == Access::Reserved;
        }
        match &mut self {
            Self::NotEnough(error) => {
                let missing = error.wanted_tpcs.saturating_sub(error.free.len());
                // More than the device has: no room helps.
                if error.wanted_tpcs <= topology.tpc_count() {
                    let write = |tpcs| in_form(error.asked, tpcs, topology);
                    error.remedy = by_count(&error.holders, missing, &access, write)
                        .unwrap_or_else(|| end_one(&error.holders));
                }
            }
            Self::NoneFree(error) => {
                let largest = error.holders.iter().filter(|holder| can_shrink(holder));
                // Half of the largest tenant.
                let missing = largest.map(|holder| holder.set.len()).max().unwrap_or(0) / 2;
                let write = |tpcs| in_form(Share::Percent(0), tpcs, topology);
                error.remedy = by_count(&error.holders, missing.max(1), &access, write)
                    .unwrap_or_else(|| end_one(&error.holders));
            }
            Self::Taken(error) => {
                let rest = |holder: &Holder| holder.set - error.named;
                let resize = |holder: &Holder| {
                    let can = can_shrink(holder) && !rest(holder).is_empty();
                    let share = Share::Exact(rest(holder));
                    can.then(|| Resize { tenant: holder.name.clone(), share })
                };
                let resizes: Option<Vec<_>> = error.conflicts.iter().map(resize).collect();
                error.remedy = resizes.map_or_else(|| end_one(&error.conflicts), Remedy::Shrink);
            }
            Self::Share(_) | Self::UnknownTenant { .. } | Self::Deadlock { .. } => {}
        }
        self
    }
}

/// A number of TPCs in the form in which a share was requested.
fn in_form(asked: Share, tpcs: u32, topology: &Topology) -> Share {
    match asked {
        Share::Percent(_) => match Share::percent_of_tpcs(tpcs, topology) {
            // 50% reads better than 51%.
            Some(Share::Percent(milli))
                if Share::Percent(milli - milli % 10_000).tpcs_wanted(topology) == Ok(tpcs) =>
            {
                Some(Share::Percent(milli - milli % 10_000))
            }
            share => share,
        },
        Share::Sms(_) => Some(Share::Sms(tpcs * topology.sms_per_tpc())),
        _ => None,
    }
    .unwrap_or(Share::Tpcs(tpcs))
}

/// The fewest tenants that can give up `missing` TPCs and keep one each, the largest first; `None`
/// if all of them together cannot.
fn by_count(
    holders: &[Holder],
    mut missing: u32,
    access: impl Fn(&str) -> Access,
    write: impl Fn(u32) -> Share,
) -> Option<Remedy> {
    let mut can_shrink: Vec<&Holder> =
        holders.iter().filter(|holder| access(&holder.name) == Access::Shrink).collect();
    can_shrink.sort_by_key(|holder| core::cmp::Reverse(holder.set.len()));
    let mut resizes = Vec::new();
    for holder in can_shrink {
        let given = missing.min(holder.set.len() - 1);
        if given > 0 {
            resizes.push(Resize { tenant: holder.name.clone(), share: write(holder.set.len() - given) });
            missing -= given;
        }
    }
    (missing == 0).then_some(Remedy::Shrink(resizes))
}

/// The end of the largest tenant that the caller may end.
fn end_one(
    holders: &[Holder],
    access: impl Fn(&str) -> Access,
    end: impl Fn(&str) -> &'static str,
) -> Remedy {
    let can_end = |holder: &&Holder| matches!(access(&holder.name), Access::Shrink | Access::End);
    match holders.iter().filter(can_end).max_by_key(|holder| holder.set.len()) {
        Some(largest) => Remedy::End { tenant: largest.name.clone(), command: end(&largest.name) },
        None if holders.iter().all(|holder| holder.is_reservation) => Remedy::Reserved,
        None => Remedy::Ask,
    }
}
