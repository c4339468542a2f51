//! The masks in the descriptors of an executable graph.
//!
//! The driver builds the descriptor of a kernel node once and keeps it: when the node is updated,
//! the callback finds the mask that it wrote itself the time before (measured on an H200,
//! `docs/hardware.md`). If it took that for the program's own, the mask would hold forever. So each
//! written mask is recorded, descriptor by descriptor, with the mask that was there first.

use hashbrown::HashMap;
use partita_ledger::mutex::Mutex;

type Words = [u32; 8];

/// The mask written into one descriptor.
#[derive(Debug, Clone, Copy)]
struct Written {
    /// The mask that the callback left, `None` for no mask.
    left: Option<Words>,
    /// The mask that came with the descriptor: the program's for its stream, or the driver's for a
    /// cluster.
    own: Option<Words>,
}

/// The descriptors of one executable, by their addresses.
pub struct Carried(Mutex<Option<HashMap<usize, Written>>>);

impl core::fmt::Debug for Carried {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Carried")
    }
}

impl Carried {
    /// None yet.
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The original mask of a descriptor that contains `found` now.
    pub fn own(&self, descriptor: usize, found: Option<Words>) -> Option<Words> {
        match self.0.lock().get_or_insert_default().get(&descriptor) {
            // Unchanged since: the driver did not rebuild it.
            Some(written) if written.left == found => written.own,
            _ => found,
        }
    }

    /// The mask that came with the first descriptor that is found: that of a call with one launch.
    pub fn first_own(&self) -> Option<Words> {
        self.0.lock().get_or_insert_default().values().next().and_then(|written| written.own)
    }

    /// Notes that `left` was left in a descriptor that came with `own`, both as they are read from
    /// it.
    pub fn note(&self, descriptor: usize, left: Option<Words>, own: Option<Words>) {
        self.0.lock().get_or_insert_default().insert(descriptor, Written { left, own });
    }
}
