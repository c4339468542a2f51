//! Writes incidents of one tenant down, as its `partita run` sees them.

use partita_mps::Service;

use crate::mps::incident::{self, Incident, What};
use crate::registry::Registry;
use crate::system;

/// Writes incidents of one tenant down.
#[derive(Debug, Clone)]
pub(super) struct Noter {
    pub service: Service,
    /// In system mode, where partitad records incidents.
    pub system: Option<Registry>,
    pub tenant: String,
}

impl Noter {
    /// For a tenant whose programs are clients of this service.
    pub fn of(service: &Service, registry: &Registry, tenant: &str) -> Self {
        Self {
            service: service.clone(),
            system: registry.is_client().then(|| registry.clone()),
            tenant: tenant.to_owned(),
        }
    }

    /// Writes one incident of now down.
    pub fn note(&self, what: What) {
        match &self.system {
            // Only messages depend on it.
            Some(registry) => drop(system::note_incident(registry, &self.tenant, what)),
            None => incident::note(&self.service, &Incident::now(&self.tenant, what)),
        }
    }
}
