//! This process's allocations, so that releases can be credited.

use alloc::vec::Vec;

use hashbrown::HashMap;
use partita_ledger::mutex::{Guard, Mutex};

use crate::account::gpu::Charge;
use crate::memory::driver_memory;
use crate::sys::fork::{in_child, renew};

/// The kind of driver object that holds the memory; handles of different kinds are numbered
/// separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A device pointer.
    Pointer,
    /// A `CUarray`.
    Array,
    /// A `CUmipmappedArray`.
    MipmappedArray,
    /// A `CUmemGenericAllocationHandle` of `cuMemCreate`, or one that was imported.
    Physical,
    /// A device pointer of `cuIpcOpenMemHandle`.
    Opened,
    /// A `CUexternalMemory`.
    External,
}

/// One holding.
#[derive(Debug, Clone, Copy)]
pub struct Holding {
    /// Its charge.
    pub charge: Charge,
    /// The context that ends it, 0 if none does.
    pub context: usize,
    /// How often the handle is held ([`Kind::Physical`], [`Kind::Opened`]; 1 for others).
    references: u32,
    /// How many mappings keep it alive ([`Kind::Physical`]).
    mappings: u32,
}

/// How many ended contexts the table remembers: more than end while one call of the driver runs.
const REMEMBERED: usize = 64;

/// A moment in the table's life: how many contexts had ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

/// Every holding of the process.
pub struct Allocations {
    holdings: Option<HashMap<(Kind, u64), Holding>>,
    /// The contexts that ended last: the one that ended at moment `n` lies at `n % REMEMBERED`.
    ended: [usize; REMEMBERED],
    /// How many contexts have ended.
    now: Moment,
    /// The physical handle of each mapped address, and the charge of the mapping itself.
    mapped: Option<HashMap<u64, (u64, Option<Charge>)>>,
    /// Limits of contexts that are memory: the initial value of each, and the charge above it.
    limits: Option<HashMap<(usize, u32), (u64, Charge)>>,
}

static ALLOCATIONS: Mutex<Allocations> = Mutex::new(Allocations::new());

// Forgets the parent's.
in_child! {
    renew(&ALLOCATIONS, Allocations::new());
}

/// The process's holdings, locked.
pub fn lock() -> Guard<'static, Allocations> {
    ALLOCATIONS.lock()
}

impl Allocations {
    /// No holdings.
    pub const fn new() -> Self {
        let (ended, now) = ([0; REMEMBERED], Moment(0));
        Self { holdings: None, ended, now, mapped: None, limits: None }
    }

    /// This moment.
    pub fn now(&self) -> Moment {
        self.now
    }

    /// Whether a context has ended since a moment; `None` if too many have.
    pub fn has_ended(&self, context: usize, since: Moment) -> Option<bool> {
        if self.now.0 - since.0 > REMEMBERED as u64 {
            return None;
        }
        Some((since.0..self.now.0).any(|at| self.ended[at as usize % REMEMBERED] == context))
    }

    fn holdings(&mut self) -> &mut HashMap<(Kind, u64), Holding> {
        self.holdings.get_or_insert_default()
    }

    /// Records a holding. Returns the charge of another one under the same handle, whose end the
    /// hook has not seen: the caller credits it. It may be the new one, if a thread records an
    /// allocation that was freed and given to another thread meanwhile: `bytes` is the driver's
    /// size there.
    pub fn insert(
        &mut self,
        kind: Kind,
        handle: u64,
        charge: Charge,
        context: usize,
        bytes: impl FnOnce() -> Option<u64>,
    ) -> Option<Charge> {
        let holding = Holding { charge, context, references: 1, mappings: 0 };
        let Some(old) = self.holdings().get_mut(&(kind, handle)) else {
            self.holdings().insert((kind, handle), holding);
            return None;
        };
        let kept = old.charge;
        if kept.bytes != charge.bytes && bytes() == Some(kept.bytes) {
            return Some(charge);
        }
        *old = holding;
        Some(kept)
    }

    /// Takes a holding out, to be credited once the driver has freed it.
    pub fn remove(&mut self, kind: Kind, handle: u64) -> Option<Holding> {
        self.holdings().remove(&(kind, handle))
    }

    /// Changes the charge of a holding, if there is one.
    pub fn change(&mut self, kind: Kind, handle: u64, change: impl FnOnce(Charge) -> Charge) {
        if let Some(holding) = self.holdings().get_mut(&(kind, handle)) {
            holding.charge = change(holding.charge);
        }
    }

    /// Whether there is a holding of which this is true.
    pub fn any(&mut self, is_meant: impl Fn(Kind, u64, Charge) -> bool) -> bool {
        self.holdings().iter().any(|(&(kind, handle), holding)| is_meant(kind, handle, holding.charge))
    }

    /// The charge of a holding.
    pub fn charge(&mut self, kind: Kind, handle: u64) -> Option<Charge> {
        self.holdings().get(&(kind, handle)).map(|holding| holding.charge)
    }

    /// Notes that a handle is held once more; false if it is not held at all.
    pub fn retain(&mut self, kind: Kind, handle: u64) -> bool {
        let holding = self.holdings().get_mut(&(kind, handle));
        holding.map(|holding| holding.references = holding.references.saturating_add(1)).is_some()
    }

    /// Records one release of a handle; returns the charge to credit if it was the last.
    pub fn release(&mut self, kind: Kind, handle: u64) -> Option<Charge> {
        let holding = self.holdings().get_mut(&(kind, handle))?;
        holding.references = holding.references.saturating_sub(1);
        if holding.references > 0 {
            return None;
        }
        self.holdings().remove(&(kind, handle)).map(|holding| holding.charge)
    }

    /// The initial value of a context's limit (`now` at the first call), and the bytes that are
    /// charged for it.
    pub fn context_limit(&mut self, context: usize, limit: u32, now: u64) -> (u64, u64) {
        let known = self.limits.get_or_insert_default().get(&(context, limit));
        known.map_or((now, 0), |(first, charge)| (*first, charge.bytes))
    }

    /// Records the charge for a limit of a context.
    pub fn set_context_limit(&mut self, context: usize, limit: u32, first: u64, charge: Charge) {
        self.limits.get_or_insert_default().insert((context, limit), (first, charge));
    }

    /// Restores a holding that the driver refused to free. Returns the charge to credit if another
    /// allocation has the handle by now, because another thread's call has freed it.
    pub fn restore(&mut self, kind: Kind, handle: u64, holding: Holding) -> Option<Charge> {
        if self.holdings().contains_key(&(kind, handle)) {
            return Some(holding.charge);
        }
        self.holdings().insert((kind, handle), holding);
        None
    }

    /// Removes every holding that ended with a context, and passes on the charge of each. Notes
    /// the end, for the holdings that are out of the table or not yet in it.
    pub fn remove_context(&mut self, context: usize, mut ended: impl FnMut(Charge)) {
        self.ended[self.now.0 as usize % REMEMBERED] = context;
        self.now.0 += 1;
        self.holdings().retain(|_, holding| {
            let stays = holding.context != context;
            if !stays {
                ended(holding.charge);
            }
            stays
        });
        self.limits.get_or_insert_default().retain(|(of, _), (_, charge)| {
            if *of == context {
                driver_memory::limits_charged(charge.bytes, 0);
                ended(*charge);
            }
            *of != context
        });
    }

    /// Records one release of a physical handle; returns the charge to credit if nothing holds the
    /// memory any more.
    pub fn release_physical(&mut self, handle: u64) -> Option<Charge> {
        if let Some(holding) = self.holdings().get_mut(&(Kind::Physical, handle)) {
            holding.references = holding.references.saturating_sub(1);
        }
        self.credit_if_unheld(handle)
    }

    /// Records that a physical handle was mapped at an address, and the charge for that.
    pub fn map(&mut self, address: u64, handle: u64, charge: Option<Charge>) {
        if let Some(holding) = self.holdings().get_mut(&(Kind::Physical, handle)) {
            holding.mappings = holding.mappings.saturating_add(1);
            self.mapped.get_or_insert_default().insert(address, (handle, charge));
        }
    }

    /// The physical handle whose mapping starts at an address.
    pub fn mapped_at(&mut self, address: u64) -> Option<u64> {
        self.mapped.get_or_insert_default().get(&address).map(|(handle, _)| *handle)
    }

    /// Records that a range was unmapped; returns the charges to credit.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Vec<Charge> {
        let end = address.saturating_add(bytes);
        let mut freed = Vec::new();
        while let Some(mapping) =
            self.mapped.get_or_insert_default().keys().copied().find(|start| (address..end).contains(start))
        {
            let Some((handle, charge)) = self.mapped.get_or_insert_default().remove(&mapping) else { break };
            freed.extend(charge);
            freed.extend(self.drop_mapping(handle));
        }
        freed
    }

    /// Records that an object that kept physical memory alive is gone; returns the charge to
    /// credit.
    pub fn drop_mapping(&mut self, handle: u64) -> Option<Charge> {
        if let Some(holding) = self.holdings().get_mut(&(Kind::Physical, handle)) {
            holding.mappings = holding.mappings.saturating_sub(1);
        }
        self.credit_if_unheld(handle)
    }

    /// Notes that something other than a mapping keeps physical memory alive; false if it is
    /// unknown.
    pub fn add_mapping(&mut self, handle: u64) -> bool {
        let holding = self.holdings().get_mut(&(Kind::Physical, handle));
        holding.map(|holding| holding.mappings = holding.mappings.saturating_add(1)).is_some()
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
