//! [`Room`]: the TPCs that each component of a chain can have at most, by its GPU.

#[cfg(test)]
mod tests;

use alloc::vec;
use alloc::vec::Vec;

use super::Allocation;

/// The GPUs of a chain: the TPCs that it has on each, and the GPU of each component.
///
/// A component's launches run on its GPU, so its TPCs are some of that GPU's: a change of its
/// number takes TPCs from, or gives them to, components of the same GPU alone.
///
/// ```
/// use partita_steering::Room;
///
/// // Two components on a GPU with 66 TPCs, and one on a GPU with 40.
/// let room = Room::new([66, 40], [0, 0, 1]).unwrap();
/// assert_eq!(room.whole().tpcs(), [66, 66, 40]);
/// assert!(Room::new([66], [0, 1]).is_none(), "there is no second GPU");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// TPCs on each GPU, each at least 1.
    gpus: Vec<u32>,
    /// The GPU of each component: an index into `gpus`.
    of: Vec<usize>,
}

impl Room {
    /// This many TPCs on each GPU, where 0 counts as 1, and for each component the index of its
    /// GPU. `None` without components, and for a GPU that is not there.
    #[must_use]
    pub fn new(tpcs: impl Into<Vec<u32>>, of: impl Into<Vec<usize>>) -> Option<Self> {
        let (mut gpus, of) = (tpcs.into(), of.into());
        gpus.iter_mut().for_each(|tpcs| *tpcs = (*tpcs).max(1));
        (!of.is_empty() && of.iter().all(|&gpu| gpu < gpus.len())).then_some(Self { gpus, of })
    }

    /// This many components, at least 1, on one GPU with this many TPCs.
    #[must_use]
    pub fn one(components: usize, tpcs: u32) -> Self {
        Self { gpus: vec![tpcs.max(1)], of: vec![0; components.max(1)] }
    }

    /// The number of components, at least 1.
    #[must_use]
    pub fn components(&self) -> usize {
        self.of.len()
    }

    /// The most TPCs that a component can have: those of its GPU, at least 1.
    ///
    /// # Panics
    /// There is no such component.
    #[must_use]
    pub fn tpcs(&self, component: usize) -> u32 {
        self.gpus[self.of[component]]
    }

    /// For each GPU that has components, these components, in the chain's order.
    pub fn groups(&self) -> impl Iterator<Item = Vec<usize>> {
        let on = |gpu: usize| (0..self.of.len()).filter(|&component| self.of[component] == gpu).collect();
        (0..self.gpus.len()).map(on).filter(|group: &Vec<usize>| !group.is_empty())
    }

    /// A number for each component, at least 1 and at most the TPCs of its GPU.
    #[must_use]
    pub fn each(&self, tpcs: impl Fn(usize) -> u32) -> Allocation {
        (0..self.of.len()).fold(Allocation::uniform(self.of.len(), 1), |all, component| {
            all.with(component, tpcs(component).clamp(1, self.tpcs(component)))
        })
    }

    /// All TPCs of its GPU for every component, as if there were no search.
    #[must_use]
    pub fn whole(&self) -> Allocation {
        self.each(|component| self.tpcs(component))
    }

    /// An allocation in which no component has more than its GPU has. Components that it does not
    /// name get all.
    #[must_use]
    pub fn within(&self, allocation: &Allocation) -> Allocation {
        self.each(|component| allocation.tpcs().get(component).copied().unwrap_or(u32::MAX))
    }

    /// What each GPU's actuator applies of an allocation: the GPU, its components, and their TPCs,
    /// at most those of the GPU.
    pub fn parts(&self, allocation: &Allocation) -> impl Iterator<Item = (usize, Vec<usize>, Allocation)> {
        let allocation = self.within(allocation);
        self.groups().map(move |group| {
            let first = group[0];
            let part = (0..group.len()).fold(Allocation::uniform(group.len(), 1), |part, at| {
                part.with(at, allocation.tpcs()[group[at]])
            });
            (self.of[first], group, part)
        })
    }
}
