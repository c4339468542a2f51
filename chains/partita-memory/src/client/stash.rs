//! Leases that a client caches for the next one, so that most cost no round trip.

use std::collections::BTreeMap;

use crate::pool::{Lease, LeaseId, block_bytes};

/// Blocks of one size.
#[derive(Default)]
struct Shelf {
    kept: Vec<Lease>,
    /// How many the next request asks for.
    batch: u32,
    /// The fewest that were cached at one time since the last look: so many were superfluous.
    least: usize,
}

/// Cached leases, by size.
pub(super) struct Stash {
    shelves: BTreeMap<u64, Shelf>,
    bytes: u64,
    bytes_max: u64,
    batch_max: u32,
}

impl Stash {
    pub(super) fn new(bytes_max: u64, batch_max: u32) -> Self {
        Self { shelves: BTreeMap::new(), bytes: 0, bytes_max, batch_max: batch_max.max(1) }
    }

    /// A cached lease of at least this many bytes.
    pub(super) fn take(&mut self, bytes: u64) -> Option<Lease> {
        let shelf = self.shelves.get_mut(&block_bytes(bytes)?)?;
        let lease = shelf.kept.pop()?;
        shelf.least = shelf.least.min(shelf.kept.len());
        self.bytes -= lease.bytes;
        Some(lease)
    }

    /// How many to request if none is cached: twice as many as the last time, within the limit of
    /// the cache.
    pub(super) fn batch(&mut self, bytes: u64) -> u32 {
        // An impossible size is for the keeper to refuse.
        let Some(block) = block_bytes(bytes) else { return 1 };
        let room = 1 + self.bytes_max.saturating_sub(self.bytes) / block;
        let shelf = self.shelves.entry(block).or_default();
        let batch = shelf.batch.clamp(1, self.batch_max);
        shelf.batch = batch.saturating_mul(2).min(self.batch_max);
        u32::try_from(room).unwrap_or(u32::MAX).min(batch)
    }

    /// Caches a lease. Returns those that are given back instead, if there are too many: half of
    /// the size's, so that the next ones find room.
    pub(super) fn put(&mut self, lease: Lease) -> Vec<LeaseId> {
        if self.bytes + lease.bytes > self.bytes_max && !self.shelves.contains_key(&lease.bytes) {
            return vec![lease.id];
        }
        let shelf = self.shelves.entry(lease.bytes).or_default();
        shelf.kept.push(lease);
        self.bytes += lease.bytes;
        let is_over = self.bytes > self.bytes_max || shelf.kept.len() > 2 * self.batch_max as usize;
        let over = if is_over { shelf.kept.len().div_ceil(2) } else { 0 };
        self.remove(lease.bytes, over)
    }

    /// Leases that were unused since the last look.
    pub(super) fn surplus(&mut self) -> Vec<LeaseId> {
        let sizes: Vec<(u64, usize)> =
            self.shelves.iter().map(|(size, shelf)| (*size, shelf.least.min(shelf.kept.len()))).collect();
        let mut surplus = Vec::new();
        for (size, least) in sizes {
            surplus.extend(self.remove(size, least));
            if let Some(shelf) = self.shelves.get_mut(&size) {
                shelf.least = shelf.kept.len();
                if least > 0 {
                    shelf.batch /= 2;
                }
            }
        }
        self.shelves.retain(|_, shelf| !shelf.kept.is_empty() || shelf.batch > 0);
        surplus
    }

    /// All cached leases.
    pub(super) fn take_all(&mut self) -> Vec<LeaseId> {
        self.bytes = 0;
        let shelves = std::mem::take(&mut self.shelves);
        shelves.into_values().flat_map(|shelf| shelf.kept).map(|lease| lease.id).collect()
    }

    /// Takes the longest cached ones off a shelf.
    fn remove(&mut self, size: u64, count: usize) -> Vec<LeaseId> {
        let Some(shelf) = self.shelves.get_mut(&size) else { return Vec::new() };
        self.bytes -= size * count as u64;
        let removed = shelf.kept.drain(..count).map(|lease| lease.id).collect();
        shelf.least = shelf.least.min(shelf.kept.len());
        removed
    }
}

#[cfg(test)]
mod tests {
    use crate::pool::SlabId;
    use proptest::prelude::*;

    use super::*;

    fn lease(id: u64, bytes: u64) -> Lease {
        Lease { id: LeaseId(id), slab: SlabId(1), offset: 0, bytes }
    }

    #[test]
    fn what_is_kept_is_taken_first_and_what_is_not_used_goes_back() {
        let mut stash = Stash::new(1 << 20, 16);
        assert_eq!([0; 6].map(|_| stash.batch(4096)), [1, 2, 4, 8, 16, 16]);
        for id in 0..8 {
            assert!(stash.put(lease(id, 4096)).is_empty());
        }
        assert!(stash.surplus().is_empty(), "all came since the last look");
        for _ in 0..3 {
            let taken = stash.take(100).unwrap();
            stash.put(taken);
        }
        assert_eq!(stash.surplus().len(), 7, "one at a time was used");
        assert_eq!(stash.take_all().len(), 1);
        assert!(stash.take(100).is_none() && stash.take_all().is_empty());
    }

    #[test]
    fn nothing_is_kept_where_nothing_may_be() {
        let mut stash = Stash::new(0, 16);
        assert_eq!((stash.batch(4096), stash.batch(4096), stash.batch(0)), (1, 1, 1));
        assert_eq!(stash.put(lease(1, 4096)), [LeaseId(1)]);
    }

    proptest! {
        #[test]
        fn every_lease_is_kept_or_goes_back_once(
            ops in prop::collection::vec((0u8..8, 0usize..3), 1..200),
            bytes_max in 0u64..100_000,
        ) {
            let mut stash = Stash::new(bytes_max, 8);
            let sizes = [4096, 8192, 40_960];
            let (mut out, mut next) = (Vec::new(), 0);
            let mut back = Vec::new();
            for (op, size) in ops {
                match op {
                    0..=2 => match stash.take(sizes[size]) {
                        Some(lease) => out.push(lease),
                        None => for _ in 0..stash.batch(sizes[size]) {
                            out.push(lease(next, sizes[size]));
                            next += 1;
                        },
                    },
                    3..=6 => if let Some(lease) = out.pop() {
                        back.extend(stash.put(lease));
                    },
                    _ => back.extend(stash.surplus()),
                }
                prop_assert!(stash.bytes <= bytes_max);
            }
            back.extend(stash.take_all());
            back.extend(out.iter().map(|lease| lease.id));
            back.sort_unstable();
            prop_assert_eq!(back, (0..next).map(LeaseId).collect::<Vec<_>>());
        }
    }
}
