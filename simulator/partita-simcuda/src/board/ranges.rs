//! Free ranges: first position to length, never touching one another.

use std::collections::BTreeMap;

/// Adds a range and joins it with its neighbours.
pub fn insert(free: &mut BTreeMap<u64, u64>, mut at: u64, mut bytes: u64) {
    if let Some((before, length)) = free.range(..at).next_back().map(|(o, l)| (*o, *l))
        && before + length == at
    {
        free.remove(&before);
        (at, bytes) = (before, length + bytes);
    }
    if let Some(length) = free.remove(&(at + bytes)) {
        bytes += length;
    }
    free.insert(at, bytes);
}
