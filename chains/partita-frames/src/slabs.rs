//! The allocations of a chain's frames.

use alloc::vec::Vec;

use crate::error::ChainError;
use crate::fault::ChainFault;
use crate::file::ChainFile;
use crate::layout::{FRAMES_MAX, HANDLE_BYTES, SLABS_MAX, SlabCells, load_handle, store_bytes};
use crate::state::{Place, State, Ticket};

/// The values of a slab's state in its low byte.
const KEEPER: u64 = 1;
const FIRST_ROLE: u64 = 2;
const RETIRED: u64 = 3;
const KIND_BITS: u32 = 8;

/// A slab at one of its generations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlabRef {
    /// Its number, below [`SLABS_MAX`].
    pub index: u8,
    /// How often the place had been freed until then.
    pub generation: u64,
}

impl SlabRef {
    pub(crate) fn to_word(self) -> u64 {
        self.generation << KIND_BITS | u64::from(self.index)
    }

    pub(crate) fn from_word(word: u64) -> Self {
        Self { index: word as u8, generation: word >> KIND_BITS }
    }
}

/// The owner on whose life an allocation depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlabOwner {
    /// The keeper with that number.
    Keeper(u64),
    /// The process that has the first role in that incarnation.
    FirstRole(u64),
}

/// An allocation to divide into frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlabPlan {
    /// The handle by which other processes open it.
    pub handle: [u8; HANDLE_BYTES],
    /// Where frames may start in it, in bytes: memory before that belongs to others.
    pub begins_at: u64,
    /// Where they end at the latest, in bytes: the opened part of it.
    pub bytes: u64,
    pub owner: SlabOwner,
    /// Two words of the owner's, to find it again.
    pub tag: [u64; 2],
    /// On another GPU than the first role's: its number in [`ChainPlan::gpus`](crate::ChainPlan),
    /// and the slab of the first GPU whose frames have this memory there.
    pub elsewhere: Option<(u8, SlabRef)>,
}

/// An allocation of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlabInfo {
    /// Its reference.
    pub slab: SlabRef,
    /// Its description.
    pub plan: SlabPlan,
    /// Whether its memory still exists.
    pub live: bool,
}

impl ChainFile {
    fn slab_cells(&self, index: usize) -> &SlabCells {
        &self.layout().slabs[index % SLABS_MAX]
    }

    fn slab_at(&self, index: usize) -> Option<SlabInfo> {
        let cells = self.slab_cells(index);
        let state = cells.state.load();
        let number = cells.owner.load();
        let owner = match state & ((1 << KIND_BITS) - 1) {
            KEEPER => SlabOwner::Keeper(number),
            FIRST_ROLE => SlabOwner::FirstRole(number),
            // Its old state is no longer needed.
            RETIRED => SlabOwner::Keeper(0),
            _ => return None,
        };
        Some(SlabInfo {
            slab: SlabRef { index: index as u8, generation: state >> KIND_BITS },
            plan: SlabPlan {
                handle: load_handle(&cells.handle),
                begins_at: cells.begins_at.load(),
                bytes: cells.bytes.load(),
                owner,
                tag: [cells.tag[0].load(), cells.tag[1].load()],
                elsewhere: match cells.gpu.load() {
                    0 => None,
                    gpu => Some((gpu as u8, SlabRef::from_word(cells.home.load()))),
                },
            },
            live: state & ((1 << KIND_BITS) - 1) != RETIRED,
        })
    }

    /// The chain's allocations, including those that are gone but still referenced.
    pub fn slabs(&self) -> Vec<SlabInfo> {
        (0..SLABS_MAX).filter_map(|index| self.slab_at(index)).collect()
    }

    /// An allocation by its reference; `None` if its place has been reused.
    pub fn slab(&self, slab: SlabRef) -> Option<SlabInfo> {
        self.slab_at(slab.index.into()).filter(|info| info.slab == slab)
    }

    /// The memory that the frames of slab `home` have on a GPU of the chain: its slab, and how many
    /// bytes a frame's offset there is beyond its offset in `home`. On the first GPU that is `home`
    /// itself. `None` if the frames have no memory on that GPU.
    pub fn slab_on(&self, gpu: u8, home: &SlabInfo) -> Option<(SlabInfo, i64)> {
        if gpu == 0 {
            return Some((home.clone(), 0));
        }
        let is_it = |info: &SlabInfo| info.live && info.plan.elsewhere == Some((gpu, home.slab));
        let slab = (0..SLABS_MAX).filter_map(|index| self.slab_at(index)).find(is_it)?;
        let moved = slab.plan.begins_at.wrapping_sub(home.plan.begins_at).cast_signed();
        Some((slab, moved))
    }

    /// Whether a slab's frames have memory on every GPU of the chain.
    pub fn is_everywhere(&self, home: &SlabInfo) -> bool {
        (1..self.plan().gpus().len()).all(|gpu| self.slab_on(gpu as u8, home).is_some())
    }

    /// Whether the memory of a lease exists.
    pub(crate) fn is_backed(&self, lease: usize) -> bool {
        let slab = self.slab_of(lease);
        let state = self.slab_cells(slab.index.into()).state.load();
        let kind = state & ((1 << KIND_BITS) - 1);
        usize::from(slab.index) < SLABS_MAX
            && state >> KIND_BITS == slab.generation
            && (kind == KEEPER || kind == FIRST_ROLE)
    }

    pub(crate) fn slab_of(&self, lease: usize) -> SlabRef {
        SlabRef::from_word(self.frame_cells(lease).slab.load())
    }

    /// Leases in any place, with their slabs.
    fn leased(&self) -> impl Iterator<Item = (usize, SlabRef)> {
        (0..FRAMES_MAX).filter_map(|lease| {
            let somewhere = self.flow().state(lease)?.place() != Some(Place::Vacant);
            somewhere.then(|| (lease, self.slab_of(lease)))
        })
    }

    /// How many frames of the plan have no memory yet.
    pub fn frames_missing(&self) -> u32 {
        let backed = self.leased().filter(|(lease, _)| self.is_backed(*lease)).count();
        self.plan().frames.saturating_sub(backed as u32)
    }

    /// As the first role, enters an allocation and makes frames of it, up to the plan's number.
    pub(crate) fn enter_slab(&self, plan: &SlabPlan) -> Result<SlabRef, ChainError> {
        let lease_bytes = self.plan().stride_bytes();
        let bytes = plan.bytes.saturating_sub(plan.begins_at);
        if bytes < lease_bytes || plan.bytes > i64::MAX.cast_unsigned() {
            let fault = ChainFault::SlabBytes { bytes, lease_bytes };
            return Err(self.refuse(fault));
        }
        let is_unused = |index: &usize| match self.slab_at(*index) {
            None => true,
            Some(info) => !info.live && !self.leased().any(|(_, slab)| slab == info.slab),
        };
        let index = (0..SLABS_MAX).find(is_unused);
        let index = index.ok_or_else(|| self.refuse(ChainFault::SlabsFull))?;
        let cells = self.slab_cells(index);
        let generation = (cells.state.load() >> KIND_BITS).wrapping_add(1);
        let (kind, number) = match plan.owner {
            SlabOwner::Keeper(number) => (KEEPER, number),
            SlabOwner::FirstRole(incarnation) => (FIRST_ROLE, incarnation),
        };
        cells.begins_at.store(plan.begins_at);
        cells.bytes.store(plan.bytes);
        cells.lease_bytes.store(lease_bytes);
        cells.owner.store(number);
        cells.tag.iter().zip(plan.tag).for_each(|(cell, word)| cell.store(word));
        cells.gpu.store(plan.elsewhere.map_or(0, |(gpu, _)| gpu.into()));
        cells.home.store(plan.elsewhere.map_or(0, |(_, home)| home.to_word()));
        store_bytes(&cells.handle, &plan.handle);
        // Last: until then the place keeps its old state.
        cells.state.store(generation << KIND_BITS | kind);
        self.divide_slabs();
        Ok(SlabRef { index: index as u8, generation: generation & (u64::MAX >> KIND_BITS) })
    }

    /// As the first role, makes frames of the slabs' free room, up to the plan's number. A dead
    /// owner may have stopped in the middle.
    pub(crate) fn divide_slabs(&self) {
        let lease_bytes = self.plan().stride_bytes();
        let mut missing = self.frames_missing();
        let is_whole = |info: &SlabInfo| info.live && info.plan.elsewhere.is_none();
        let slabs = self.slabs().into_iter().filter(is_whole);
        for info in slabs.filter(|info| self.is_everywhere(info)) {
            // At most as many as there are leases, whatever the file says.
            let bytes = info.plan.bytes.saturating_sub(info.plan.begins_at);
            for ordinal in (0..bytes / lease_bytes).take(FRAMES_MAX) {
                let offset = info.plan.begins_at + ordinal * lease_bytes;
                let is_there = |(lease, slab): (usize, SlabRef)| {
                    slab == info.slab && self.frame_cells(lease).offset.load() == offset
                };
                if missing == 0 {
                    return;
                }
                if self.leased().any(is_there) {
                    continue;
                }
                let Some(vacant) = self.flow().all_at(Place::Vacant).next() else { return };
                let cells = self.frame_cells(vacant.lease());
                cells.slab.store(info.slab.to_word());
                cells.offset.store(offset);
                cells.rests_until_ns.store(0);
                cells.recorded_by.store(0);
                if self.flow().pass(vacant, Place::Vacant, Place::Free).is_some() {
                    missing -= 1;
                    self.note_freed();
                }
            }
        }
    }

    /// As the first role, removes an allocation whose memory is gone: no role gets a frame of it
    /// any more. Returns how many were on their way; frames that a role holds go when it releases
    /// them. Its frames' memory on other GPUs goes too.
    pub(crate) fn give_up_slab(&self, slab: SlabRef) -> u32 {
        let Some(info) = self.slab(slab).filter(|info| info.live) else { return 0 };
        let is_of_it = |other: &SlabInfo| other.plan.elsewhere.is_some_and(|(_, home)| home == slab);
        for other in self.slabs().into_iter().filter(|other| other.live && is_of_it(other)) {
            let retired = other.slab.generation << KIND_BITS | RETIRED;
            self.slab_cells(other.slab.index.into()).state.store(retired);
        }
        self.slab_cells(info.slab.index.into()).state.store(slab.generation << KIND_BITS | RETIRED);
        let mut dropped = 0;
        for (lease, of) in self.leased() {
            let Some(state) = self.flow().state(lease).filter(|_| of == slab) else { continue };
            match self.vacate(lease, state) {
                Some(Place::Queued(_)) => dropped += 1,
                _ => continue,
            }
        }
        dropped
    }

    /// Removes a lease from the pool or a queue for good. Returns its place, if it was there.
    fn vacate(&self, lease: usize, state: State) -> Option<Place> {
        let place = state.place().filter(|place| matches!(place, Place::Free | Place::Queued(_)))?;
        self.flow().pass(Ticket::new(lease, state), place, Place::Vacant).map(|_| place)
    }
}
