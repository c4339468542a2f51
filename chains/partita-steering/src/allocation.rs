//! [`Allocation`]: how many TPCs each component of a chain may use, and the portions to choose
//! from.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use thiserror::Error;

/// How many TPCs each component of a chain may use, in the chain's order.
///
/// Numbers, not sets: [`place`](super::place) chooses the TPCs. They may add up to more than the
/// chain has; then sets overlap.
///
/// ```
/// use partita_steering::Allocation;
///
/// let start = Allocation::new([13, 13, 13, 13, 13]).unwrap();
/// assert_eq!(start.with(2, 66).to_string(), "13 13 66 13 13");
/// assert_eq!(start.total_tpcs(), 65);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Allocation(Vec<u32>);

impl Allocation {
    /// The TPCs of each component.
    ///
    /// # Errors
    /// No components, or a component without a TPC.
    pub fn new(tpcs: impl Into<Vec<u32>>) -> Result<Self, AllocationError> {
        let tpcs = tpcs.into();
        if tpcs.is_empty() {
            return Err(AllocationError::NoComponents);
        }
        match tpcs.iter().position(|&tpcs| tpcs == 0) {
            Some(component) => Err(AllocationError::NoTpc { component }),
            None => Ok(Self(tpcs)),
        }
    }

    /// The same number for each of this many components, at least one.
    #[must_use]
    pub fn uniform(components: usize, tpcs: u32) -> Self {
        Self(vec![tpcs.max(1); components.max(1)])
    }

    /// The allocation on this many TPCs: no component has more than that, and none fewer than one.
    ///
    /// ```
    /// # use partita_steering::Allocation;
    /// assert_eq!(Allocation::new([2, 5]).unwrap().within(3).tpcs(), [2, 3]);
    /// assert_eq!(Allocation::new([2, 5]).unwrap().within(0).tpcs(), [1, 1]);
    /// ```
    #[must_use]
    pub fn within(&self, tpcs: u32) -> Self {
        Self(self.0.iter().map(|&component| component.min(tpcs.max(1))).collect())
    }

    /// The TPCs of each component, each at least 1.
    #[must_use]
    pub fn tpcs(&self) -> &[u32] {
        &self.0
    }

    /// The number of components, at least 1.
    #[must_use]
    pub fn components(&self) -> usize {
        self.0.len()
    }

    /// The sum over all components.
    #[must_use]
    pub fn total_tpcs(&self) -> u32 {
        self.0.iter().fold(0, |sum, &tpcs| sum.saturating_add(tpcs))
    }

    /// The same with another number for one component, at least 1.
    ///
    /// # Panics
    /// There is no such component.
    #[must_use]
    pub fn with(&self, component: usize, tpcs: u32) -> Self {
        let mut changed = self.clone();
        changed.0[component] = tpcs.max(1);
        changed
    }
}

/// The numbers with a space between.
impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, tpcs) in self.0.iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            write!(f, "{space}{tpcs}")?;
        }
        Ok(())
    }
}

/// Numbers that are not an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocationError {
    /// There are no components.
    #[error("an allocation needs at least one component")]
    NoComponents,
    /// A component would have no TPC, and its launches would never run.
    #[error(
        "component {} of the chain would have no TPC, and its kernels would wait for ever; give it one",
        component + 1
    )]
    NoTpc {
        /// Which one, from 0 on.
        component: usize,
    },
}

/// Steps between the portions of [`ladder`], in per cent.
const STEP_PERCENT: u32 = 5;

/// The portions of this many TPCs from which the published algorithm chooses: 5 % to 100 % in steps
/// of 5 %, in whole TPCs, rounded down as [`Share`](partita_core::Share) rounds but at least 1,
/// each once, smallest first. (The paper gives the range, not the step; with 20 portions the
/// resolution on the 108 SMs of its A100 is 3 TPCs.)
///
/// ```
/// use partita_steering::ladder;
///
/// assert_eq!(ladder(66)[..4], [3, 6, 9, 13]);
/// assert_eq!(ladder(66).last(), Some(&66));
/// assert_eq!(ladder(4), [1, 2, 3, 4]);
/// ```
#[must_use]
pub fn ladder(tpcs: u32) -> Vec<u32> {
    let portion = |percent: u32| (u64::from(tpcs) * u64::from(percent) / 100).max(1) as u32;
    let mut portions: Vec<u32> = (1..=100 / STEP_PERCENT).map(|step| portion(step * STEP_PERCENT)).collect();
    portions.dedup();
    portions
}
