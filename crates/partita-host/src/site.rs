//! The policy of the site beside the tenants that are there: what a request gets, and what is kept
//! for others.

use partita_core::{ByteSize, Quota, Share, Topology, TpcSet};

use crate::error::Error;
use crate::policy::{
    Decided, Device, Held, Kept, Policy, Rules, User, Wish, decide, moment, most_tpcs, tpcs, turns, user_of,
};
use crate::registry::{GpuMeta, Registry, Tenant, acting_user, acts_for_user, memory};

/// The policy that holds for the plans of this process.
///
/// # Errors
/// [`Error::Policy`].
pub(crate) fn present_rules() -> Result<Rules, Error> {
    crate::policy::present_rules(acts_for_user())
}

/// Holds the tenants that run to what this policy keeps of the memory for others: for the process
/// that has read a changed one, or when its hours begin or end.
///
/// # Errors
/// As [`Registry::lock_to_plan`].
pub fn hold(registry: &Registry, policy: Policy) -> Result<(), Error> {
    let lock = registry.lock_to_plan()?;
    memory::divide_all(&lock.tenants()?, &Rules { policy, now: moment() });
    Ok(())
}

/// Where a tenant is planned.
pub(crate) struct Site<'a> {
    pub topology: &'a Topology,
    pub gpu: &'a GpuMeta,
    pub gpu_key: &'a str,
    pub memory_bytes: u64,
    pub driver_bytes: u64,
    /// The tenants of the machine.
    pub tenants: &'a [Tenant],
    /// The tenant to change.
    pub changed: Option<&'a Tenant>,
}

impl Site<'_> {
    fn others(&self) -> impl Iterator<Item = &Tenant> {
        self.tenants.iter().filter(|tenant| {
            let is_changed = self.changed.is_some_and(|changed| changed.is_of_same(tenant));
            tenant.gpu_key == self.gpu_key && tenant.counts() && !is_changed
        })
    }

    /// The promise of memory that a tenant of it is to get here.
    fn memory<'a>(&'a self, quota: Option<ByteSize>, kept: &'a [Kept]) -> memory::Wanted<'a> {
        memory::Wanted {
            gpu_key: self.gpu_key,
            gpu: &self.gpu.label,
            total_bytes: self.memory_bytes,
            quota,
            driver_allowance: self.driver_bytes,
            tenant: self.changed,
            kept,
        }
    }

    /// The user for whom this is planned.
    fn user(&self) -> u32 {
        self.changed.map_or_else(acting_user, |tenant| tenant.user)
    }
}

/// The TPCs that a tenant was promised.
fn promised(tenant: &Tenant) -> TpcSet {
    match tenant.rests() {
        Some(_) => TpcSet::EMPTY,
        // What it has beyond its guarantee it gives to whom asks.
        None => tenant.set().unwrap_or(TpcSet::EMPTY).lowest(tenant.promised_tpcs()),
    }
}

impl Rules {
    /// What a tenant gets of a wish.
    ///
    /// # Errors
    /// [`Error::NotOffered`].
    pub fn decide(&self, site: &Site<'_>, wish: &Wish) -> Result<Decided, Error> {
        let user = user_of(site.user());
        let mut held = Held::default();
        for tenant in site.others().filter(|tenant| tenant.user == site.user()) {
            held.tpcs += promised(tenant).len();
            held.memory_bytes += tenant.limits().ok().and_then(memory::promise).unwrap_or(0);
        }
        let device = Device {
            topology: site.topology,
            memory_bytes: site.memory_bytes,
            driver_bytes: site.driver_bytes,
        };
        let mut decided = decide(&self.policy, &user, &device, held, wish, self.now)
            .map_err(|(option, reason)| Error::NotOffered { option, reason })?;
        let is_without = decided.share.is_none() && !wish.takes_turns && !wish.is_change;
        if let Some(kept) = self.kept_for(site, &user).filter(|_| is_without) {
            // The reservation is the user's own.
            decided.share = Some(Share::Tpcs(kept));
        }
        if decided.memory.is_none() && !wish.is_change {
            let kept = self.kept_memory(site);
            decided.memory = site.memory(None, &kept).own_reserve(site.tenants).map(Quota::Bytes);
        }
        Ok(decided)
    }

    /// The most TPCs that the changed tenant may hold, beside what its user's others hold.
    pub fn most_tpcs(&self, site: &Site<'_>) -> u32 {
        let Some(most) = most_tpcs(&self.policy, &user_of(site.user()), site.topology, self.now) else {
            return u32::MAX;
        };
        let others = site.others().filter(|tenant| tenant.user == site.user() && tenant.rests().is_none());
        let held: u32 = others.map(|tenant| tenant.set().map_or(0, |set| set.len())).sum();
        most.saturating_sub(held)
    }

    /// The option with which a tenant joins those who take turns by a priority.
    pub fn turns(&self, site: &Site<'_>) -> String {
        turns(&self.policy, &user_of(site.user()), self.now)
    }

    /// How many TPCs are kept for this user and are not in use.
    fn kept_for(&self, site: &Site<'_>, user: &User) -> Option<u32> {
        let unused = self
            .reserved(site)
            .into_iter()
            .filter(|(index, _)| self.policy.reservations[*index].who.includes(user));
        Some(unused.map(|(_, tpcs)| tpcs).sum()).filter(|tpcs| *tpcs > 0)
    }

    /// Each reservation that holds on this GPU now, and how many TPCs of it no tenant of its users
    /// has.
    fn reserved(&self, site: &Site<'_>) -> Vec<(usize, u32)> {
        let mut unused = Vec::new();
        for (index, entry) in self.policy.reservations.iter().enumerate() {
            let Some(share) = entry.share else { continue };
            if !entry.holds(self.now, |selector| site.gpu.is(selector)) {
                continue;
            }
            let used = site.others().filter(|tenant| entry.who.includes(&user_of(tenant.user)));
            let used: u32 = used.map(|tenant| promised(tenant).len()).sum();
            unused.push((index, tpcs(share, site.topology).saturating_sub(used)));
        }
        unused
    }

    /// What is reserved here for others than the user for whom this is planned: names for messages,
    /// and TPCs that no tenant of theirs has.
    pub fn reserved_for_others(&self, site: &Site<'_>) -> Vec<(String, u32)> {
        let user = user_of(site.user());
        let for_others = |(index, tpcs): (usize, u32)| {
            let entry = &self.policy.reservations[index];
            let name = || format!("reservation of {} (line {} of the policy)", entry.who.names(), entry.line);
            (tpcs > 0 && !entry.who.includes(&user)).then(|| (name(), tpcs))
        };
        self.reserved(site).into_iter().filter_map(for_others).collect()
    }

    /// The memory that is reserved here for anyone.
    pub fn kept_memory(&self, site: &Site<'_>) -> Vec<Kept> {
        memory::kept(self, Some(site.gpu), site.memory_bytes, site.others(), Some(site.user()))
    }
}
