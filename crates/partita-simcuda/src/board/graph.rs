//! Graphs that clients uploaded, and the lanes that run them.

use std::collections::BTreeMap;

use partita_sim::{StreamId, WorkId};

use crate::shared::protocol::GraphNode;

/// A graph, baked: nodes in an order in which each comes after those that it waits for.
#[derive(Debug, Default)]
pub struct Graph {
    /// The nodes by place.
    pub nodes: BTreeMap<u32, GraphNode>,
    /// Streams of the engine that branches run on, kept from launch to launch.
    pub lanes: Vec<StreamId>,
    /// Last work of the latest launch: launches of one executable do not overlap.
    pub last: Option<WorkId>,
}

/// On which lane each node runs. Lane 0 is the launching stream's own order; a node follows on the lane of a
/// node that it waits for when nothing else has followed there, and opens a lane otherwise.
pub fn assign_lanes(nodes: &BTreeMap<u32, GraphNode>) -> BTreeMap<u32, usize> {
    let mut lane_of = BTreeMap::new();
    let mut last_on: Vec<u32> = Vec::new();
    for (index, node) in nodes {
        let followed = node
            .after
            .iter()
            .find_map(|before| lane_of.get(before).copied().filter(|lane: &usize| last_on[*lane] == *before));
        let lane = followed.unwrap_or_else(|| {
            last_on.push(*index);
            last_on.len() - 1
        });
        last_on[lane] = *index;
        lane_of.insert(*index, lane);
    }
    lane_of
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::protocol::NodeWork;

    fn graph(edges: &[&[u32]]) -> BTreeMap<u32, GraphNode> {
        edges
            .iter()
            .enumerate()
            .map(|(index, after)| {
                let index = index as u32;
                (index, GraphNode { index, after: after.to_vec(), work: NodeWork::Empty })
            })
            .collect()
    }

    #[test]
    fn a_chain_takes_one_lane_and_a_diamond_two() {
        let chain = assign_lanes(&graph(&[&[], &[0], &[1], &[2]]));
        assert!(chain.values().all(|lane| *lane == 0));
        let diamond = assign_lanes(&graph(&[&[], &[0], &[0], &[1, 2]]));
        assert_eq!(diamond.values().copied().collect::<Vec<_>>(), [0, 0, 1, 0]);
    }
}
