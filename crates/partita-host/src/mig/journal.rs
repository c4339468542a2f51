//! What the journal of a change of instances holds.

use std::path::Path;

use partita_core::mig::{Layout, Placed, Slot};
use serde::{Deserialize, Serialize};

use crate::journal::Journal;

/// An instance from before a change.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    profile: u32,
    start: u32,
    size: u32,
    computes: Vec<u32>,
}

/// The journal of a GPU, in the directory of locks.
pub(super) fn of(dir: &Path, uuid: &str) -> Journal<Vec<Entry>> {
    Journal::at(dir.join(format!(".mig-{uuid}.json")))
}

/// The instances of a journal.
pub(super) fn layout(entries: Vec<Entry>) -> Layout {
    let placed = |entry: Entry| {
        let slot = Slot { start: entry.start, size: entry.size };
        Placed { slot, profile: entry.profile, computes: entry.computes }
    };
    entries.into_iter().map(placed).collect()
}

/// What the journal holds of instances.
pub(super) fn entries(layout: &Layout) -> Vec<Entry> {
    let entry = |placed: &Placed| Entry {
        profile: placed.profile,
        start: placed.slot.start,
        size: placed.slot.size,
        computes: placed.computes.clone(),
    };
    layout.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_read_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let journal = of(dir.path(), "GPU-1");
        let placed = Placed { slot: Slot { start: 4, size: 4 }, profile: 9, computes: vec![1, 2] };
        journal.begin(entries(&vec![placed.clone()])).unwrap();
        assert_eq!(journal.before().unwrap().map(layout), Some(vec![placed]));
        assert!(dir.path().join(".mig-GPU-1.json").exists());
    }
}
