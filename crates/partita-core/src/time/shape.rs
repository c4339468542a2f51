//! The places inside a graph where work waits.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

/// The shape of a graph: its nodes by number, their kernels, and their order.
#[derive(Debug, Clone)]
pub struct GraphShape {
    kernels: Vec<u32>,
    next: Vec<Vec<usize>>,
    /// Edges into each node.
    before: Vec<usize>,
    may_wait: Vec<bool>,
}

impl GraphShape {
    /// Nodes that run this many kernels each, and follow no other yet.
    pub fn new(kernels: Vec<u32>) -> Self {
        let count = kernels.len();
        Self { kernels, next: vec![Vec::new(); count], before: vec![0; count], may_wait: vec![true; count] }
    }

    /// Makes a node follow another one. A node that starts before all its predecessors have ended
    /// is not a place for a wait, which would delay it in any case: `at_end` is false for it.
    ///
    /// `None`, and no edge, for invalid node numbers.
    pub fn connect(&mut self, from: usize, to: usize, at_end: bool) -> Option<()> {
        let before = self.before.get_mut(to)?;
        self.next.get_mut(from)?.push(to);
        *before += 1;
        *self.may_wait.get_mut(to)? &= at_end;
        Some(())
    }

    /// The nodes that wait: each that runs a kernel behind `every` kernels or more on some path
    /// from the start or from a node that waits. Those with fewer nodes on the longest path before
    /// them come first, so branches take turns.
    ///
    /// The choice follows from the shape alone: graphs that differ only in their node numbers have
    /// the same places. So no path has more than `every` kernels between two waits, except within
    /// single nodes that run several, and at nodes that are not a place for a wait.
    ///
    /// `None` for a graph with a cycle.
    pub fn waits(mut self, every: u32) -> Option<Vec<usize>> {
        let mut passed = vec![0u32; self.kernels.len()];
        let begins = |(at, before): (usize, &usize)| (*before == 0).then_some(at);
        // First in, first out: nodes nearer to the start come first.
        let mut ready: VecDeque<usize> = self.before.iter().enumerate().filter_map(begins).collect();
        let (mut waiting, mut seen) = (Vec::new(), 0);
        while let Some(at) = ready.pop_front() {
            seen += 1;
            let (kernels, before) = (*self.kernels.get(at)?, *passed.get(at)?);
            let waits = kernels > 0 && before >= every && *self.may_wait.get(at)?;
            if waits {
                waiting.push(at);
            }
            let behind = if waits { kernels } else { before.saturating_add(kernels) };
            for next in core::mem::take(self.next.get_mut(at)?) {
                let passed = passed.get_mut(next)?;
                *passed = behind.max(*passed);
                let left = self.before.get_mut(next)?;
                *left -= 1;
                if *left == 0 {
                    ready.push_back(next);
                }
            }
        }
        (seen == self.kernels.len()).then_some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shape(kernels: &[u32], edges: &[(usize, usize)]) -> GraphShape {
        let mut shape = GraphShape::new(kernels.to_vec());
        for (from, to) in edges {
            shape.connect(*from, *to, true).unwrap();
        }
        shape
    }

    fn chain(kernels: &[u32]) -> GraphShape {
        let edges: Vec<_> = (1..kernels.len()).map(|to| (to - 1, to)).collect();
        shape(kernels, &edges)
    }

    #[test]
    fn a_chain_waits_every_so_many_kernels_and_not_at_its_beginning() {
        assert_eq!(chain(&[1; 10]).waits(4), Some(vec![4, 8]));
        assert_eq!(chain(&[1; 4]).waits(4), Some(vec![]));
        assert_eq!(chain(&[1; 3]).waits(1), Some(vec![1, 2]));
        // A node without kernels neither counts nor waits; one with several counts all of them.
        assert_eq!(chain(&[1, 0, 1, 0, 1, 1]).waits(2), Some(vec![4]));
        assert_eq!(chain(&[5, 1, 1, 1]).waits(2), Some(vec![1, 3]));
    }

    #[test]
    fn every_branch_has_its_own_waits() {
        // Two chains of four behind one node, and what joins them.
        let edges = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 5), (5, 6), (6, 7), (7, 8), (4, 9), (8, 9)];
        assert_eq!(shape(&[1; 10], &edges).waits(3), Some(vec![3, 7]));
    }

    #[test]
    fn branches_take_turns() {
        // Two chains of six behind nothing, one made after the other.
        let edges: Vec<_> = (1..12).filter(|to| *to != 6).map(|to| (to - 1, to)).collect();
        assert_eq!(shape(&[1; 12], &edges).waits(2), Some(vec![2, 8, 4, 10]));
    }

    #[test]
    fn what_begins_early_is_passed_over() {
        let mut early = chain(&[1; 3]);
        early.connect(0, 2, false).unwrap();
        assert_eq!(early.clone().waits(1), Some(vec![1]));
        assert_eq!(early.connect(0, 3, true), None);
        assert_eq!(shape(&[1, 1], &[(0, 1), (1, 0)]).waits(1), None);
    }

    proptest! {
        /// The most kernels on any path without a wait, in graphs whose edges lead to higher
        /// numbers.
        #[test]
        fn no_path_runs_on_for_longer(
            count in 2usize..40,
            edges in prop::collection::vec((0usize..40, 1usize..40), 0..120),
            every in 1u32..8,
        ) {
            let mut edges: Vec<_> = edges
                .into_iter()
                .map(|(from, step)| (from % count, (from % count + step).min(count - 1)))
                .filter(|(from, to)| from < to)
                .collect();
            edges.sort_unstable();
            edges.dedup();
            let waits = shape(&vec![1; count], &edges).waits(every).unwrap();
            let mut run = vec![0u32; count];
            for at in 0..count {
                let before = edges.iter().filter(|(_, to)| *to == at).map(|(from, _)| run[*from]).max();
                let before = before.unwrap_or(0);
                prop_assert_eq!(waits.contains(&at), before >= every);
                run[at] = if before >= every { 1 } else { before + 1 };
                prop_assert!(run[at] <= every);
            }
            // Level by level.
            let mut level = vec![0usize; count];
            for &(from, to) in &edges {
                level[to] = level[to].max(level[from] + 1);
            }
            prop_assert!(waits.is_sorted_by_key(|at| level[*at]), "{:?} of {:?}", waits, level);
            // Numbered the other way round, the same nodes wait.
            let turned: Vec<_> = edges.iter().map(|(from, to)| (count - 1 - from, count - 1 - to)).collect();
            let mut others = shape(&vec![1; count], &turned).waits(every).unwrap();
            others.iter_mut().for_each(|at| *at = count - 1 - *at);
            let mut waits = waits;
            waits.sort_unstable();
            others.sort_unstable();
            prop_assert_eq!(waits, others);
        }
    }
}
