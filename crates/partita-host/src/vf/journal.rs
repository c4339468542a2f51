//! What the journal of a change of functions holds.

use std::path::Path;

use partita_core::vf::{Binding, Layout, Place, Vgpu};
use serde::{Deserialize, Serialize};

use super::nvml::Scheduler;
use crate::journal::Journal;

/// What a device had before a change.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Before {
    functions: u16,
    bindings: Vec<(u16, String, bool)>,
    /// The function, the type and the UUID.
    vgpus: Vec<(Option<u16>, u32, String)>,
    is_mixed: Option<bool>,
    scheduler: Option<Scheduler>,
}

/// The journal of the device at this PCI address, in the directory of locks.
pub(super) fn of(dir: &Path, address: &str) -> Journal<Before> {
    Journal::at(dir.join(format!(".vf-{address}.json")))
}

impl From<&Layout> for Before {
    fn from(layout: &Layout) -> Self {
        let binding = |(at, one): (&u16, &Binding)| (*at, one.driver.clone(), one.is_bound);
        let vgpu = |one: &Vgpu| {
            let at = match one.place {
                Place::Function(at) => Some(at),
                Place::Device => None,
            };
            (at, one.kind, one.uuid.clone())
        };
        Self {
            functions: layout.functions,
            bindings: layout.bindings.iter().map(binding).collect(),
            vgpus: layout.vgpus.iter().map(vgpu).collect(),
            is_mixed: layout.is_mixed,
            scheduler: layout.scheduler.map(Scheduler::from),
        }
    }
}

impl From<Before> for Layout {
    fn from(before: Before) -> Self {
        let binding = |(at, driver, is_bound)| (at, Binding { driver, is_bound });
        let vgpu = |(at, kind, uuid): (Option<u16>, u32, String)| Vgpu {
            place: at.map_or(Place::Device, Place::Function),
            kind,
            uuid,
        };
        Self {
            functions: before.functions,
            bindings: before.bindings.into_iter().map(binding).collect(),
            vgpus: before.vgpus.into_iter().map(vgpu).collect(),
            is_mixed: before.is_mixed,
            scheduler: before.scheduler.as_ref().and_then(Scheduler::state),
        }
    }
}
