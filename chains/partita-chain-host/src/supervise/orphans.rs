//! Orphans of components: processes of the tenant whose parent has ended.

use partita_frames::COMPONENT_VARIABLE;
use partita_host::error::Error;
use partita_host::install::Install;
use partita_host::kill::{self, GRACE_DEFAULT, KillOutcome};
use partita_host::process::ProcessId;
use partita_host::registry::{Registry, Tenant};

/// Finds and ends them.
pub(super) struct Orphans {
    install: Install,
    registry: Registry,
    name: String,
    tenant: Vec<Tenant>,
}

impl Orphans {
    pub(super) fn new(install: &Install, registry: Registry, name: &str, tenant: Vec<Tenant>) -> Self {
        Self { install: install.clone(), registry, name: name.to_owned(), tenant }
    }

    /// Ends the orphans of a component that has ended: they may still have its place and its
    /// frames.
    pub(super) fn end_of_component(&self, component: usize, say: &mut dyn FnMut(&str)) -> Result<(), Error> {
        let number = component.to_string();
        self.end(say, |process| process.variable(COMPONENT_VARIABLE).is_some_and(|of| *of == *number))
    }

    /// Ends all processes of the tenant except the keepers of its memory.
    pub(super) fn end_all(&self, keepers: &[ProcessId], say: &mut dyn FnMut(&str)) -> Result<(), Error> {
        self.end(say, |process| !keepers.contains(&process))
    }

    fn end(&self, say: &mut dyn FnMut(&str), is_meant: impl Fn(ProcessId) -> bool) -> Result<(), Error> {
        let Self { install, registry, name, tenant } = self;
        let KillOutcome { notices, .. } =
            kill::end_those(install, registry, name, tenant, GRACE_DEFAULT, is_meant)?;
        notices.iter().for_each(|notice| say(notice));
        Ok(())
    }
}
