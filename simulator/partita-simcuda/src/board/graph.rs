//! Uploaded graphs of clients, and the lanes that run them.

use std::collections::{BTreeMap, BTreeSet};

use partita_abi::CuResult;
use partita_core::TpcSet;
use partita_sim::{StreamId, Work, WorkId};

use super::{Board, ClientId, Effect, Job, OnStart};
use crate::shared::protocol::{GraphNode, NodeWork};

/// What a kernel takes longer at every launch of its graph after its node was changed: the driver
/// no longer runs it as one with the kernels beside it (H200, `docs/hardware.md`).
const CHANGED_NS: u64 = 450;

/// A graph with its nodes in topological order.
#[derive(Debug, Default)]
pub struct Graph {
    /// The nodes by place.
    pub nodes: BTreeMap<u32, GraphNode>,
    /// Places of the nodes that were changed after they had been uploaded.
    changed: BTreeSet<u32>,
    /// Streams of the engine that run branches, reused from launch to launch.
    pub lanes: Vec<StreamId>,
    /// Last work of the latest launch: launches of one executable do not overlap.
    pub last: Option<WorkId>,
}

/// The lane of each node. Lane 0 has the launching stream's own order; a node uses the lane of a
/// predecessor if no other node follows there, and otherwise a new lane.
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

impl Graph {
    /// Takes new nodes, and others in place of known ones.
    pub fn upload(&mut self, nodes: Vec<GraphNode>) {
        for node in nodes {
            let index = node.index;
            if self.nodes.insert(index, node).is_some() {
                self.changed.insert(index);
            }
        }
    }
}

impl Board {
    /// Runs an uploaded graph after the earlier work of its stream.
    pub(super) fn run_graph(
        &mut self,
        id: ClientId,
        slot: u32,
        seq: u64,
        number: u64,
    ) -> Result<(), CuResult> {
        let main = self.engine_stream(id, slot)?;
        let client = self.clients.get_mut(&id).ok_or(CuResult::INVALID_HANDLE)?;
        // A graph without nodes needs no upload.
        let graph = client.graphs.entry(number).or_default();
        let nodes: Vec<GraphNode> = graph.nodes.values().cloned().collect();
        let changed = graph.changed.clone();
        let lane_of = assign_lanes(&graph.nodes);
        let lane_count = lane_of.values().max().map_or(0, |lane| lane + 1);
        let mut lanes = std::mem::take(&mut graph.lanes);
        let previous = graph.last.take();
        let (group, priority) = (client.group, client.engine_priority(0));
        while lanes.len() < lane_count {
            lanes.push(self.engine.add_stream(group, priority).map_err(|_| CuResult::INVALID_HANDLE)?);
        }
        let mark = |effect| Job {
            client: id,
            slot,
            seq: None,
            on_start: OnStart::Nothing,
            effect,
            kernel: None,
            enabled: TpcSet::EMPTY,
        };
        let wait = |board: &mut Self, stream, work| {
            board.engine.submit(stream, Work::WaitOn(work)).map(drop).map_err(|_| CuResult::INVALID_HANDLE)
        };
        if let Some(previous) = previous.filter(|work| !self.engine.is_done(*work)) {
            wait(self, main, previous)?;
        }
        let start = self.submit(main, Work::Marker, mark(Effect::Nothing))?;
        let mut opened = vec![false; lane_count];
        let mut last_on: Vec<Option<WorkId>> = vec![None; lane_count];
        let mut work_of = std::collections::BTreeMap::new();
        for node in &nodes {
            let lane = lane_of[&node.index];
            let stream = lanes[lane];
            if !std::mem::replace(&mut opened[lane], true) {
                wait(self, stream, start)?;
            }
            for before in &node.after {
                if lane_of.get(before) != Some(&lane)
                    && let Some(work) = work_of.get(before).copied()
                {
                    wait(self, stream, work)?;
                }
            }
            let work = match &node.work {
                NodeWork::Empty => self.submit(stream, Work::Marker, mark(Effect::Nothing))?,
                NodeWork::Kernel { head, qmd, params } => {
                    if changed.contains(&node.index) {
                        self.submit(stream, Work::Delay { ns: CHANGED_NS }, mark(Effect::Nothing))?;
                    }
                    self.launch(id, slot, stream, None, head, qmd, params)?
                }
                NodeWork::Command(command) => self.submit_command(id, slot, stream, None, command)?,
            };
            work_of.insert(node.index, work);
            last_on[lane] = Some(work);
        }
        for last in last_on.into_iter().flatten() {
            wait(self, main, last)?;
        }
        let end = Job { seq: Some(seq), ..mark(Effect::Nothing) };
        let end = self.submit(main, Work::Marker, end)?;
        let client = self.clients.get_mut(&id).ok_or(CuResult::INVALID_HANDLE)?;
        if let Some(graph) = client.graphs.get_mut(&number) {
            graph.lanes = lanes;
            graph.last = Some(end);
        }
        Ok(())
    }
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
