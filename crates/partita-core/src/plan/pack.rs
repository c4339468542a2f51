//! The choice of TPCs that is best by the order that [`plan`](super::plan) documents.

use alloc::vec;
use alloc::vec::Vec;

use crate::TpcSet;

/// The available part of one GPC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// The available TPCs; at least one.
    pub tpcs: TpcSet,
    /// Whether the GPC is wholly free.
    pub whole: bool,
}

impl Room {
    fn size(&self) -> u32 {
        self.tpcs.len()
    }
}

/// Takes `wanted` TPCs of the rooms, which are in the order of preference among equals; `None` if
/// there are too few.
pub(super) fn pack(rooms: &[Room], wanted: u32) -> Option<TpcSet> {
    if wanted == 0 {
        return Some(TpcSet::EMPTY);
    }
    let chosen = choose(rooms, wanted)?;
    // The choice needs every room, so the remaining TPCs fit into any one of them.
    let total: u32 = chosen.iter().map(Room::size).sum();
    let smallest = (0..chosen.len()).rev().min_by_key(|&i| chosen[i].size())?;
    let take = |(i, room): (usize, &Room)| {
        let left_over = if i == smallest { total - wanted } else { 0 };
        room.tpcs.lowest(room.size() - left_over)
    };
    Some(chosen.iter().enumerate().map(take).fold(TpcSet::EMPTY, |set, part| set | part))
}

/// The rooms to take from.
fn choose(rooms: &[Room], wanted: u32) -> Option<Vec<Room>> {
    let (partials, wholes) = how_many(rooms, wanted)?;
    let mut sizes: Vec<u32> = rooms.iter().map(Room::size).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.dedup();

    let mut total = None;
    for largest in sizes {
        let reach = Reach::new(rooms, partials, wholes, largest);
        // The first is the largest of all, so that it excludes nothing.
        let total = *total.get_or_insert(reach.totals(0, partials, wholes, true).at_least(wanted)?);
        if reach.totals(0, partials, wholes, false).contains(total) {
            return Some(reach.first_choice(total));
        }
    }
    None
}

/// The fewest rooms with `wanted` TPCs, and of them the fewest whole ones: (partial, whole).
fn how_many(rooms: &[Room], wanted: u32) -> Option<(usize, usize)> {
    // Sums of the largest: `sums(..)[i]` is the total of the `i` largest.
    let sums = |of: &dyn Fn(&Room) -> bool| {
        let mut sizes: Vec<u32> = rooms.iter().filter(|room| of(room)).map(Room::size).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut sums = vec![0];
        sums.extend(sizes.iter().scan(0, |sum, size| {
            *sum += size;
            Some(*sum)
        }));
        sums
    };
    let count = sums(&|_| true).iter().position(|&sum| sum >= wanted)?;
    let (partial, whole) = (sums(&|room| !room.whole), sums(&|room| room.whole));
    let fits = |&w: &usize| {
        let held = whole.get(w).zip(partial.get(count - w));
        held.is_some_and(|(whole, partial)| whole + partial >= wanted)
    };
    let wholes = (0..=count).find(fits)?;
    Some((count - wholes, wholes))
}

/// Which totals can be reached by taking a given number of partial and of whole rooms from the
/// `i`-th on, none of them larger than `largest`.
struct Reach<'a> {
    rooms: &'a [Room],
    partials: usize,
    wholes: usize,
    largest: u32,
    table: Vec<Totals>,
}

impl<'a> Reach<'a> {
    fn new(rooms: &'a [Room], partials: usize, wholes: usize, largest: u32) -> Self {
        let states = (rooms.len() + 1) * (partials + 1) * (wholes + 1) * 2;
        let mut reach = Self { rooms, partials, wholes, largest, table: vec![Totals::default(); states] };
        let end = reach.index(rooms.len(), 0, 0, true);
        reach.table[end] = Totals::ZERO;
        for i in (0..rooms.len()).rev() {
            for partial in 0..=partials {
                for whole in 0..=wholes {
                    for has_largest in [false, true] {
                        let mut totals = *reach.totals(i + 1, partial, whole, has_largest);
                        if let Some((partial, whole, has_largest)) =
                            reach.take(i, partial, whole, has_largest)
                        {
                            totals.add(reach.totals(i + 1, partial, whole, has_largest), rooms[i].size());
                        }
                        let at = reach.index(i, partial, whole, has_largest);
                        reach.table[at] = totals;
                    }
                }
            }
        }
        reach
    }

    /// The rest to take after room `i`; `None` if the room is not available.
    fn take(
        &self,
        i: usize,
        partial: usize,
        whole: usize,
        has_largest: bool,
    ) -> Option<(usize, usize, bool)> {
        let room = &self.rooms[i];
        if room.size() > self.largest {
            return None;
        }
        let has_largest = has_largest || room.size() == self.largest;
        let (partial, whole) =
            if room.whole { (partial, whole.checked_sub(1)?) } else { (partial.checked_sub(1)?, whole) };
        Some((partial, whole, has_largest))
    }

    /// Totals of `partial` partial and `whole` whole rooms from the `i`-th on; unless
    /// `has_largest`, one of them must be of the largest size.
    fn totals(&self, i: usize, partial: usize, whole: usize, has_largest: bool) -> &Totals {
        &self.table[self.index(i, partial, whole, has_largest)]
    }

    fn index(&self, i: usize, partial: usize, whole: usize, has_largest: bool) -> usize {
        ((i * (self.partials + 1) + partial) * (self.wholes + 1) + whole) * 2 + usize::from(has_largest)
    }

    /// The rooms that form a reachable total, the earliest available rooms first.
    fn first_choice(&self, total: u32) -> Vec<Room> {
        let mut chosen = Vec::new();
        let (mut left, mut state) = (total, (self.partials, self.wholes, false));
        for (i, room) in self.rooms.iter().enumerate() {
            let (partial, whole, has_largest) = state;
            let Some(next) = self.take(i, partial, whole, has_largest) else { continue };
            let Some(rest) = left.checked_sub(room.size()) else { continue };
            if self.totals(i + 1, next.0, next.1, next.2).contains(rest) {
                chosen.push(*room);
                (left, state) = (rest, next);
            }
        }
        chosen
    }
}

/// A set of totals, 0 to 256.
#[derive(Clone, Copy, Default)]
struct Totals([u64; 5]);

impl Totals {
    const ZERO: Self = Self([1, 0, 0, 0, 0]);

    fn contains(&self, total: u32) -> bool {
        self.0.get(total as usize / 64).is_some_and(|word| word >> (total % 64) & 1 == 1)
    }

    /// The smallest total that is not below `least`.
    fn at_least(&self, least: u32) -> Option<u32> {
        (least..=TpcSet::CAPACITY).find(|&total| self.contains(total))
    }

    /// Adds `more` to each of `others`, and these to the set.
    fn add(&mut self, others: &Self, more: u32) {
        let (words, bits) = (more as usize / 64, more % 64);
        for i in words..self.0.len() {
            self.0[i] |= others.0[i - words] << bits;
            if bits > 0 && i > words {
                self.0[i] |= others.0[i - words - 1] >> (64 - bits);
            }
        }
    }
}
