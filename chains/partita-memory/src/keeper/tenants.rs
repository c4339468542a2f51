//! The tenants of a keeper: a user with a name.

use std::collections::BTreeMap;

use crate::pool::{Pool, Refusal, TenantId};

use crate::name::TenantName;

/// A tenant's user and name: users cannot take each other's names.
pub(super) type Key = (u32, TenantName);

struct Tenant {
    id: TenantId,
    /// Whether its quota was set, which then stays.
    is_set: bool,
}

/// Tenants by user and name.
pub(super) struct Tenants {
    by_key: BTreeMap<Key, Tenant>,
    quota_bytes: u64,
}

impl Tenants {
    pub(super) fn new(quota_bytes: u64) -> Self {
        Self { by_key: BTreeMap::new(), quota_bytes }
    }

    /// The tenant, added with the default quota if it is new.
    pub(super) fn find(&mut self, pool: &mut Pool, key: Key) -> Result<TenantId, Refusal> {
        if let Some(known) = self.by_key.get(&key) {
            return Ok(known.id);
        }
        let id = pool.add_tenant(self.quota_bytes)?;
        self.by_key.insert(key, Tenant { id, is_set: false });
        Ok(id)
    }

    /// Sets a quota, also of a tenant that does not exist yet.
    pub(super) fn set_quota(&mut self, pool: &mut Pool, key: Key, bytes: u64) -> Result<(), Refusal> {
        let id = self.find(pool, key)?;
        pool.set_quota(id, bytes)?;
        if let Some(known) = self.by_key.get_mut(&key) {
            known.is_set = true;
        }
        Ok(())
    }

    /// Forgets tenants that have nothing, and no set quota.
    pub(super) fn forget_idle(&mut self, pool: &mut Pool) {
        self.by_key.retain(|_, known| known.is_set || !pool.forget_tenant(known.id));
    }

    /// Whether there is one that [`Tenants::forget_idle`] may forget later.
    pub(super) fn has_passing(&self) -> bool {
        self.by_key.values().any(|known| !known.is_set)
    }

    /// Their names, in order.
    pub(super) fn all(&self) -> impl Iterator<Item = (Key, TenantId)> {
        self.by_key.iter().map(|(key, known)| (*key, known.id))
    }

    /// The user and name of an id.
    pub(super) fn key_of(&self, id: TenantId) -> Option<Key> {
        self.all().find(|(_, known)| *known == id).map(|(key, _)| key)
    }
}
