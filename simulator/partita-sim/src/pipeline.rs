//! The task management unit and the work distributor's tables.
//!
//! The unit has a list of kernels per priority, in order of arrival. The distributor holds as many
//! kernels as it has task slots; those with unplaced blocks are in a second table, sorted by
//! priority and arrival. A kernel keeps its slot until its last block has ended. If all slots are
//! taken and a more urgent kernel waits, the least urgent one with unplaced blocks loses its slot
//! and returns to the head of its list; its running blocks continue. (J. Bakita and J. H. Anderson,
//! «Hardware Compute Partitioning on NVIDIA GPUs», section IV.)

use std::collections::{BTreeMap, VecDeque};

/// A kernel with unplaced blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    /// CUDA's numbering: lower is more urgent.
    pub(crate) priority: i32,
    /// Order of arrival at the task management unit.
    pub(crate) arrival: u64,
    /// The kernel.
    pub(crate) task: u64,
    /// Not yet examined since it got its slot.
    pub(crate) fresh: bool,
}

/// Task management unit and task tables of one group.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    lists: BTreeMap<i32, VecDeque<Ready>>,
    /// Kernels with a slot and unplaced blocks, most urgent and oldest first.
    pub(crate) ready: Vec<Ready>,
    slots_used: u32,
    slots: u32,
    arrivals: u64,
}

impl Pipeline {
    pub(crate) fn new(slots: u32) -> Self {
        Self { lists: BTreeMap::new(), ready: Vec::new(), slots_used: 0, slots: slots.max(1), arrivals: 0 }
    }

    /// A kernel arrives.
    pub(crate) fn arrive(&mut self, task: u64, priority: i32) {
        let arrival = self.arrivals;
        self.arrivals += 1;
        let entry = Ready { priority, arrival, task, fresh: true };
        self.lists.entry(priority).or_default().push_back(entry);
    }

    /// Whether kernels wait for a slot.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.lists.is_empty()
    }

    /// Whether any kernel waits for a slot or has blocks to place.
    #[inline]
    pub(crate) fn has_undispatched(&self) -> bool {
        !self.ready.is_empty() || self.has_waiting()
    }

    /// Gives slots to waiting kernels; returns how many kernels lost theirs to a more urgent one.
    pub(crate) fn refill(&mut self) -> u64 {
        let mut evicted = 0;
        while let Some((&priority, _)) = self.lists.first_key_value() {
            if self.slots_used == self.slots {
                // The table is sorted, so its last entry is the least urgent one.
                match self.ready.last() {
                    Some(last) if priority < last.priority => {}
                    _ => break,
                }
                let out = self.ready.pop().expect("looked at just now");
                self.lists.entry(out.priority).or_default().push_front(Ready { fresh: true, ..out });
                self.slots_used -= 1;
                evicted += 1;
            }
            let entry = self.take_first(priority);
            self.slots_used += 1;
            let key = (entry.priority, entry.arrival);
            let at = self.ready.partition_point(|other| (other.priority, other.arrival) < key);
            self.ready.insert(at, entry);
        }
        evicted
    }

    fn take_first(&mut self, priority: i32) -> Ready {
        let list = self.lists.get_mut(&priority).expect("a list that is kept is not empty");
        let entry = list.pop_front().expect("a list that is kept is not empty");
        if list.is_empty() {
            self.lists.remove(&priority);
        }
        entry
    }

    /// A kernel with a slot and without unplaced blocks has ended.
    pub(crate) fn release_slot(&mut self) {
        debug_assert!(self.slots_used > 0);
        self.slots_used -= 1;
    }

    /// Removes a kernel with unplaced blocks, in any list.
    pub(crate) fn remove(&mut self, task: u64, priority: i32) {
        if let Some(at) = self.ready.iter().position(|entry| entry.task == task) {
            self.ready.remove(at);
            self.slots_used -= 1;
        } else if let Some(list) = self.lists.get_mut(&priority) {
            list.retain(|entry| entry.task != task);
            if list.is_empty() {
                self.lists.remove(&priority);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(pipeline: &Pipeline) -> Vec<u64> {
        pipeline.ready.iter().map(|entry| entry.task).collect()
    }

    #[test]
    fn slots_go_by_priority_then_arrival() {
        let mut pipeline = Pipeline::new(3);
        for (task, priority) in [(1, 0), (2, -5), (3, 0), (4, -5)] {
            pipeline.arrive(task, priority);
        }
        assert_eq!(pipeline.refill(), 0);
        assert_eq!(tasks(&pipeline), [2, 4, 1]);
        assert!(pipeline.has_waiting());
    }

    #[test]
    fn the_urgent_evict_the_least_urgent_youngest_which_return_to_the_head() {
        let mut pipeline = Pipeline::new(2);
        for task in [1, 2, 3] {
            pipeline.arrive(task, 0);
        }
        pipeline.refill();
        assert_eq!(tasks(&pipeline), [1, 2]);
        pipeline.arrive(10, -1);
        assert_eq!(pipeline.refill(), 1);
        assert_eq!(tasks(&pipeline), [10, 1]);
        pipeline.arrive(11, -1);
        assert_eq!(pipeline.refill(), 1);
        assert_eq!(tasks(&pipeline), [10, 11]);
        // Equals do not evict.
        pipeline.arrive(12, -1);
        assert_eq!(pipeline.refill(), 0);
        // Evicted kernels come back in their old order, ahead of those that never had a slot.
        for task in [10, 11] {
            pipeline.ready.retain(|entry| entry.task != task);
            pipeline.release_slot();
        }
        pipeline.refill();
        assert_eq!(tasks(&pipeline), [12, 1]);
        pipeline.remove(12, -1);
        pipeline.refill();
        assert_eq!(tasks(&pipeline), [1, 2]);
        pipeline.remove(3, 0);
        assert!(!pipeline.has_waiting());
    }

    #[test]
    fn a_kernel_that_has_placed_all_its_blocks_keeps_its_slot() {
        let mut pipeline = Pipeline::new(1);
        pipeline.arrive(1, 0);
        pipeline.refill();
        pipeline.ready.clear();
        pipeline.arrive(2, -5);
        assert_eq!(pipeline.refill(), 0);
        assert!(tasks(&pipeline).is_empty());
        pipeline.release_slot();
        pipeline.refill();
        assert_eq!(tasks(&pipeline), [2]);
    }
}
