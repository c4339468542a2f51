//! Memory that graphs own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use partita_abi::CuResult;

use super::gpus::runtime_at;
use super::runtime::Runtime;
use super::{memory, pool};
use crate::shared::sys::lock;

/// Memory that a node allocates: it exists from the node's creation, at an address that never
/// changes, until the node's graph and its executables are gone.
#[derive(Debug)]
pub struct GraphMemory {
    /// Its address.
    pub address: u64,
}

/// What graphs own.
#[derive(Debug)]
struct Owned {
    memory: Weak<GraphMemory>,
    /// The same from a launch that allocates it to its free.
    held: Option<Arc<GraphMemory>>,
}

/// By address.
static OWNED: Mutex<BTreeMap<u64, Owned>> = Mutex::new(BTreeMap::new());

/// Whether a launch has allocated it and nothing has freed it.
pub fn is_allocated(address: u64) -> bool {
    lock(&OWNED).get(&address).is_some_and(|owned| owned.held.is_some())
}

/// Whether a graph owns memory at an address.
pub fn is_owned(address: u64) -> bool {
    lock(&OWNED).get(&address).is_some_and(|owned| owned.memory.strong_count() > 0)
}

/// Records that a launch has allocated memory.
pub fn hold(memory: &Arc<GraphMemory>) {
    if let Some(owned) = lock(&OWNED).get_mut(&memory.address) {
        owned.held = Some(Arc::clone(memory));
    }
}

/// Frees what the launch of a graph has allocated; `None` for memory that no graph owns.
pub fn free(address: u64) -> Option<Result<(), CuResult>> {
    // It is dropped without the lock.
    let held = lock(&OWNED).get_mut(&address)?.held.take();
    Some(held.map(drop).ok_or(CuResult::INVALID_VALUE))
}

impl GraphMemory {
    /// Allocates from the device's pool for graphs.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn new(runtime: &'static Runtime, bytes: u64) -> Result<Arc<Self>, CuResult> {
        let made = Arc::new(Self { address: pool::allocate(bytes, pool::of_graphs(runtime)?)? });
        let owned = Owned { memory: Arc::downgrade(&made), held: None };
        lock(&OWNED).insert(made.address, owned);
        Ok(made)
    }
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        lock(&OWNED).remove(&self.address);
        if let Ok(runtime) = runtime_at(self.address) {
            let _ = memory::free(runtime, self.address);
        }
    }
}
