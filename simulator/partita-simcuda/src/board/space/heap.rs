//! Allocations and pools in a client's address space.

use std::collections::BTreeMap;

use partita_abi::CuResult;

use super::{Backing, Mapping, PhysMemory, Space, ranges};
use crate::shared::protocol::{AllocKind, Extent, PAGE_BYTES, PoolStatus};

/// Allocations below this share pages.
const SMALL_BYTES_MAX: u64 = 1 << 20;
/// Alignment of every allocation, as the driver documents it.
const ALIGN_BYTES: u64 = 512;
/// Pools with numbers from here on belong to contexts (`cuMemAlloc` and its like), not to programs.
const CTX_POOL_BASE: u32 = 0x8000_0000;

/// The location of an allocation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    Block,
    Small { chunk: u64 },
    Imported,
}

/// An allocation at an address.
#[derive(Debug)]
pub(super) struct Allocation {
    bytes: u64,
    rounded: u64,
    pool: u32,
    place: Place,
}

/// Blocks of a memory pool.
#[derive(Debug, Default)]
pub(super) struct Pool {
    status: PoolStatus,
    /// Unused blocks by length; each is mapped.
    cached: BTreeMap<u64, Vec<u64>>,
    /// Pages shared by small allocations: free pieces by offset, per page address.
    chunks: BTreeMap<u64, BTreeMap<u64, u64>>,
    closing: bool,
}

impl Space {
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
            if !pool.closing || pool.status.used == 0 {
                let keep = pool.status.threshold;
                self.trim(memory, &mut pool, keep);
            }
        }
        if !(pool.closing && pool.status.used == 0) {
            self.pools.insert(allocation.pool, pool);
        }
        Ok(())
    }

    /// Releases cached blocks, the longest first, until at most `keep` bytes remain.
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

    /// The allocation that contains an address: first address and requested length.
    ///
    /// # Errors
    /// `INVALID_VALUE` without one.
    pub fn allocation_of(&self, address: u64) -> Result<(u64, u64), CuResult> {
        let (at, allocation) =
            self.allocations.range(..=address).next_back().ok_or(CuResult::INVALID_VALUE)?;
        if address < at + allocation.bytes {
            Ok((*at, allocation.bytes))
        } else {
            Err(CuResult::INVALID_VALUE)
        }
    }

    /// Maps another process's allocation. Takes over one reference to the block.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` without free addresses, those of [`PhysMemory::extents`].
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

    /// Destroys a pool with its cached blocks: now if it is unused, else with its last allocation.
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
            if pool.status.used == 0 {
                space.trim(memory, pool, 0);
            }
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

    /// Releases a pool's unused memory, down to `keep` bytes.
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
}
