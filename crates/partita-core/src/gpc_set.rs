//! [`GpcSet`], a set of GPCs.

use core::fmt;

use crate::TpcSet;

/// A set of GPC ids, 0 to 255. The text form is that of [`TpcSet`]: `0-2,5`.
///
/// ```
/// use partita_core::GpcSet;
///
/// let gpcs: GpcSet = [0, 1, 2, 5].into_iter().collect();
/// assert_eq!(gpcs.to_string(), "0-2,5");
/// assert!(gpcs.contains(5));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GpcSet(TpcSet);

impl GpcSet {
    /// The set without members.
    pub const EMPTY: Self = Self(TpcSet::EMPTY);

    pub(crate) const fn from_numbers(numbers: TpcSet) -> Self {
        Self(numbers)
    }

    /// Adds a GPC; returns whether it was absent.
    pub const fn insert(&mut self, gpc: u8) -> bool {
        self.0.insert(gpc)
    }

    /// Whether the GPC is a member.
    #[must_use]
    pub const fn contains(&self, gpc: u8) -> bool {
        self.0.contains(gpc)
    }

    /// How many members there are.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.0.len()
    }

    /// Whether there are no members.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The members of this set that are not in `other`.
    #[must_use]
    pub fn difference(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }

    /// The members, lowest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u8> + ExactSizeIterator + use<> {
        self.0.iter()
    }
}

impl FromIterator<u8> for GpcSet {
    fn from_iter<I: IntoIterator<Item = u8>>(gpcs: I) -> Self {
        Self(gpcs.into_iter().collect())
    }
}

impl fmt::Display for GpcSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for GpcSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpcSet({self})")
    }
}
