//! What this process has obtained, so that what it gives back can be credited.

use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::gpu::Charge;

/// What kind of driver object holds the memory; handles of different kinds are
/// numbered apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A device pointer.
    Pointer,
    /// A `CUarray`.
    Array,
    /// A `CUmipmappedArray`.
    MipmappedArray,
    /// A `CUmemGenericAllocationHandle` of `cuMemCreate`.
    Physical,
}

/// One holding.
#[derive(Debug, Clone, Copy)]
pub struct Holding {
    /// What was charged for it.
    pub charge: Charge,
    /// The context that ends it, 0 where none does.
    pub context: usize,
    /// How often the handle is held ([`Kind::Physical`]; 1 for others).
    references: u32,
    /// How many mappings keep it alive ([`Kind::Physical`]).
    mappings: u32,
}

/// Every holding of the process.
pub struct Allocations {
    holdings: Option<HashMap<(Kind, u64), Holding>>,
    /// Physical handle behind each mapped address.
    mapped: Option<HashMap<u64, u64>>,
}

impl Allocations {
    /// No holdings.
    pub const fn new() -> Self {
        Self { holdings: None, mapped: None }
    }

    fn holdings(&mut self) -> &mut HashMap<(Kind, u64), Holding> {
        self.holdings.get_or_insert_default()
    }

    /// Records a holding. Returns what was charged for an older one under the same
    /// handle, whose end the hook has not seen: the caller credits it.
    pub fn insert(&mut self, kind: Kind, handle: u64, charge: Charge, context: usize) -> Option<Charge> {
        let holding = Holding { charge, context, references: 1, mappings: 0 };
        self.holdings().insert((kind, handle), holding).map(|old| old.charge)
    }

    /// Takes a holding out, to be credited once the driver has freed it.
    pub fn remove(&mut self, kind: Kind, handle: u64) -> Option<Holding> {
        self.holdings().remove(&(kind, handle))
    }

    /// Puts a holding back that the driver refused to free.
    pub fn restore(&mut self, kind: Kind, handle: u64, holding: Holding) {
        self.holdings().insert((kind, handle), holding);
    }

    /// Takes out every holding that ended with a context, and tells what was charged for each.
    pub fn remove_context(&mut self, context: usize, mut ended: impl FnMut(Charge)) {
        self.holdings().retain(|_, holding| {
            let stays = holding.context != context;
            if !stays {
                ended(holding.charge);
            }
            stays
        });
    }

    /// Notes that a physical handle is held once more.
    pub fn retain_physical(&mut self, handle: u64) {
        if let Some(holding) = self.holdings().get_mut(&(Kind::Physical, handle)) {
            holding.references = holding.references.saturating_add(1);
        }
    }

    /// Notes that a physical handle was released once; returns what to
    /// credit if nothing holds the memory any more.
    pub fn release_physical(&mut self, handle: u64) -> Option<Charge> {
        if let Some(holding) = self.holdings().get_mut(&(Kind::Physical, handle)) {
            holding.references = holding.references.saturating_sub(1);
        }
        self.credit_if_unheld(handle)
    }

    /// Notes that a physical handle was mapped at an address.
    pub fn map(&mut self, address: u64, handle: u64) {
        if let Some(holding) = self.holdings().get_mut(&(Kind::Physical, handle)) {
            holding.mappings = holding.mappings.saturating_add(1);
            self.mapped.get_or_insert_default().insert(address, handle);
        }
    }

    /// Notes that a range was unmapped; returns what to credit.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Vec<Charge> {
        let end = address.saturating_add(bytes);
        let mut freed = Vec::new();
        while let Some(mapping) =
            self.mapped.get_or_insert_default().keys().copied().find(|start| (address..end).contains(start))
        {
            let handle = self.mapped.get_or_insert_default().remove(&mapping).unwrap_or_default();
            if let Some(holding) = self.holdings().get_mut(&(Kind::Physical, handle)) {
                holding.mappings = holding.mappings.saturating_sub(1);
            }
            freed.extend(self.credit_if_unheld(handle));
        }
        freed
    }

    fn credit_if_unheld(&mut self, handle: u64) -> Option<Charge> {
        let key = (Kind::Physical, handle);
        match self.holdings().get(&key) {
            Some(holding) if holding.references == 0 && holding.mappings == 0 => {
                self.holdings().remove(&key).map(|holding| holding.charge)
            }
            _ => None,
        }
    }
}
