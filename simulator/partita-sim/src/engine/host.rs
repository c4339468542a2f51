//! The host interface: streams, hardware queues, and works that wait, start and end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use super::{Engine, SubmitError, UnknownHandle};
use crate::bandwidth;
use crate::group::Task;
use crate::lanes::Demand;
use crate::sm::Footprint;
use crate::work::{KernelWork, StreamId, Work, WorkId};
use crate::{EventKind, Time};

#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) group: u64,
    pub(crate) queue: u64,
    pub(crate) priority: i32,
    /// Whether its first work has left the queue or blocks it.
    pub(crate) busy: bool,
    /// Works that have not ended, oldest first.
    pub(crate) works: VecDeque<u64>,
    /// Accepts no more works and is removed with the last one.
    pub(crate) closing: bool,
}

/// A hardware queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostQueue {
    pub(crate) group: u64,
    /// Works that have not left it, oldest first.
    pub(crate) entries: VecDeque<u64>,
    pub(crate) streams: Vec<u64>,
    /// Made with its one stream, and removed with it.
    pub(crate) private: bool,
}

/// A work that has not ended.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) stream: u64,
    pub(crate) submitted: Time,
    pub(crate) work: Work,
    pub(crate) place: Place,
    /// Works that wait for it.
    pub(crate) waiters: Vec<u64>,
}

/// The progress of a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In its hardware queue.
    Queued,
    /// At the head of its hardware queue, started, blocking it.
    Holding,
    /// A kernel between the host interface and the task management unit.
    Travelling,
    /// A kernel at its group.
    AtDevice {
        task: u64,
    },
    AtCopyEngine {
        engine: usize,
    },
    /// Ends by a timer.
    Timed,
}

impl Engine {
    pub(crate) fn submit_work(&mut self, stream: StreamId, work: Work) -> Result<WorkId, SubmitError> {
        let target =
            self.streams.get_mut(stream.0).filter(|s| !s.closing).ok_or(SubmitError::UnknownStream)?;
        if let Work::Kernel(kernel) = &work {
            check_shape(kernel, self.spec.sm.threads_per_block_max)?;
        }
        let pending = Pending {
            stream: stream.0,
            submitted: self.now,
            work,
            place: Place::Queued,
            waiters: Vec::new(),
        };
        let handle = self.works.insert(pending);
        target.works.push_back(handle);
        let queue = target.queue;
        self.queues.get_mut(queue).expect("a stream's queue is there").entries.push_back(handle);
        self.stats.works_submitted += 1;
        self.to_pump.push_back(queue);
        self.pump();
        Ok(WorkId(handle))
    }

    /// Lets works leave their hardware queues if they can.
    pub(crate) fn pump(&mut self) {
        while let Some(queue) = self.to_pump.pop_front() {
            while self.issue_head(queue) {}
        }
    }

    /// Issues the first work of a queue if its stream is ready for it.
    fn issue_head(&mut self, queue: u64) -> bool {
        let Some(&head) = self.queues.get(queue).and_then(|queue| queue.entries.front()) else {
            return false;
        };
        let work = self.works.get_mut(head).expect("a queued work has not ended");
        let stream = self.streams.get_mut(work.stream).expect("a pending work's stream is there");
        if stream.busy {
            return false;
        }
        stream.busy = true;
        match work.work {
            Work::Kernel(_) => {
                work.place = Place::Travelling;
                let arrival = work.submitted + self.spec.scheduler.launch_ns;
                let arrival = if work.submitted == self.now {
                    arrival
                } else {
                    arrival.max(self.now + self.spec.scheduler.kernel_gap_ns)
                };
                let group = stream.group;
                self.leave(queue);
                self.groups.get_mut(group).expect("a stream's group is there").group.arriving += 1;
                self.set_timer(arrival, head);
            }
            Work::Copy(copy) => {
                self.leave(queue);
                let engine = self.copies.submit(head, copy);
                self.works.get_mut(head).expect("looked at just now").place = Place::AtCopyEngine { engine };
            }
            Work::Delay { ns } => {
                work.place = Place::Timed;
                let due = self.now.saturating_add(ns);
                self.leave(queue);
                self.started(head);
                self.set_timer(due, head);
            }
            Work::External => {
                work.place = Place::Holding;
                self.started(head);
            }
            Work::WaitOn(target) => match self.works.get_mut(target.0) {
                Some(awaited) if target.0 != head => {
                    awaited.waiters.push(head);
                    self.works.get_mut(head).expect("looked at just now").place = Place::Holding;
                }
                _ => {
                    self.leave(queue);
                    self.finish(head);
                }
            },
            Work::Marker => {
                self.leave(queue);
                self.finish(head);
            }
        }
        true
    }

    fn leave(&mut self, queue: u64) {
        self.queues.get_mut(queue).expect("looked at just now").entries.pop_front();
    }

    fn set_timer(&mut self, due: Time, work: u64) {
        self.timer_count += 1;
        self.timers.push(Reverse((due, self.timer_count, work)));
    }

    pub(crate) fn started(&mut self, work: u64) {
        let time = self.now;
        self.emit(time, EventKind::WorkStarted { work: WorkId(work) });
    }

    /// A timer expired. The work may have been killed meanwhile.
    pub(crate) fn fire(&mut self, handle: u64) {
        let Some(work) = self.works.get(handle) else { return };
        match work.place {
            Place::Travelling => self.arrive(handle),
            Place::Timed => self.finish(handle),
            _ => {}
        }
    }

    /// A kernel reaches its group's task management unit.
    fn arrive(&mut self, handle: u64) {
        let work = self.works.get(handle).expect("looked at just now");
        let Work::Kernel(kernel) = &work.work else { return };
        let stream = self.streams.get(work.stream).expect("a pending work's stream is there");
        let enabled = kernel.enabled & self.spec.topology.all();
        let records =
            kernel.record_blocks.then(|| Vec::with_capacity(kernel.grid_blocks.min(1 << 16) as usize));
        let task = Task {
            work: handle,
            priority: stream.priority,
            footprint: Footprint::of(kernel, &self.spec.sm),
            allowed: self.layout.sms_of(&enabled),
            remaining: kernel.grid_blocks,
            resident: 0,
            grid_blocks: kernel.grid_blocks,
            cluster_blocks: kernel.cluster_blocks,
            cooperative: kernel.cooperative,
            block_ns: kernel.block_ns,
            jitter_permille: kernel.jitter_permille,
            sm_permille: if kernel.open { 0 } else { kernel.sm_permille.into() },
            touches_memory: kernel.bytes_per_block + kernel.l2_bytes_per_block > 0 && !kernel.open,
            demand: Demand {
                dram: bandwidth::demand(kernel.bytes_per_block, kernel.block_ns),
                l2: bandwidth::demand(kernel.l2_bytes_per_block, kernel.block_ns),
            },
            records,
            open: kernel.open.then(BTreeMap::new),
            never: kernel.check(&self.spec).err(),
        };
        let group = &mut self.groups.get_mut(stream.group).expect("a stream's group is there").group;
        group.arriving -= 1;
        let task = group.arrive(task);
        self.works.get_mut(handle).expect("looked at just now").place = Place::AtDevice { task };
    }

    /// Ends a work, and all waits for it.
    pub(crate) fn finish(&mut self, handle: u64) {
        let mut ending = vec![handle];
        while let Some(handle) = ending.pop() {
            let Some(work) = self.works.remove(handle) else { continue };
            self.stats.works_done += 1;
            let time = self.now;
            self.emit(time, EventKind::WorkDone { work: WorkId(handle) });
            self.release_stream(work.stream, handle);
            self.release_waiters(&work.waiters, &mut ending);
        }
    }

    /// The first work of a stream has ended.
    fn release_stream(&mut self, handle: u64, ended: u64) {
        let stream = self.streams.get_mut(handle).expect("a pending work's stream is there");
        let first = stream.works.pop_front();
        debug_assert_eq!(first, Some(ended), "a stream's works end in order");
        stream.busy = false;
        self.to_pump.push_back(stream.queue);
        if stream.closing && stream.works.is_empty() {
            self.forget_stream(handle);
        }
    }

    /// A wait for an ended work leaves its queue and ends, too.
    fn release_waiters(&mut self, waiters: &[u64], ending: &mut Vec<u64>) {
        // The stack is read from its end, so the first wait ends first.
        for &waiter in waiters.iter().rev() {
            if let Some(wait) = self.works.get(waiter) {
                let queue = self.streams.get(wait.stream).expect("a pending work's stream is there").queue;
                self.leave(queue);
                ending.push(waiter);
            }
        }
    }

    pub(crate) fn complete_external(&mut self, work: WorkId) -> Result<(), UnknownHandle> {
        let pending = self.works.get(work.0).ok_or(UnknownHandle)?;
        if !matches!(pending.work, Work::External) || pending.place != Place::Holding {
            return Err(UnknownHandle);
        }
        let queue = self.streams.get(pending.stream).expect("a pending work's stream is there").queue;
        self.leave(queue);
        self.finish(work.0);
        self.pump();
        Ok(())
    }

    pub(crate) fn end_open_block(
        &mut self,
        work: WorkId,
        block: u64,
        length: Time,
    ) -> Result<(), UnknownHandle> {
        let pending = self.works.get(work.0).ok_or(UnknownHandle)?;
        let Place::AtDevice { task } = pending.place else { return Err(UnknownHandle) };
        let stream = self.streams.get(pending.stream).ok_or(UnknownHandle)?;
        let entry = self.groups.get_mut(stream.group).ok_or(UnknownHandle)?;
        if entry.group.end_open(task, block, length) { Ok(()) } else { Err(UnknownHandle) }
    }

    /// Discards a stream and its works.
    pub(crate) fn discard_stream(&mut self, handle: u64) {
        let Some(stream) = self.streams.get_mut(handle) else { return };
        let works = std::mem::take(&mut stream.works);
        let (group, queue) = (stream.group, stream.queue);
        self.queues
            .get_mut(queue)
            .expect("a stream's queue is there")
            .entries
            .retain(|work| !works.contains(work));
        self.to_pump.push_back(queue);
        let mut ending = Vec::new();
        for &handle in &works {
            let Some(work) = self.works.remove(handle) else { continue };
            let state = &mut self.groups.get_mut(group).expect("a stream's group is there").group;
            match work.place {
                Place::Travelling => state.arriving -= 1,
                Place::AtDevice { task } => state.kill(task, &self.layout),
                Place::AtCopyEngine { engine } => self.copies.kill(handle, engine),
                Place::Queued | Place::Holding | Place::Timed => {}
            }
            let time = self.now;
            self.emit(time, EventKind::WorkKilled { work: WorkId(handle) });
            self.release_waiters(&work.waiters, &mut ending);
        }
        self.forget_stream(handle);
        for waiter in ending {
            self.finish(waiter);
        }
    }

    /// Removes a stream without works.
    pub(crate) fn forget_stream(&mut self, handle: u64) {
        let Some(stream) = self.streams.remove(handle) else { return };
        if let Some(group) = self.groups.get_mut(stream.group) {
            group.streams.retain(|&other| other != handle);
        }
        if let Some(queue) = self.queues.get_mut(stream.queue) {
            queue.streams.retain(|&other| other != handle);
            if queue.private {
                self.queues.remove(stream.queue);
            }
        }
    }
}

/// Refuses launches that every driver refuses.
fn check_shape(kernel: &KernelWork, threads_max: u32) -> Result<(), SubmitError> {
    let KernelWork { grid_blocks, threads_per_block, cluster_blocks, .. } = *kernel;
    if grid_blocks == 0 || threads_per_block == 0 {
        return Err(SubmitError::EmptyLaunch);
    }
    if threads_per_block > threads_max {
        return Err(SubmitError::TooManyThreads { threads_per_block, max: threads_max });
    }
    if cluster_blocks == 0 || grid_blocks % u64::from(cluster_blocks) != 0 {
        return Err(SubmitError::BadCluster { grid_blocks, cluster_blocks });
    }
    if kernel.jitter_permille >= 1000 {
        return Err(SubmitError::BadJitter);
    }
    Ok(())
}
