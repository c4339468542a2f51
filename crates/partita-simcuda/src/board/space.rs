//! One client's device addresses: what is mapped where, and which allocations there are.

use std::collections::{BTreeMap, HashMap};

use partita_abi::CuResult;

use super::phys::{PhysMemory, clip};
use super::ranges;
use crate::shared::protocol::{AllocKind, Extent, PAGE_BYTES, PoolStatus, WINDOW_BYTES};
use crate::shared::sys::SharedMap;

/// Allocations below this share pages.
const SMALL_BYTES_MAX: u64 = 1 << 20;
/// Alignment of every allocation, as the driver documents it.
const ALIGN_BYTES: u64 = 512;
/// Pools with numbers from here on belong to contexts (`cuMemAlloc` and its like), not to programs.
const CTX_POOL_BASE: u32 = 0x8000_0000;

/// Where the bytes behind some addresses lie.
#[derive(Debug)]
pub enum Backing {
    /// In the device's memory.
    Device {
        /// The block.
        phys: u64,
        /// Its pieces.
        extents: Vec<Extent>,
        /// 0 none, 1 read, 3 read and write.
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

#[derive(Debug, PartialEq, Eq)]
enum Place {
    Block,
    Small { chunk: u64 },
    Imported,
}

#[derive(Debug)]
struct Allocation {
    bytes: u64,
    rounded: u64,
    pool: u32,
    place: Place,
}

#[derive(Debug, Default)]
struct Pool {
    status: PoolStatus,
    /// Unused blocks by length; each is mapped.
    cached: BTreeMap<u64, Vec<u64>>,
    /// Pages shared by small allocations: free pieces by offset, per page address.
    chunks: BTreeMap<u64, BTreeMap<u64, u64>>,
    closing: bool,
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
    /// `INVALID_VALUE` unless length and alignment are whole pages, `OUT_OF_MEMORY` when none are left.
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

    /// Returns a reservation, whole and with nothing mapped in it.
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
    /// `INVALID_VALUE` for ranges that are not reserved, not free or not whole pages; `INVALID_HANDLE`.
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

    /// Sets what the device may do with whole maps.
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

    /// The block mapped at an address and where that address lies in it.
    ///
    /// # Errors
    /// `INVALID_VALUE` when no device memory is mapped there.
    pub fn phys_at(&self, address: u64) -> Result<u64, CuResult> {
        match self.mapping_of(address) {
            Some((_, Mapping { backing: Backing::Device { phys, .. }, .. })) => Ok(*phys),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// Where an address lies in the block mapped there, in bytes from the block's start.
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
    /// `HOST_MEMORY_ALREADY_REGISTERED` when the range overlaps a known one, `INVALID_VALUE` when it is no range.
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

    // ---- allocations ----

    /// Allocates memory with an address.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; `INVALID_VALUE` for no bytes or an unknown pool.
    pub fn allocate(
        &mut self,
        memory: &mut PhysMemory,
        ctx: u32,
        bytes: u64,
        kind: AllocKind,
    ) -> Result<(u64, Vec<Extent>), CuResult> {
        if bytes == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let number = match kind {
            AllocKind::Pool(pool) => pool,
            AllocKind::Device | AllocKind::Managed => CTX_POOL_BASE | ctx,
        };
        let mut pool = match kind {
            AllocKind::Pool(_) => self.pools.remove(&number).ok_or(CuResult::INVALID_VALUE)?,
            _ => self.pools.remove(&number).unwrap_or_default(),
        };
        let result = if bytes < SMALL_BYTES_MAX && kind != AllocKind::Managed {
            self.allocate_small(memory, &mut pool, bytes.next_multiple_of(ALIGN_BYTES))
        } else {
            self.block(memory, &mut pool, bytes).map(|at| (at, self.mappings[&at].bytes, Place::Block))
        };
        let result = result.map(|(address, rounded, place)| {
            pool.status.used += rounded;
            pool.status.used_high = pool.status.used_high.max(pool.status.used);
            self.allocations.insert(address, Allocation { bytes, rounded, pool: number, place });
            (address, self.extents_at(address, rounded))
        });
        self.pools.insert(number, pool);
        result
    }

    /// A mapped block of at least `bytes`: a cached one of at most twice the length, or a new one.
    fn block(&mut self, memory: &mut PhysMemory, pool: &mut Pool, bytes: u64) -> Result<u64, CuResult> {
        let wanted = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(CuResult::OUT_OF_MEMORY)?;
        if let Some((length, at)) = pool
            .cached
            .range_mut(wanted..=wanted.saturating_mul(2))
            .next()
            .and_then(|(length, blocks)| blocks.pop().map(|at| (*length, at)))
        {
            if pool.cached.get(&length).is_some_and(Vec::is_empty) {
                pool.cached.remove(&length);
            }
            return Ok(at);
        }
        let phys = match memory.allocate(wanted) {
            Ok(phys) => phys,
            Err(_) if !pool.cached.is_empty() => {
                self.trim(memory, pool, 0);
                memory.allocate(wanted)?
            }
            Err(error) => return Err(error),
        };
        let placed = self.take_addresses(wanted, PAGE_BYTES, 0).and_then(|at| {
            let extents = memory.extents(phys, 0, wanted)?;
            self.mappings
                .insert(at, Mapping { bytes: wanted, backing: Backing::Device { phys, extents, access: 3 } });
            Ok(at)
        });
        match placed {
            Ok(at) => {
                pool.status.reserved += wanted;
                pool.status.reserved_high = pool.status.reserved_high.max(pool.status.reserved);
                Ok(at)
            }
            Err(error) => {
                memory.release(phys);
                Err(error)
            }
        }
    }

    fn allocate_small(
        &mut self,
        memory: &mut PhysMemory,
        pool: &mut Pool,
        bytes: u64,
    ) -> Result<(u64, u64, Place), CuResult> {
        let fitting = pool.chunks.iter().find_map(|(chunk, free)| {
            free.iter().find(|(_, length)| **length >= bytes).map(|(offset, _)| (*chunk, *offset))
        });
        let (chunk, offset) = match fitting {
            Some(found) => found,
            None => {
                let chunk = self.block(memory, pool, PAGE_BYTES)?;
                let length = self.mappings[&chunk].bytes;
                pool.chunks.insert(chunk, BTreeMap::from([(0, length)]));
                (chunk, 0)
            }
        };
        let free = pool.chunks.get_mut(&chunk).ok_or(CuResult::UNKNOWN)?;
        let length = free.remove(&offset).ok_or(CuResult::UNKNOWN)?;
        if length > bytes {
            free.insert(offset + bytes, length - bytes);
        }
        Ok((chunk + offset, bytes, Place::Small { chunk }))
    }

    /// Frees an allocation by its first address.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it is not the first address of one.
    pub fn free(&mut self, memory: &mut PhysMemory, address: u64) -> Result<(), CuResult> {
        let allocation = self.allocations.remove(&address).ok_or(CuResult::INVALID_VALUE)?;
        if allocation.place == Place::Imported {
            let bytes = self.mappings.get(&(address / PAGE_BYTES * PAGE_BYTES)).map(|m| m.bytes);
            let start = address / PAGE_BYTES * PAGE_BYTES;
            self.drop_mapping(memory, start);
            self.return_addresses(start, bytes.unwrap_or(PAGE_BYTES));
            return Ok(());
        }
        let Some(mut pool) = self.pools.remove(&allocation.pool) else { return Err(CuResult::INVALID_VALUE) };
        pool.status.used -= allocation.rounded;
        let emptied = match allocation.place {
            Place::Small { chunk } => {
                let free = pool.chunks.entry(chunk).or_default();
                ranges::insert(free, address - chunk, allocation.rounded);
                let empty = free.get(&0) == self.mappings.get(&chunk).map(|mapping| &mapping.bytes);
                if empty {
                    pool.chunks.remove(&chunk);
                }
                empty.then_some(chunk)
            }
            _ => Some(address),
        };
        if let Some(block) = emptied {
            let length = self.mappings.get(&block).map_or(0, |mapping| mapping.bytes);
            pool.cached.entry(length).or_default().push(block);
            let keep = pool.status.threshold;
            self.trim(memory, &mut pool, keep);
        }
        if !(pool.closing && pool.status.used == 0) {
            self.pools.insert(allocation.pool, pool);
        }
        Ok(())
    }

    /// Returns cached blocks, the longest first, until at most `keep` bytes are held or none is left.
    fn trim(&mut self, memory: &mut PhysMemory, pool: &mut Pool, keep: u64) {
        while pool.status.reserved > keep {
            let Some((length, mut blocks)) = pool.cached.pop_last() else { break };
            if let Some(at) = blocks.pop() {
                self.drop_mapping(memory, at);
                self.return_addresses(at, length);
                pool.status.reserved -= length;
            }
            if !blocks.is_empty() {
                pool.cached.insert(length, blocks);
            }
        }
    }

    /// The allocation that holds an address: first address and requested length.
    ///
    /// # Errors
    /// `INVALID_VALUE` when none does.
    pub fn allocation_of(&self, address: u64) -> Result<(u64, u64), CuResult> {
        let (at, allocation) =
            self.allocations.range(..=address).next_back().ok_or(CuResult::INVALID_VALUE)?;
        if address < at + allocation.bytes {
            Ok((*at, allocation.bytes))
        } else {
            Err(CuResult::INVALID_VALUE)
        }
    }

    /// Makes another process's allocation visible. Takes over one reference to the block.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when no addresses are left, those of [`PhysMemory::extents`].
    pub fn import(
        &mut self,
        memory: &mut PhysMemory,
        phys: u64,
        offset: u64,
        bytes: u64,
    ) -> Result<(u64, Vec<Extent>), CuResult> {
        let first = offset / PAGE_BYTES * PAGE_BYTES;
        let length = (offset - first + bytes).next_multiple_of(PAGE_BYTES);
        let extents = memory.extents(phys, first, length)?;
        let at = self.take_addresses(length, PAGE_BYTES, 0)?;
        self.mappings
            .insert(at, Mapping { bytes: length, backing: Backing::Device { phys, extents, access: 3 } });
        let address = at + offset - first;
        self.allocations
            .insert(address, Allocation { bytes, rounded: bytes, pool: 0, place: Place::Imported });
        Ok((address, self.extents_at(address, bytes)))
    }

    /// Frees everything that belongs to a context.
    pub fn drop_ctx(&mut self, memory: &mut PhysMemory, ctx: u32) {
        let number = CTX_POOL_BASE | ctx;
        let owned: Vec<u64> =
            self.allocations.iter().filter(|(_, a)| a.pool == number).map(|(at, _)| *at).collect();
        for address in owned {
            // The address was just listed, so it is the first of an allocation.
            let _ = self.free(memory, address);
        }
        self.pools.remove(&number);
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

    // ---- pools ----

    /// Makes a pool.
    pub fn pool_create(&mut self, threshold: u64) -> u32 {
        let number = self.next_pool;
        self.next_pool += 1;
        let status = PoolStatus { threshold, ..PoolStatus::default() };
        self.pools.insert(number, Pool { status, ..Pool::default() });
        number
    }

    fn with_pool<R>(
        &mut self,
        number: u32,
        action: impl FnOnce(&mut Self, &mut Pool) -> R,
    ) -> Result<R, CuResult> {
        let mut pool = self.pools.remove(&number).ok_or(CuResult::INVALID_VALUE)?;
        let result = action(self, &mut pool);
        self.pools.insert(number, pool);
        Ok(result)
    }

    /// Ends a pool: now when it is unused, else with its last allocation.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an unknown pool, and for the device's own.
    pub fn pool_destroy(&mut self, memory: &mut PhysMemory, number: u32) -> Result<(), CuResult> {
        if number == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let used = self.with_pool(number, |space, pool| {
            pool.closing = true;
            pool.status.threshold = 0;
            space.trim(memory, pool, 0);
            pool.status.used
        })?;
        if used == 0 {
            self.pools.remove(&number);
        }
        Ok(())
    }

    /// Sets how much a pool keeps.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an unknown pool.
    pub fn pool_threshold(&mut self, number: u32, bytes: u64) -> Result<(), CuResult> {
        self.with_pool(number, |_, pool| pool.status.threshold = bytes)
    }

    /// Returns what a pool holds unused, down to `keep` bytes.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an unknown pool.
    pub fn pool_trim(&mut self, memory: &mut PhysMemory, number: u32, keep: u64) -> Result<(), CuResult> {
        self.with_pool(number, |space, pool| space.trim(memory, pool, keep))
    }

    /// Sets high-water marks back.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an unknown pool.
    pub fn pool_reset_high(&mut self, number: u32, reserved: bool, used: bool) -> Result<(), CuResult> {
        self.with_pool(number, |_, pool| {
            if reserved {
                pool.status.reserved_high = pool.status.reserved;
            }
            if used {
                pool.status.used_high = pool.status.used;
            }
        })
    }

    /// A pool's counters.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an unknown pool.
    pub fn pool_status(&self, number: u32) -> Result<PoolStatus, CuResult> {
        self.pools.get(&number).map(|pool| pool.status).ok_or(CuResult::INVALID_VALUE)
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

    /// Where the bytes of an address range lie, in order; `None` when some of it is not mapped or may not be
    /// written (`write`) or read.
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
