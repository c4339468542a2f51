//! The place of a lease: one word.

/// Bits of a state, and of a ticket, below the version.
const LOW_BITS: u32 = 16;
/// The first number of [`Place::Held`].
const HELD: u64 = 0x100;
/// The first number of [`Place::Queued`].
const QUEUED: u64 = 0x200;

/// The place of a lease. There is no other place, and it is in one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Without memory.
    Vacant,
    /// In the pool.
    Free,
    /// Held by the role with that number.
    Held(u8),
    /// Between the role with that number and the next one.
    Queued(u8),
}

impl Place {
    fn code(self) -> u64 {
        match self {
            Self::Vacant => 0,
            Self::Free => 1,
            Self::Held(role) => HELD + u64::from(role),
            Self::Queued(edge) => QUEUED + u64::from(edge),
        }
    }

    /// `None` for a word that no operation has written.
    fn from_code(code: u64) -> Option<Self> {
        match code {
            0 => Some(Self::Vacant),
            1 => Some(Self::Free),
            HELD..0x200 => Some(Self::Held((code - HELD) as u8)),
            QUEUED..0x300 => Some(Self::Queued((code - QUEUED) as u8)),
            _ => None,
        }
    }
}

/// A lease's state word: a version that grows by one with each move, above the place.
///
/// A version has 48 bits: at a million moves of one lease a second they last for nine years.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State(pub u64);

impl State {
    /// How many times the lease was moved.
    pub fn version(self) -> u64 {
        self.0 >> LOW_BITS
    }

    /// Its place; `None` for a word that no operation has written.
    pub fn place(self) -> Option<Place> {
        Place::from_code(self.0 & ((1 << LOW_BITS) - 1))
    }

    /// The state after a move to `place`.
    pub fn moved_to(self, place: Place) -> Self {
        Self(self.version().wrapping_add(1) << LOW_BITS | place.code())
    }
}

/// A lease at one of its versions: a ticket of an earlier version has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// The ticket of `lease` in that state.
    pub fn new(lease: usize, state: State) -> Self {
        Self(state.version() << LOW_BITS | (lease as u64 & ((1 << LOW_BITS) - 1)))
    }

    /// The lease's number.
    pub fn lease(self) -> usize {
        (self.0 & ((1 << LOW_BITS) - 1)) as usize
    }

    pub fn version(self) -> u64 {
        self.0 >> LOW_BITS
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_place_comes_back_and_nothing_else_does() {
        let roles = (0..=u8::MAX).flat_map(|n| [Place::Held(n), Place::Queued(n)]);
        let mut state = State(0);
        assert_eq!(state.place(), Some(Place::Vacant));
        for (moves, place) in roles.chain([Place::Free, Place::Vacant]).enumerate() {
            state = state.moved_to(place);
            assert_eq!((state.place(), state.version()), (Some(place), moves as u64 + 1));
        }
        for odd in [2, 0xff, 0x300, 0xffff] {
            assert_eq!(State(odd).place(), None);
        }
        let last = State(u64::MAX).moved_to(Place::Free);
        assert_eq!((last.version(), last.place()), (0, Some(Place::Free)));
        let ticket = Ticket::new(0xabcd, State(7 << 16));
        assert_eq!((ticket.lease(), ticket.version()), (0xabcd, 7));
    }
}
