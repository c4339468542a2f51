//! One client's device addresses: mappings and allocations.

mod heap;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use partita_abi::CuResult;

use super::phys::{PhysMemory, clip};
use super::ranges;
use crate::shared::protocol::{Extent, PAGE_BYTES, WINDOW_BYTES};
use crate::shared::sys::SharedMap;
use heap::{Allocation, Pool};

/// The location of the bytes behind some addresses.
#[derive(Debug)]
pub enum Backing {
    /// In the device's memory.
    Device {
        /// The block.
        phys: u64,
        /// Its pieces.
        extents: Vec<Extent>,
        /// 0 no access, 1 read, 3 read and write.
        access: u8,
    },
    /// In host memory that the board maps as well.
    Shared(SharedMap),
    /// In host memory of the client alone.
    Foreign,
}

/// Some addresses and what is behind them.
#[derive(Debug)]
pub struct Mapping {
    /// How many.
    pub bytes: u64,
    /// What.
    pub backing: Backing,
}

/// A contiguous part of an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// In a mapping of this process.
    Here(*mut u8, u64),
    /// In the client's own memory, at this address.
    There(u64, u64),
}

/// The address space of one client.
#[derive(Debug)]
pub struct Space {
    window: u64,
    free: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    allocations: BTreeMap<u64, Allocation>,
    reservations: BTreeMap<u64, u64>,
    pools: HashMap<u32, Pool>,
    next_pool: u32,
    /// What streams have written last into words of the client's own memory. Hardware pins such
    /// memory, so the words outlive the process.
    pub pinned_words: RefCell<HashMap<u64, u64>>,
    /// The files of shared mappings that the client registered, by address. Hardware pins their
    /// pages.
    pub pinned_files: BTreeMap<u64, PathBuf>,
}

impl Space {
    /// An empty space whose addresses start at `window`.
    pub fn new(window: u64) -> Self {
        Self {
            window,
            free: BTreeMap::from([(window, WINDOW_BYTES)]),
            mappings: BTreeMap::new(),
            allocations: BTreeMap::new(),
            reservations: BTreeMap::new(),
            pools: HashMap::from([(0, Pool::default())]),
            next_pool: 1,
            pinned_words: RefCell::default(),
            pinned_files: BTreeMap::new(),
        }
    }

    // ---- addresses ----

    fn take_addresses(&mut self, bytes: u64, align: u64, hint: u64) -> Result<u64, CuResult> {
        let fits = |start: u64, length: u64, at: u64| at >= start && at + bytes <= start + length;
        let wished = self
            .free
            .range(..=hint)
            .next_back()
            .filter(|(start, length)| {
                hint != 0 && hint.is_multiple_of(align) && fits(**start, **length, hint)
            })
            .map(|(start, _)| (*start, hint));
        let found = wished.or_else(|| {
            self.free.iter().find_map(|(start, length)| {
                let at = start.next_multiple_of(align);
                fits(*start, *length, at).then_some((*start, at))
            })
        });
        let (start, at) = found.ok_or(CuResult::OUT_OF_MEMORY)?;
        let length = self.free.remove(&start).ok_or(CuResult::OUT_OF_MEMORY)?;
        if at > start {
            self.free.insert(start, at - start);
        }
        if at + bytes < start + length {
            self.free.insert(at + bytes, start + length - at - bytes);
        }
        Ok(at)
    }

    fn return_addresses(&mut self, at: u64, bytes: u64) {
        ranges::insert(&mut self.free, at, bytes);
    }

    /// Reserves addresses without memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` unless length and alignment are whole pages, `OUT_OF_MEMORY` without free
    /// addresses.
    pub fn reserve(&mut self, bytes: u64, align: u64, hint: u64) -> Result<u64, CuResult> {
        let align = align.max(PAGE_BYTES);
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) || !align.is_power_of_two() || bytes > WINDOW_BYTES
        {
            return Err(CuResult::INVALID_VALUE);
        }
        let at = self.take_addresses(bytes, align, hint)?;
        self.reservations.insert(at, bytes);
        Ok(at)
    }

    /// Releases a whole reservation without mappings.
    ///
    /// # Errors
    /// `INVALID_VALUE` otherwise.
    pub fn unreserve(&mut self, address: u64, bytes: u64) -> Result<(), CuResult> {
        if self.reservations.get(&address) != Some(&bytes)
            || self.mappings.range(address..address + bytes).next().is_some()
        {
            return Err(CuResult::INVALID_VALUE);
        }
        self.reservations.remove(&address);
        self.return_addresses(address, bytes);
        Ok(())
    }

    /// Maps a part of a block at reserved addresses. The mapping holds a reference.
    ///
    /// # Errors
    /// `INVALID_VALUE` for ranges that are not reserved, not free or not whole pages;
    /// `INVALID_HANDLE`.
    pub fn map(
        &mut self,
        memory: &mut PhysMemory,
        address: u64,
        bytes: u64,
        offset: u64,
        phys: u64,
    ) -> Result<Vec<Extent>, CuResult> {
        let end = address.checked_add(bytes).ok_or(CuResult::INVALID_VALUE)?;
        let reserved = self
            .reservations
            .range(..=address)
            .next_back()
            .is_some_and(|(start, length)| end <= start + length);
        let taken = self.mappings.range(..end).next_back().is_some_and(|(at, m)| at + m.bytes > address);
        if bytes == 0 || !(address | bytes | offset).is_multiple_of(PAGE_BYTES) || !reserved || taken {
            return Err(CuResult::INVALID_VALUE);
        }
        let extents = memory.extents(phys, offset, bytes)?;
        memory.retain(phys)?;
        let backing = Backing::Device { phys, extents: extents.clone(), access: 0 };
        self.mappings.insert(address, Mapping { bytes, backing });
        Ok(extents)
    }

    fn whole_maps(&self, address: u64, bytes: u64) -> Result<Vec<u64>, CuResult> {
        let end = address.checked_add(bytes).ok_or(CuResult::INVALID_VALUE)?;
        let inside: Vec<u64> = self.mappings.range(address..end).map(|(at, _)| *at).collect();
        let covered: u64 = inside.iter().map(|at| self.mappings[at].bytes).sum();
        let reserved = self
            .reservations
            .range(..=address)
            .next_back()
            .is_some_and(|(start, length)| end <= start + length);
        if covered != bytes || bytes == 0 || !reserved { Err(CuResult::INVALID_VALUE) } else { Ok(inside) }
    }

    /// Undoes whole maps.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the range is not exactly some maps.
    pub fn unmap(&mut self, memory: &mut PhysMemory, address: u64, bytes: u64) -> Result<(), CuResult> {
        for at in self.whole_maps(address, bytes)? {
            self.drop_mapping(memory, at);
        }
        Ok(())
    }

    /// Sets the device's access to whole maps.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the range is not exactly some maps.
    pub fn set_access(&mut self, address: u64, bytes: u64, wanted: u8) -> Result<(), CuResult> {
        for at in self.whole_maps(address, bytes)? {
            if let Some(Mapping { backing: Backing::Device { access, .. }, .. }) = self.mappings.get_mut(&at)
            {
                *access = wanted;
            }
        }
        Ok(())
    }

    fn drop_mapping(&mut self, memory: &mut PhysMemory, at: u64) {
        if let Some(Mapping { backing: Backing::Device { phys, .. }, .. }) = self.mappings.remove(&at) {
            memory.release(phys);
        }
    }

    /// The block mapped at an address and the offset of the address in it.
    ///
    /// # Errors
    /// `INVALID_VALUE` when no device memory is mapped there.
    pub fn phys_at(&self, address: u64) -> Result<u64, CuResult> {
        match self.mapping_of(address) {
            Some((_, Mapping { backing: Backing::Device { phys, .. }, .. })) => Ok(*phys),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// The offset of an address in the block mapped there, in bytes.
    ///
    /// # Errors
    /// `INVALID_VALUE` when nothing is mapped there.
    pub fn offset_in_block(&self, address: u64) -> Result<u64, CuResult> {
        // Allocations, unlike maps, start at their block's start.
        self.mapping_of(address).map(|(start, _)| address - start).ok_or(CuResult::INVALID_VALUE)
    }

    fn mapping_of(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (at, mapping) = self.mappings.range(..=address).next_back()?;
        (address < at + mapping.bytes).then_some((*at, mapping))
    }

    // ---- host memory ----

    /// Makes host memory known; `shared` when the board can map it.
    ///
    /// # Errors
    /// `HOST_MEMORY_ALREADY_REGISTERED` when the range overlaps a known one, `INVALID_VALUE` when
    /// it is no range.
    pub fn add_host(&mut self, address: u64, bytes: u64, shared: Option<SharedMap>) -> Result<(), CuResult> {
        let end = address.checked_add(bytes).filter(|_| bytes > 0).ok_or(CuResult::INVALID_VALUE)?;
        if self.mappings.range(..end).next_back().is_some_and(|(at, m)| at + m.bytes > address) {
            return Err(CuResult::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let backing = shared.map_or(Backing::Foreign, Backing::Shared);
        self.mappings.insert(address, Mapping { bytes, backing });
        Ok(())
    }

    /// Forgets host memory.
    ///
    /// # Errors
    /// `HOST_MEMORY_NOT_REGISTERED` when the address is not the first of any.
    pub fn remove_host(&mut self, address: u64) -> Result<(), CuResult> {
        match self.mappings.get(&address) {
            Some(Mapping { backing: Backing::Shared(_) | Backing::Foreign, .. }) => {
                self.mappings.remove(&address);
                Ok(())
            }
            _ => Err(CuResult::HOST_MEMORY_NOT_REGISTERED),
        }
    }

    /// Frees everything.
    pub fn clear(&mut self, memory: &mut PhysMemory) {
        for (_, mapping) in std::mem::take(&mut self.mappings) {
            if let Backing::Device { phys, .. } = mapping.backing {
                memory.release(phys);
            }
        }
        *self = Self::new(self.window);
    }

    /// Bytes of device memory that this space holds.
    pub fn device_bytes(&self) -> u64 {
        self.mappings
            .values()
            .filter(|mapping| matches!(mapping.backing, Backing::Device { .. }))
            .map(|mapping| mapping.bytes)
            .sum()
    }

    // ---- bytes ----

    fn extents_at(&self, address: u64, bytes: u64) -> Vec<Extent> {
        match self.mapping_of(address) {
            Some((at, Mapping { backing: Backing::Device { extents, .. }, .. })) => {
                clip(extents, address - at, bytes)
            }
            _ => Vec::new(),
        }
    }

    /// The contiguous memory of this process around an address that the device may read: its first
    /// address, its length, its place here, and whether the device may write it.
    pub fn range_at(&self, memory: &PhysMemory, address: u64) -> Option<(u64, u64, *mut u8, bool)> {
        let (start, mapping) = self.mapping_of(address)?;
        match &mapping.backing {
            Backing::Device { extents, access, .. } => {
                let mut at = start;
                let extent = extents.iter().find(|extent| {
                    at += extent.bytes;
                    address < at
                })?;
                let place = memory.map().at(extent.offset, extent.bytes)?;
                (access & 1 != 0).then_some((at - extent.bytes, extent.bytes, place, access & 2 != 0))
            }
            Backing::Shared(map) => Some((start, mapping.bytes, map.at(0, mapping.bytes)?, true)),
            Backing::Foreign => None,
        }
    }

    /// The locations of the bytes of an address range, in order; `None` if a part of it is not
    /// mapped or does not allow the access.
    pub fn pieces(&self, memory: &PhysMemory, address: u64, bytes: u64, write: bool) -> Option<Vec<Piece>> {
        let mut pieces = Vec::new();
        let (mut at, mut left) = (address, bytes);
        while left > 0 {
            let (start, mapping) = self.mapping_of(at)?;
            let taken = left.min(start + mapping.bytes - at);
            match &mapping.backing {
                Backing::Device { extents, access, .. } => {
                    if access & 1 == 0 || (write && access & 2 == 0) {
                        return None;
                    }
                    for extent in clip(extents, at - start, taken) {
                        pieces.push(Piece::Here(memory.map().at(extent.offset, extent.bytes)?, extent.bytes));
                    }
                }
                Backing::Shared(map) => pieces.push(Piece::Here(map.at(at - start, taken)?, taken)),
                Backing::Foreign => pieces.push(Piece::There(at, taken)),
            }
            at += taken;
            left -= taken;
        }
        Some(pieces)
    }
}
