//! The device's memory: pages of one sparse file, allocated in blocks that several address spaces
//! can share.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use partita_abi::CuResult;

use super::ranges;
use crate::shared::protocol::{Extent, PAGE_BYTES};
use crate::shared::sys::{SharedMap, memfd, punch_hole};

/// The most pieces of one block. More would not fit into a reply; memory that is more fragmented
/// counts as full.
const EXTENTS_MAX: usize = 4096;

/// Some pages with a number.
#[derive(Debug)]
struct Block {
    extents: Vec<Extent>,
    bytes: u64,
    references: u32,
    secret: u64,
}

/// All pages of the device.
#[derive(Debug)]
pub struct PhysMemory {
    file: OwnedFd,
    map: SharedMap,
    total: u64,
    used: u64,
    free: BTreeMap<u64, u64>,
    blocks: HashMap<u64, Block>,
    next: u64,
    secrets: u64,
}

impl PhysMemory {
    /// Memory of `total` bytes. It uses memory of the host only where it was written.
    ///
    /// # Errors
    /// Those of `memfd_create` and `mmap`.
    pub fn new(total: u64, instance: u64) -> io::Result<Self> {
        let total = total / PAGE_BYTES * PAGE_BYTES;
        let file = memfd(c"partita-sim-memory", total)?;
        let map = SharedMap::new(file.as_fd(), total as usize)?;
        Ok(Self {
            file,
            map,
            total,
            used: 0,
            free: BTreeMap::from([(0, total)]),
            blocks: HashMap::new(),
            next: 1,
            secrets: instance | 1,
        })
    }

    /// The file, which clients map.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The board's own mapping of the file.
    pub fn map(&self) -> &SharedMap {
        &self.map
    }

    /// Bytes in all.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Allocated bytes.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Allocates whole pages for `bytes`, with one reference. Their content is zero.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn allocate(&mut self, bytes: u64) -> Result<u64, CuResult> {
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(CuResult::OUT_OF_MEMORY)?;
        if bytes == 0 || bytes > self.total - self.used {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        // The lowest single piece if there is one; otherwise several pieces from the lowest on.
        let whole = self.free.iter().find(|(_, length)| **length >= bytes).map(|(offset, _)| *offset);
        let mut extents = Vec::new();
        let mut missing = bytes;
        while missing > 0 {
            let (offset, length) = match whole {
                Some(offset) => (offset, self.free[&offset]),
                None => self.free.first_key_value().map(|(o, l)| (*o, *l)).ok_or(CuResult::OUT_OF_MEMORY)?,
            };
            let taken = length.min(missing);
            self.free.remove(&offset);
            if taken < length {
                self.free.insert(offset + taken, length - taken);
            }
            extents.push(Extent { offset, bytes: taken });
            missing -= taken;
        }
        if extents.len() > EXTENTS_MAX {
            for extent in &extents {
                ranges::insert(&mut self.free, extent.offset, extent.bytes);
            }
            return Err(CuResult::OUT_OF_MEMORY);
        }
        self.used += bytes;
        let phys = self.next;
        self.next += 1;
        // A step of a linear congruential generator: secrets prevent processes from opening the
        // wrong memory by accident; they are no defence against hostile ones.
        self.secrets =
            self.secrets.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.blocks.insert(phys, Block { extents, bytes, references: 1, secret: self.secrets });
        Ok(phys)
    }

    /// Adds a reference.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for an unknown number.
    pub fn retain(&mut self, phys: u64) -> Result<(), CuResult> {
        let block = self.blocks.get_mut(&phys).ok_or(CuResult::INVALID_HANDLE)?;
        block.references += 1;
        Ok(())
    }

    /// Drops a reference; the last one returns the pages.
    pub fn release(&mut self, phys: u64) {
        let Some(block) = self.blocks.get_mut(&phys) else { return };
        block.references -= 1;
        if block.references > 0 {
            return;
        }
        if let Some(block) = self.blocks.remove(&phys) {
            self.used -= block.bytes;
            for extent in block.extents {
                // If punching the hole fails, the pages only stay in the host's memory; hardware
                // does not zero memory for the next owner either.
                let _ = punch_hole(self.file.as_fd(), extent.offset, extent.bytes);
                ranges::insert(&mut self.free, extent.offset, extent.bytes);
            }
        }
    }

    /// The length of a block.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for an unknown number.
    pub fn bytes(&self, phys: u64) -> Result<u64, CuResult> {
        self.blocks.get(&phys).map(|block| block.bytes).ok_or(CuResult::INVALID_HANDLE)
    }

    /// The secret that another process must present to open a block.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for an unknown number.
    pub fn secret(&self, phys: u64) -> Result<u64, CuResult> {
        self.blocks.get(&phys).map(|block| block.secret).ok_or(CuResult::INVALID_HANDLE)
    }

    /// The pieces that hold `bytes` of a block from `offset` on.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for an unknown number, `INVALID_VALUE` for a range outside of it.
    pub fn extents(&self, phys: u64, offset: u64, bytes: u64) -> Result<Vec<Extent>, CuResult> {
        let block = self.blocks.get(&phys).ok_or(CuResult::INVALID_HANDLE)?;
        if offset.checked_add(bytes).is_none_or(|end| end > block.bytes) {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(clip(&block.extents, offset, bytes))
    }
}

/// The part of `extents` that holds `bytes` from `offset` on.
pub fn clip(extents: &[Extent], mut offset: u64, mut bytes: u64) -> Vec<Extent> {
    let mut part = Vec::new();
    for extent in extents {
        if bytes == 0 {
            break;
        }
        if offset >= extent.bytes {
            offset -= extent.bytes;
            continue;
        }
        let taken = (extent.bytes - offset).min(bytes);
        part.push(Extent { offset: extent.offset + offset, bytes: taken });
        bytes -= taken;
        offset = 0;
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = 16;

    #[test]
    fn every_page_can_be_allocated_and_released() {
        let mut memory = PhysMemory::new(PAGES * PAGE_BYTES, 1).unwrap();
        let blocks: Vec<u64> = (0..PAGES).map(|_| memory.allocate(1).unwrap()).collect();
        assert_eq!(memory.used(), memory.total());
        assert_eq!(memory.allocate(1), Err(CuResult::OUT_OF_MEMORY));
        // Releases every second page: a block of half the memory is then scattered, and still
        // available.
        for block in blocks.iter().step_by(2) {
            memory.release(*block);
        }
        let scattered = memory.allocate(PAGES / 2 * PAGE_BYTES).unwrap();
        assert_eq!(memory.extents(scattered, 0, PAGES / 2 * PAGE_BYTES).unwrap().len(), 8);
        let middle = memory.extents(scattered, PAGE_BYTES + 5, PAGE_BYTES).unwrap();
        assert_eq!(middle.iter().map(|extent| extent.bytes).sum::<u64>(), PAGE_BYTES);
        assert_eq!(middle.len(), 2);
        memory.release(scattered);
        for block in blocks.iter().skip(1).step_by(2) {
            memory.release(*block);
        }
        assert_eq!((memory.used(), memory.free.len()), (0, 1));
    }

    #[test]
    fn a_shared_block_lives_as_long_as_its_last_reference() {
        let mut memory = PhysMemory::new(PAGES * PAGE_BYTES, 1).unwrap();
        let block = memory.allocate(3 * PAGE_BYTES).unwrap();
        memory.retain(block).unwrap();
        memory.release(block);
        assert_eq!(memory.used(), 3 * PAGE_BYTES);
        memory.release(block);
        assert_eq!(memory.used(), 0);
        assert_eq!(memory.retain(block), Err(CuResult::INVALID_HANDLE));
    }
}
