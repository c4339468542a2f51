//! One allocation, divided into blocks.

use std::collections::BTreeSet;
use std::vec::Vec;

use super::{LeaseId, OwnerId, TenantId};

#[derive(Debug)]
pub(crate) struct Slab {
    pub(crate) tenant: TenantId,
    pub(crate) bytes: u64,
    pub(crate) block_bytes: u64,
    pub(crate) blocks: u32,
    /// The free blocks; the last is next.
    free: Vec<u32>,
    /// The owners that have it open.
    pub(crate) openers: BTreeSet<OwnerId>,
    /// Leases whose blocks rest.
    pub(crate) resting: BTreeSet<LeaseId>,
    /// Since when all blocks are free, in milliseconds.
    pub(crate) empty_since_ms: Option<u64>,
    /// Whether its openers should close it.
    pub(crate) is_retiring: bool,
}

impl Slab {
    pub(crate) fn new(tenant: TenantId, bytes: u64, block_bytes: u64, now_ms: u64) -> Self {
        let blocks = u32::try_from(bytes / block_bytes).unwrap_or(u32::MAX);
        Self {
            tenant,
            bytes,
            block_bytes,
            blocks,
            free: (0..blocks).rev().collect(),
            openers: BTreeSet::new(),
            resting: BTreeSet::new(),
            empty_since_ms: Some(now_ms),
            is_retiring: false,
        }
    }

    pub(crate) fn free_blocks(&self) -> u32 {
        self.free.len() as u32
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free_blocks() == self.blocks
    }

    /// Whether it can be returned to the driver.
    pub(crate) fn is_removable(&self) -> bool {
        self.is_empty() && self.openers.is_empty()
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        self.empty_since_ms = None;
        self.is_retiring = false;
        Some(block)
    }

    pub(crate) fn give_back(&mut self, block: u32, now_ms: u64) {
        self.free.push(block);
        if self.is_empty() {
            self.empty_since_ms = Some(now_ms);
        }
    }
}
