//! The distributor's round: the assignment of kernels' blocks to SMs.
//!
//! Greedy, like the hardware: kernels with unplaced blocks are processed by priority and arrival,
//! and each takes all the room that it can use. The first kernel that may use an SM reserves it
//! while it has blocks left, even if its next block does not fit there yet; a later kernel gets
//! only SMs that those ahead may not use. (Measured on an H200, 2026-11-21: urgent kernels that
//! wait for shared memory delay a less urgent one, whose blocks would fit, with most task slots
//! free.) (That applies to a launch that can never be dispatched, too: it reserves the SMs that it
//! may use. This is an assumption; the measurement shows only that it hangs.) An SM's split between
//! cache and shared memory is not modelled: every block can use all of the shared memory. On an
//! H200 a kernel that needs another split than the SM has waits until that SM is idle. Among its
//! SMs a kernel's blocks go one by one to the one with the fewest resident threads, ties to the
//! first one breadth-first over the TPCs.
//!
//! The hardware places blocks one after another. The model places at once all blocks that fit and
//! then pauses the distributor for as long as placing them one by one takes, which keeps its rate
//! and lets blocks that start together be tracked as one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Cohort, Context, Group, Notice, Task};
use crate::lanes::Demand;
use crate::layout::SmSet;
use crate::{Stats, Time};

/// Buffers reused between rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    rooms: Vec<Room>,
    picks: Vec<Pick>,
    gpcs: Vec<GpcRoom>,
    heap: BinaryHeap<Reverse<(u32, u32)>>,
}

/// Room for a kernel's blocks on one SM.
#[derive(Clone, Copy, Debug)]
struct Room {
    sm: u16,
    /// Blocks that fit.
    blocks: u32,
    /// Threads resident.
    load: u32,
}

/// Room for a kernel's clusters in one GPC: a part of the rooms.
#[derive(Clone, Copy, Debug)]
struct GpcRoom {
    first: usize,
    end: usize,
    /// Blocks that fit.
    blocks: u64,
}

/// Blocks to place on one SM.
#[derive(Clone, Copy, Debug)]
struct Pick {
    sm: u16,
    blocks: u32,
}

impl Group {
    /// Places all blocks that fit now.
    pub(crate) fn round(&mut self, context: &Context<'_>, notices: &mut Vec<Notice>, stats: &mut Stats) {
        self.wants_round = false;
        stats.rounds += 1;
        // An evicted kernel's SMs need no second look: only the last kernel in the table is
        // evicted, so no later one was excluded by it.
        stats.evictions += self.pipeline.refill();

        // After a round no kernel finds room on the SMs that it may use. So the next round examines
        // only SMs on which blocks ended, SMs that a kernel ahead no longer reserves, and new
        // kernels.
        let mut changed = std::mem::take(&mut self.dirty);
        let mut kept = SmSet::default();
        let mut placed = 0;
        let mut fresh_left = self.pipeline.ready.iter().filter(|entry| entry.fresh).count();
        let mut at = 0;
        while at < self.pipeline.ready.len() {
            if fresh_left == 0 && changed.minus(&kept).is_empty() {
                break;
            }
            let entry = &mut self.pipeline.ready[at];
            let (handle, fresh) = (entry.task, std::mem::take(&mut entry.fresh));
            fresh_left -= usize::from(fresh);
            let task = self.tasks.get(handle).expect("a kernel in the pipeline is known");
            let allowed = task.allowed;
            let usable = allowed.minus(&kept);
            let look_at = if fresh { usable } else { usable.and(&changed) };
            if !look_at.is_empty() {
                placed += self.place(handle, &usable, &look_at, context, notices);
            }
            if self.tasks.get(handle).is_some_and(|task| task.remaining == 0) {
                self.pipeline.ready.remove(at);
                changed.add(&allowed);
            } else {
                kept.add(&allowed);
                at += 1;
            }
        }
        stats.blocks_started += placed;
        self.distributor_free =
            self.clock + (placed * context.spec.scheduler.block_interval_ps).div_ceil(1_000) as Time;
    }

    /// Places as many blocks of a kernel as fit; returns how many.
    fn place(
        &mut self,
        handle: u64,
        usable: &SmSet,
        look_at: &SmSet,
        context: &Context<'_>,
        notices: &mut Vec<Notice>,
    ) -> u64 {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.picks.clear();
        let task = self.tasks.get(handle).expect("a kernel in the pipeline is known");
        if task.never.is_some() {
            // Detected at its arrival.
        } else if task.cluster_blocks > 1 {
            self.pick_clusters(handle, usable, look_at, context, &mut scratch);
        } else {
            let set = if task.cooperative { usable } else { look_at };
            self.pick_blocks(handle, set, context, &mut scratch);
        }
        let placed: u64 = scratch.picks.iter().map(|pick| u64::from(pick.blocks)).sum();
        if placed > 0 {
            let task = self.tasks.get(handle).expect("a kernel in the pipeline is known");
            if task.remaining == task.grid_blocks {
                notices.push(Notice::Started { work: task.work });
            }
            for pick in &scratch.picks {
                self.put(handle, *pick, context, notices);
            }
        }
        self.scratch = scratch;
        placed
    }

    /// Adds the free room for a kernel's blocks on the SMs of `set`.
    fn find_rooms(&self, task: &Task, set: &SmSet, context: &Context<'_>, rooms: &mut Vec<Room>) {
        for sm in set.iter() {
            let free = &self.sms[sm];
            let blocks = free.fits(&task.footprint);
            if blocks > 0 {
                rooms.push(Room { sm: sm as u16, blocks, load: free.load(&context.spec.sm) });
            }
        }
    }

    /// Chooses SMs for blocks that may run anywhere in `set`.
    fn pick_blocks(&self, handle: u64, set: &SmSet, context: &Context<'_>, scratch: &mut Scratch) {
        let task = self.tasks.get(handle).expect("a kernel in the pipeline is known");
        scratch.rooms.clear();
        self.find_rooms(task, set, context, &mut scratch.rooms);
        let total: u64 = scratch.rooms.iter().map(|room| u64::from(room.blocks)).sum();
        if task.cooperative && total < task.remaining {
            return;
        }
        let wanted = task.remaining.min(total);
        if let [room] = scratch.rooms[..] {
            scratch.picks.push(Pick { sm: room.sm, blocks: wanted as u32 });
        } else if wanted == total && !task.is_split() {
            // All room is used, in any order.
            scratch.picks.extend(scratch.rooms.iter().map(|room| Pick { sm: room.sm, blocks: room.blocks }));
        } else {
            least_loaded_first(wanted, task.footprint.threads, task.is_split(), scratch);
        }
    }

    /// Chooses SMs for whole clusters: the blocks of one go to distinct SMs of one GPC.
    ///
    /// It chooses the GPC with the most room, and in it the least loaded SMs.
    fn pick_clusters(
        &self,
        handle: u64,
        usable: &SmSet,
        look_at: &SmSet,
        context: &Context<'_>,
        scratch: &mut Scratch,
    ) {
        let task = self.tasks.get(handle).expect("a kernel in the pipeline is known");
        let size = task.cluster_blocks as usize;
        let mut clusters_left = task.remaining / u64::from(task.cluster_blocks);
        let Scratch { rooms, picks, gpcs, .. } = scratch;
        rooms.clear();
        gpcs.clear();
        for gpc in &context.layout.gpcs {
            if !task.cooperative && gpc.and(look_at).is_empty() {
                continue;
            }
            let first = rooms.len();
            self.find_rooms(task, &gpc.and(usable), context, rooms);
            if rooms.len() - first < size {
                rooms.truncate(first);
                continue;
            }
            let blocks = rooms[first..].iter().map(|room| u64::from(room.blocks)).sum();
            gpcs.push(GpcRoom { first, end: rooms.len(), blocks });
        }
        while clusters_left > 0 {
            // `max_by_key` returns the last of equals; reversed, that is the first GPC.
            let Some(gpc) =
                gpcs.iter_mut().rev().filter(|gpc| gpc.end - gpc.first >= size).max_by_key(|gpc| gpc.blocks)
            else {
                break;
            };
            let of_gpc = &mut rooms[gpc.first..gpc.end];
            if of_gpc.len() > size {
                of_gpc.select_nth_unstable_by_key(size - 1, |room| (room.load, room.sm));
            }
            of_gpc[..size].sort_unstable_by_key(|room| (room.load, room.sm));
            for room in &mut of_gpc[..size] {
                picks.push(Pick { sm: room.sm, blocks: 1 });
                room.blocks -= 1;
                room.load += task.footprint.threads;
            }
            gpc.blocks -= size as u64;
            // Those without room move to the end, outside the range.
            for at in (0..size).rev() {
                if rooms[gpc.first + at].blocks == 0 {
                    gpc.end -= 1;
                    rooms.swap(gpc.first + at, gpc.end);
                }
            }
            clusters_left -= 1;
        }
        if task.cooperative && clusters_left > 0 {
            scratch.picks.clear();
        }
        if !task.is_split() {
            merge_by_sm(&mut scratch.picks);
        }
    }

    /// Puts blocks on an SM.
    #[inline]
    fn put(&mut self, handle: u64, pick: Pick, context: &Context<'_>, notices: &mut Vec<Notice>) {
        let task = self.tasks.get_mut(handle).expect("a kernel in the pipeline is known");
        let first = task.grid_blocks - task.remaining;
        let count = u64::from(pick.blocks);
        task.remaining -= count;
        task.resident += count;
        self.sms[usize::from(pick.sm)].take(&task.footprint, pick.blocks);
        let gpc = context.layout.gpc_of(usize::from(pick.sm));
        if task.touches_memory {
            self.memory.ask(gpc, task.demand.times(count), Demand::default());
        }
        if task.sm_permille > 0 {
            self.contended.ask(usize::from(pick.sm), task.sm_permille * count, 0, self.clock);
        }
        self.resident += count;
        if task.records.is_some() {
            self.recorded += count;
        }
        let delay = context.spec.scheduler.block_start_ns;
        let split = task.is_split();
        let (cohorts, per_cohort) = if split { (pick.blocks, 1) } else { (1, pick.blocks) };
        for block in first..first + u64::from(cohorts) {
            let length = if task.jitter_permille == 0 {
                task.block_ns
            } else {
                jittered(task.block_ns, task.jitter_permille, context.seed, task.work, block)
            };
            let cohort = Cohort {
                task: handle,
                block,
                start_ns: context.now + delay,
                count: per_cohort,
                sm: pick.sm,
                live: true,
            };
            let index = match self.cohorts_free.pop() {
                Some(index) => {
                    self.cohorts[index as usize] = cohort;
                    index
                }
                None => {
                    self.cohorts.push(cohort);
                    (self.cohorts.len() - 1) as u32
                }
            };
            let length = length.saturating_add(delay);
            if let Some(open) = &mut task.open {
                open.insert(block, (index, self.clock + delay));
                let sm = context.layout.smid(usize::from(pick.sm));
                notices.push(Notice::Block { work: task.work, block, sm, start_ns: cohort.start_ns });
            } else if task.touches_memory {
                self.memory.push(gpc, task.demand, length, index);
            } else if task.sm_permille > 0 {
                self.contended.push(usize::from(pick.sm), length, index, self.clock);
            } else {
                self.by_time.push(Reverse((self.clock.saturating_add(length), index)));
            }
        }
    }
}

/// Distributes `wanted` blocks one by one, each to the SM with the lowest load that has room, ties
/// by position.
fn least_loaded_first(wanted: u64, threads: u32, keep_order: bool, scratch: &mut Scratch) {
    let Scratch { rooms, picks, heap, .. } = scratch;
    heap.clear();
    heap.extend(rooms.iter().enumerate().map(|(index, room)| Reverse((room.load, index as u32))));
    let base = picks.len();
    if !keep_order {
        picks.extend(rooms.iter().map(|room| Pick { sm: room.sm, blocks: 0 }));
    }
    for _ in 0..wanted {
        let Some(Reverse((load, index))) = heap.pop() else { break };
        let room = &mut rooms[index as usize];
        if keep_order {
            picks.push(Pick { sm: room.sm, blocks: 1 });
        } else {
            picks[base + index as usize].blocks += 1;
        }
        room.blocks -= 1;
        if room.blocks > 0 {
            heap.push(Reverse((load + threads, index)));
        }
    }
    picks.retain(|pick| pick.blocks > 0);
}

/// Joins the blocks for each SM.
fn merge_by_sm(picks: &mut Vec<Pick>) {
    picks.sort_by_key(|pick| pick.sm);
    picks.dedup_by(|next, kept| {
        let same = next.sm == kept.sm;
        if same {
            kept.blocks += next.blocks;
        }
        same
    });
}

/// The length of one block of a kernel with jitter: uniform within the given thousandths.
fn jittered(ns: Time, permille: u16, seed: u64, work: u64, block: u64) -> Time {
    // splitmix64's finaliser over the three numbers: a block has the same length whenever it is
    // placed.
    let mut x = seed ^ work.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ block.wrapping_mul(0xd1b5_4a32_d192_ed03);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    // A block of a hundred years has no jitter; the sums below stay in range.
    let ns = ns.min(Time::MAX / 4);
    let half = u128::from(ns) * u128::from(permille) / 1_000;
    let offset = (u128::from(x) * (2 * half + 1)) >> 64;
    (u128::from(ns) - half + offset) as Time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_spreads_evenly_within_its_bounds() {
        let lengths: Vec<Time> = (0..10_000).map(|block| jittered(1_000, 200, 3, 9, block)).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&800), Some(&1_200)));
        let mean = lengths.iter().sum::<Time>() as f64 / 10_000.0;
        assert!((mean - 1_000.0).abs() < 5.0, "{mean}");
        assert_eq!(jittered(1_000, 200, 3, 9, 7), lengths[7], "a block's length is its own");
        assert_ne!(jittered(1_000, 200, 4, 9, 7), lengths[7], "and the seed's");
        assert!((0..100).all(|block| jittered(u64::MAX, 999, 1, 1, block) > 0));
    }
}
