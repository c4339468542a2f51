//! Meetings of the threads that are active: their member mask comes from `activemask`.
//!
//! A thread that has gone to the loop's tail before such a mask was taken is not in it, so nobody
//! waits for it. That holds for what is made of the mask, too: the lanes of equal values
//! (`match.any`), a ballot among its threads, and its intersection with anything.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::names;
use super::node::{Node, has_result};
use crate::module::{Instruction, Operand};

/// Where a register gets a value: the basic block, and the place in it.
type Place = (usize, usize);

/// The registers that hold nothing but active threads, with each place where one gets a value.
pub(super) struct Active<'a>(BTreeMap<&'a str, Vec<Place>>);

impl<'a> Active<'a> {
    pub(super) fn new(nodes: &[Node<'a>]) -> Self {
        let mut all: BTreeMap<&'a str, Vec<Place>> = BTreeMap::new();
        for (node, of) in nodes.iter().enumerate() {
            for (place, of) in of.instructions.iter().enumerate().filter(|(_, of)| has_result(of)) {
                let mut found = Vec::new();
                of.operands.first().into_iter().for_each(|to| names(to, &mut found));
                found.into_iter().for_each(|name| all.entry(name).or_default().push((node, place)));
            }
        }
        let mut active = Self(all);
        loop {
            let holds = |places: &Vec<Place>| places.iter().all(|place| active.holds(at(nodes, *place)));
            let kept: BTreeMap<_, _> = active
                .0
                .iter()
                .filter(|(_, places)| holds(places))
                .map(|(name, at)| (*name, at.clone()))
                .collect();
            let is_all = kept.len() == active.0.len();
            active = Self(kept);
            if is_all {
                return active;
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the result of an instruction is nothing but active threads.
    fn holds(&self, of: &Instruction) -> bool {
        of.guard.is_none()
            && match of.opcode.as_str() {
                "activemask" => true,
                "match" if of.has("any") && of.has("sync") => self.members(of).is_some(),
                "vote" if of.has("ballot") && of.has("sync") => self.members(of).is_some(),
                "mov" | "and" => self.sources(of).next().is_some(),
                _ => false,
            }
    }

    /// The register of an instruction's member mask, if it holds active threads.
    fn members<'o>(&self, of: &'o Instruction) -> Option<&'o str> {
        match of.operands.last() {
            Some(Operand::Name(name)) if self.0.contains_key(name.as_str()) => Some(name),
            _ => None,
        }
    }

    /// The operands that hold active threads.
    fn sources<'o>(&self, of: &'o Instruction) -> impl Iterator<Item = &'o str> {
        of.operands.iter().skip(1).filter_map(|operand| match operand {
            Operand::Name(name) if self.0.contains_key(name.as_str()) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Whether the threads that meet in a basic block are those that were active somewhere behind a
    /// branch.
    pub(super) fn meet(&self, nodes: &[Node<'a>], branch: usize, meeting: usize) -> bool {
        let of = nodes[meeting].instructions.last();
        let members = of.and_then(|of| self.members(of));
        members
            .is_some_and(|members| self.is_fresh(nodes, branch, (meeting, 0), members, &mut BTreeSet::new()))
    }

    /// Whether a register, read at a place, holds threads that were active behind the branch.
    fn is_fresh<'o>(
        &'o self,
        nodes: &'o [Node<'a>],
        branch: usize,
        read: Place,
        register: &'o str,
        seen: &mut BTreeSet<(Place, &'o str)>,
    ) -> bool {
        // A register that comes from itself, around a loop, is as fresh as where it comes from.
        if !seen.insert((read, register)) {
            return true;
        }
        let places = &self.0[register];
        let is_before = |place: &Place| place.0 == read.0 && place.1 < read.1;
        if !places.iter().any(is_before) {
            let (mut open, mut passed) = (nodes[branch].next.clone(), BTreeSet::new());
            while let Some(node) = open.pop() {
                if node == read.0 {
                    return false;
                }
                let sets = places.iter().any(|place| place.0 == node);
                if node < nodes.len() && !sets && passed.insert(node) {
                    open.extend(&nodes[node].next);
                }
            }
        }
        places.iter().all(|place| {
            let of = at(nodes, *place);
            // Of the others, the member mask is looked at where their threads meet.
            !matches!(of.opcode.as_str(), "mov" | "and")
                || self.sources(of).any(|source| self.is_fresh(nodes, branch, *place, source, seen))
        })
    }
}

fn at<'a>(nodes: &[Node<'a>], (node, place): Place) -> &'a Instruction {
    nodes[node].instructions[place]
}
