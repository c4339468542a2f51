//! The process's mappings by address, so that host threads can move bytes themselves.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use crate::shared::protocol::Extent;
use crate::shared::sys::SharedMap;

/// The kind of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Device memory that the host cannot address.
    Device,
    /// Device memory that the host can address at the same place.
    Managed,
    /// Host memory that this library allocated.
    HostOwned,
    /// Host memory that the program registered.
    Registered,
    /// Addresses without memory.
    Reserved,
}

/// One mapped range.
#[derive(Clone, Debug)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// Length that the program requested, in bytes.
    pub bytes: u64,
    /// What.
    pub kind: Kind,
    /// The location of the bytes in the device's memory; empty for host memory.
    pub extents: Vec<Extent>,
    /// The context that owns it; 0 without one.
    pub ctx: u64,
    /// Its pool; 0 without one.
    pub pool: usize,
    /// Flags that it was made with.
    pub flags: u32,
    /// A number that no other region of this process has.
    pub id: u64,
    /// Opened from another process.
    pub imported: bool,
}

impl Region {
    /// A region of a kind, otherwise plain.
    pub fn new(start: u64, bytes: u64, kind: Kind) -> Self {
        Self { start, bytes, kind, extents: Vec::new(), ctx: 0, pool: 0, flags: 0, id: 0, imported: false }
    }

    /// Whether it is memory of the host.
    pub fn is_host(&self) -> bool {
        matches!(self.kind, Kind::HostOwned | Kind::Registered)
    }
}

/// All mapped ranges of this process.
#[derive(Debug, Default)]
pub struct Regions {
    ranges: RwLock<(BTreeMap<u64, Region>, u64)>,
}

impl Regions {
    /// Adds a range.
    pub fn insert(&self, mut region: Region) {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        ranges.1 += 1;
        region.id = ranges.1;
        ranges.0.insert(region.start, region);
    }

    /// Removes the range that starts at an address, if `accept` agrees.
    pub fn remove(&self, start: u64, accept: impl FnOnce(&Region) -> bool) -> Option<Region> {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        if !accept(ranges.0.get(&start)?) {
            return None;
        }
        ranges.0.remove(&start)
    }

    /// Removes all ranges that `gone` picks and returns them.
    pub fn remove_where(&self, gone: impl Fn(&Region) -> bool) -> Vec<Region> {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        let starts: Vec<u64> = ranges.0.values().filter(|r| gone(r)).map(|r| r.start).collect();
        starts.iter().filter_map(|start| ranges.0.remove(start)).collect()
    }

    /// Changes all ranges that `chosen` picks.
    pub fn update_where(&self, chosen: impl Fn(&Region) -> bool, change: impl Fn(&mut Region)) {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        ranges.0.values_mut().filter(|region| chosen(region)).for_each(change);
    }

    /// The range that holds an address.
    pub fn find(&self, address: u64) -> Option<Region> {
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let (_, region) = ranges.0.range(..=address).next_back()?;
        (address - region.start < region.bytes).then(|| region.clone())
    }

    /// The kind of memory at an address; `None` for ordinary host memory.
    pub fn kind(&self, address: u64) -> Option<Kind> {
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let (_, region) = ranges.0.range(..=address).next_back()?;
        (address - region.start < region.bytes).then_some(region.kind)
    }

    /// Where this process can access `bytes` at `address`: pieces in order. Host addresses are
    /// unchanged. `None` when the range leaves the mappings.
    pub fn pieces(&self, memory: &SharedMap, address: u64, bytes: u64) -> Option<Vec<(*mut u8, usize)>> {
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let mut pieces = Vec::new();
        let (mut at, mut left) = (address, bytes);
        while left > 0 {
            let region = ranges.0.range(..=at).next_back().map(|(_, region)| region);
            let Some(region) = region.filter(|region| at - region.start < region.bytes) else {
                pieces.push((at as *mut u8, left as usize));
                return Some(pieces);
            };
            let mut offset = at - region.start;
            let taken = left.min(region.bytes - offset);
            match region.kind {
                Kind::Managed | Kind::HostOwned | Kind::Registered => {
                    pieces.push((at as *mut u8, taken as usize));
                }
                Kind::Reserved => return None,
                Kind::Device => {
                    let mut wanted = taken;
                    for extent in &region.extents {
                        if offset >= extent.bytes {
                            offset -= extent.bytes;
                            continue;
                        }
                        let part = wanted.min(extent.bytes - offset);
                        pieces.push((memory.at(extent.offset + offset, part)?, part as usize));
                        wanted -= part;
                        offset = 0;
                        if wanted == 0 {
                            break;
                        }
                    }
                    if wanted > 0 {
                        return None;
                    }
                }
            }
            at += taken;
            left -= taken;
        }
        Some(pieces)
    }
}
